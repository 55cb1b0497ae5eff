#!/bin/bash
# Lines of production code per crate, tests aside: of this tree, and beside the lines of COMMIT if it is given.
# Usage: scripts/lines.sh [COMMIT]
set -euo pipefail
cd "$(dirname "$0")/.."

# Prints "crate lines" for the tree in directory $1. The module of tests is the last item of a file.
count() {
    find "$1/crates" -path '*/src/*' -name '*.rs' ! -name '*tests.rs' ! -path '*/tests/*' -print0 |
        xargs -0 awk -v root="$1/crates/" '
            FNR == 1 { held = 0; rest = 0; split(substr(FILENAME, length(root) + 1), part, "/") }
            rest { next }
            held && /^mod tests \{/ { lines[part[1]]--; rest = 1; next }
            { held = $0 == "#[cfg(test)]"; lines[part[1]]++ }
            END { for (name in lines) print name, lines[name] }' | sort
}

if [ $# -eq 0 ]; then
    count . | awk '{ printf "%-12s %7d\n", $1, $2; all += $2 } END { printf "%-12s %7d\n", "all", all }'
    exit
fi
before=$(mktemp -d)
trap 'rm -rf "$before"' EXIT
git archive "$1" crates | tar -x -C "$before"
join -a 1 -a 2 -e 0 -o 0,1.2,2.2 <(count "$before") <(count .) | awk '
    function row(name, old, new) { printf "%-12s %7d %7d %+7d\n", name, old, new, new - old }
    BEGIN { printf "%-12s %7s %7s %7s\n", "crate", "before", "now", "change" }
    { row($1, $2, $3); old += $2; new += $3 }
    END { row("all", old, new) }'
