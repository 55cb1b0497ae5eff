#!/bin/bash
# What the host block switch itself costs: instructions per request, counted by valgrind, for every policy. Two runs of
# different length are subtracted, so that start-up cancels. The bounds are what was measured (docs/simulation.md) and a
# quarter; a change that needs more has to say why.
source "$(dirname "$0")/lib.sh"
need valgrind cargo

cargo build --release --quiet -p switchyard-blockswitch --example overhead
overhead="${CARGO_TARGET_DIR:-$root/target}/release/examples/overhead"

# instructions POLICY REQUESTS
instructions() {
    timeout 120 valgrind --tool=callgrind --callgrind-out-file=/dev/null "$overhead" "$1" "$2" 2>&1 |
        sed -n 's/.*Collected : \([0-9]*\).*/\1/p'
}

while read -r policy bound; do
    few=$(instructions "$policy" 20000)
    many=$(instructions "$policy" 60000)
    each=$(( (many - few) / 40000 ))
    echo "$policy: $each instructions a request, at most $bound"
    (( each > 50 )) || fail "$policy: $each instructions a request cannot be: the count went wrong"
    (( each <= bound )) || fail "$policy: $each instructions a request, more than $bound"
done <<'BOUNDS'
linux 565
spdk 580
spdk-priority 580
blk-switch 640
switchyard 1005
BOUNDS
