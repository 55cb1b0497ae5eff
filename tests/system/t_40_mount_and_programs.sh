#!/bin/bash
# A mount and programs with logs of their own beside it: leases go to and fro, by the protocol as it is documented, and the kernel's caches are
# never stale.
source "$(dirname "$0")/lib.sh"
source "$here/mounted.sh"
(( EUID == 0 )) || skip "descriptors of the mount take root"

nvm=nvm:$memory/nvm
socket=$work/control

echo "· what cannot have programs beside it is refused"
"$SWITCHYARD" fs make "ssd:$work/ssd:64MiB" >/dev/null
expect_code 2 "$SWITCHYARD" fs mount "ssd:$work/ssd" "$dir" --control "$socket"
expect_text "nvm: on a file"
"$SWITCHYARD" fs make "$nvm:128MiB" >/dev/null
expect_code 2 "$SWITCHYARD" fs mount "$nvm" "$dir" --control "$socket" --mode ordered
expect_text "mode sync"

echo "· a program finds the socket from the mount, and is shown"
mount_fs --control "$socket" --control-mode 660 "$nvm"
[[ $(stat -c %a "$socket") == 660 ]] || fail "the socket has mode $(stat -c %a "$socket")"
[[ $("$SWITCHYARD" fs status "$dir" --json | jq -r .control.socket) == "$socket" ]] || fail "status does not tell the socket"
mkdir "$dir/d" "$dir/e"
echo first >"$dir/d/file"
[[ ! -e $dir/d/none ]] || fail "a file is there that was not made"

cat >"$work/program.py" <<'PY'
"""A program that speaks the protocol of docs/format/fs-session.md, by words on its input."""
import array, os, socket, struct, sys

root, = sys.argv[1:]
line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
line.connect(os.getxattr(root, "switchyard.control"))
line.send(struct.pack("<BBBBII", 1, 0, 0, 0, 0x53465753, 3))

def packet(kind, *fields):
    line.send(struct.pack(f"<I{len(fields)}Q", kind, *fields))

def hear(kind):
    while True:
        data, control, _, _ = line.recvmsg(41000, socket.CMSG_SPACE(4))
        if not data:
            sys.exit("the daemon has gone")
        if data[0] == kind:
            fds = array.array("i")
            for _, _, of in control:
                fds.frombytes(of)
            count = (len(data) - 4) // 8
            return struct.unpack_from(f"<{count}Q", data, 4), fds
        if data[0] == 8 or data[0] == 3:
            sys.exit(f"closed or refused: {data}")

hear(1)
held = {}
for words in map(str.split, sys.stdin):
    match words:
        case ["take", inode, mode]:
            packet(2, 1, 0, int(inode), int(mode))
            (request, grant, count, *rest), _ = hear(2)
            held[int(inode)] = grant
            print("has", *rest[: 2 * count], flush=True)
        case ["give"]:
            (inode, _), _ = hear(4)
            packet(3, inode, 0, held[inode], 0)
            print("gave", inode, flush=True)
        case ["names", inode]:
            packet(5, 2, int(inode), 17, 0, 2**64 - 1)
            (_, _, *rest), _ = hear(5)
            print("names", len(rest), flush=True)
        case ["open", inode, flags]:
            packet(8, 3, int(inode), int(flags))
            _, fds = hear(9)
            os.write(fds[0], b"by a descriptor\n")
            print("wrote", flush=True)
PY

# program: starts the program as a coprocess; say WORDS: what it answers.
program() {
    coproc PROGRAM { python3 "$work/program.py" "$dir"; }
    program_pid=$PROGRAM_PID
}
say() {
    echo "$*" >&"${PROGRAM[1]}"
    IFS= read -r answer <&"${PROGRAM[0]}" || fail "the program does not answer to: $*"
}

echo "· a call on the mount waits for a lease, and others go on"
file=$(stat -c %i "$dir/d/file")
program
# It comes to the inodes by their directories.
say take 1 0
say names 1
d=$(stat -c %i "$dir/d")
say take "$d" 0
say names "$d"
say take "$file" 1
[[ $answer == "has $file 1" ]] || fail "$answer"
[[ $("$SWITCHYARD" fs status "$dir" --json | jq -r .control.processes) == 1 ]] || fail "status does not count the program"
cat "$dir/d/file" >"$work/read" &
reader=$!
ls "$dir/d" >/dev/null
echo other >"$dir/e/other"
[[ $(<"$dir/e/other") == other ]] || fail "others do not go on"
kill -0 "$reader" || fail "a file was read under the lease of a program"
say give
wait "$reader" || fail "the reader ended with $?"
[[ $(<"$work/read") == first ]] || fail "read: $(<"$work/read")"

echo "· the kernel gives back what it has in its caches, pages of a mapping, too"
python3 - "$dir/d/file" <<'PY' &
import mmap, os, sys, time
f = os.open(sys.argv[1], os.O_RDWR)
os.ftruncate(f, 4096)
m = mmap.mmap(f, 4096)
m[0:5] = b"store"
print("stored", flush=True)
while m[4000:4001] != b"!":
    time.sleep(0.01)
PY
mapper=$!
until [[ $(head -c 5 "$dir/d/file") == store ]]; do sleep 0.05; done
say take "$file" 1
[[ $answer == "has $file 1" ]] || fail "$answer"
printf '!' | dd of="$dir/d/file" bs=1 seek=4000 conv=notrunc status=none &
writer=$!
say give
wait "$writer" "$mapper" || fail "a mapping does not see what is written"

echo "· a descriptor of the mount"
say open "$file" $((0x401))
[[ $answer == wrote ]] || fail "$answer"
tail -n 1 "$dir/d/file" | grep -q "by a descriptor" || fail "what a descriptor wrote is not there"

echo "· a program that is killed, and one that says nothing, keep nobody waiting for ever"
say take "$file" 1
cat "$dir/d/file" >/dev/null &
reader=$!
kill -9 "$program_pid"
wait "$reader" || fail "the reader ended with $?"
wait "$program_pid" 2>/dev/null || true
program
say take 1 0
say names 1
say take "$d" 1
kill -STOP "$program_pid"
touch "$dir/d/made"
kill -9 "$program_pid"
wait "$program_pid" 2>/dev/null || true

echo "· the files are whole"
end_mount
check_fs "$nvm"
[[ ! -e $socket ]] || fail "the socket is left"
ls "$memory" | grep -q '\.log-' && fail "a window is left"
mount_fs "$nvm"
[[ -e $dir/d/made && $(<"$dir/e/other") == other ]] || fail "files are missing"
end_mount

echo "· a daemon that is killed while it waits for the kernel to drop pages: calls on the mount fail, and the daemon ends"
# Each write takes so long that the kill comes while a page is written back, for which a thread of the daemon waits.
mount_fs --control "$socket" "mem:64MiB,latency=300ms"
head -c 4096 /dev/zero >"$dir/mapped"
mkdir "$dir/other"
file=$(stat -c %i "$dir/mapped")
program
say take 1 0
say names 1
cat >"$work/store.py" <<'PY'
import mmap, os, sys, time
m = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 4096)
m[0:5] = b"store"
print("stored", flush=True)
time.sleep(60)
PY
python3 "$work/store.py" "$dir/mapped" >"$work/stored" &
mapper=$!
await_line "$work/stored" "$mapper" || fail "nothing is stored in a mapping"
echo "take $file 1" >&"${PROGRAM[1]}"
sleep 0.15
kill -9 "$rack_pid"
stat "$dir/other" >/dev/null 2>"$work/stat.err" &
looker=$!
for (( i = 0; i < 200; i++ )); do
    kill -0 "$looker" 2>/dev/null || break
    sleep 0.1
done
# Whoever hangs goes on, so that the test ends.
umount -f "$dir" 2>/dev/null || true
(( i < 200 )) || fail "a call on a mount whose daemon was killed hangs"
! wait "$looker" || fail "a mount whose daemon was killed answers"
wait "$rack_pid" 2>/dev/null || true
rack_pid=
kill -9 "$mapper" "$program_pid" 2>/dev/null || true
wait "$mapper" "$program_pid" 2>/dev/null || true
