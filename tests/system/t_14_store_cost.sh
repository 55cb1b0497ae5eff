#!/bin/bash
# What an operation of a storage area costs, in instructions, counted by valgrind (`switchyard bench store --instructions`). The
# bounds are what was measured and a quarter, with the build of the unit tests, which has assertions (docs/performance.md has the release
# build's numbers). A change that needs more has to say why.
source "$(dirname "$0")/lib.sh"
need valgrind jq

"$SWITCHYARD" bench store --instructions --json >"$work/counts.json"
while IFS=: read -r operation bound; do
    each=$(jq --arg operation "$operation" '.rows[] | select(.operation == $operation) | .instructions' "$work/counts.json")
    echo "$operation: $each instructions, at most $bound"
    (( each > 300 )) || fail "$operation: $each instructions cannot be: the count went wrong"
    (( each <= bound )) || fail "$operation: $each instructions, more than $bound"
done <<'BOUNDS'
log append:9460
log read:11340
queue push:10330
queue pop, acknowledge:19250
map put:13700
map get:12320
tree put:12470
tree get:12920
tree range of 10:200680
BOUNDS
