#!/bin/bash
# What a remote call of 64 bytes over shared memory costs, in instructions, counted by valgrind: both ends' sockets, stacks and links,
# in one thread. Two runs of different length are subtracted, so that start-up cancels. The bounds are for each end: what was
# measured without link-time optimisation (docs/tcp.md) and a quarter. A change that needs more has to say why.
source "$(dirname "$0")/lib.sh"
need valgrind cargo

cargo build --release --quiet -p switchyard-sockets --example sockets_rpc
rpc="${CARGO_TARGET_DIR:-$root/target}/release/examples/sockets_rpc"

# instructions CALLS CONNECTIONS
instructions() {
    timeout 120 valgrind --tool=callgrind --callgrind-out-file=/dev/null "$rpc" "$1" "$2" 2>&1 |
        sed -n 's/.*Collected : \([0-9]*\).*/\1/p'
}

while read -r connections bound; do
    few=$(instructions 6400 "$connections")
    many=$(instructions 25600 "$connections")
    each=$(( (many - few) / 19200 / 2 ))
    echo "$connections connections: $each instructions a call and end, at most $bound"
    (( each > 200 )) || fail "$each instructions a call cannot be: the count went wrong"
    (( each <= bound )) || fail "$connections connections: $each instructions a call and end, more than $bound"
done <<'BOUNDS'
1 2190
64 1880
BOUNDS
