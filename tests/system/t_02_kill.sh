#!/bin/bash
# kill -9 of the whole rack under load, again and again: what a completed FLUSH covered is there, nothing is invented,
# and the media are clean. KILL_ROUNDS changes the number of rounds.
source "$(dirname "$0")/lib.sh"
need python3

rounds=${KILL_ROUNDS:-20}
total=0
target="127.0.0.1:$nbd_port/demo"
for (( round = 1; round <= rounds; round++ )); do
    start_rack "$work/rack" --size 256MiB --demo 64MiB
    python3 "$here/nbd_log.py" check "$target" "$work/state" || fail "round $round: promises broken"
    python3 "$here/nbd_log.py" write "$target" "$work/state" 30 >"$work/wrote" &
    writer=$!
    sleep "$(( RANDOM % 2 )).$(( 4 + RANDOM % 6 ))"
    kill_rack
    wait "$writer" || fail "round $round: the writer failed"
    total=$(( total + $(cut -d ' ' -f 1 "$work/wrote") ))
    "$SWITCHYARD" verify "$work/rack" >"$work/verify" 2>&1 || { cat "$work/verify" >&2; fail "round $round: verify"; }
done
start_rack "$work/rack"
python3 "$here/nbd_log.py" check "$target" "$work/state" || fail "after the last round: promises broken"
stop_rack
(( total > rounds * 100 )) || fail "only $total writes in $rounds rounds: nothing was tested"
echo "· $rounds kills survived, $total writes acknowledged"
