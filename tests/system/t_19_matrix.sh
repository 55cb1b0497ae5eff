#!/bin/bash
# The short form of the matrix: programs that people use do the same without `switchyard run` and with it, and lose nothing that was
# acknowledged when they are killed, or when the power is cut (as root). MATRIX_TIMES says how often.
source "$(dirname "$0")/lib.sh"
need python3 sqlite3 redis-server db_bench git tar

"$root/tests/matrix/run" --short --times "${MATRIX_TIMES:-1}" --switchyard "$SWITCHYARD" --keep "${TMPDIR:-/tmp}"

# A matrix without the programs must not count as passed.
echo "· a matrix that skips everything fails"
mkdir "$work/bin"
ln -s "$(python3 -c 'import sys; print(sys.executable)')" "$work/bin/python3"
expect_code 1 env PATH="$work/bin" python3 "$root/tests/matrix/run" --only sqlite --switchyard "$SWITCHYARD"
expect_text "no case ran"
