#!/bin/bash
# Runs every tests/system/t_*.sh, or those named on the command line, four at a time (JOBS): they wait more than they compute. A test that says "Runs alone" in its
# head does so, behind the others. A test succeeds with exit code 0, skips itself with 77 (after saying why on its last
# line) and fails with anything else. Behind the list come the last words of those that failed, a line for each of them, and the
# count: "N passed, N failed, N skipped". Fails if a test failed.
set -uo pipefail
cd "$(dirname "$0")/../.."

# No test needs longer than this many seconds; one that does is stuck.
limit=${SYSTEM_TEST_SECONDS:-900}
jobs=${JOBS:-4}
# Of a test that failed so many lines are shown.
words=${SYSTEM_TEST_LINES:-80}
export SWITCHYARD=${SWITCHYARD:-$PWD/target/release/switchyard}

shopt -s nullglob
tests=("$@")
(( ${#tests[@]} > 0 )) || tests=(tests/system/t_*.sh)
together=() alone=()
for test in "${tests[@]}"; do
    if sed -n '2,/^[^#]/p' "$test" | grep -q "Runs alone"; then alone+=("$test"); else together+=("$test"); fi
done

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
passed=0 skipped=0 failed=()

# Of each place where a test runs: its process, or nothing, and the test.
declare -A process=() running=() since=()
# start PLACE TEST
start() {
    running[$1]=$2 since[$1]=$SECONDS
    SYSTEM_TEST_PLACE=$1 timeout --kill-after=30 "$limit" bash "$2" >"$logs/$(basename "$2" .sh)" 2>&1 </dev/null &
    process[$1]=$!
}
# settle: waits until a test ends, and says how.
settle() {
    local ended code=0 place name took
    wait -n -p ended || code=$?
    for place in "${!process[@]}"; do
        [[ ${process[$place]} == "$ended" ]] && break
    done
    name=$(basename "${running[$place]}" .sh) took=$(( SECONDS - since[$place] ))
    unset "process[$place]"
    case $code in
    0)
        passed=$(( passed + 1 ))
        echo "ok    $name ($took s)"
        ;;
    77)
        skipped=$(( skipped + 1 ))
        echo "skip  $name: $(tail -n 1 "$logs/$name")"
        ;;
    *)
        failed+=("$name")
        (( code == 124 )) && reason="no end after $limit s" || reason="exit code $code"
        echo "FAIL  $name ($reason)"
        ;;
    esac
}
# run PLACES TEST…
run() {
    local places=$1 test place
    shift
    for test in "$@"; do
        (( ${#process[@]} < places )) || settle
        for (( place = 0; place < places; place++ )); do
            [[ -n ${process[$place]-} ]] || break
        done
        start "$place" "$test"
    done
    while (( ${#process[@]} > 0 )); do settle; done
}
run "$jobs" ${together[@]+"${together[@]}"}
run 1 ${alone[@]+"${alone[@]}"}

for name in ${failed[@]+"${failed[@]}"}; do
    echo "--- $name"
    tail -n "$words" "$logs/$name" | sed 's/^/      /'
done
for name in ${failed[@]+"${failed[@]}"}; do
    echo "FAIL  $name: $(grep -m 1 '^FAILED' "$logs/$name")"
done
echo "$passed passed, ${#failed[@]} failed, $skipped skipped"
(( ${#failed[@]} == 0 ))
