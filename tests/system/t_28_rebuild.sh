#!/bin/bash
# The registry of a rack of three nodes is lost. It is made again from what the nodes have, and every byte of its volumes reads back.
# What is missing or would destroy something is refused with a clear word. A node does not start with another node's medium.
source "$(dirname "$0")/lib.sh"
need jq nbdcopy cmp

nodes=(--node "1=$(udp 1)" --node "2=$(udp 2)" --node "3=$(udp 3)")
control="127.0.0.1:$(( port_base + 50 ))"
export_of() { echo "nbd://127.0.0.1:$(( port_base + 40 ))/$1"; }
node() { part "node$1" node --id "$1" --listen "$(udp "$1")" --tor "$(udp 0)" --dir "$work/${2:-node$1}" --size 192MiB; }
gateway() {
    part gateway gateway --dir "$work/gateway" --registry "$work/registry" --listen "$(udp 11)" --tor "$(udp 0)" \
        "${nodes[@]}" --nbd "127.0.0.1:$(( port_base + 40 ))" --control "$control"
}
stop() {
    kill -TERM "${pids[$1]}"
    wait "${pids[$1]}" || fail "$1 stopped with $?"
}
rebuild() { "$SWITCHYARD" registry rebuild "$@"; }
# Both volumes have the bytes that were written last.
compare() {
    local name
    for name in one two; do
        nbdcopy "$(export_of "$name")" "$work/out.img"
        cmp -n $(( 16 << 20 )) "$work/$name.img" "$work/out.img" || fail "other bytes came back of volume $name"
    done
}
write_and_compare() {
    local name
    for name in one two; do
        head -c 16M /dev/urandom >"$work/$name.img"
        nbdcopy --flush "$work/$name.img" "$(export_of "$name")"
    done
    compare
}

part tor tor --listen "$(udp 0)"
for id in 1 2 3; do
    node "$id"
done

echo "· records that a gateway has for itself are restored when it runs no more, killed or not"
part alone gateway --dir "$work/alone" --listen "$(udp 11)" --tor "$(udp 0)" "${nodes[@]}" --control "$control"
"$SWITCHYARD" registry backup --registry "$work/alone" "$work/alone.backup" >/dev/null
expect_code 4 "$SWITCHYARD" registry restore --registry "$work/alone" "$work/alone.backup"
kill -9 "${pids[alone]}"
wait "${pids[alone]}" || true
"$SWITCHYARD" registry restore --registry "$work/alone" "$work/alone.backup" >/dev/null

gateway
for name in one two; do
    "$SWITCHYARD" volume create "$name" --size 16MiB --control "http://$control" >/dev/null
    head -c 16M /dev/urandom >"$work/$name.img"
    nbdcopy --flush "$work/$name.img" "$(export_of "$name")"
done
"$SWITCHYARD" volume resize two --size 24MiB --control "http://$control" >/dev/null

echo "· an existing registry is not touched"
expect_code 4 rebuild "${nodes[@]}" --registry "$work/registry"
expect_text "say --replace"
# A member that was slow may just be on its way out or back, which only the registry knows.
is_whole() { tail -n +2 "$work/registry/registry.json" | jq -e '[.. | objects | .joining, .expelling, .expelled | values] | add // [] == []' >/dev/null; }
for (( i = 0; i < 600; i++ )); do ! is_whole || break; sleep 0.1; done
is_whole || fail "the members do not come back"
stop gateway
cp "$work/registry/registry.json" "$work/before.json"
rm -r "$work/registry"

echo "· what is missing is named"
expect_code 1 rebuild --node "1=$(udp 1)" --node "2=$(udp 2)" --dry-run
expect_text "is on node 3, which is not among the nodes that were named"
expect_code 2 rebuild --node "2=$(udp 1)" --dry-run
expect_text "has the number 1"
expect_code 2 rebuild --node "1=$(udp 9)" --dry-run
expect_text "does not answer"

echo "· the records are those that were lost"
rebuild "${nodes[@]}" --dry-run >"$work/rebuilt.json"
[[ ! -e $work/registry ]] || fail "a dry run wrote something"
# Who led is not among it: nobody does until a gateway starts.
for field in .rack "(.volumes | map(del(.lead)))"; do
    jq -S "$field" "$work/rebuilt.json" >"$work/a.json"
    tail -n +2 "$work/before.json" | jq -S "$field" >"$work/b.json"
    diff "$work/a.json" "$work/b.json" >&2 || fail "$field differs"
done
rebuild "${nodes[@]}" --backup "$work/backup"
"$SWITCHYARD" registry restore --registry "$work/restored" "$work/backup"
rebuild "${nodes[@]}" --registry "$work/registry"

echo "· all data reads back, and a new volume shows none of it"
gateway
compare
"$SWITCHYARD" volume create three --size 8MiB --control "http://$control" >/dev/null
nbdcopy "$(export_of three)" "$work/out.img"
cmp -n $(( 8 << 20 )) /dev/zero "$work/out.img" || fail "a new volume is not empty"

echo "· a node does not start with another node's medium"
stop gateway
stop node1
stop node2
mkdir "$work/exchanged"
cp "$work/node2/node-2.img" "$work/exchanged/node-1.img"
expect_code 1 "$SWITCHYARD" node --id 1 --listen "$(udp 1)" --tor "$(udp 0)" --dir "$work/exchanged"
expect_text "the medium is that of node 2"

# await_state STATE: every volume is so within 20 seconds.
await_state() {
    local states
    for (( i = 0; i < 200; i++ )); do
        states=$("$SWITCHYARD" volume list --json --control "http://$control" | jq -r '.[].state' | sort -u)
        [[ $states == "$1" ]] && return 0
        sleep 0.1
    done
    fail "the volumes are $states: $("$SWITCHYARD" volume list --json --control "http://$control" | jq -r '.[].problem')"
}
echo "· a medium of another rack takes no volume away"
node 1
node 2
gateway
stop gateway
stop node1
# Another rack, whose vSSDs have the same numbers on node 1.
node 1 strange
part strange gateway --dir "$work/strange.gateway" --registry "$work/strange.registry" --listen "$(udp 11)" --tor "$(udp 0)" \
    --node "1=$(udp 1)" --replicas 1 --nbd "127.0.0.1:$(( port_base + 40 ))" --control "$control"
for name in x y z; do
    "$SWITCHYARD" volume create "$name" --size 8MiB --control "http://$control" >/dev/null
    head -c 8M /dev/urandom >"$work/$name.img"
    nbdcopy --flush "$work/$name.img" "$(export_of "$name")"
done
stop strange
gateway
"$SWITCHYARD" volume delete three --yes --control "http://$control" >/dev/null
await_state degraded
compare
"$SWITCHYARD" volume create four --size 8MiB --control "http://$control" >/dev/null || fail "no volume is made on the other nodes"
"$SWITCHYARD" volume delete four --yes --control "http://$control" >/dev/null
# It is told at once, or, if the node's later start was seen first, when the node is asked for a copy.
for (( i = 0; i < 200; i++ )); do
    "$SWITCHYARD" events --json --control "http://$control" >"$work/events"
    grep -q copy-foreign "$work/events" && break
    sleep 0.1
done
grep -q copy-foreign "$work/events" || fail "nothing tells of the medium"
echo "· nor does a switch that hears of it first"
kill -STOP "${pids[node2]}" "${pids[node3]}"
kill -9 "${pids[tor]}"
wait "${pids[tor]}" || true
part tor tor --listen "$(udp 0)"
# A node registers its vSSDs once a second.
sleep 1.2
kill -CONT "${pids[node2]}" "${pids[node3]}"
compare
write_and_compare
echo "· nor while volumes are served"
stop node1
node 1
await_state ready
stop node1
node 1 strange
compare
write_and_compare
await_state degraded
stop gateway
echo "· and is left alone"
part strange gateway --dir "$work/strange.gateway" --registry "$work/strange.registry" --listen "$(udp 11)" --tor "$(udp 0)" \
    --node "1=$(udp 1)" --replicas 1 --nbd "127.0.0.1:$(( port_base + 40 ))" --control "$control"
for name in x y z; do
    nbdcopy "$(export_of "$name")" "$work/out.img"
    cmp -n $(( 8 << 20 )) "$work/$name.img" "$work/out.img" || fail "a medium of another rack was changed"
done
echo "· the node's own medium is back: its copies join again"
stop strange
stop node1
node 1
gateway
await_state ready
compare
echo "· records that gateways share name the one that was killed: they are restored if somebody says that none runs"
kill -9 "${pids[gateway]}"
wait "${pids[gateway]}" || true
"$SWITCHYARD" registry backup --registry "$work/registry" "$work/last.backup" >/dev/null
expect_code 4 "$SWITCHYARD" registry restore --registry "$work/registry" "$work/last.backup"
expect_text "was killed: stop every gateway first; if none runs, say so with --force"
"$SWITCHYARD" registry restore --registry "$work/registry" "$work/last.backup" --force >/dev/null
gateway
await_state ready
compare
