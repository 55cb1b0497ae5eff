#!/bin/bash
# Two gateways share a rack's volumes, and Linux' own NVMe/TCP host has a path to each: it writes and checks while the one
# that serves is killed, started again, stood still until the other has taken over, let go, and stopped. The guest is that
# of t_06_nvme_guest.sh.
source "$(dirname "$0")/lib.sh"
need qemu-system-x86_64 jq
source "$here/guest/lib.sh"

nvme_port() { echo $(( port_base + 30 + $1 )); }
gateway() {
    part "gateway$1" gateway --dir "$work/gateway$1" --registry "$work/registry" --listen "$(udp $(( 10 + $1 )))" \
        --tor "$(udp 0)" --node "1=$(udp 1)" --node "2=$(udp 2)" --node "3=$(udp 3)" --demo 96MiB \
        --nvme "127.0.0.1:$(nvme_port "$1")" --nbd "127.0.0.1:$(( port_base + 40 + $1 ))" \
        --control "127.0.0.1:$(( port_base + 50 + $1 ))"
}
control() { echo "http://127.0.0.1:$(( port_base + 50 + $1 ))"; }

part tor tor --listen "$(udp 0)"
for id in 1 2 3; do
    part "node$id" node --id "$id" --listen "$(udp "$id")" --tor "$(udp 0)" --dir "$work/node$id" --size 256MiB
done
gateway 1
gateway 2
[[ $(jq -r '.volumes[0].state' "$work/gateway1.json") == ready ]] || fail "the first gateway does not serve"
[[ $(jq -r '.volumes[0].state' "$work/gateway2.json") == elsewhere ]] || fail "the second gateway does not stand by"
"$SWITCHYARD" volume create other --size 16MiB --control "$(control 2)" >/dev/null || fail "a command does not follow to the lead"

# How the gateways stand, if a step fails.
tell_gateways() {
    local id
    for id in 1 2; do
        echo "gateway $id: $(timeout 5 "$SWITCHYARD" volume list --json --control "$(control "$id")" 2>&1 | jq -c '[.[] | {name, state, problem}]' 2>&1)"
    done >>"$work/failed"
}
at_end '(( status == 0 )) || tell_gateways'

start_guest "GATEWAYS=\"$(nvme_port 1) $(nvme_port 2)\""
await_guest "DO kill"
echo "· the gateway that serves is killed"
kill -9 "${pids[gateway1]}"
wait "${pids[gateway1]}" 2>/dev/null || true
await_guest "DO start"
gateway 1
[[ $(jq -r '.volumes[0].state' "$work/gateway1.json") == elsewhere ]] || fail "the first gateway does not stand by"
"$SWITCHYARD" volume resize demo --size 112MiB --control "$(control 2)" >/dev/null || fail "the second gateway does not lead"
await_guest "DO freeze"
echo "· the gateway that serves stands still, and goes on when the other has taken over"
kill -STOP "${pids[gateway2]}"
await_guest "DO thaw"
kill -CONT "${pids[gateway2]}"
await_guest "DO stop"
echo "· the gateway that serves is stopped"
kill -TERM "${pids[gateway1]}"
wait "${pids[gateway1]}" || fail "the first gateway stopped with $?"
end_guest 12
for part in gateway2 node1 node2 node3 tor; do
    kill -TERM "${pids[$part]}"
    wait "${pids[$part]}" || fail "$part stopped with $?"
done
for id in 1 2 3; do
    "$SWITCHYARD" verify "$work/node$id" >"$work/verify" 2>&1 || { cat "$work/verify" >&2; fail "verify of node $id"; }
done
