#!/bin/bash
# A hub of virtual NICs: its commands and exit codes, a foreign client that has the format from its page, ports that forge and
# break, and the kernel behind a TAP device.
source "$(dirname "$0")/lib.sh"
need python3 jq ip
(( EUID == 0 )) || skip "a TAP device needs root"
[[ -e /dev/net/tun ]] || skip "this kernel has no TAP"
if [[ -z ${OWN_NETWORK-} ]]; then
    OWN_NETWORK=yes exec unshare -n bash "$0" "$@"
fi

socket="$work/hub.sock"
export SWITCHYARD_TCP="$socket"
tcp() { "$SWITCHYARD" tcp "$@"; }
vnic() { timeout 60 python3 "$here/vnic.py" "$socket" "$@"; }

code=0; tcp status 2>"$work/none.err" || code=$?
(( code == 3 )) || fail "without a hub status ends with $code"
"$SWITCHYARD" tcp serve --json --tap sw0 --ports 3 >"$work/hub.json" 2>"$work/hub.err" &
rack_pid=$!
await_line "$work/hub.json" "$rack_pid" || fail "the hub did not become ready"
[[ $(jq -r .socket "$work/hub.json") == "$socket" ]] || fail "the hub tells another socket"
[[ $(stat -c %a "$socket") == 600 ]] || fail "others can attach"
code=0; tcp serve 2>"$work/second.err" || code=$?
(( code == 4 )) || fail "a second hub ends with $code"

ip addr add 10.9.0.1/24 dev sw0
card=$(ip -o link show sw0 | sed 's/.*ether \([^ ]*\).*/\1/')
[[ $(vnic arp 10.9.0.2 10.9.0.1) == "$card" ]] || fail "the kernel does not answer through the hub"
[[ $(vnic break) == ended ]] || fail "a port that breaks the rules is kept"

# A forger holds its port until it is told to go.
mkfifo "$work/go"
vnic forge <"$work/go" >"$work/forged" &
exec 7>"$work/go"
for (( i = 0; i < 200; i++ )); do
    forged=$(tcp status --json | jq '[.ports[] | select(.name == "foreign") | .forged] | add // 0')
    (( forged >= 1000 )) && break
    sleep 0.05
done
(( forged >= 1000 )) || fail "$forged forged frames are counted"
[[ $(tcp status --json | jq '.uplink.frames_out') -lt 100 ]] || fail "forged frames leave by the uplink"
tcp status | grep -q "^foreign" || fail "the table does not show the port"
exec 7>&-
wait "$!" || fail "the forger failed"
for (( i = 0; i < 200; i++ )); do
    [[ $(tcp status --json | jq '.ports | length') == 0 ]] && break
    sleep 0.05
done
[[ $(tcp status --json | jq '.ports | length') == 0 ]] || fail "a port outlives its process"

# An idle hub takes no processor: less than 20 ms in a second.
before=$(awk '{print $14 + $15}' "/proc/$rack_pid/stat"); sleep 1
after=$(awk '{print $14 + $15}' "/proc/$rack_pid/stat")
(( after - before <= 2 )) || fail "an idle hub takes $((after - before)) ticks of a second"
kill "$rack_pid"; wait "$rack_pid" || fail "the hub ends with an error"
rack_pid=
[[ ! -e $socket ]] || fail "the socket stays"
