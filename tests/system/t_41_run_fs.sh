#!/bin/bash
# `switchyard run --fs`: unmodified programs beside a mount, with logs of their own: calls of all kinds as on another file system, real programs, kills.
source "$(dirname "$0")/lib.sh"
source "$here/mounted.sh"
need gcc python3

control=$work/control
nvm=nvm:$memory/nvm

# mount_shared DEVICE…: a mount for programs with logs.
mount_shared() { mount_fs --control "$control" "$@"; }

# Runs a command with a log of its own, as the process that was started.
run=("$SWITCHYARD" run --quiet --fs "$dir" --)
served() { "${run[@]}" "$@"; }

gcc -O1 -o "$work/calls" "$here/run_fs_calls.c" -lpthread || fail "the program of calls does not build"
"$SWITCHYARD" fs make "$nvm:512MiB" >/dev/null

echo "· a directory that is no such mount is refused, and so are other options of run"
expect_code 2 "$SWITCHYARD" run --fs "$work" -- true
expect_text "--control"
expect_code 2 "$SWITCHYARD" run --fs "$work" --match x -- true

mount_shared "$nvm"

echo "· calls of all kinds come to what they come to elsewhere"
mkdir "$dir/calls" "$memory/calls"
"$work/calls" "$memory/calls" >"$work/expected" || fail "the program of calls fails elsewhere"
served "$work/calls" "$dir/calls" >"$work/found" 2>"$work/calls.err" || fail "the program of calls fails"
diff "$work/expected" "$work/found" >"$work/difference" || fail "$(<"$work/difference")"
[[ ! -s $work/calls.err ]] || fail "the program of calls is told something: $(<"$work/calls.err")"
# Who of two appended first differs from run to run, and pipes are not compared.
diff -r --no-dereference -x appended -x pipe "$memory/calls" "$dir/calls" >"$work/difference" 2>&1 || fail "$(<"$work/difference")"

echo "· a program of Go is told of, and left to the kernel"
cat >"$work/go.c" <<'C'
#include <stdlib.h>
__asm__(".section .note.go.buildid,\"a\",@note\n.long 4, 0x53, 4\n.ascii \"Go\\0\\0\"\n.zero 0x54\n.previous");
int main(int count, char **words) { return count == 2 ? system(words[1]) : 1; }
C
gcc -o "$work/go" "$work/go.c" || fail "the program with a note of Go does not build"
"$SWITCHYARD" run --fs "$dir" -- "$work/go" "echo some >$dir/by-go" 2>"$work/go.err" || fail "the program with a note of Go fails"
grep -q "is a program of Go" "$work/go.err" || fail "nothing is told of Go: $(<"$work/go.err")"
[[ $(<"$dir/by-go") == some ]] || fail "the child of a program of Go does not write"

echo "· a program is served, and the mount sees what it has written"
cat >"$work/served.py" <<'PY'
import os, sys
fd = os.open(f"{sys.argv[1]}/placeholder", os.O_CREAT | os.O_RDWR)
os.write(fd, b"x" * 1000)
print(fd, flush=True)
sys.stdin.read()
PY
mkfifo "$work/words"
"${run[@]}" python3 "$work/served.py" "$dir" <"$work/words" >"$work/number" &
program=$!
exec 7>"$work/words"
await_line "$work/number" "$program" || fail "the program does not run"
# Others see the mount point in the place of what is served.
[[ $(readlink "/proc/$program/fd/$(<"$work/number")") == "$dir" ]] || fail "the program is not served"
[[ $(stat -c %s "$dir/placeholder") == 1000 ]] || fail "the mount does not see what is written"
exec 7>&-
wait "$program"
echo "· a directory that was open before the program had a log: calls from there are served, and those from elsewhere are not"
cat >"$work/from.py" <<'PY'
import os, sys
root, elsewhere = sys.argv[1:]
def make(at, name):
    fd = os.open(name, os.O_CREAT | os.O_RDWR, 0o600, dir_fd=at)
    os.write(fd, b"x" * 100)
    print(fd, flush=True)
    sys.stdin.readline()
    os.close(fd)
at, other = (os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in (root, elsewhere))
make(at, "from-a-directory")
make(other, "elsewhere")
# The number is the directory's now.
os.dup2(at, other)
make(other, "by-dup2")
os.closerange(other, other + 1)
make(os.open(root, os.O_RDONLY | os.O_DIRECTORY), "opened-again")
PY
mkdir "$work/elsewhere"
coproc FROM { exec "${run[@]}" python3 "$work/from.py" "$dir" "$work/elsewhere"; }
from=$FROM_PID
for made in "$dir" "$work/elsewhere/elsewhere" "$dir" "$dir"; do
    IFS= read -r number <&"${FROM[0]}" || fail "the program ends before it makes $made"
    [[ $(readlink "/proc/$from/fd/$number") == "$made" ]] || fail "not $made: $(readlink "/proc/$from/fd/$number")"
    echo >&"${FROM[1]}"
done
wait "$from" || fail "the program that makes files from directories fails"
[[ $(stat -c %s "$dir/from-a-directory") == 100 ]] || fail "the mount does not see what is made from a directory"
echo "· a listing is served"
cat >"$work/list.py" <<'PY'
import ctypes, os, sys
root = sys.argv[1]
os.mkdir(f"{root}/list")
c = ctypes.CDLL(None)
c.opendir.restype = ctypes.c_void_p
stream = ctypes.c_void_p(c.opendir(f"{root}/list".encode()))
print(c.dirfd(stream), flush=True)
sys.stdin.readline()
assert c.closedir(stream) == 0
PY
coproc LIST { exec "${run[@]}" python3 "$work/list.py" "$dir"; }
list=$LIST_PID
IFS= read -r number <&"${LIST[0]}" || fail "the program that lists ends"
[[ $(readlink "/proc/$list/fd/$number") == "$dir" ]] || fail "a listing is the kernel's: $(readlink "/proc/$list/fd/$number")"
echo >&"${LIST[1]}"
wait "$list" || fail "the program that lists fails"
cat >"$work/small.py" <<'PY'
import os, sys
root = sys.argv[1]
for n in range(2000):
    fd = os.open(f"{root}/small{n % 10}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.write(fd, b"x" * 1000)
    os.fsync(fd)
    os.close(fd)
PY
served python3 "$work/small.py" "$dir"
[[ $(stat -c %s "$dir/small7") == 1000 ]] || fail "the mount does not see what a program has written"

echo "· python: tempfile, shutil, os.walk, mmap, subprocess"
cat >"$work/files.py" <<'PY'
import mmap, os, pathlib, shutil, subprocess, sys, tempfile
root = pathlib.Path(sys.argv[1])
(root / "a/b/c").mkdir(parents=True)
(root / "a/text").write_text("text\n")
with open(root / "a/text", "a") as f:
    f.write("more\n")
assert (root / "a/text").read_text() == "text\nmore\n"
shutil.copytree(root / "a", root / "copy")
shutil.copy2(root / "a/text", root / "copy/b/text")
assert os.stat(root / "a/text").st_mtime_ns == os.stat(root / "copy/b/text").st_mtime_ns
found = sorted(os.path.relpath(os.path.join(at, name), root) for at, _, names in os.walk(root) for name in names)
assert found == ["a/text", "copy/b/text", "copy/text"], found
with tempfile.TemporaryDirectory(dir=root) as inner:
    with tempfile.NamedTemporaryFile(dir=inner) as f:
        f.write(b"x" * 10000)
        f.flush()
        assert subprocess.run(["wc", "-c", f.name], capture_output=True, text=True).stdout.startswith("10000 ")
    with open(os.path.join(inner, "out"), "w") as out:
        subprocess.run(["echo", "child"], stdout=out, check=True)
        out.write("parent\n")
    assert open(os.path.join(inner, "out")).read() == "child\nparent\n"
assert not os.path.exists(inner)
with open(root / "map", "w+b") as f:
    f.truncate(1 << 16)
    with mmap.mmap(f.fileno(), 0) as m:
        m[1000:1004] = b"page"
        copy = open(root / "copied", "wb", buffering=0)
        assert copy.write(m) == 1 << 16
assert open(root / "copied", "rb").read()[1000:1004] == b"page"
os.replace(root / "map", root / "replaced")
os.chdir(root)
assert os.path.exists("replaced") and not os.path.exists("map")
assert sorted(os.listdir(".")) == ["a", "copied", "copy", "replaced"]
shutil.rmtree("copy")
os.rename("a", "z")
assert os.path.isfile("z/text")
PY
mkdir "$dir/python"
served python3 "$work/files.py" "$dir/python" || fail "python finds something else"

echo "· tar and diff, cp, rsync, make, git, SQLite, redis"
tar -C "$root" -cf "$work/source.tar" crates/libfs crates/preload crates/fs docs
mkdir "$dir/tree" "$work/tree"
tar -C "$work/tree" -xf "$work/source.tar"
served tar -C "$dir/tree" -xf "$work/source.tar"
served diff -r "$work/tree" "$dir/tree" || fail "tar does not bring all"
diff -r "$work/tree" "$dir/tree" || fail "the mount has not all of it"
served cp -a "$dir/tree" "$dir/tree2"
diff -r "$work/tree" "$dir/tree2" || fail "cp does not copy all"
if command -v rsync >/dev/null; then
    served rsync -a "$work/tree/" "$dir/tree3/"
    diff -r "$work/tree" "$dir/tree3" || fail "rsync does not copy all"
fi
served rm -r "$dir/tree2"
[[ ! -e $dir/tree2 ]] || fail "rm leaves something"
if command -v make >/dev/null; then
    mkdir "$dir/project"
    printf 'int two(void) { return 2; }\n' >"$dir/project/two.c"
    printf 'int two(void);\nint main(void) { return two() - 2; }\n' >"$dir/project/main.c"
    printf 'all: main\nmain: main.o two.o\n\tcc -o $@ $^\nlib.a: two.o\n\tar rcs $@ $^\n' >"$dir/project/Makefile"
    served make -s -C "$dir/project" all lib.a || fail "make fails"
    "$dir/project/main" || fail "what make has made does not run"
fi
if command -v git >/dev/null; then
    served sh -ec '
        cd "$1"
        git init -q .
        git add .
        git -c user.name=a -c user.email=a@b commit -qm all
        echo more >>docs/file-system.md
        git -c user.name=a -c user.email=a@b commit -qam more
        [ "$(git log --oneline | wc -l)" = 2 ]
        git checkout -q HEAD~1
        git gc -q
        git fsck --full' sh "$dir/tree" >"$work/git.out" 2>&1 || fail "git: $(<"$work/git.out")"
    git -c safe.directory='*' -C "$dir/tree" fsck --full >"$work/git.out" 2>&1 || fail "git finds by the mount: $(<"$work/git.out")"
fi
cat >"$work/sqlite.py" <<'PY'
import sqlite3, sys
for mode in ("WAL", "DELETE"):
    db = sqlite3.connect(f"{sys.argv[1]}/{mode}.db")
    db.execute(f"PRAGMA journal_mode={mode}")
    db.execute("CREATE TABLE t (k INTEGER PRIMARY KEY, v BLOB)")
    for k in range(300):
        with db:
            db.execute("INSERT INTO t VALUES (?, ?)", (k, bytes([k % 256]) * 500))
    other = sqlite3.connect(f"{sys.argv[1]}/{mode}.db")
    assert other.execute("SELECT count(*) FROM t").fetchone() == (300,)
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()
PY
served python3 "$work/sqlite.py" "$dir" || fail "SQLite finds something else"
for mode in WAL DELETE; do
    python3 -c "
import sqlite3
db = sqlite3.connect('$dir/$mode.db')
assert db.execute('SELECT count(*), sum(length(v)) FROM t').fetchone() == (300, 150000)" || fail "SQLite by the mount: $mode"
done
if command -v redis-server >/dev/null; then
    mkdir "$dir/redis"
    start_redis() {
        "${run[@]}" redis-server --port 0 --unixsocket "$work/redis.sock" --dir "$dir/redis" --appendonly yes --appendfsync always \
            --save "" >"$work/redis.out" 2>&1 &
        redis=$!
        for (( i = 0; i < 200; i++ )); do
            [[ $(redis-cli -s "$work/redis.sock" ping 2>/dev/null) == PONG ]] && return 0
            sleep 0.05
        done
        fail "redis does not start: $(tail -5 "$work/redis.out")"
    }
    start_redis
    for n in $(seq 100); do echo "SET k$n v$n"; done | redis-cli -s "$work/redis.sock" >/dev/null
    kill -9 "$redis"
    wait "$redis" 2>/dev/null || true
    start_redis
    [[ $(redis-cli -s "$work/redis.sock" dbsize) == 100 ]] || fail "redis lost acknowledged keys"
    kill "$redis"
    wait "$redis" || true
fi

echo "· a killed program loses nothing that was acknowledged"
cat >"$work/writer.py" <<'PY'
import os, sys
root, told = sys.argv[1], os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
os.makedirs(root, exist_ok=True)
for n in range(1_000_000):
    path = f"{root}/f{n}"
    fd = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(fd, bytes([n % 251]) * (n * 37 % 9000 + 1))
    os.close(fd)
    os.rename(path + ".new", path)
    if n >= 20:
        os.unlink(f"{root}/f{n - 20}")
    os.write(told, f"{n}\n".encode())
PY
cat >"$work/reader.py" <<'PY'
import os, sys
root, told = sys.argv[1], [int(line) for line in open(sys.argv[2]) if line.endswith("\n")]
last = told[-1]
for n in range(max(0, last - 18), last + 1):
    assert open(f"{root}/f{n}", "rb").read() == bytes([n % 251]) * (n * 37 % 9000 + 1), n
there = {int(name[1:]) for name in os.listdir(root) if not name.endswith(".new")}
assert there <= set(range(last - 20, last + 2)), there
PY
for round in 1 2 3 4; do
    : >"$work/told"
    "${run[@]}" python3 "$work/writer.py" "$dir/kills$round" "$work/told" &
    writer=$!
    await_line "$work/told" "$writer" || fail "the writer does nothing"
    sleep "0.$(( 4 + round ))"
    kill -9 "$writer"
    wait "$writer" 2>/dev/null || true
    python3 "$work/reader.py" "$dir/kills$round" "$work/told" || fail "an acknowledged call is lost: round $round"
done
end_mount
check_fs "$nvm"

echo "· a daemon that is killed beside a program: what was acknowledged is there, and the program hears of it"
for round in 1 2; do
    mount_shared "$nvm"
    : >"$work/told"
    "${run[@]}" python3 "$work/writer.py" "$dir/daemon$round" "$work/told" 2>"$work/writer.err" &
    writer=$!
    await_line "$work/told" "$writer" || fail "the writer does nothing"
    sleep "0.$(( 2 + round ))"
    kill_mount "$writer"
    grep -q "its calls go to the mount" "$work/writer.err" || fail "nothing is told: $(<"$work/writer.err")"
    mount_shared "$nvm"
    python3 "$work/reader.py" "$dir/daemon$round" "$work/told" || fail "an acknowledged call is lost: round $round"
    end_mount
    check_fs "$nvm"
done

if (( EUID == 0 )) && [[ -n ${PJDFSTEST:-} ]]; then
    echo "· the suite at \$PJDFSTEST finds no failure"
    mount_shared --suid-dev mem:1GiB
    (cd "$dir" && served prove -rQ "$PJDFSTEST" >"$work/pjd.out" 2>&1) || fail "$(tail -30 "$work/pjd.out")"
    tail -2 "$work/pjd.out"
    end_mount
fi
