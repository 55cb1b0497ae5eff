#!/bin/bash
# Redis, SQLite and LevelDB, unmodified, under `switchyard run`: nothing that was acknowledged is lost when they are killed under
# load, nor when the power is cut, which is ext4 on a loop device that is shut down without writing its page cache back.
# RUN_KILLS and RUN_CUTS say how often (50 kills: RUN_KILLS=50 tests/system/t_11_run.sh).
source "$(dirname "$0")/lib.sh"
need redis-server redis-check-aof python3 sqlite3 mkfs.ext4
need_disk
kills=${RUN_KILLS:-3} cuts=${RUN_CUTS:-3}
# LevelDB's module is Debian's (python3-plyvel), for Debian's Python.
python=/usr/bin/python3
[[ -x $python ]] || python=python3
py() { "$python" "$here/power_cut.py" "$@"; }
files=$work/files
mkdir "$files"

program=
end_program() {
    [[ -z $program ]] && return 0
    # The program itself is a child of `run`. A kill takes both at once, and the area stays as it is.
    local pids=$program pid
    [[ $1 != 9 ]] || pids+=" $(pgrep -P "$program" || true)"
    kill "-$1" $pids 2>/dev/null || true
    wait "$program" 2>/dev/null || true
    for pid in $pids; do
        while kill -0 "$pid" 2>/dev/null; do sleep 0.01; done
    done
    program=
}
at_end 'end_program 9'
start_redis() {
    mkdir -p "$files/redis"
    "$SWITCHYARD" run --area "$work/area" --size 64MiB -- redis-server --port "$port_base" --dir "$files/redis" \
        --appendonly yes --appendfsync always --save "" --auto-aof-rewrite-percentage 0 >>"$work/redis.log" 2>&1 &
    program=$!
    local i
    for (( i = 0; i < 400; i++ )); do
        redis-cli -p "$port_base" ping 2>/dev/null | grep -q PONG && return 0
        kill -0 "$program" 2>/dev/null || { tail -5 "$work/redis.log" >&2; fail "redis-server ended"; }
        sleep 0.05
    done
    fail "redis-server does not answer"
}
check_redis() {
    start_redis
    py redis_check "$port_base" "$work/redis.note" || fail "redis: an acknowledged SET was lost"
}
check_aof() {
    redis-check-aof "$files/redis/appendonlydir/appendonly.aof.manifest" >"$work/out" 2>&1 || { cat "$work/out" >&2; fail "redis-check-aof"; }
}
numbers() { if [[ -e $1 ]]; then wc -l <"$1"; else echo 0; fi; }
# await_numbers NOTE COUNT: waits until so much is acknowledged, and a little.
await_numbers() {
    local i
    for (( i = 0; i < 600; i++ )); do
        (( $(numbers "$1") >= $2 )) && break
        sleep 0.05
    done
    (( i < 600 )) || fail "nothing is acknowledged"
    sleep "0.$(( RANDOM % 6 ))"
}
load_redis() {
    py redis_load "$port_base" "$work/redis.note" "$(numbers "$work/redis.note")" &
    loader=$!
    await_numbers "$work/redis.note" $(( $(numbers "$work/redis.note") + 500 ))
}

echo "· one area, one program"
start_redis
expect_code 4 "$SWITCHYARD" run --area "$work/area" -- true
expect_text "in use"
expect_code 4 "$SWITCHYARD" store repair "$work/area"
"$SWITCHYARD" store verify "$work/area" | grep -q "a program has it open" || fail "verify beside the program"
end_program TERM
[[ -s $files/redis/appendonlydir/appendonly.aof.manifest ]] || fail "redis: no append-only file"

if command -v strace >/dev/null; then
    # bug: every sync asked for the file's times; cause: fstat for its size; then Linux gives each change a time of its own, and a
    # durable write to the area writes the area's inode, too. And each sync woke sleepers that were not there.
    echo "· a sync is one write, asks for no times, and wakes nobody"
    # Each round of the thread is looked at by itself: a program that is kept waiting for a second meets a checkpoint, which takes more.
    strace -ff -qq -o "$work/calls" "$SWITCHYARD" run --area "$work/calls.area" --size 64MiB --match journal -- "$python" -c '
import os, sys
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for _ in range(200):
    os.write(file, b"x" * 1000)
    os.fdatasync(file)' "$work/journal"
    awk '
        function ended() { if (writes == 1 && stats + wakes == 0) good++ }
        /^write\([0-9]+, "xxxx/ { if (rounds++) ended(); writes = stats = wakes = 0 }
        /^pwritev2\(|^io_uring_enter\([0-9]+, 1,/ { writes++ }
        /stat(at|x)?\(/ && !/STATX_SIZE,|S_IFDIR/ { stats++ }
        /FUTEX_WAKE/ { wakes++ }
        END { print rounds + 0, good + 0 }' $(grep -lE '^write\([0-9]+, "xxxx' "$work"/calls.[0-9]*) >"$work/out"
    read -r rounds good <"$work/out"
    (( rounds == 200 && good >= 180 )) || fail "200 syncs: $rounds rounds, of which $good are as they should be"
fi

echo "· what would lose data, or end the program, is refused by name"
# bug: an area in memory took syncs without a word, and a power cut took them.
if [[ -d /dev/shm && $(stat -f -c %T /dev/shm) == tmpfs ]]; then
    memory=$(mktemp -d /dev/shm/switchyard-test.XXXXXX)
    at_end "rm -rf '$memory'"
    expect_code 2 "$SWITCHYARD" run --area "$memory/area" -- true
    expect_text "is in memory"
    [[ ! -e $memory/area ]] || fail "an area was made in memory"
fi
# bug: a small file of somebody's grew to the size of an area, and was refused then.
echo "port = 80" >"$work/app.conf"
expect_code 1 "$SWITCHYARD" run --area "$work/app.conf" --size 64MiB -- true
expect_text "no storage area"
[[ $(stat -c %s "$work/app.conf") == 10 ]] || fail "somebody's file was changed"
expect_code 2 "$SWITCHYARD" run --area "$work/none.area" --size 0 -- true
expect_code 1 "$SWITCHYARD" run --area "$work/none.area" --size 1KiB -- true
expect_text "8 MiB are the least"
expect_code 2 bash -c 'ulimit -f 100; exec "$@"' bash "$SWITCHYARD" run --area "$work/none.area" --size 64MiB -- true
expect_text "ulimit -f"
[[ ! -e $work/none.area ]] || fail "a file stayed of an area that was refused"
expect_code 0 "$SWITCHYARD" run --area "$work/end.area" --size 64MiB -- true
expect_code 2 bash -c 'ulimit -f 100; exec "$@"' bash "$SWITCHYARD" run --area "$work/end.area" -- true
expect_code 0 "$SWITCHYARD" run --area "$work/end.area" --size 128MiB -- true
expect_text "store grow"
# bug: an area without its superblocks had "0 files that were complete".
cp --sparse=always "$work/end.area" "$work/zeroed.area"
dd if=/dev/zero of="$work/zeroed.area" bs=8192 count=1 conv=notrunc status=none
expect_code 1 "$SWITCHYARD" export "$work/zeroed.area"
expect_code 1 "$SWITCHYARD" run --area "$work/zeroed.area" -- true
# One segment of the log is no more what was written.
cp --sparse=always "$work/end.area" "$work/damaged.area"
printf 'x' | dd of="$work/damaged.area" bs=1 seek=$(( 8192 + 100 )) conv=notrunc status=none
expect_code 1 "$SWITCHYARD" export "$work/damaged.area"
expect_text "store repair $work/damaged.area"

echo "· run ends as its program does, and passes signals on"
expect_code 127 "$SWITCHYARD" run --area "$work/end.area" -- "$work/nowhere"
expect_code 126 "$SWITCHYARD" run --area "$work/end.area" -- "$work/app.conf"
# bug: as the first process of a container `run` left its program's orphans as zombies. A subreaper gets orphans, too.
expect_code 0 python3 -c '
import ctypes, os, sys
assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])' "$SWITCHYARD" run --quiet --area "$work/end.area" -- sh -c '
for orphan in 1 2 3; do (sleep 0.05 &); done
for look in $(seq 200); do
    sleep 0.05
    [ "$(ps -o stat= --ppid $PPID | wc -l)" -gt 1 ] || exit 0
done
ps -o pid,stat,cmd --ppid $PPID
exit 1'
expect_code 7 "$SWITCHYARD" run --area "$work/end.area" --size 64MiB -- sh -c 'exit 7'
for signal in TERM KILL; do
    "$SWITCHYARD" run --area "$work/end.area" --size 64MiB -- sleep 60 &
    program=$!
    while ! pgrep -P "$program" sleep >/dev/null; do sleep 0.01; done
    inner=$(pgrep -P "$program")
    kill "-$signal" "$program"
    code=0
    wait "$program" || code=$?
    (( code == 128 + $(kill -l "$signal") )) || fail "SIG$signal: run ended with $code"
    for (( i = 0; i < 400; i++ )); do
        [[ -d /proc/$inner && $(cut -d' ' -f3 "/proc/$inner/stat") != Z ]] || break
        sleep 0.01
    done
    (( i < 400 )) || fail "SIG$signal: the program goes on without run"
done
# bug: the area of a killed program kept what its files had. fix: run stays, and settles the area however the program ends.
expect_code 137 "$SWITCHYARD" run --area "$work/end.area" --size 64MiB --match journal -- "$python" -c '
import os, sys
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.write(file, b"data")
os.fsync(file)
os.kill(os.getpid(), 9)' "$work/end.journal"
"$SWITCHYARD" store verify "$work/end.area" | grep -q "files: Map, 0 entries" || fail "run did not settle the area"

echo "· redis is killed under load, $kills times"
for (( kill = 0; kill < kills; kill++ )); do
    if (( kill == 0 )); then start_redis; else check_redis; fi
    load_redis
    end_program 9
    wait "$loader" || true
done
"$SWITCHYARD" store verify "$work/area" >"$work/out" || { cat "$work/out"; fail "store verify"; }
expect_code 0 "$SWITCHYARD" store dump "$work/area" --structure files
grep -q incr.aof "$work/out" || fail "store dump does not show the file"
"$SWITCHYARD" export "$work/area" "$work/copies" >"$work/out" || fail "export"
while read -r copy; do cmp "$copy" "/${copy#"$work/copies/"}" || fail "export: $copy differs"; done <"$work/out"
check_redis
end_program TERM
check_aof

if (( EUID != 0 )); then
    echo "  (without root there is no power cut)"
    exit 0
fi

image=$work/image
truncate -s 512M "$image"
mkfs.ext4 -q -F "$image"
mount_files() { mount -o loop "$image" "$files" || skip "no loop device"; }
at_end "umount -l '$files' 2>/dev/null"
# power_cut: the machine stops, and is there again.
power_cut() {
    py cut "$files" $(pgrep -P "$program")
    end_program 9
    wait "$loader" 2>/dev/null || true
    umount "$files"
    mount_files
}
mount_files
rm -f "$work/redis.note" "$work/area"
echo "· the power is cut under redis, $cuts times"
for (( cut = 0; cut < cuts; cut++ )); do
    if (( cut == 0 )); then start_redis; else check_redis; fi
    load_redis
    power_cut
done
"$SWITCHYARD" export "$work/area"
check_aof
check_redis
end_program TERM

# bug: newer data were rolled back, and a removed log came back beside a newer database. cause: recovery made an area's changes to
# whatever was there. fix: what changed after the area's claim is left alone, and `run` says so.
echo "· files that went on without run are left alone"
"$SWITCHYARD" run --area "$work/stale.area" --size 64MiB --match journal --match gone -- "$python" -c '
import os, sys, time
for name in ("journal", "gone"):
    file = os.open(sys.argv[1] + "/" + name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, b"old")
    os.fsync(file)
open(sys.argv[2], "w").write("ready")
time.sleep(600)' "$files" "$work/ready" &
program=$!
while [[ ! -s $work/ready ]]; do sleep 0.05; done
end_program 9
# The claim is for two seconds.
sleep 2.5
echo "old and new" >"$files/journal"
rm "$files/gone"
umount "$files"
mount_files
expect_code 1 "$SWITCHYARD" run --area "$work/stale.area" -- true
expect_text "journal was changed after"
expect_code 0 "$SWITCHYARD" export "$work/stale.area" "$work/stale"
[[ $(cat "$work/stale$files/journal") == old ]] || fail "export: the area had something else"
# The area has names without links.
ln -s "$files" "$work/link"
expect_code 0 "$SWITCHYARD" export "$work/stale.area" --forget "$work/link/journal"
expect_code 1 "$SWITCHYARD" run --area "$work/stale.area" -- true
expect_text "gone is missing"
expect_code 0 "$SWITCHYARD" export "$work/stale.area" --forget "$files/gone"
expect_code 0 "$SWITCHYARD" run --area "$work/stale.area" -- true
[[ $(cat "$files/journal") == "old and new" && ! -e $files/gone ]] || fail "a file was changed"

# bug: a file system was not mounted when its area recovered. Fresh files were made below the empty mount point, and removed ones counted
# as gone. Then the area was emptied. cause: a lost directory entry looks the same. fix: the area knows the mount, and refuses if it is away.
echo "· a file system that is not mounted is waited for"
"$SWITCHYARD" run --area "$work/away.area" --size 64MiB --match fresh --match removed --quiet -- "$python" -c '
import os, sys, time
for name in ("fresh", "removed"):
    file = os.open(sys.argv[1] + "/" + name, os.O_WRONLY | os.O_CREAT)
    os.write(file, b"acknowledged")
    os.fsync(file)
os.unlink(sys.argv[1] + "/removed")
open(sys.argv[2], "w").write("ready")
time.sleep(600)' "$files" "$work/away.ready" &
program=$!
await_line "$work/away.ready" "$program" || fail "away: not ready"
kill -STOP "$(pgrep -P "$program")"
py cut "$files"
end_program 9
umount "$files"
uuid=$(blkid -s UUID -o value "$image")
truncate -s 64M "$work/other.image" && mkfs.ext4 -q -F "$work/other.image"
for instead in nothing another; do
    if [[ $instead == another ]]; then mount -o loop "$work/other.image" "$files"; fi
    expect_code 1 "$SWITCHYARD" run --area "$work/away.area" -- true
    expect_text "$files/"
    grep -q "UUID=" "$work/out" && expect_text "UUID=$uuid"
    expect_text "mount it and try again"
    expect_code 1 "$SWITCHYARD" export "$work/away.area"
    [[ ! -e $files/fresh ]] || fail "a file was made below the mount point"
    if [[ $instead == another ]]; then umount "$files"; fi
done
mount_files
expect_code 0 "$SWITCHYARD" export "$work/away.area"
[[ $(cat "$files/fresh") == acknowledged && ! -e $files/removed ]] || fail "what was acknowledged is lost"
rm "$files/fresh"

# bug: programs of two runs logged one file, each in its own area, and recovery of one area undid what the other program had synced later.
# cause: a run knew its own processes only. fix: runs ask each other, and neither follows such a file.
echo "· two runs with areas of their own write one file"
touch "$files/shared" && chmod 666 "$files/shared" && chmod 711 "$work"
declare -A twins=()
for twin in a b; do
    truncate -s 64M "$work/$twin.area" && : >"$work/$twin.ready" && chmod 666 "$work/$twin".*
    as=()
    [[ $twin == a ]] || as=(setpriv --reuid 65534 --clear-groups)
    "${as[@]}" "$SWITCHYARD" run --area "$work/$twin.area" --match shared -- "$python" -c '
import os, sys, time
file = os.open(sys.argv[1], os.O_WRONLY)
os.pwrite(file, sys.argv[2].encode() * 4, 0)
os.fsync(file)
open(sys.argv[3], "w").write("ready")
time.sleep(600)' "$files/shared" "$twin" "$work/$twin.ready" 2>"$work/$twin.err" &
    twins[$twin]=$!
    await_line "$work/$twin.ready" "${twins[$twin]}" || { cat "$work/$twin.err" >&2; fail "run $twin: not ready"; }
done
grep -q "shared is written by the run of area $work/a.area" "$work/b.err" || { cat "$work/b.err" >&2; fail "nobody was told"; }
kill -STOP $(pgrep -P "${twins[a]}") $(pgrep -P "${twins[b]}")
py cut "$files"
for twin in a b; do
    program=${twins[$twin]}
    end_program 9
done
umount "$files"
mount_files
for twin in b a; do expect_code 0 "$SWITCHYARD" export "$work/$twin.area"; done
[[ $(cat "$files/shared") == bbbb ]] || fail "what was synced last is undone: $(cat "$files/shared")"

echo "· calls that are seldom, or that are not seen"
# Each case has an area and a program of its own; the power is cut once under all of them.
calls() { "$python" "$here/run_calls.py" "$@"; }
# Other users reach the files.
chmod 711 "$work"
mkdir "$work/calls.d"
declare -A programs=()
at_end 'kill -9 ${programs[@]} 2>/dev/null || true'
for name in $(calls names); do
    "$SWITCHYARD" run --area "$work/calls.d/$name.area" --size 32MiB --match "$name" -- "$python" "$here/run_calls.py" act "$name" \
        "$files" "$work/calls.d/$name.ready" >"$work/calls.d/$name.log" 2>&1 &
    programs[$name]=$!
done
for name in "${!programs[@]}"; do
    await_line "$work/calls.d/$name.ready" "${programs[$name]}" || { cat "$work/calls.d/$name.log" >&2; fail "$name: not ready"; }
    kill -STOP $(pgrep -P "${programs[$name]}")
done
py cut "$files"
for name in "${!programs[@]}"; do
    program=${programs[$name]}
    end_program 9
done
umount "$files"
mount_files
for name in "${!programs[@]}"; do
    "$SWITCHYARD" export "$work/calls.d/$name.area" >"$work/out" || fail "$name: export"
    calls check "$name" "$files" || fail "$name: what was synced is lost"
done

# database NAME LOAD CHECK FILE: the same for one that a program of ours uses.
database() {
    local name=$1 cut
    for (( cut = 0; cut < cuts; cut++ )); do
        local before
        before=$(numbers "$work/$name.note")
        "$SWITCHYARD" run --area "$work/$name.area" --size 64MiB -- "$python" "$here/power_cut.py" "${name}_load" "$files/$name" \
            "$work/$name.note" "$before" >>"$work/$name.log" 2>&1 &
        program=$!
        loader=
        await_numbers "$work/$name.note" $(( before + 300 ))
        if (( cut % 2 )); then end_program 9; else power_cut; fi
        "$SWITCHYARD" export "$work/$name.area"
        [[ -s $work/$name.note ]] || { cat "$work/$name.log" >&2; fail "$name did nothing"; }
        py "${name}_check" "$files/$name" "$work/$name.note" || fail "$name: what was acknowledged is lost"
    done
}
echo "· the power is cut under SQLite"
database sqlite
if "$python" -c 'import plyvel' 2>/dev/null; then
    echo "· and under LevelDB"
    database level
fi
if command -v db_bench >/dev/null; then
    echo "· RocksDB syncs every write of four threads"
    "$SWITCHYARD" run --area "$work/rocks.area" --size 64MiB -- db_bench --benchmarks=fillsync,readrandom --threads=4 \
        --db="$files/rocks" --num=500 --value_size=1000 >"$work/out" 2>&1 || { cat "$work/out" >&2; fail "db_bench"; }
    ldb --db="$files/rocks" checkconsistency >"$work/out" 2>&1 || { cat "$work/out" >&2; fail "ldb: not consistent"; }
    "$SWITCHYARD" store verify "$work/rocks.area" >"$work/out" || fail "store verify"
    grep -q "files: Map, 0 entries" "$work/out" || fail "a program that ended left something in its area"
fi
