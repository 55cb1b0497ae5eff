#!/bin/bash
# Two gateways share a registry in an etcd of three members, while verified I/O goes on. One member is killed, and the rack
# goes on. A second one stands still, then is killed: commands fail with a clear word, and I/O goes on. The members return,
# and so do commands. A gateway is killed, and the other takes over. The registry is backed up, damaged and restored. At last
# etcd takes smaller requests than the registry.
source "$(dirname "$0")/lib.sh"
need etcd etcdctl fio jq nbdinfo nbdcopy

client() { echo "127.0.0.1:$(( port_base + 20 + $1 ))"; }
peer() { echo "http://127.0.0.1:$(( port_base + 24 + $1 ))"; }
registry="etcd://$(client 1),$(client 2),$(client 3)/rack1"
# member N [FLAG…]: starts a member, or starts it again.
member() {
    local flags=("${@:2}")
    etcd --name "m$1" --data-dir "$work/etcd$1" --logger zap --log-level error \
        --listen-client-urls "http://$(client "$1")" --advertise-client-urls "http://$(client "$1")" \
        --listen-peer-urls "$(peer "$1")" --initial-advertise-peer-urls "$(peer "$1")" \
        --initial-cluster "m1=$(peer 1),m2=$(peer 2),m3=$(peer 3)" ${flags[@]+"${flags[@]}"} >>"$work/etcd$1.err" 2>&1 &
    pids[etcd$1]=$!
    at_end "kill -CONT $! 2>/dev/null; kill -9 $! 2>/dev/null"
}
kill_part() {
    kill -9 "${pids[$1]}"
    wait "${pids[$1]}" 2>/dev/null || true
}
key() { ETCDCTL_API=3 etcdctl --endpoints "$(client 1),$(client 2),$(client 3)" "$@"; }
control() { echo "http://127.0.0.1:$(( port_base + 50 + $1 ))"; }
gateway() {
    part "gateway$1" gateway --dir "$work/gateway$1" --registry "$registry" --listen "$(udp $(( 10 + $1 )))" \
        --tor "$(udp 0)" --node "1=$(udp 1)" --node "2=$(udp 2)" --node "3=$(udp 3)" --demo 32MiB \
        --nbd "127.0.0.1:$(( port_base + 40 + $1 ))" --control "$(control "$1" | cut -c8-)"
}
state() { jq -r '.volumes[0].state' "$work/gateway$1.json"; }
# looks AT NUMBER: who only looks is answered soon by gateway AT, and told whether the registry answers (1 or 0).
looks() {
    local began=$SECONDS
    rack "$1" volume list >"$work/list" 2>"$work/warning" || fail "volumes cannot be listed: $(cat "$work/warning")"
    grep -q third "$work/list" || fail "a volume is not listed: $(cat "$work/list")"
    rack "$1" node show 1 >/dev/null 2>&1 && rack "$1" volume show third >/dev/null 2>&1 || fail "a volume or node cannot be shown"
    rack "$1" top --count 1 --interval 0.1 >/dev/null || fail "top does not show the rack"
    rack "$1" status --json >"$work/status" || fail "status says nothing"
    curl -sf "$(control "$1")/metrics" >"$work/metrics" || fail "there are no metrics"
    grep -qx "switchyard_registry_up{} $2.0" "$work/metrics" || fail "metrics do not tell of the registry"
    [[ $(jq '.nodes | map(select(.answers)) | length' "$work/status") == 3 ]] || fail "status does not show the nodes"
    [[ $(curl -s "$(control "$1")/healthz") == ok && $(curl -s "$(control "$1")/readyz") == ok ]] || fail "a gateway that serves is not ready"
    (( SECONDS - began <= 10 )) || fail "six looks took $(( SECONDS - began )) s"
    if (( $2 == 0 )); then
        grep -q "nothing in the rack can be changed" "$work/warning" || fail "nothing warns that the list is of before"
        jq -e '.registry.why' "$work/status" >/dev/null || fail "status does not say why the registry is away"
    else
        [[ ! -s $work/warning ]] || fail "there is a warning: $(cat "$work/warning")"
    fi
}
rack() { local at=$1; shift; "$SWITCHYARD" "$@" --control "$(control "$at")"; }
# serving VOLUME: the gateway that serves a volume, by its clients' port.
serving() {
    local at
    for at in 1 2; do
        nbdinfo --size "nbd://127.0.0.1:$(( port_base + 40 + at ))/$1" >/dev/null 2>&1 && { echo "$at"; return 0; }
    done
    return 1
}
# eventually SECONDS COMMAND…: it succeeds in this time.
eventually() {
    local until=$(( SECONDS + $1 ))
    shift
    until "$@" >"$work/out" 2>&1; do
        (( SECONDS < until )) || { cat "$work/out" >&2; fail "in time: $*"; }
        sleep 0.2
    done
}

echo "· a gateway without its etcd says so"
expect_code 1 "$SWITCHYARD" gateway --dir "$work/gateway1" --registry "$registry" --listen "$(udp 11)" --tor "$(udp 0)" \
    --node "1=$(udp 1)" --control "$(control 1 | cut -c8-)"
expect_text "start its members"
expect_code 2 "$SWITCHYARD" gateway --registry etcd://somewhere --listen "$(udp 11)" --tor "$(udp 0)"
expect_text "HOST:PORT"

for id in 1 2 3; do
    member "$id"
done
part tor tor --listen "$(udp 0)"
for id in 1 2 3; do
    part "node$id" node --id "$id" --listen "$(udp "$id")" --tor "$(udp 0)" --dir "$work/node$id" --size 192MiB
done
gateway 1
gateway 2
[[ $(state 1) == ready ]] || fail "the first gateway does not serve"
[[ $(state 2) == elsewhere ]] || fail "the second gateway does not stand by"
rack 2 volume create other --size 8MiB >/dev/null || fail "a command does not follow to the gateway that leads"
"$SWITCHYARD" verify "$registry" | grep -q "clean (3 nodes, 2 volumes" || fail "verify does not find two volumes"

fio --name=verified --ioengine=nbd --uri="nbd://127.0.0.1:$(( port_base + 41 ))/demo" --rw=randrw --bs=4k --iodepth=4 --size=24M \
    --io_size=100G --rate_iops=500 --verify=crc32c --verify_fatal=1 --verify_backlog=256 --verify_state_save=0 \
    --output="$work/fio" &
load=$!
at_end "kill -9 $load 2>/dev/null"

echo "· one member is killed: commands go on"
kill_part etcd1
eventually 10 rack 1 volume create third --size 8MiB
looks 1 1
echo "· a second one stands still: commands fail with a clear word, I/O goes on"
kill -STOP "${pids[etcd2]}"
before=$SECONDS
expect_code 1 rack 1 volume create fourth --size 8MiB
expect_text "the registry cannot be read or written"
(( SECONDS - before <= 30 )) || fail "the refusal took $(( SECONDS - before )) s"
looks 1 0
looks 2 0
echo "· it is killed"
kill -CONT "${pids[etcd2]}"
kill_part etcd2
sleep 3
expect_code 1 rack 1 volume create fifth --size 8MiB
expect_text "the registry cannot be read or written"
looks 1 0
looks 2 0
kill -0 "$load" 2>/dev/null || { cat "$work/fio" >&2; fail "the load ended"; }
timeout 20 nbdcopy "nbd://127.0.0.1:$(( port_base + 40 + $(serving third) ))/third" null: || fail "a client cannot read while the registry is away"
(( $(rack 1 events --json | grep -c member-expelled) == 0 )) || fail "a copy was lost while the registry was away"
rack 1 events --json | grep -q registry-trouble || fail "nothing tells that the registry is away"

echo "· the members return: commands go on"
member 1
member 2
eventually 30 rack 1 volume create sixth --size 8MiB
eventually 10 rack 1 volume show sixth
eventually 10 serving sixth
looks 1 1
[[ $(rack "$(serving sixth)" volume show sixth --json | jq -r .state) == ready ]] || fail "the new volume is not ready"
kill -0 "$load" 2>/dev/null || { cat "$work/fio" >&2; fail "the load ended"; }
kill -INT "$load"
wait "$load" || true
grep -q "err= 0" "$work/fio" || { cat "$work/fio" >&2; fail "a client saw an error"; }

echo "· a gateway is killed: the other takes over"
kill_part gateway1
eventually 20 rack 2 volume create seventh --size 8MiB
nbdinfo --size "nbd://127.0.0.1:$(( port_base + 42 ))/demo" >/dev/null || fail "the second gateway does not serve"
gateway 1
[[ $(state 1) == elsewhere ]] || fail "the first gateway does not stand by"

echo "· the registry is backed up, damaged, refused and restored"
"$SWITCHYARD" registry backup --registry "$registry" "$work/backup" >/dev/null
expect_code 4 "$SWITCHYARD" registry restore --registry "$registry" "$work/backup"
expect_text "stop every gateway"
for part in gateway1 gateway2; do
    kill -TERM "${pids[$part]}"
    wait "${pids[$part]}" || fail "$part stopped with $?"
done
key get --print-value-only /rack1/registry | sed 's/"epoch":/"epocH":/' | key put /rack1/registry >/dev/null
expect_code 1 "$SWITCHYARD" verify "$registry"
expect_text "checksum does not match"
expect_code 1 "$SWITCHYARD" gateway --dir "$work/gateway1" --registry "$registry" --listen "$(udp 11)" --tor "$(udp 0)"
expect_text "checksum does not match"
"$SWITCHYARD" registry restore --registry "$registry" "$work/backup" >/dev/null
gateway 1
[[ $(state 1) == ready ]] || fail "demo is not ready after the restoration"
[[ $(rack 1 volume show seventh --json | jq -r .state) == ready ]] || fail "a volume is lost"
eventually 10 rack 1 volume create eighth --size 8MiB

echo "· records that are too large for etcd are refused with the remedy, and the rack goes on"
for id in 1 2 3; do
    kill_part "etcd$id"
    member "$id" --max-request-bytes 1024
done
eventually 20 rack 1 volume list
expect_code 1 rack 1 volume create ninth --size 8MiB
expect_text "--max-request-bytes"
nbdinfo --size "nbd://127.0.0.1:$(( port_base + 41 ))/eighth" >/dev/null || fail "a volume is not served"

for part in gateway1 node1 node2 node3 tor; do
    kill -TERM "${pids[$part]}"
    wait "${pids[$part]}" || fail "$part stopped with $?"
done
