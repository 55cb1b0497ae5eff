# Shared by the tests of mounted file systems: $dir for the mount, $memory for what is to be in memory. Sourced after lib.sh.

need python3 jq
[[ -c /dev/fuse ]] || skip "there is no /dev/fuse"
(( EUID == 0 )) || command -v fusermount3 >/dev/null || skip "it takes root, or fusermount3"

dir=$work/mnt
mkdir "$dir"
at_end "umount -l '$dir' 2>/dev/null || fusermount3 -uz '$dir' 2>/dev/null || true"

# mount_fs DEVICE… [FLAG…]: mounts on $dir and waits until it is ready; the JSON line is in $work/mount.json.
mount_fs() {
    : >"$work/mount.json"
    "$SWITCHYARD" fs mount "$@" "$dir" --json >"$work/mount.json" 2>"$work/mount.err" &
    rack_pid=$!
    await_line "$work/mount.json" "$rack_pid" || fail "it is not mounted"
}

# end_mount: unmounts by a signal; the process is to end with 0.
end_mount() {
    kill -TERM "$rack_pid"
    wait "$rack_pid" || fail "the mount ended with $?"
    rack_pid=
}

# kill_mount [PID]: kills the mount's process, waits until the writer PID has failed, and takes the dead mount away.
kill_mount() {
    kill -9 "$rack_pid"
    wait "$rack_pid" 2>/dev/null || true
    rack_pid=
    [[ -z ${1-} ]] || wait "$1" 2>/dev/null || true
    umount -l "$dir" 2>/dev/null || fusermount3 -uz "$dir"
}

# check_fs DEVICE…: the offline check finds nothing.
check_fs() { "$SWITCHYARD" fs check "$@" --data >"$work/check.out" 2>&1 || fail "$(<"$work/check.out")"; }

# A file in memory is mapped as persistent memory is. On a disk each write of it would be an msync.
memory=$work
if [[ -d /dev/shm && -w /dev/shm ]]; then
    memory=$(mktemp -d /dev/shm/switchyard-test.XXXXXX)
    at_end "rm -rf '$memory'"
fi
