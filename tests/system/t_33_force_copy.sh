#!/bin/bash
# The last members of a volume's sets are lost for ever. What is left are copies that were expelled before, and none of them serves by
# itself. An operator lets the sets go on with them, after the command has said what that loses.
source "$(dirname "$0")/lib.sh"
need qemu-io jq

node() { part "node$1" node --id "$1" --listen "$(udp "$1")" --tor "$(udp 0)" --dir "$work/node$1" --size 128MiB; }
gateway() {
    part gateway gateway --dir "$work/gateway" --listen "$(udp 9)" --tor "$(udp 0)" --node "1=$(udp 1)" --node "2=$(udp 2)" \
        --demo 8MiB --nbd "127.0.0.1:$nbd_port" --control "127.0.0.1:$control_port"
}
stop_gateway() {
    kill -TERM "${pids[gateway]}"
    wait "${pids[gateway]}" || fail "the gateway did not stop cleanly"
}
# write BYTE OFFSET: a page of this byte, durable.
write() { qemu-io -f raw -c "write -f -P $1 $2 4k" "$URI" >"$work/io" 2>&1 || { cat "$work/io" >&2; fail "a write failed"; }; }
# holds BYTE OFFSET: the page is of this byte.
holds() { qemu-io -f raw -c "read -P $1 $2 4k" "$URI" >"$work/io" 2>&1 && ! grep -q "verification failed" "$work/io"; }
force() { "$SWITCHYARD" registry force-copy "$@" --registry "$work/gateway"; }

part tor tor --listen "$(udp 0)"
node 1
node 2
gateway
write 1 0
write 1 4194304

echo "· one of two copies is expelled, and writes go on without it"
kill -9 "${pids[node2]}"
write 2 0
vssds=$("$SWITCHYARD" volume show demo --json --control "$CONTROL" | jq -r '[.sets[].replicas[].vssd] | join(" ")')

echo "· the other one is lost for ever, and the first one comes back"
kill -9 "${pids[node1]}"
stop_gateway
rm -r "$work/node1"
copies=$("$SWITCHYARD" registry show --registry "$work/gateway" | jq -r '.. | .expelled? // empty | .[].vssd')
[[ -n $copies ]] || fail "the registry names no copy that was expelled"
lost=${copies%%$'\n'*}
node 2
echo "· a gateway does not wait for it for ever, and tells which volume is not served"
gateway
grep -q "volume .demo. is not served" "$work/gateway.err" || fail "nobody was told"
[[ $("$SWITCHYARD" volume show demo --json --control "$CONTROL" | jq -r .state) != ready ]] || fail "an expelled copy serves by itself"
stop_gateway

echo "· what it loses is said first, and nothing is written"
cp -r "$work/gateway" "$work/before"
expect_code 2 force "$lost"
expect_text "--accept-loss"
expect_text "demo"
diff -r "$work/before" "$work/gateway" >/dev/null || fail "the registry was changed"
expect_code 1 force 9999 --accept-loss
expect_text "registry show"
for member in $vssds; do
    expect_code 1 force "$member" --accept-loss
done

echo "· the set goes on with it"
for copy in $copies; do
    force "$copy" --accept-loss >/dev/null
done
gateway
holds 1 4194304 || fail "a page that every copy had is gone"
holds 1 0 || fail "the copy does not hold what it held"
write 3 0
holds 3 0 || fail "a write does not show"
expect_code 1 force "$lost" --accept-loss
stop_gateway
expect_code 1 force "$lost" --accept-loss
