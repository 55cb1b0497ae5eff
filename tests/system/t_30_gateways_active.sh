#!/bin/bash
# Three gateways share a rack, and each serves some of its volumes, by a registry in a directory and by one in etcd. Their
# volumes are spread evenly. Commands follow to the gateway that leads, and clients are told of it. Two vSSDs of volumes of
# different gateways exchange their nodes. One gateway is killed: the others serve its volumes within two seconds, with
# their data. It returns, and gets its share back. At last all stop, and the nodes' media are sound.
# KILLS=10 measures instead for how long a client waits when its gateway is killed (docs/performance.md).
source "$(dirname "$0")/lib.sh"
need jq nbdinfo nbdcopy python3 curl

control() { echo "http://127.0.0.1:$(( port_base + 50 + $1 ))"; }
nbd() { echo "nbd://127.0.0.1:$(( port_base + 40 + $1 ))/$2"; }
rack() { local at=$1; shift; "$SWITCHYARD" "$@" --control "$(control "$at")"; }
gateway() {
    part "gateway$1" gateway --dir "$work/$kind.gateway$1" --registry "$registry" --listen "$(udp $(( 10 + $1 )))" \
        --tor "$(udp 0)" --node "1=$(udp 1)" --node "2=$(udp 2)" --node "3=$(udp 3)" --node "4=$(udp 4)" \
        --nbd "127.0.0.1:$(( port_base + 40 + $1 ))" --control "$(control "$1" | cut -c8-)"
}
# led AT GATEWAY: the volumes that a gateway leads, as the gateway AT tells.
led() { rack "$1" volume list --json | jq -r --arg lead "$(udp $(( 10 + $2 )))" '.[] | select(.lead.gateway == $lead).name'; }
# await_counts SECONDS AT COUNT…: waits until gateways 1, 2, 3 lead so many volumes.
await_counts() {
    local until=$(( SECONDS + $1 )) at=$2 counts
    shift 2
    while :; do
        counts="$(led "$at" 1 | wc -l) $(led "$at" 2 | wc -l) $(led "$at" 3 | wc -l)"
        [[ $counts == "$*" ]] && return 0
        (( SECONDS < until )) || { rack "$at" volume list >&2; fail "the gateways lead $counts volumes, not $*"; }
        sleep 0.1
    done
}
# await_served SECONDS AT VOLUME: waits until a gateway serves a volume.
await_served() {
    local until=$(( SECONDS + $1 ))
    until nbdinfo --size "$(nbd "$2" "$3")" >/dev/null 2>&1; do
        (( SECONDS < until )) || fail "gateway $2 does not serve $3"
        sleep 0.02
    done
}
# pair FIRST SECOND: two vSSDs of these volumes that can exchange their nodes.
pair() {
    rack 1 volume list --json >"$work/volumes"
    python3 - "$work/volumes" "$1" "$2" <<'PY'
import json, sys
volumes = {it["name"]: it for it in json.load(open(sys.argv[1]))}
one, two = (volumes[name]["sets"][0] for name in sys.argv[2:])
nodes = [{it["node"] for it in part["replicas"]} for part in (one, two)]
fits = [(a["vssd"], b["vssd"]) for a in one["replicas"] for b in two["replicas"] if b["node"] not in nodes[0] and a["node"] not in nodes[1]]
print(*(fits or [("none",)])[0])
PY
}

# idle URI…: opens a connection to each, names those that the server hangs up, and never asks anything.
idle() {
    python3 -u - "$@" <<'PY'
import select, socket, struct, sys
open_clients = {}
for uri in sys.argv[1:]:
    place, name = uri.removeprefix("nbd://").split("/")
    host, port = place.split(":")
    client = socket.create_connection((host, int(port)))
    stream = client.makefile("rb")
    stream.read(18)
    client.sendall(struct.pack(">IQIIIH", 3, 0x49484156454F5054, 7, 6 + len(name), len(name), 0)[:-2] + name.encode() + b"\0\0")
    kind = 0
    while kind != 1:
        _, _, kind, length = struct.unpack(">QIII", stream.read(20))
        stream.read(length)
        assert kind < 1 << 31, (uri, kind)
    open_clients[client] = name
print("open")
while open_clients:
    for client in select.select(list(open_clients), [], [])[0]:
        if not client.recv(1):
            print(open_clients.pop(client))
PY
}

active() {
    local id name killed took waiter
    part tor tor --listen "$(udp 0)"
    for id in 1 2 3 4; do
        part "node$id" node --id "$id" --listen "$(udp "$id")" --tor "$(udp 0)" --dir "$work/$kind.node$id" --size 192MiB
    done
    gateway 1
    for id in 1 2 3 4 5 6; do
        rack 1 volume create "v$id" --size 8MiB >/dev/null
    done
    gateway 2
    gateway 3

    echo "· $kind: the volumes are spread"
    await_counts 20 1 2 2 2
    for id in 1 2 3; do
        for name in $(led 1 "$id"); do
            await_served 2 "$id" "$name"
        done
    done
    name=$(led 1 2 | head -1)
    expect_code 1 env LIBNBD_DEBUG=1 nbdinfo "$(nbd 1 "$name")"
    expect_text "connect to $(nbd 2 "$name")"
    [[ $(rack 1 volume show "$name" --json | jq -r .uri) == "$(nbd 2 "$name")" ]] || fail "volume show has another uri"
    rack 1 top --count 1 --interval 0.1 | grep "^$name " | grep -q "$(udp 12)\$" || fail "top does not name the gateway"
    curl -sf "$(control 1)/metrics" | grep -qF "switchyard_volume_lead{volume=\"$name\",gateway=\"$(udp 12)\"} 1" ||
        fail "the metrics do not name the gateway"
    # A command follows to the gateway that leads, and so does curl.
    expect_code 0 curl -s -o "$work/refusal" -w '%{http_code}' -X PATCH -H 'content-type: application/json' \
        -d '{"size":"9MiB"}' "$(control 1)/v1/volumes/$name"
    expect_text 307
    grep -qF "$(control 2)" "$work/refusal" || fail "the refusal does not name the gateway"
    curl -sfL -X PATCH -H 'content-type: application/json' -d '{"size":"10MiB"}' "$(control 1)/v1/volumes/$name" |
        jq -e '.size_bytes == 10485760' >/dev/null || fail "curl does not follow"
    [[ $(rack 1 volume resize "$name" --size 12MiB --json | jq .size_bytes) == $(( 12 << 20 )) ]] || fail "a command does not follow"
    rack 3 volume show "$name" | grep -q "$(control 2)" || fail "volume show does not name the gateway"
    rack 3 volume resize "$(led 1 3 | head -1)" --size 10MiB >/dev/null || fail "the third gateway does not lead its volumes"
    rack 2 events --json | grep -q volume-taken || fail "nothing tells that the second gateway serves a volume"

    echo "· $kind: vSSDs of volumes of two gateways exchange their nodes"
    local one two vssds=none
    for one in $(led 1 2); do
        for two in $(led 1 3); do
            [[ $vssds == none ]] && vssds=$(pair "$one" "$two")
        done
    done
    if [[ $vssds != none ]]; then
        # shellcheck disable=SC2086
        rack 2 volume exchange $vssds >/dev/null || fail "vSSDs $vssds do not exchange their nodes"
    fi
    await_counts 20 1 2 2 2

    echo "· $kind: a gateway is killed"
    local lost=()
    for name in $(led 1 2); do
        lost+=("$name")
        head -c 4M /dev/urandom >"$work/$name.data"
        nbdcopy --flush "$work/$name.data" "$(nbd 2 "$name")"
    done
    killed=$(date +%s%3N)
    kill -9 "${pids[gateway2]}"
    wait "${pids[gateway2]}" 2>/dev/null || true
    for name in "${lost[@]}"; do
        until nbdinfo --size "$(nbd 1 "$name")" >/dev/null 2>&1 || nbdinfo --size "$(nbd 3 "$name")" >/dev/null 2>&1; do
            (( $(date +%s%3N) < killed + 20000 )) || fail "nobody serves $name"
        done
    done
    took=$(( $(date +%s%3N) - killed ))
    echo "its volumes are served after $took ms"
    (( took < 2000 )) || fail "its volumes were not served for $took ms"
    await_counts 5 1 3 0 3
    for name in "${lost[@]}"; do
        for id in 1 3; do
            [[ " $(led 1 "$id" | tr '\n' ' ')" == *" $name "* ]] || continue
            nbdcopy "$(nbd "$id" "$name")" "$work/copy"
            cmp -n $(( 4 << 20 )) "$work/copy" "$work/$name.data" || fail "$name has other data"
        done
    done

    echo "· $kind: it returns, and idle clients of its volumes are hung up"
    local clients=()
    for id in 1 3; do
        for name in $(led 1 "$id"); do clients+=("$(nbd "$id" "$name")"); done
    done
    idle "${clients[@]}" >"$work/hung" 2>"$work/hung.err" &
    waiter=$!
    at_end "kill $waiter 2>/dev/null"
    await_line "$work/hung" "$waiter" || fail "idle clients do not connect: $(<"$work/hung.err")"
    gateway 2
    await_counts 20 1 2 2 2
    sleep 0.5
    [[ $(tail -n +2 "$work/hung" | sort) == "$(led 1 2 | sort)" ]] ||
        fail "the volumes $(led 1 2 | xargs) have moved, and clients of these are hung up: $(tail -n +2 "$work/hung" | xargs)"
    kill "$waiter"
    for part in gateway2 gateway1 gateway3 node1 node2 node3 node4 tor; do
        kill -TERM "${pids[$part]}"
        wait "${pids[$part]}" || fail "$part stopped with $?"
    done
    for id in 1 2 3 4; do
        "$SWITCHYARD" verify "$work/$kind.node$id" >"$work/verify" 2>&1 || { cat "$work/verify" >&2; fail "verify of node $id"; }
    done
}

# pauses KILLS: kills the gateway that serves a volume so many times, and measures for how long a client waits.
pauses() {
    local id kill lead
    part tor tor --listen "$(udp 0)"
    for id in 1 2 3 4; do
        part "node$id" node --id "$id" --listen "$(udp "$id")" --tor "$(udp 0)" --dir "$work/pauses.node$id" --size 192MiB
    done
    gateway 1
    gateway 2
    rack 1 volume create v --size 8MiB >/dev/null
    PYTHONPATH=$here python3 -u "$here/nbd_pauses.py" v "$(( $1 * 4 + 2 ))" "127.0.0.1:$(( port_base + 41 ))" \
        "127.0.0.1:$(( port_base + 42 ))" >"$work/pauses" 2>"$work/pauses.err" &
    local client=$!
    await_line "$work/pauses" "$client" || fail "the client does not connect"
    for (( kill = 0; kill < $1; kill++ )); do
        sleep 1.5
        lead=$(led 1 1 | grep -q . && echo 1 || echo 2)
        kill -9 "${pids[gateway$lead]}"
        wait "${pids[gateway$lead]}" 2>/dev/null || true
        sleep 1.8
        gateway "$lead"
    done
    wait "$client" || fail "the client: $(<"$work/pauses.err")"
    tail -1 "$work/pauses"
}

kind=directory registry=$work/registry
if [[ -n ${KILLS-} ]]; then
    pauses "$KILLS"
    exit 0
fi
active
if command -v etcd >/dev/null; then
    client="127.0.0.1:$(( port_base + 21 ))" peer="http://127.0.0.1:$(( port_base + 25 ))"
    etcd --name m1 --data-dir "$work/etcd1" --logger zap --log-level error --listen-client-urls "http://$client" \
        --advertise-client-urls "http://$client" --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" \
        --initial-cluster "m1=$peer" >"$work/etcd1.err" 2>&1 &
    at_end "kill -9 $! 2>/dev/null"
    kind=etcd registry=etcd://$client/rack1
    active
fi
