#!/bin/bash
# Events of a rack of processes: why a lease lapsed, which member is lost and comes back, whom the limit of open files
# keeps out. A follower sees an event within a second, and every line of --json is an object.
source "$(dirname "$0")/lib.sh"
need jq python3

control() { echo "127.0.0.1:$(( port_base + 50 + $1 ))"; }
events() { "$SWITCHYARD" events --control "http://$(control "$1")" --level debug "${@:2}"; }

# await_event PART SECONDS TEXT…: waits until the part has told of an event with all these texts.
await_event() {
    local part=$1 until=$(( SECONDS + $2 )) text
    shift 2
    while :; do
        events "$part" >"$work/events"
        for text in "$@"; do
            grep -F -- "$text" "$work/events" >"$work/found" || true
            mv "$work/found" "$work/events"
        done
        [[ -s $work/events ]] && return 0
        (( SECONDS < until )) || { events "$part" >&2; fail "part $part told of no event with: $*"; }
        sleep 0.1
    done
}

# await_ready: waits until the volume has all its copies.
await_ready() {
    local until=$(( SECONDS + 90 ))
    while [[ $("$SWITCHYARD" volume show demo --json --control "http://$(control 3)" | jq -r .state) != ready ]]; do
        (( SECONDS < until )) || { events 3 >&2; fail "the volume does not get its copies back"; }
        sleep 0.1
    done
}

part tor tor --listen "$(udp 0)" --control "$(control 0)"
for id in 1 2; do
    part "node$id" node --id "$id" --listen "$(udp "$id")" --tor "$(udp 0)" --dir "$work/node$id" --size 128MiB \
        --timing p-ssd --control "$(control "$id")"
done
part gateway gateway --dir "$work/gateway" --listen "$(udp 10)" --tor "$(udp 0)" --node "1=$(udp 1)" \
    --node "2=$(udp 2)" --demo 64MiB --nbd "127.0.0.1:$nbd_port" --control "$(control 3)"
await_event 0 5 vssd-registered
await_event 1 5 node-started "Node 1"
await_event 1 5 replica-serving
await_event 3 5 lead-taken

echo "· a node is stopped while its vSSD collects"
"$SWITCHYARD" bench "$URI" --rw randwrite --qd 32 --seconds 120 >"$work/bench" 2>&1 &
bench=$!
at_end "kill -9 $bench 2>/dev/null"
await_event 1 60 collection-begun
for (( try = 0; try < 10; try++ )); do
    kill -STOP "${pids[node1]}"
    sleep 3.2
    events 0 --json >"$work/lapses"
    kill -CONT "${pids[node1]}"
    why=$(jq -r 'select(.name == "lease-lapsed" and .fields.why == "node-silent") | .fields.server' "$work/lapses")
    # A node that was not collecting just then is stopped again, when it is a member again.
    [[ -n $why ]] && break
    await_ready
done
[[ $why == *$(udp 1)* ]] || { events 0 >&2; fail "no lease of the stopped node lapsed"; }
events 0 | grep lease-lapsed | head -1
grep -q 'WARN.*lease-lapsed' "$work/tor.err" || fail "the log has no line of the lapse"
await_event 3 5 member-expelled
await_event 3 5 request-overdue "does not answer"
await_ready
await_event 3 5 copy-joined
kill -9 "$bench" 2>/dev/null || true
wait "$bench" 2>/dev/null || true

echo "· the counters know of it"
python3 - "$(control 0)" <<'PY'
import sys, urllib.request
text = urllib.request.urlopen(f"http://{sys.argv[1]}/metrics").read().decode()
lines = [l for l in text.splitlines() if l.startswith("switchyard_events_total{") and "lease-lapsed" in l]
assert lines and int(lines[0].split()[-1]) >= 1, text
PY

echo "· a follower sees an event within a second"
events 2 --follow --json >"$work/node2.events" &
follower=$!
at_end "kill $follower 2>/dev/null"
sleep 0.5
killed=$(date +%s)
kill -9 "${pids[node1]}"
wait "${pids[node1]}" 2>/dev/null || true
part node1 node --id 1 --listen "$(udp 1)" --tor "$(udp 0)" --dir "$work/node1" --control "$(control 1)"
started=$(date +%s%3N)
until jq -e "select(.name == \"member-greeted\" and .fields.boot >= $killed)" "$work/node2.events" >/dev/null 2>&1; do
    (( $(date +%s%3N) < started + 1500 )) || fail "the follower saw no greeting of the node's second start"
    sleep 0.02
done
jq -e -s 'all(.[]; has("sequence") and has("time") and has("text"))' "$work/node2.events" >/dev/null || fail "--json"
expect_code 2 "$SWITCHYARD" events --level loud

echo "· a client is refused when the process may open no more files"
python3 - "$nbd_port" "${pids[gateway]}" <<'PY'
import os, resource, socket, sys, time
port, pid = int(sys.argv[1]), int(sys.argv[2])
count = len(os.listdir(f"/proc/{pid}/fd"))
resource.prlimit(pid, resource.RLIMIT_NOFILE, (count + 8, count + 8))
clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(24)]
time.sleep(0.3)
for client in clients:
    client.close()
time.sleep(0.3)
PY
await_event 3 5 client-refused "no more files"
for name in gateway node1 node2 tor; do
    kill -TERM "${pids[$name]}"
    wait "${pids[$name]}" || fail "$name stopped with $?"
done
grep -q 'INFO.*node-stopping' "$work/node2.err" || fail "the log does not end with the stop"
