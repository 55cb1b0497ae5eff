#!/bin/bash
# What programs see of their own files is the same with `switchyard run` and without: descriptors, locks, space, errors, users, roots.
# CASES says which (one of them: CASES=many_open tests/system/t_20_run_effects.sh).
source "$(dirname "$0")/lib.sh"
need python3 cc
need_disk
(( EUID == 0 )) || skip "other users and roots need root"

# Other users reach the files, and not the area.
chmod 711 "$work"
# Other users start Debian's Python.
python=/usr/bin/python3
[[ -x $python ]] || python=python3
effects() { "$python" "$here/run_effects.py" "$@"; }
cc -O1 -pthread -o "$work/threads" "$here/run_threads.c" 2>/dev/null || fail "run_threads.c"
chmod 755 "$work/threads"
# as NAME: the program of a case, without the directory.
as() {
    case $1 in
        cancel | handlers | forks | filters) program=("$work/threads" "$1") ;;
        *) program=("$python" "$here/run_effects.py" act "$1") ;;
    esac
}
# `run_effects.py` asks it what the area has.
export SWITCHYARD
failed=
for name in ${CASES:-$(effects names) cancel handlers forks filters}; do
    echo "· $name"
    mkdir -p "$work/plain" "$work/ran"
    as "$name"
    timeout 60 "${program[@]}" "$work/plain" >"$work/plain.out" 2>&1 || echo "ended with $?" >>"$work/plain.out"
    timeout 60 "$SWITCHYARD" run --area "$work/area" --size 32MiB --match 'f*' -- "${program[@]}" \
        "$work/ran" >"$work/ran.out" 2>"$work/ran.err" || echo "ended with $?" >>"$work/ran.out"
    sed -i "s:$work/[a-z]*:DIR:g" "$work/plain.out" "$work/ran.out"
    diff "$work/plain.out" "$work/ran.out" || { tail -3 "$work/ran.err"; failed+=" $name"; }
    "$SWITCHYARD" store verify "$work/area" | grep -q "files: Map, 0 entries" || { echo "the area keeps something"; failed+=" $name"; }
    rm -rf "$work/plain" "$work/ran"
done
[[ -z $failed ]] || fail "not as without run:$failed"

# bug: a pattern with a slash was compared with the working directory's path, whatever directory `openat` was given.
echo "· directories of patterns, by descriptors"
cat >"$work/openat.py" <<'PY'
import os, sys
sys.path.insert(0, sys.argv[1])
from run_effects import of_area, synced
os.chdir(sys.argv[2])
os.makedirs("wal/old")
os.makedirs("other")
for path, cwd, directory, name in [
    ("wal/1", ".", "wal", "1"), ("wal/2", "other", "../wal", "./2"), ("wal/3", "other", None, "../wal/3"), ("wal/4", "wal", None, "4"),
    ("other/1", "wal", "../other", "1"), ("wal/old/1", "wal", "old", "1"),
]:
    os.chdir(cwd)
    where = os.open(directory, os.O_RDONLY) if directory else None
    synced(os.open(name, os.O_RDWR | os.O_CREAT, 0o644, dir_fd=where))
    os.chdir(sys.argv[2])
    print(path, of_area(os.path.abspath(path)))
PY
mkdir "$work/named"
"$SWITCHYARD" run --area "$work/named.area" --size 32MiB --match 'wal/*' --quiet -- \
    "$python" "$work/openat.py" "$here" "$work/named" >"$work/named.out" || fail "$(cat "$work/named.out")"
diff "$work/named.out" - <<'OUT' || fail "a pattern with a directory"
wal/1 b'0123456789'
wal/2 b'0123456789'
wal/3 b'0123456789'
wal/4 b'0123456789'
other/1 None
wal/old/1 None
OUT

# bug: a program that somebody stopped and continued by its number left `run` stopped for ever. cause: `run` stopped with its program, and
# only a shell continues both. fix: `run` stops only if the terminal has stopped the program.
echo "· stopped and continued by its number"
timeout 60 "$SWITCHYARD" run --area "$work/stopped" --size 32MiB --match 'f*' --quiet -- \
    sh -c "echo \$\$ >$work/pid.new && mv $work/pid.new $work/pid && sleep 1 && exit 7" &
until [[ -s $work/pid ]]; do sleep 0.05; done
kill -STOP "$(cat "$work/pid")"
sleep 0.3
kill -CONT "$(cat "$work/pid")"
code=0
wait $! || code=$?
(( code == 7 )) || fail "run ended with $code, and its program with 7"

# bug: SIGPIPE killed a program of a service, which begins with SIGPIPE ignored. cause: Rust makes it the default in children.
echo "· signals are as they were for run"
# Signals 32 and 33 are the C library's own, in every program that has threads.
starts() {
    (trap '' PIPE HUP; "$@" grep -E '^Sig(Blk|Ign)' /proc/self/status) \
        | while read -r name bits; do echo "$name $(( 0x$bits & ~0x180000000 ))"; done
}
run=("$SWITCHYARD" run --quiet --area "$work/stopped" --match 'f*' --)
[[ $(starts "${run[@]}") == $(starts env) ]] || fail "the program begins with other signals"

# bug: a program started by a socket, or with a watchdog, of systemd took these for another process's. cause: they were for `run`'s number.
echo "· what systemd hands over is the program's"
handed='[ "$LISTEN_PID $WATCHDOG_PID" = "$$ $$" ] && [ "${LISTEN_PIDFDID-none} $LISTEN_FDS" = "none 1" ]'
LISTEN_FDS=1 sh -c 'export LISTEN_PID=$$ WATCHDOG_PID=$$ LISTEN_PIDFDID=7; exec "$@"' sh "${run[@]}" sh -c "$handed" || fail "not handed on"
LISTEN_PID=1 "${run[@]}" sh -c '[ "$LISTEN_PID" = 1 ]' || fail "what is another process's was changed"

# bug: programs with AddressSanitizer did not start. cause: its library wants to be the first one.
if echo 'int main(void) { return 0; }' >"$work/asan.c" && cc -fsanitize=address -o "$work/asan" "$work/asan.c" 2>"$work/cc.err" \
    && "$work/asan" 2>>"$work/cc.err"; then
    echo "· programs with AddressSanitizer"
    "${run[@]}" "$work/asan" || fail "it does not start"
    ASAN_OPTIONS=exitcode=5 "${run[@]}" sh -c 'case $ASAN_OPTIONS in exitcode=5:*) ;; *) exit 1 ;; esac' || fail "options are lost"
else
    echo "  (left out: AddressSanitizer: $(tail -1 "$work/cc.err"))"
fi

# bug: an area on a full btrfs failed for ever: each overwrite takes new blocks there, and none were left. fix: media are made to be overwritten
# in place.
PATH="$PATH:/usr/sbin:/sbin"
if command -v mkfs.btrfs >/dev/null && truncate -s 256M "$work/btrfs" && mkfs.btrfs -q "$work/btrfs" >"$work/mkfs.err" 2>&1 \
    && mkdir "$work/full" && mount -o loop "$work/btrfs" "$work/full" 2>>"$work/mkfs.err"; then
    at_end 'umount "$work/full"'
    echo "· an area on a full btrfs"
    # More than the area has, in synced writes to a file elsewhere.
    fills=(timeout 300 "$SWITCHYARD" run --area "$work/full/area" --size 32MiB --match 'f*' --quiet -- "$python" -c "
import os
fd = os.open('$work/f.full', os.O_RDWR | os.O_CREAT)
for i in range(1200):
    os.pwrite(fd, os.urandom(65536), i % 10 * 65536)
    os.fsync(fd)")
    "${fills[@]}" || fail "the area on a new btrfs fails"
    dd if=/dev/urandom of="$work/full/rest" bs=64k 2>/dev/null && fail "btrfs does not fill up"
    dd if=/dev/urandom of="$work/full/last" bs=4k 2>/dev/null || true
    "${fills[@]}" || fail "the area on a full btrfs fails"
else
    echo "  (left out: a full btrfs: $(tail -1 "$work/mkfs.err" 2>/dev/null))"
fi
