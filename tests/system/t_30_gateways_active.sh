#!/bin/bash
# Three gateways share a rack, and each serves some of its volumes, by a registry in a directory and by one in etcd. Their
# volumes are spread evenly. A gateway refuses what another one serves, and says who that is. Two vSSDs of volumes of
# different gateways exchange their nodes. One gateway is killed: the others serve its volumes within two seconds, with
# their data. It returns, and gets its share back. At last all stop, and the nodes' media are sound.
source "$(dirname "$0")/lib.sh"
need jq nbdinfo nbdcopy python3

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

active() {
    local id name killed took
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
    expect_code 1 nbdinfo "$(nbd 1 "$name")"
    expect_code 1 rack 1 volume resize "$name" --size 12MiB
    expect_text "$(control 2)"
    rack 2 volume resize "$name" --size 12MiB >/dev/null || fail "the lead of $name does not grow it"
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

    echo "· $kind: it returns"
    gateway 2
    await_counts 20 1 2 2 2
    for part in gateway2 gateway1 gateway3 node1 node2 node3 node4 tor; do
        kill -TERM "${pids[$part]}"
        wait "${pids[$part]}" || fail "$part stopped with $?"
    done
    for id in 1 2 3 4; do
        "$SWITCHYARD" verify "$work/$kind.node$id" >"$work/verify" 2>&1 || { cat "$work/verify" >&2; fail "verify of node $id"; }
    done
}

kind=directory registry=$work/registry
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
