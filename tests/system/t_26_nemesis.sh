#!/bin/bash
# A few seconds of `make nemesis`: a rack in network namespaces, faults from fixed seeds, and a checker of its own. The checker must refuse
# what is wrong, and find what a broken rack would have shown. SEEDS says which seeds run.
source "$(dirname "$0")/lib.sh"
need python3 ip nsenter unshare mkfs.ext4 losetup
echo "· the checker refuses what is wrong, and permits what is right"
python3 "$root/tests/nemesis/checker_test.py" 2>"$work/checker.err" || fail "the checker"
(( EUID == 0 )) || skip "network namespaces and loop devices need root"

# nemesis CODE ARGUMENT…: a run must end with this code.
nemesis() {
    local code=0 wanted=$1
    shift
    "$root/tests/nemesis/run" --switchyard "$SWITCHYARD" --logs "$work/nemesis" --short --calm 1 "$@" >"$work/out" 2>&1 || code=$?
    (( code == 77 )) && skip "$(tail -n 1 "$work/out")"
    (( code == wanted )) || { cat "$work/out" >&2; fail "the nemesis ended with $code: $*"; }
    grep '^seed' "$work/out"
}

echo "· kills, pauses, cuts and noise"
nemesis 0 --seeds "${SEEDS:-3}" --seconds 8 --only kill,stop,cut,noise,gateway-kill
echo "· a rack that returns old data is found"
nemesis 1 --seeds 1 --seconds 2 --only kill --canary stale
grep -q "VIOLATION order" "$work/out" || { cat "$work/out" >&2; fail "the old data were not found"; }
