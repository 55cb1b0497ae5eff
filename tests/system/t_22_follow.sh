#!/bin/bash
# An area is read while its program writes it and is killed: by the command, from Python, by path and as an export of a catalog, as
# another user where we are root. What is shown is the state after one batch, and none older than what the program told before.
source "$(dirname "$0")/lib.sh"
need python3 jq
library="${SWITCHYARD%/*}/libswitchyard_store.so"
[[ -e $library ]] || skip "$library is not built"
export PYTHONPATH="$root/crates/capi/python" SWITCHYARD_STORE="$library" SWITCHYARD_AREAS="$work/areas.sock"

cat >"$work/owner.py" <<'PY'
import sys
from switchyard_store import Area
kind, name = sys.argv[1].split(":")
area = Area.in_catalog(name, create_bytes=16 << 20) if kind == "catalog" else Area(name, create_bytes=16 << 20)
tree, log = area.tree("tree"), area.log("log")
number = int(tree.get(b"round", b"0"))
while True:
    number += 1
    with area.batch() as batch:
        batch.put(tree, b"round", b"%d" % number).put(tree, b"%04d" % (number % 1000), b"%d" % number).append(log, b"%d" % number)
        if number > 100:
            batch.trim(log, number - 100)
    print(number, flush=True)
PY

cat >"$work/reader.py" <<'PY'
import sys
from switchyard_store import Follower, GoneError
kind, name = sys.argv[1].split(":")
told = lambda: int(open(sys.argv[2]).read().split("\n")[-2])
follower = Follower.in_catalog(name, steady=True) if kind == "catalog" else Follower(name, steady=True)
whole = 0
for _ in range(60):
    least = told()
    follower.refresh()
    try:
        number = int(follower.get("tree", b"round"))
        assert number >= least, f"round {number} is older than {least}"
        assert follower.positions("log").stop == number
        assert follower.read("log", number - 1) == b"%d" % number
        entries = dict(follower.range("tree", b"0", b"9999", through=True))
        assert all(int(value) % 1000 == int(key) and number - 1000 < int(value) <= number for key, value in entries.items())
        assert len(entries) == min(number, 1000)
        whole += 1
    except GoneError:
        pass
assert whole > 5, f"{whole} whole moments"
print(whole, "whole moments")
PY

# started WHERE: the owner runs, and has made a thousand rounds.
started() {
    # Nothing of the owner before is taken for this one's.
    : >"$work/told"
    python3 "$work/owner.py" "$1" >"$work/told" 2>"$work/owner.err" &
    owner=$!
    at_end "kill -9 $owner 2>/dev/null"
    for (( i = 0; i < 300; i++ )); do
        (( $(wc -l <"$work/told") >= 1000 )) && return
        sleep 0.1
    done
    fail "the owner does not write: $(cat "$work/owner.err")"
}

echo "  · by path"
started "path:$work/a.area"
python3 "$work/reader.py" "path:$work/a.area" "$work/told"
least=$(tail -n 2 "$work/told" | head -n 1)
"$SWITCHYARD" store read "$work/a.area" --structure tree >"$work/lines" 2>"$work/moment"
found=$(jq -r 'select(.key == "round") | .value' "$work/lines")
(( found >= least )) || fail "round $found is older than $least"
(( $(wc -l <"$work/lines") == 1001 )) || fail "entries of the tree: $(wc -l <"$work/lines")"
grep -q "as of record [0-9]* of epoch" "$work/moment" || fail "no moment is told"
[[ $("$SWITCHYARD" store read "$work/a.area" --json | jq -r '.structures[] | select(.name == "log") | .entries') == 100 ]] ||
    fail "entries of the log"
[[ $("$SWITCHYARD" store verify "$work/a.area" --json | jq .live) == true ]] || fail "verify of a live area"
"$SWITCHYARD" store dump "$work/a.area" --structure log 2>/dev/null | tail -n 1 | jq -e .record >/dev/null || fail "dump of a live area"

echo "  · the owner is killed, and comes back, under a follower"
code=0
"$SWITCHYARD" store grow "$work/a.area" --size 24MiB 2>"$work/grow.err" || code=$?
(( code == 4 )) || fail "an area in use grew from outside, or the code is $code: $(cat "$work/grow.err")"
( sleep 0.3; kill -9 "$owner" ) &
python3 "$work/reader.py" "path:$work/a.area" "$work/told"
wait "$owner" 2>/dev/null || true
[[ $("$SWITCHYARD" store verify "$work/a.area" --json | jq .live) == false ]] || fail "nobody has it open"
started "path:$work/a.area"
python3 "$work/reader.py" "path:$work/a.area" "$work/told"
kill -9 "$owner"
wait "$owner" 2>/dev/null || true

echo "  · it gets more room"
[[ $("$SWITCHYARD" store grow "$work/a.area" --size 24MiB --json | jq .bytes) -ge $((24 << 20)) ]] || fail "it did not grow"
"$SWITCHYARD" store verify "$work/a.area" >/dev/null || fail "it is not sound"
echo "no area" >"$work/text"
"$SWITCHYARD" store grow "$work/text" --size 24MiB 2>/dev/null && fail "a text became larger"
[[ $(cat "$work/text") == "no area" ]] || fail "a text was changed"

echo "  · an export of a catalog"
chmod 755 "$work"
: >"$work/areas.json"
"$SWITCHYARD" areas serve --json --media "$work/areas" --size 64MiB >"$work/areas.json" 2>>"$work/rack.err" &
rack_pid=$!
await_line "$work/areas.json" "$rack_pid" || fail "the server of areas did not become ready"
started catalog:db
"$SWITCHYARD" areas export db-public --area db
python3 "$work/reader.py" catalog:db-public "$work/told"
"$SWITCHYARD" store read --catalog db-public --structure log 2>/dev/null >"$work/lines"
(( $(wc -l <"$work/lines") == 100 )) || fail "entries of the exported log"
