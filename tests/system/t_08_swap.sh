#!/bin/bash
# vSSDs exchange their nodes under load: no write fails, and what a completed FLUSH covered is there, also when the whole
# rack is killed in the midst of it. SWAP_ROUNDS changes the number of rounds.
source "$(dirname "$0")/lib.sh"
need python3

rounds=${SWAP_ROUNDS:-8}
target="127.0.0.1:$nbd_port/demo"

# A vSSD of the first set, and one of a set on two other nodes.
pair() {
    "$SWITCHYARD" volume show demo --control "$CONTROL" --json | python3 -c '
import json, sys
sets = json.load(sys.stdin)["sets"]
nodes = lambda s: {p["node"] for p in s["replicas"]}
place = int(sys.argv[1]) % 2
for other in sets[1:]:
    if not nodes(sets[0]) & nodes(other):
        print(sets[0]["replicas"][place]["vssd"], other["replicas"][place]["vssd"])
        break
' "$1"
}

places() { "$SWITCHYARD" volume show demo --control "$CONTROL" | grep '^set'; }

swap() { "$SWITCHYARD" volume exchange --control "$CONTROL" "$@"; }

start_rack "$work/rack" --size 256MiB --demo 64MiB
python3 "$here/nbd_log.py" write "$target" "$work/state" 4 >"$work/wrote" &
writer=$!
swaps=0
while kill -0 "$writer" 2>/dev/null; do
    before=$(places)
    # shellcheck disable=SC2046 # two numbers
    swap $(pair "$swaps") >>"$work/swaps" || fail "swap $swaps was refused"
    [[ $before != "$(places)" ]] || fail "swap $swaps changed nothing"
    swaps=$(( swaps + 1 ))
done
wait "$writer" || fail "a write failed during a swap"
(( swaps >= 2 )) || fail "only $swaps swaps"
python3 "$here/nbd_log.py" check "$target" "$work/state" || fail "promises broken"
swap 1 999999 2>"$work/error" && fail "a vSSD that is not there was exchanged"
grep -q 'no volume has' "$work/error" || fail "no reason: $(cat "$work/error")"
stop_rack
"$SWITCHYARD" verify "$work/rack" >"$work/verify" 2>&1 || { cat "$work/verify" >&2; fail "verify after swaps"; }

undone=0
for (( round = 1; round <= rounds; round++ )); do
    start_rack "$work/rack"
    python3 "$here/nbd_log.py" check "$target" "$work/state" || fail "round $round: promises broken"
    before=$(places)
    python3 "$here/nbd_log.py" write "$target" "$work/state" 30 >>"$work/wrote" &
    writer=$!
    sleep 0.3
    # shellcheck disable=SC2046 # two numbers
    swap $(pair "$round") >>"$work/swaps" 2>&1 &
    swapper=$!
    sleep "0.0$(( RANDOM % 10 ))$(( RANDOM % 10 ))"
    kill_rack
    wait "$writer" || fail "round $round: the writer failed"
    wait "$swapper" && undone=$(( undone - 1 ))
    undone=$(( undone + 1 ))
done
start_rack "$work/rack"
python3 "$here/nbd_log.py" check "$target" "$work/state" || fail "after the last round: promises broken"
stop_rack
"$SWITCHYARD" verify "$work/rack" >"$work/verify" 2>&1 || { cat "$work/verify" >&2; fail "verify after kills"; }
echo "· $swaps swaps under load, $undone of $rounds cut short by a kill, $(awk '{ sum += $1 } END { print sum }' "$work/wrote") writes"
