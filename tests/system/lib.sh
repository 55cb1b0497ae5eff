# Shared by the system tests: a directory and ports of their own, starting and stopping racks, asserting.
# Sourced by every t_*.sh. A test ends with 0 for passed, 77 for skipped, anything else for failed.

set -euo pipefail
export PYTHONDONTWRITEBYTECODE=1

# A copy of the mounts keeps a file system that was cut and unmounted, and the next mount of its device gets it as it was: so a test has mounts of its own.
if (( EUID == 0 )) && [[ -z ${OWN_MOUNTS-} ]] && unshare -m true 2>/dev/null; then
    OWN_MOUNTS=yes exec unshare -m bash "$0" "$@"
fi

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
SWITCHYARD=${SWITCHYARD:-$root/target/release/switchyard}

work=$(mktemp -d "${TMPDIR:-/tmp}/switchyard-test.XXXXXX")
rack_pid=
cleanups=()

clean_up() {
    local status=$?
    set +e
    for (( i = ${#cleanups[@]} - 1; i >= 0; i-- )); do
        eval "${cleanups[$i]}"
    done
    if [[ -n $rack_pid ]]; then
        kill -9 "$rack_pid" 2>/dev/null
        wait "$rack_pid" 2>/dev/null
    fi
    if (( status != 0 && status != 77 )); then
        local told
        for told in "$work"/*.err; do
            [[ -s $told ]] || continue
            echo "--- last words of ${told##*/}:" >&2
            tail -20 "$told" >&2
        done
        # What the failure says stands last: the end of a long log is what is read.
        cat "$work/failed" >&2 2>/dev/null
    fi
    rm -rf "$work"
}
trap clean_up EXIT

# at_end COMMAND: runs it when the test ends, the last one first.
at_end() { cleanups+=("$1"); }

fail() { echo "FAILED: $*" >>"$work/failed"; exit 1; }
skip() { echo "skipped: $*"; exit 77; }

need() {
    local tool
    for tool in "$@"; do
        command -v "$tool" >/dev/null || skip "$tool is not installed"
    done
}

# `switchyard run` refuses areas in memory.
need_disk() { [[ $(stat -f -c %T "$work") != @(tmpfs|ramfs) ]] || skip "$work is in memory: set TMPDIR to a directory on a disk"; }

[[ -x $SWITCHYARD ]] || skip "$SWITCHYARD is not built: cargo build --release -p switchyard"

# Ports of this test: a block of 64 chosen by its process id and its place beside others, below the ephemeral range.
port_base=$(( 10240 + ($$ % 80 * 4 + ${SYSTEM_TEST_PLACE:-0} % 4) * 64 ))
nbd_port=$port_base
control_port=$(( port_base + 1 ))
rack_port=$(( port_base + 2 ))
CONTROL="http://127.0.0.1:$control_port"
URI="nbd://127.0.0.1:$nbd_port/demo"

# start_rack DIR [FLAG…]: starts a rack and waits until it is ready; the JSON line is in $work/rack.json.
start_rack() {
    local dir=$1
    shift
    : >"$work/rack.json"
    "$SWITCHYARD" up --dir "$dir" --json --nbd "127.0.0.1:$nbd_port" --control "127.0.0.1:$control_port" \
        --rack-port "$rack_port" "$@" >"$work/rack.json" 2>>"$work/rack.err" &
    rack_pid=$!
    await_line "$work/rack.json" "$rack_pid" || fail "the rack did not become ready"
}

# await_line FILE PID: waits until the file has a line, while the process lives.
await_line() {
    local i
    for (( i = 0; i < 1200; i++ )); do
        [[ -s $1 ]] && return 0
        kill -0 "$2" 2>/dev/null || return 1
        sleep 0.05
    done
    return 1
}

# part NAME ARGUMENT…: starts a part of a rack and waits until it is ready. Its pid is in ${pids[NAME]}, its JSON line in
# $work/NAME.json, its log in $work/NAME.err.
declare -A pids
part() {
    local name=$1
    shift
    : >"$work/$name.json"
    "$SWITCHYARD" "$@" --json >"$work/$name.json" 2>>"$work/$name.err" &
    pids[$name]=$!
    at_end "kill -CONT $! 2>/dev/null; kill -9 $! 2>/dev/null"
    await_line "$work/$name.json" "${pids[$name]}" || fail "$name did not become ready"
}
# udp N: the rack address of part N.
udp() { echo "127.0.0.1:$(( rack_port + $1 ))"; }

# stop_rack: a clean stop, which must succeed.
stop_rack() {
    kill -TERM "$rack_pid"
    wait "$rack_pid" || fail "the rack stopped with $?"
    rack_pid=
}

# kill_rack: as a crash does.
kill_rack() {
    kill -9 "$rack_pid"
    wait "$rack_pid" 2>/dev/null || true
    rack_pid=
}

# expect_code CODE COMMAND…: the command must end with this code; its output is in $work/out.
expect_code() {
    local expected=$1 code=0
    shift
    "$@" >"$work/out" 2>&1 || code=$?
    (( code == expected )) || { cat "$work/out" >&2; fail "expected exit code $expected, got $code: $*"; }
}

# expect_text TEXT: the last expect_code printed it.
expect_text() { grep -qF -- "$1" "$work/out" || { cat "$work/out" >&2; fail "expected to read: $1"; }; }

# client_suite URI MIB: what ordinary NBD clients do to a volume of MIB MiB, and byte for byte what they get back.
client_suite() {
    local uri=$1 mib=$2
    echo "· nbdinfo"
    nbdinfo --json "$uri" >"$work/info.json"
    [[ $(jq '.exports[0]["export-size"]' "$work/info.json") == $(( mib << 20 )) ]] || fail "nbdinfo: wrong size"
    [[ $(jq '.exports[0].can_flush' "$work/info.json") == true ]] || fail "nbdinfo: no flush"

    echo "· an ext4 image in and out"
    truncate -s "${mib}M" "$work/in.img"
    mkdir -p "$work/tree"
    cp -r "$root/crates" "$work/tree/"
    mkfs.ext4 -q -F -d "$work/tree" "$work/in.img"
    nbdcopy --flush "$work/in.img" "$uri"
    nbdcopy "$uri" "$work/out.img"
    cmp "$work/in.img" "$work/out.img" || fail "nbdcopy: other bytes came back"
    e2fsck -fn "$work/out.img" >/dev/null 2>&1 || fail "e2fsck: the image is damaged"

    echo "· qemu-img"
    qemu-img compare -f raw -F raw "$work/in.img" "$uri" >/dev/null || fail "qemu-img compare: they differ"
    qemu-img convert -f raw -O qcow2 "$uri" "$work/out.qcow2"
    qemu-img compare -f raw -F qcow2 "$work/in.img" "$work/out.qcow2" >/dev/null || fail "qemu-img convert: they differ"
    rm -f "$work"/out.*

    echo "· mount"
    mount_suite "$uri"

    echo "· fio with checksums"
    (cd "$work" && fio --name=verify --ioengine=nbd --uri="$uri" --rw=randrw --bsrange=512-64k --bs_unaligned=0 --blockalign=512 \
        --iodepth=16 --size="$(( mib / 4 ))m" --verify=crc32c --verify_fatal=1 --randseed=1 --end_fsync=1 \
        >"$work/fio.log" 2>&1) || { cat "$work/fio.log" >&2; fail "fio: verification failed"; }
    rm -f "$work/in.img" "$work/fio.log"
}

# mount_suite URI: the ext4 file system in the volume, through FUSE and a loop device, written to and checked.
mount_suite() {
    if (( EUID != 0 )) || [[ ! -e /dev/fuse ]] || ! command -v nbdfuse >/dev/null; then
        echo "  (left out: it needs root, /dev/fuse and nbdfuse)"
        return 0
    fi
    mkdir -p "$work/fuse" "$work/mnt"
    nbdfuse "$work/fuse/disk" "$1" &
    local fuse=$! i
    at_end "umount -l '$work/mnt' '$work/fuse' 2>/dev/null; kill $fuse 2>/dev/null"
    for (( i = 0; i < 100; i++ )); do
        [[ -e $work/fuse/disk ]] && break
        sleep 0.05
    done
    if ! mount -o loop "$work/fuse/disk" "$work/mnt" 2>"$work/mount.err"; then
        echo "  (left out: no loop device: $(head -1 "$work/mount.err"))"
        umount "$work/fuse"
        wait "$fuse" || true
        return 0
    fi
    diff -r "$work/tree" "$work/mnt" -x lost+found >/dev/null || fail "mount: files differ"
    cp -r "$work/tree/crates" "$work/mnt/again"
    sync -f "$work/mnt"
    umount "$work/mnt"
    umount "$work/fuse"
    wait "$fuse" || true
    nbdcopy "$1" "$work/after.img"
    e2fsck -fn "$work/after.img" >/dev/null 2>&1 || fail "fsck after mount: the file system is damaged"
    debugfs -R 'ls -p /again' "$work/after.img" 2>/dev/null | grep -q '/switchyard/' || fail "mount: files were lost"
    rm -f "$work/after.img"
}
