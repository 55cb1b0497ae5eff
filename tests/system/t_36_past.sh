#!/bin/bash
# Media that are images of the past: the last member of a set, while the gateway serves and when it starts, and two nodes of three.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need jq nbdcopy qemu-io

control="127.0.0.1:$(( port_base + 51 ))"
uri_of() { echo "nbd://127.0.0.1:$(( port_base + 41 ))/$1"; }
node() { part "node$1" node --id "$1" --listen "$(udp "$1")" --tor "$(udp 0)" --dir "$work/${2:-node$1}" --size 128MiB; }
nodes=()
gateway() {
    part gateway gateway --dir "$work/gateway" --registry "$work/registry" --listen "$(udp 11)" --tor "$(udp 0)" \
        --nbd "127.0.0.1:$(( port_base + 41 ))" --control "$control" "${nodes[@]}"
}
stop() { kill -TERM "${pids[$1]}"; wait "${pids[$1]}" || fail "$1 stopped with $?"; }
states() { "$SWITCHYARD" volume list --json --control "http://$control" | jq -r '[.[] | .name + "=" + .state] | join(" ")'; }
# await_states PATTERN: within 40 seconds.
await_states() {
    local i
    for (( i = 0; i < 400; i++ )); do
        [[ $(states) == $1 ]] && return 0
        sleep 0.1
    done
    fail "the volumes are $(states) instead of $1"
}
put() { timeout 40 qemu-io -f raw -c "write -f -P $1 0 4k" "$(uri_of a)" >/dev/null || fail "writing $1"; }
# holds N: the volume has N, or nothing is read.
holds() {
    local text
    text=$(timeout 3 qemu-io -f raw -c "read -P $1 0 4k" "$(uri_of a)" 2>&1) || return 0
    ! grep -q "verification failed" <<<"$text" || fail "old data was read: $text"
}

part tor tor --listen "$(udp 0)"

for how in serves starts; do
    echo "· the last member comes back with an image of before the other one was expelled, and the gateway $how"
    nodes=(--node "1=$(udp 1)" --node "2=$(udp 2)")
    node 1
    node 2
    gateway
    "$SWITCHYARD" volume create a --size 4MiB --control "http://$control" >/dev/null
    put 1
    stop node1
    cp -r --sparse=always "$work/node1" "$work/old1"
    node 1
    await_states "a=ready"
    put 2
    kill -9 "${pids[node2]}"
    wait "${pids[node2]}" || true
    await_states "a=degraded"
    put 3
    sleep 1
    [[ $how == serves ]] || stop gateway
    stop node1
    node 1 old1
    node 2
    [[ $how == serves ]] || gateway
    for (( i = 0; i < 3; i++ )); do holds 3; done
    await_states "a=failed"
    "$SWITCHYARD" volume list --json --control "http://$control" | grep -q "medium of before" || fail "the volume does not say why"
    stop node1
    node 1
    await_states "a=ready"
    timeout 20 qemu-io -f raw -c "read -P 3 0 4k" "$(uri_of a)" | grep -q "^read" || fail "the right medium does not serve"
    for part in gateway node1 node2; do stop "$part"; done
    rm -rf "$work"/node? "$work/old1" "$work/registry" "$work/gateway"
done

for lost in 1 2; do
    echo "· the registry is of before the copy on node $lost was expelled: nothing is changed by it, and it is made anew"
    node 1
    node 2
    gateway
    "$SWITCHYARD" volume create a --size 4MiB --control "http://$control" >/dev/null
    put 1
    "$SWITCHYARD" registry backup --registry "$work/registry" "$work/old.backup" >/dev/null
    kill -9 "${pids[node$lost]}"
    wait "${pids[node$lost]}" || true
    await_states "a=degraded"
    put 2
    stop gateway
    node $lost
    "$SWITCHYARD" registry restore --registry "$work/registry" "$work/old.backup" >/dev/null
    gateway
    await_states "a=failed"
    "$SWITCHYARD" volume list --json --control "http://$control" | grep -q "its set has changed since" || fail "the volume does not say why"
    # Longer than a member is waited for that the others do not hear.
    for (( i = 0; i < 4; i++ )); do holds 2; sleep 1; done
    stop gateway
    rm "$work/old.backup"
    expect_code 2 "$SWITCHYARD" registry rebuild --node "$lost=$(udp $lost)" --registry "$work/registry" --replace --without-missing
    expect_text "say --accept-loss"
    "$SWITCHYARD" registry rebuild "${nodes[@]}" --registry "$work/registry" --replace >/dev/null
    gateway
    await_states "a=ready"
    timeout 20 qemu-io -f raw -c "read -P 2 0 4k" "$(uri_of a)" | grep -q "^read" || fail "what was flushed is lost"
    for part in gateway node1 node2; do stop "$part"; done
    rm -rf "$work"/node? "$work/registry" "$work/gateway"
done

echo "· a single copy, and its node with an empty medium"
node 1
node 2
gateway
"$SWITCHYARD" volume create a --size 4MiB --replicas 1 --control "http://$control" >/dev/null
put 1
on=$("$SWITCHYARD" volume list --json --control "http://$control" | jq '.[0].sets[0].replicas[0].node')
stop "node$on"
node "$on" empty
await_states "a=failed"
"$SWITCHYARD" volume list --json --control "http://$control" | grep -q "medium was replaced or lost" || fail "the volume does not say why"
stop "node$on"
node "$on"
await_states "a=ready"
holds 1
for part in gateway node1 node2; do stop "$part"; done
rm -rf "$work"/node? "$work/empty" "$work/registry" "$work/gateway"

echo "· two nodes of three come back with images of the past"
nodes+=(--node "3=$(udp 3)")
for id in 1 2 3; do node $id; done
gateway
for name in a b c; do
    "$SWITCHYARD" volume create $name --size 4MiB --control "http://$control" >/dev/null
    head -c 4M /dev/urandom >"$work/$name.img"
    nbdcopy --flush "$work/$name.img" "$(uri_of $name)"
done
for id in 1 2; do
    stop node$id
    cp -r --sparse=always "$work/node$id" "$work/old$id"
    sleep 1
    node $id
    await_states "a=ready b=ready c=ready"
done
sleep 1
stop gateway
for id in 1 2; do
    stop node$id
    node $id old$id
done
gateway
# Both copies of one volume are of the past. It fails if one of them was expelled meanwhile, and else goes on.
others="a=@(ready|failed) b=ready c=ready"
await_states "$others"
count() { "$SWITCHYARD" events --json --control "http://$control" | grep -c "$1" || true; }
sleep 2
before=$(count member-expelled)
sleep 8
(( $(count member-expelled) == before )) || fail "members are expelled again and again"
await_states "$others"
for name in a b c; do
    [[ $(states) =~ $name=ready ]] || continue
    nbdcopy "$(uri_of $name)" "$work/out.img"
    cmp "$work/out.img" "$work/$name.img" || fail "$name has other data"
done
