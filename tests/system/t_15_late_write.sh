#!/bin/bash
# A program is killed with a durable write under way, which the kernel goes on with: whoever opens the area next gets it when that
# write has ended, and not before. The device is a loop device whose file lies on a file system that is frozen meanwhile.
# bug: two programs' writes met in one area; cause: the claim on an area of a directory was a lock on another file, which went with
# the program; fix: whoever has the area itself open for writing has it.
source "$(dirname "$0")/lib.sh"
(( EUID == 0 )) || skip "it takes root"
need python3 jq losetup mkfs.ext4 fsfreeze
library="${SWITCHYARD%/*}/libswitchyard_store.so"
[[ -e $library ]] || skip "$library is not built"
export PYTHONPATH="$root/crates/capi/python" SWITCHYARD_STORE="$library" SWITCHYARD_AREAS="$work/areas.sock"
areas() { "$SWITCHYARD" areas "$@"; }

mkdir "$work/below" "$work/above"
truncate -s 256M "$work/below.img"
mkfs.ext4 -q -F "$work/below.img"
mount -o loop "$work/below.img" "$work/below" || skip "no loop device"
at_end 'umount -l "$work/below"'
truncate -s 128M "$work/below/image"
mkfs.ext4 -q -F "$work/below/image"
device=$(losetup -f --show "$work/below/image")
at_end 'losetup -d "$device"'
mount "$device" "$work/above"
at_end 'umount -l "$work/above"'
at_end 'fsfreeze -u "$work/below" 2>/dev/null'

cat >"$work/program.py" <<'PY'
import sys
from switchyard_store import Area
def opened(where):
    kind, name = where.split(":")
    return Area.in_catalog(name, create_bytes=16 << 20) if kind == "catalog" else Area(name, create_bytes=16 << 20)
if sys.argv[1] == "write":
    with opened(sys.argv[2]) as area, area.log("log") as log:
        log.append(b"acknowledged")
        print("ready", flush=True)
        sys.stdin.readline()
        log.append(b"under way")
else:
    with opened(sys.argv[2]) as area, area.log("log") as log:
        assert log.read(0) == b"acknowledged"
        assert log.read(1) in (None, b"under way")
        position = log.append(b"the next one's")
    with opened(sys.argv[2]) as area, area.log("log") as log:
        assert log.read(position) == b"the next one's"
PY
writes() { awk '{ print $2 }' "/sys/block/${device#/dev/}/inflight"; }

# late WHERE: a program is killed there, and one that comes at once waits until the write has ended.
late() {
    local where=$1 i
    : >"$work/ready"
    mkfifo "$work/go.$$"
    python3 "$work/program.py" write "$where" <"$work/go.$$" >"$work/ready" &
    local program=$!
    disown "$program"
    at_end "kill -9 $program 2>/dev/null"
    exec 7>"$work/go.$$"
    rm "$work/go.$$"
    await_line "$work/ready" "$program" || fail "no area"
    sync -f "$work/above"
    fsfreeze -f "$work/below"
    echo >&7
    for (( i = 0; i < 600 && $(writes) == 0; i++ )); do sleep 0.05; done
    (( $(writes) > 0 )) || fail "nothing is under way"
    kill -9 "$program"
    for (( i = 0; i < 100; i++ )); do
        kill -0 "$program" 2>/dev/null || break
        sleep 0.05
    done
    if (( i == 100 )); then
        echo "  (the program sleeps in its write, and does not end before it)"
        fsfreeze -u "$work/below"
        exec 7>&-
        return 0
    fi
    exec 7>&-
    "$2"
    python3 "$work/program.py" check "$where" 2>"$work/out" &
    local next=$!
    sleep 0.2
    kill -0 "$next" || fail "the area was given out with a write under way"
    fsfreeze -u "$work/below"
    wait "$next" || { cat "$work/out" >&2; fail "the next program"; }
}
of_catalog() {
    [[ $(areas list --json | jq '.areas[0].open') == true ]] || fail "a write is under way, and nobody has it open?"
    expect_code 1 areas delete late
    expect_text "somebody has it open"
}
of_file() {
    expect_code 4 "$SWITCHYARD" store repair "$work/above/area"
    expect_text "in use"
}

echo "· an area in a file"
late "file:$work/above/area" of_file
echo "· an area of a directory"
: >"$work/areas.json"
"$SWITCHYARD" areas serve --json --media "$work/above/catalog" --size 64MiB >"$work/areas.json" 2>>"$work/rack.err" &
rack_pid=$!
await_line "$work/areas.json" "$rack_pid" || fail "the server of areas did not become ready"
late catalog:late of_catalog
[[ $(areas list --json | jq '.areas[0].open') == false ]] || fail "nobody has it open"
areas delete late
stop_rack
