#!/bin/bash
# The nodes of a rack change while verified I/O goes on: one is drained, removed and added again, one takes the place of
# another, and a volume gets more and fewer copies. No client sees an error, and no volume is ever degraded, unless it is
# to have more copies. Then the gateway is killed in the midst of a drain, which goes on.
source "$(dirname "$0")/lib.sh"
need fio jq

node() { part "node$1" node --id "$1" --listen "$(udp "$1")" --tor "$(udp 0)" --dir "$work/node$1" --size 256MiB --copy-mib-per-s 16; }
gateway() {
    part gateway gateway --dir "$work/gateway" --listen "$(udp 9)" --tor "$(udp 0)" --node "1=$(udp 1)" --node "2=$(udp 2)" \
        --node "3=$(udp 3)" --node "4=$(udp 4)" --demo 64MiB --nbd "127.0.0.1:$nbd_port" --control "127.0.0.1:$control_port" \
        --rebuild-after-s 20
}
rack() { "$SWITCHYARD" "$@" --control "$CONTROL"; }
state() { rack volume show demo --json | jq -r .state; }
# copies_on NODE: vSSDs that the node itself names.
copies_on() { rack node show "$1" --json | jq -r .status.vssds; }
replicas() { rack volume show demo --json | jq -r '[.sets[].replicas | length] | unique | join(" ")'; }
events() { rack events --json | jq -r .name; }
# await TEXT COMMAND…: waits until the command prints the text.
await() {
    local wanted=$1 i
    shift
    for (( i = 0; i < 600; i++ )); do
        [[ $("$@") == "$wanted" ]] && return 0
        sleep 0.1
    done
    rack events >&2
    fail "$* does not tell \`$wanted\` but \`$("$@")\`"
}
has_node() { rack node list --json | jq -r "any(.[]; .id == $1)"; }
rebalancing() { rack status --json | jq -r .rebalancing; }

part tor tor --listen "$(udp 0)"
for id in 1 2 3 4; do
    node "$id"
done
gateway

fio --name=verified --ioengine=nbd --uri="$URI" --rw=randrw --bs=4k --iodepth=8 --size=48M --io_size=100G \
    --rate_iops=2000 --verify=crc32c --verify_fatal=1 --verify_backlog=256 --verify_state_save=0 --output="$work/fio" &
load=$!
at_end "kill -9 $load 2>/dev/null"
sleep 2

echo "· a node with copies is not removed"
expect_code 1 rack node remove 2
expect_text "node drain 2"
echo "· a node is drained, and gets no new copies"
( until [[ -e $work/drained ]]; do
    rack volume show demo --json | jq -c '.sets[].copying // [] | .[]'
done >"$work/copying" ) &
watch=$!
at_end "kill -9 $watch 2>/dev/null"
rack node drain 2 --wait
touch "$work/drained"
wait "$watch" || fail "nobody tells how far copies are"
jq -se 'length > 0 and all(.[]; .pages_done <= .pages and .node != 2)' "$work/copying" >/dev/null ||
    fail "nobody tells how far copies are: $(head -3 "$work/copying")"
await 0 copies_on 2
rack volume create other --size 32MiB >/dev/null
[[ $(copies_on 2) == 0 ]] || fail "a node that is drained has got copies"
echo "· it is removed"
rack node remove 2
[[ $(has_node 2) == false ]] || fail "the rack has not forgotten node 2"
expect_code 1 rack node drain 2
expect_text "no node 2"
echo "· it is added again, and room is evened out"
expect_code 1 rack node add "7=$(udp 2)"
expect_text "has the number 2"
[[ $(has_node 7) == false ]] || fail "a node of another number was added"
rack node add "2=$(udp 2)"
await false rebalancing
(( $(copies_on 2) > 0 )) || fail "nothing has moved to the node that was added"
echo "· a node takes the place of another one"
node 5
rack node replace 4 "5=$(udp 5)" --wait
[[ $(has_node 4) == false ]] || fail "the rack has not forgotten node 4"
kill -TERM "${pids[node4]}"
wait "${pids[node4]}" || fail "node 4 did not stop cleanly"
(( $(events | grep -cE 'member-expelled|request-failed|writes-lost') == 0 )) || fail "a copy was lost"
[[ $(state) == ready ]] || fail "the volume is $(state)"

echo "· more copies, and fewer"
rack volume set demo --replicas 3 >/dev/null
await 3 replicas
rack volume set demo --replicas 2 >/dev/null
await 2 replicas

kill -0 "$load" 2>/dev/null || { cat "$work/fio" >&2; fail "the load ended"; }
kill -INT "$load"
wait "$load" || true
grep -q "err= 0" "$work/fio" || { cat "$work/fio" >&2; fail "a client saw an error"; }
grep -E "^ +clat .*max" "$work/fio" | sed 's/^ */· reads, then writes: /'

echo "· the gateway is killed in the midst of a drain, which goes on"
rack node drain 1 >/dev/null
kill -9 "${pids[gateway]}"
wait "${pids[gateway]}" 2>/dev/null || true
gateway
[[ $(has_node 4) == false ]] || fail "a node that was removed is back, as the gateway's command names it"
rack node drain 1 --wait
await 0 copies_on 1
rack node drain 1 --stop >/dev/null

echo "· a node that is dead is drained at once, and removed"
kill -9 "${pids[node3]}"
rack node drain 3 --wait
rack node remove 3
[[ $(has_node 3) == false && $(state) == ready ]] || fail "node 3 is not replaced"
echo "· nodes: $(rack node list --json | jq -c '[.[] | {id, copies}]')"
