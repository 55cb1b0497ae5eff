#!/bin/bash
# The central controller of VDC and RackBlox (Software) in a real rack: it lets vSSDs collect where the ToR would, holds
# flows to their shares, and data stay what they are. What it cannot do without is asked for.
source "$(dirname "$0")/lib.sh"
need python3 curl

target="127.0.0.1:$nbd_port/demo"

"$SWITCHYARD" up --dir "$work/none" --shaping vdc 2>"$work/error" && fail "device time without a timing was divided"
grep -q 'set timing' "$work/error" || fail "no remedy: $(cat "$work/error")"
"$SWITCHYARD" node --id 1 --listen 127.0.0.1:1 --tor 127.0.0.1:2 --gc controller 2>"$work/error" &&
    fail "a node alone has a controller"
grep -q 'switchyard up' "$work/error" || fail "no remedy: $(cat "$work/error")"

# metric NAME: the sum of a metric over its labels.
metric() {
    curl -s "$CONTROL/metrics" | awk -v name="$1" '$1 ~ "^[a-z_]*" name "(_total)?({|$)" { sum += $2 } END { print sum + 0 }'
}

start_rack "$work/rack" --size 128MiB --demo 64MiB --timing optane --scheduler kyber --gc controller \
    --gc-mode blocking --shaping vdc
python3 "$here/nbd_log.py" write "$target" "$work/state" 12 >"$work/wrote" || fail "a write failed"
collected=$(metric vssd_gc_programs)
asked=$(metric tor_gc_accepted)
(( collected > 0 )) || fail "nothing was collected"
(( asked == 0 )) || fail "the ToR was asked $asked times"
python3 "$here/nbd_log.py" check "$target" "$work/state" || fail "promises broken"
stop_rack
"$SWITCHYARD" verify "$work/rack" >"$work/verify" 2>&1 || { cat "$work/verify" >&2; fail "verify"; }
echo "· $(cat "$work/wrote"), $collected pages moved by leave of the controller"
