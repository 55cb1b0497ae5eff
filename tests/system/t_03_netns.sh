#!/bin/bash
# Every part on a machine of its own: four nodes, the ToR and the gateway each in a network namespace, joined by a
# bridge whose frames are shorter than a page. Ordinary clients see the same volume; losing a part and getting it back loses nothing.
if [[ $EUID -ne 0 ]]; then
    echo "skipped: network namespaces need root"
    exit 77
fi
if [[ -z ${SWITCHYARD_IN_NAMESPACE:-} ]]; then
    unshare -n true 2>/dev/null || { echo "skipped: no network namespaces here"; exit 77; }
    SWITCHYARD_IN_NAMESPACE=1 exec unshare -n bash "$0"
fi
source "$(dirname "$0")/lib.sh"
need ip nbdinfo nbdcopy qemu-img fio jq mkfs.ext4 e2fsck debugfs python3

mark=sy$$
ip link set lo up
ip link add bridge type bridge 2>/dev/null || skip "the kernel has no bridges"
ip addr add 10.77.0.254/24 dev bridge
ip link set bridge up
# A bridge forwards after it has learned; without spanning tree that is at once.
ip link set bridge type bridge stp_state 0

# machine NAME HOST: a namespace at 10.77.0.HOST.
machine() {
    ip netns add "$mark-$1"
    at_end "ip netns delete '$mark-$1' 2>/dev/null"
    ip link add "$1" type veth peer name eth0 netns "$mark-$1"
    ip link set "$1" master bridge up
    ip -n "$mark-$1" addr add "10.77.0.$2/24" dev eth0
    ip -n "$mark-$1" link set eth0 up
    ip -n "$mark-$1" link set lo up
}

declare -A pids
# part NAME COMMAND…: starts a part in its namespace and waits until it is ready.
part() {
    local name=$1
    shift
    : >"$work/$name.json"
    ip netns exec "$mark-$name" "$SWITCHYARD" "$@" --json >"$work/$name.json" 2>>"$work/rack.err" &
    pids[$name]=$!
    at_end "kill -9 $! 2>/dev/null"
    await_line "$work/$name.json" "${pids[$name]}" || fail "$name did not become ready"
}
# end NAME SIGNAL
end() {
    kill "-$2" "${pids[$1]}"
    wait "${pids[$1]}" 2>/dev/null || [[ $2 == KILL ]] || fail "$1 stopped with $?"
}
start_node() {
    part "node$1" node --id "$1" --listen "10.77.0.1$1:8888" --tor 10.77.0.1:8888 --dir "$work/node$1" --size 384MiB \
        --control "10.77.0.1$1:9180"
}
start_tor() { part tor tor --listen 10.77.0.1:8888 --control 10.77.0.1:9180; }
start_gateway() {
    local id nodes=()
    for id in 1 2 3 4; do
        nodes+=(--node "$id=10.77.0.1$id:8888")
    done
    part gateway gateway --listen 10.77.0.2:8888 --tor 10.77.0.1:8888 "${nodes[@]}" --dir "$work/gateway" \
        --nbd 10.77.0.2:10809 --control 10.77.0.2:9180 --demo 192MiB
}

machine tor 1
machine gateway 2
for id in 1 2 3 4; do
    machine "node$id" "1$id"
done
start_tor
for id in 1 2 3 4; do
    start_node "$id"
done
start_gateway
uri=nbd://10.77.0.2:10809/demo
client_suite "$uri" 192

echo "· status of the parts"
"$SWITCHYARD" status --control 10.77.0.2:9180 --json >"$work/status.json"
[[ $(jq '[.nodes[] | select(.answers)] | length' "$work/status.json") == 4 ]] || fail "not all nodes answer"
(( $(curl -sf http://10.77.0.1:9180/metrics | sed -n 's/^switchyard_tor_forwarded_total{} //p') > 0 )) \
    || fail "the ToR forwarded nothing"
curl -sf http://10.77.0.11:9180/metrics | grep '^switchyard_read_stage_latency_seconds_count{' >/dev/null \
    || fail "a node's /metrics lacks its stages"

# fragments NAME: datagrams that the kernel cut for a part.
fragments() {
    ip netns exec "$mark-$1" awk '$1 == "Ip:" { for (i = 2; i <= NF; i++) if (place == 0 && $i == "FragCreates") at = i; place++ }
        $1 == "Ip:" && place == 2 { print $at }' /proc/net/snmp
}
"$SWITCHYARD" events --control 10.77.0.2:9180 --json | jq -e 'select(.name == "path-narrow" and .fields.mtu == 1500 and .fields.parts == 3)' \
    >/dev/null || fail "no event tells of the frames"
for name in tor gateway node1 node2 node3 node4; do
    [[ $(fragments "$name") == 0 ]] || fail "the kernel cut $(fragments "$name") datagrams of $name"
done

echo "· the ToR restarts under load, then a node is killed and comes back"
expect_code 0 "$SWITCHYARD" volume --control 10.77.0.2:9180 create log --size 32MiB
target=10.77.0.2:10809/log
python3 "$here/nbd_log.py" write "$target" "$work/state" 6 >"$work/wrote" &
writer=$!
sleep 1
end tor TERM
sleep 0.3
start_tor
sleep 1
end node2 KILL
sleep 0.3
start_node 2
wait "$writer" || fail "the writer failed"
cat "$work/wrote"
python3 "$here/nbd_log.py" check "$target" "$work/state" || fail "promises broken"

echo "· everything is killed and comes back"
python3 "$here/nbd_log.py" write "$target" "$work/state" 20 >"$work/wrote" &
writer=$!
sleep 1
for name in gateway tor node1 node2 node3 node4; do
    end "$name" KILL
done
wait "$writer" || fail "the writer failed"
start_tor
for id in 1 2 3 4; do
    start_node "$id"
done
start_gateway
python3 "$here/nbd_log.py" check "$target" "$work/state" || fail "promises broken"
for name in gateway node1 node2 node3 node4 tor; do
    end "$name" TERM
done
for id in 1 2 3 4; do
    "$SWITCHYARD" verify "$work/node$id" >"$work/out" 2>&1 || { cat "$work/out"; fail "node $id: verify found problems"; }
done
