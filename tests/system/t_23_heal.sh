#!/bin/bash
# A rack of processes, verified I/O without a pause: each node is killed, stood still, or stopped and started again, one
# after the other, and one is gone for ever. No client sees an error, and every set has its copies again at the end.
# With KILLS=n it measures instead how long clients wait when a node is killed: so many nodes, one after the other.
source "$(dirname "$0")/lib.sh"
need fio jq

node() { part "node$1" node --id "$1" --listen "$(udp "$1")" --tor "$(udp 0)" --dir "$work/node$1" --size 256MiB; }
state() { "$SWITCHYARD" volume show demo --json --control "$CONTROL" | jq -r .state; }
# await_state STATE: waits until the volume is so.
await_state() {
    local i
    for (( i = 0; i < 600; i++ )); do
        [[ $(state) == "$1" ]] && return 0
        sleep 0.1
    done
    "$SWITCHYARD" events --control "$CONTROL" >&2
    fail "the volume is not $1 but $(state)"
}
# await_expelled NODE: waits until no set counts on the node's copies. One that starts before that is not expelled at all.
await_expelled() {
    local i has
    for (( i = 0; i < 600; i++ )); do
        has=$("$SWITCHYARD" volume show demo --json --control "$CONTROL" |
            jq --argjson id "$1" '[.sets[].replicas[].node] | any(. == $id)')
        [[ $has == false ]] && return 0
        sleep 0.1
    done
    "$SWITCHYARD" events --control "$CONTROL" >&2
    fail "node $1 is not expelled"
}
expelled() { "$SWITCHYARD" events --json --control "$CONTROL" | grep -c member-expelled || true; }

part tor tor --listen "$(udp 0)"
for id in 1 2 3 4; do
    node "$id"
done
part gateway gateway --dir "$work/gateway" --listen "$(udp 9)" --tor "$(udp 0)" --node "1=$(udp 1)" --node "2=$(udp 2)" \
    --node "3=$(udp 3)" --node "4=$(udp 4)" --demo 64MiB --nbd "127.0.0.1:$nbd_port" --control "127.0.0.1:$control_port" \
    --rebuild-after-s 20

# measure KILLS: for each kill, six seconds of verified writes beside reads; the longest time of each, in ms.
measure() {
    local kill id common
    common=(--ioengine=nbd "--uri=$URI" --bs=4k --iodepth=4 --rate_iops=1000 --size=24M --time_based --group_reporting=0)
    fio --name=fill "${common[@]:0:3}" --rw=write --size=48M --output=/dev/null || fail "filling the volume"
    for (( kill = 0; kill <= $1; kill++ )); do
        id=$(( kill % 4 + 1 ))
        fio "${common[@]}" --runtime=8 --output-format=json --output="$work/fio.$kill" \
            --name=reads --rw=randread --name=writes --rw=randwrite --offset=24M --verify=crc32c --verify_fatal=1 --verify_backlog=256 &
        local load=$!
        at_end "kill -9 $load 2>/dev/null"
        # The first round is without a kill.
        if (( kill > 0 )); then
            sleep 2
            kill -9 "${pids[node$id]}"
            await_state degraded
        fi
        wait "$load" || { cat "$work/fio.$kill" >&2; fail "a client saw an error"; }
        jq -r --arg kill "$kill" --arg id "$id" '
            def ms: . / 10000 | round / 100;
            def of(name; way): .jobs[] | select(.jobname == name) | .[way].clat_ns;
            "kill \($kill): reads p99 \(of("reads"; "read").percentile["99.000000"] | ms) ms, longest \(of("reads"; "read").max | ms) ms; "
            + "writes p99 \(of("writes"; "write").percentile["99.000000"] | ms) ms, longest \(of("writes"; "write").max | ms) ms; "
            + "errors \([.jobs[].error] | add)"' "$work/fio.$kill"
        (( kill == 0 )) || node "$id"
        await_state ready
    done
}
if [[ -n ${KILLS-} ]]; then
    measure "$KILLS"
    exit 0
fi

fio --name=verified --ioengine=nbd --uri="$URI" --rw=randrw --bs=4k --iodepth=8 --size=48M --io_size=100G \
    --rate_iops=2000 --verify=crc32c --verify_fatal=1 --verify_backlog=256 --output="$work/fio" &
load=$!
at_end "kill -9 $load 2>/dev/null"
sleep 2

echo "· a node is killed and started again"
kill -9 "${pids[node1]}"
await_state degraded
await_expelled 1
node 1
await_state ready
echo "· a node stands still, and goes on"
kill -STOP "${pids[node2]}"
await_state degraded
await_expelled 2
kill -CONT "${pids[node2]}"
await_state ready
echo "· a node is stopped cleanly, and started again"
kill -TERM "${pids[node3]}"
wait "${pids[node3]}" || fail "node 3 did not stop cleanly"
await_state degraded
await_expelled 3
node 3
await_state ready
echo "· a node is gone for ever"
kill -9 "${pids[node4]}"
await_state degraded
await_state ready

kill -0 "$load" 2>/dev/null || { cat "$work/fio" >&2; fail "the load ended"; }
kill -INT "$load"
wait "$load" || true
grep -q "err= 0" "$work/fio" || { cat "$work/fio" >&2; fail "a client saw an error"; }
places=$("$SWITCHYARD" volume show demo --json --control "$CONTROL" | jq -r '.sets[].replicas[].node' | sort -u | tr '\n' ' ')
[[ " $places" != *" 4 "* ]] || fail "node 4 is gone and has copies: $places"
(( $(expelled) >= 4 )) || fail "nobody was expelled"
echo "· nodes of the copies: $places"
