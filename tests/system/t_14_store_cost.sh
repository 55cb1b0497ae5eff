#!/bin/bash
# What an operation of a storage area costs, in instructions, counted by valgrind (`switchyard bench store --instructions`). The
# bounds are what was measured and a quarter; a change that needs more has to say why. A range copies its bounds and the keys of a step
# since there are tables, so that both can be put together without the lock: 98,527 instructions, of 70,100 before.
source "$(dirname "$0")/lib.sh"
need valgrind jq

"$SWITCHYARD" bench store --instructions --json >"$work/counts.json"
while IFS=: read -r operation bound; do
    each=$(jq --arg operation "$operation" '.rows[] | select(.operation == $operation) | .instructions' "$work/counts.json")
    echo "$operation: $each instructions, at most $bound"
    (( each > 300 )) || fail "$operation: $each instructions cannot be: the count went wrong"
    (( each <= bound )) || fail "$operation: $each instructions, more than $bound"
done <<'BOUNDS'
log append:5420
log read:7290
queue push:5930
queue pop, acknowledge:12030
map put:7490
map get:8110
tree put:7390
tree get:8485
tree range of 10:123160
BOUNDS
