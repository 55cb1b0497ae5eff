#!/bin/bash
# File systems: made, mounted, used by real programs, killed amid writes, filled, checked.
source "$(dirname "$0")/lib.sh"
source "$here/mounted.sh"

nvm=nvm:$memory/nvm
ssd=ssd:$work/ssd
hdd=hdd:$work/hdd

echo "· a device with data is refused by name, and made with the name"
head -c 1M /dev/urandom >"$work/full"
expect_code 2 "$SWITCHYARD" fs make "ssd:$work/full"
expect_text "--erase data"
truncate -s 64M "$work/full"
"$SWITCHYARD" fs make "ssd:$work/full" --erase data >/dev/null
expect_code 2 "$SWITCHYARD" fs make "ssd:$work/full"
expect_text "--erase fs"
expect_code 2 "$SWITCHYARD" fs make "ssd:$work/none"
expect_text "ssd:FILE:10GiB"

echo "· files of all kinds are kept over an unmount"
"$SWITCHYARD" fs make "$nvm:256MiB" >/dev/null
mount_fs "$nvm"
[[ $(jq -r .mode "$work/mount.json") == sync ]] || fail "mapped memory is not mounted in mode sync"
expect_code 4 "$SWITCHYARD" fs mount "$nvm" "$work"
expect_code 4 "$SWITCHYARD" fs check "$nvm"
mkdir -p "$dir/a/b"
echo text >"$dir/a/file"
ln "$dir/a/file" "$dir/a/hard"
ln -s file "$dir/a/link"
ln -s "$(printf 'x%.0s' {1..3000})" "$dir/a/long"
mkfifo "$dir/a/pipe"
chmod 4751 "$dir/a/hard"
python3 - "$dir" <<'PY'
import mmap, os, sys
root = sys.argv[1]
with open(f"{root}/holes", "wb") as f:
    f.seek(1 << 20)
    f.write(b"end")
f = os.open(f"{root}/mapped", os.O_RDWR | os.O_CREAT)
os.ftruncate(f, 1 << 16)
with mmap.mmap(f, 1 << 16) as m:
    m[5000:5005] = b"hello"
os.close(f)
os.setxattr(f"{root}/a/file", "user.colour", b"blue")
f = os.open(root, os.O_RDWR | os.O_TMPFILE, 0o644)
os.write(f, b"named later")
os.link(f"/proc/self/fd/{f}", f"{root}/born", src_dir_fd=os.open("/", os.O_RDONLY), follow_symlinks=True)
os.close(f)
open_one = open(f"{root}/gone", "w+b")
os.unlink(f"{root}/gone")
open_one.write(b"still here")
open_one.seek(0)
assert open_one.read() == b"still here"
PY
"$SWITCHYARD" fs status "$dir" | grep -q "mode sync" || fail "a mount does not tell its status"
end_mount
check_fs "$nvm"
mount_fs "$nvm"
[[ $(<"$dir/a/hard") == text && $(readlink "$dir/a/link") == file ]] || fail "links are not kept"
[[ $(readlink "$dir/a/long" | wc -c) == 3001 ]] || fail "a long link is not kept"
[[ $(stat -c '%a %h %F' "$dir/a/file") == "4751 2 regular file" ]] || fail "attributes are not kept"
[[ -p $dir/a/pipe && $(<"$dir/born") == "named later" && ! -e $dir/gone ]] || fail "kinds are not kept"
[[ $(stat -c %s "$dir/holes") == 1048579 && $(tail -c 3 "$dir/holes") == end ]] || fail "a file with a hole is not kept"
python3 -c "
import os, sys
assert os.getxattr('$dir/a/file', 'user.colour') == b'blue'
assert open('$dir/mapped', 'rb').read()[5000:5005] == b'hello'
f = os.open('$dir/holes', os.O_RDONLY)
assert os.lseek(f, 0, os.SEEK_DATA) == 1 << 20, os.lseek(f, 0, os.SEEK_DATA)
"

echo "· programs find what they have written: tar, git, SQLite"
tar -C "$root" -cf "$work/crates.tar" crates docs
mkdir "$dir/tree"
tar -C "$dir/tree" -xf "$work/crates.tar"
tar -C "$dir/tree" -df "$work/crates.tar" || fail "tar finds differences"
if command -v git >/dev/null; then
    git -C "$dir/tree" init -q
    git -C "$dir/tree" add .
    git -C "$dir/tree" -c user.name=a -c user.email=a@b commit -qm all
    git -C "$dir/tree" fsck --full >"$work/fsck.out" 2>&1 || fail "$(<"$work/fsck.out")"
fi
python3 - "$dir" <<'PY'
import sqlite3, sys
for mode in ("WAL", "DELETE"):
    db = sqlite3.connect(f"{sys.argv[1]}/{mode}.db")
    db.execute(f"PRAGMA journal_mode={mode}")
    db.execute("CREATE TABLE t (k INTEGER PRIMARY KEY, v BLOB)")
    for k in range(200):
        with db:
            db.execute("INSERT INTO t VALUES (?, ?)", (k, bytes([k % 256]) * 500))
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()
PY
end_mount
check_fs "$nvm"

# A writer of files that tells each that it has written, and where its data end.
cat >"$work/writer.py" <<'PY'
import os, sys
root, told, syncs = sys.argv[1], open(sys.argv[2], "w"), sys.argv[3] == "sync"
for n in range(1_000_000):
    path = f"{root}/w{n % 50}/f{n}"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    fd = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(fd, bytes([n % 251]) * (n * 37 % 60000 + 1))
    if syncs:
        os.fsync(fd)
    os.close(fd)
    os.rename(path + ".new", path)
    if syncs:
        d = os.open(os.path.dirname(path), os.O_RDONLY)
        os.fsync(d)
        os.close(d)
    if n > 20:
        os.unlink(f"{root}/w{(n - 20) % 50}/f{n - 20}") if (n - 20) % 3 == 0 else None
    print(n, file=told, flush=True)
PY
cat >"$work/reader.py" <<'PY'
import sys
root, told = sys.argv[1], [int(line) for line in open(sys.argv[2]) if line.endswith("\n")]
last = max(told)
for n in told:
    path = f"{root}/w{n % 50}/f{n}"
    if n % 3 == 0 and n <= last - 20 + 1:
        continue
    data = open(path, "rb").read()
    assert data == bytes([n % 251]) * (n * 37 % 60000 + 1), path
print(len(told), "files")
PY

# kills FLAG: how a writer syncs. Devices follow.
kills() {
    local syncs=$1 round
    shift
    for round in 1 2 3; do
        mount_fs "$@"
        rm -rf "$dir"/w*
        python3 "$work/writer.py" "$dir" "$work/told" "$syncs" 2>/dev/null &
        local writer=$!
        sleep "1.$round"
        kill_mount "$writer"
        mount_fs "$@"
        python3 "$work/reader.py" "$dir" "$work/told" || fail "round $round: an acknowledged file is lost"
        end_mount
        check_fs "$@"
    done
}

echo "· a kill amid writes loses nothing acknowledged: mapped memory, mode sync"
kills none "$nvm"

echo "· a kill amid writes loses nothing synced: two files, mode ordered"
"$SWITCHYARD" fs make "$ssd:128MiB" "$hdd:256MiB" >/dev/null
kills sync "$ssd" "$hdd"
expect_code 2 "$SWITCHYARD" fs mount "$hdd" "$ssd" "$dir"

echo "· a full file system says so, loses nothing, and takes more after deletions"
"$SWITCHYARD" fs make "nvm:$memory/small:24MiB" >/dev/null
mount_fs "nvm:$memory/small"
python3 - "$dir" <<'PY'
import errno, os, sys
root = sys.argv[1]
def fill(prefix):
    n = 0
    while True:
        path, data = f"{root}/{prefix}{n}", bytes([n % 251]) * 100_000
        try:
            with open(path, "wb", buffering=0) as f:
                if f.write(data) < len(data):
                    raise OSError(errno.ENOSPC, "short")
        except OSError as error:
            assert error.errno == errno.ENOSPC, error
            if os.path.exists(path):
                os.unlink(path)
            return n
        n += 1
def verify(prefix, numbers):
    for n in numbers:
        assert open(f"{root}/{prefix}{n}", "rb").read() == bytes([n % 251]) * 100_000, (prefix, n)
count = fill("a")
assert count > 100, count
verify("a", range(count))
for n in range(0, count, 2):
    os.unlink(f"{root}/a{n}")
again = fill("b")
assert again > count // 2 - 10, (count, again)
verify("a", range(1, count, 2))
verify("b", range(again))
PY
end_mount
check_fs "nvm:$memory/small"
mount_fs "nvm:$memory/small"
[[ $(tail -c 1 "$dir/b5" | od -An -tu1 | tr -d ' ') == 5 ]] || fail "a file of a full file system is not kept"
rm -rf "${dir:?}"/*
end_mount
check_fs "nvm:$memory/small"

if (( EUID == 0 )); then
    echo "· mount(8): read-only, handles of before, set-ID bits that a write takes"
    # As mount(8) runs it.
    by_mount() {
        "$root/scripts/mount.fuse.switchyard" "$nvm" "$dir" -o "$1" || fail "the mount helper fails"
        grep -q " $dir fuse.switchyard ${1%%,*}" /proc/mounts || fail "it is not mounted $1"
    }
    unmount() {
        umount "$dir"
        # The device is free when its process has ended.
        for (( i = 0; i < 200; i++ )); do
            check=$("$SWITCHYARD" fs check "$nvm" --data 2>&1) && return 0
            [[ $check == *"in use"* ]] || break
            sleep 0.05
        done
        fail "$check"
    }
    export SWITCHYARD
    cat >"$work/handle.py" <<'PY'
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
step, root, path, kept = sys.argv[1:]
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("handle", ctypes.c_ubyte * 128)]
if step == "take":
    handle, mount = Handle(bytes=128), ctypes.c_int()
    assert libc.name_to_handle_at(-100, path.encode(), ctypes.byref(handle), ctypes.byref(mount), 0) == 0, os.strerror(ctypes.get_errno())
    open(kept, "wb").write(bytes(handle))
else:
    handle = Handle.from_buffer_copy(open(kept, "rb").read())
    place = os.open(root, os.O_RDONLY)
    fd = libc.open_by_handle_at(place, ctypes.byref(handle), os.O_RDONLY)
    assert fd >= 0, os.strerror(ctypes.get_errno())
    assert os.read(fd, 100) == open(path, "rb").read(100)
PY
    by_mount rw,nosuid
    python3 "$work/handle.py" take "$dir" "$dir/a/file" "$work/kept"
    touch -a -d 2020-01-01 "$dir/a/file"
    # is_read YEARS: reading the file leaves its access time in such a year.
    is_read() { cat "$dir/a/file" >/dev/null && [[ $(stat -c %x "$dir/a/file") == $1-* ]] || fail "the access time is $(stat -c %x "$dir/a/file")"; }
    unmount
    by_mount ro
    python3 "$work/handle.py" open "$dir" "$dir/a/file" "$work/kept"
    is_read 2020
    ! touch "$dir/new" 2>"$work/out" || fail "a read-only mount takes a change"
    grep -q "Read-only" "$work/out" || fail "$(<"$work/out")"
    unmount
    code=0
    "$root/scripts/mount.fuse.switchyard" "$nvm" "$dir" -o colour=blue 2>"$work/out" || code=$?
    (( code == 32 )) && grep -q "colour=blue is not known" "$work/out" || fail "an unknown option gives $code: $(<"$work/out")"
    by_mount rw,noatime
    is_read 2020
    unmount
    by_mount rw
    is_read "$(date +%Y)"
    # What takes the bits: a write past the kernel's cache, and an allocation. Nothing but the mode is asked for, which the kernel has.
    for way in direct allocate; do
        install -o nobody -m 6755 /bin/true "$dir/program"
        [[ $(stat -c %a "$dir/program") == 6755 ]] || fail "set-ID bits are not kept"
        case $way in
        direct) change=(dd if=/dev/zero of=program bs=4096 count=1 oflag=direct conv=notrunc status=none) ;;
        allocate) change=(fallocate -l 1M program) ;;
        esac
        (cd "$dir" && setpriv --reuid=nobody --clear-groups "${change[@]}")
        [[ $(stat -c %a "$dir/program") == 755 ]] || fail "set-ID bits outlive a change: $way"
    done
    echo "· an allocation of nearly all room succeeds"
    room=$(( $(stat -f -c '%a * %S' "$dir") ))
    fallocate -l $(( room - (512 << 10) )) "$dir/large" ||
        fail "no room for the $room bytes that statfs tells: $(stat -c '%s bytes, %b blocks' "$dir/large"), $("$SWITCHYARD" fs status "$dir" --json)"
    rm "$dir/large"
    unmount
fi

if [[ -n ${PJDFSTEST:-} ]]; then
    echo "· the suite at \$PJDFSTEST finds no failure"
    (( EUID == 0 )) || skip "pjdfstest takes root"
    mount_fs mem:1GiB --suid-dev
    (cd "$dir" && prove -rQ "$PJDFSTEST" >"$work/pjd.out" 2>&1) || fail "$(tail -30 "$work/pjd.out")"
    tail -2 "$work/pjd.out"
    end_mount
fi
