#!/bin/bash
# Runs every tests/system/t_*.sh in order, or those named on the command line. A test succeeds with exit code 0, skips
# itself with 77 (after saying why on its last line) and fails with anything else; only a failing test's output is
# shown. The last line counts: "N passed, N failed, N skipped". Fails if a test failed.
set -uo pipefail
cd "$(dirname "$0")/../.."

# No test needs longer than this many seconds; one that does is stuck.
limit=${SYSTEM_TEST_SECONDS:-900}
export SWITCHYARD=${SWITCHYARD:-$PWD/target/release/switchyard}

shopt -s nullglob
tests=("$@")
[ "${#tests[@]}" -gt 0 ] || tests=(tests/system/t_*.sh)

log=$(mktemp)
trap 'rm -f "$log"' EXIT
passed=0 failed=0 skipped=0
for test in ${tests[@]+"${tests[@]}"}; do
    name=$(basename "$test" .sh)
    start=$SECONDS
    timeout --kill-after=30 "$limit" bash "$test" >"$log" 2>&1 </dev/null
    code=$?
    took=$((SECONDS - start))
    case $code in
    0)
        passed=$((passed + 1))
        echo "ok    $name (${took} s)"
        ;;
    77)
        skipped=$((skipped + 1))
        echo "skip  $name: $(tail -n 1 "$log")"
        ;;
    *)
        failed=$((failed + 1))
        [ "$code" -eq 124 ] && reason="no end after $limit s" || reason="exit code $code"
        echo "FAIL  $name ($reason)"
        sed 's/^/      /' "$log"
        ;;
    esac
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
