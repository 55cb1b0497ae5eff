"""Calls by which programs change files that `switchyard run` follows, for t_11_run.sh.

`act NAME DIRECTORY READY` changes the file NAME in DIRECTORY, syncs it, says so in the file READY, and waits to be killed.
`check NAME DIRECTORY` tells whether what was synced is in the file after a power cut. `names` lists the cases.
"""

import ctypes
import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

CASES = {}


def case(expected):
    """`expected`: what is in the file after the cut, or a function of its path that asserts it."""

    def keep(act):
        CASES[act.__name__] = (act, expected)
        return act

    return keep


def opened(path, flags=os.O_WRONLY | os.O_CREAT):
    return os.open(path, flags, 0o644)


def synced(file, data):
    os.write(file, data)
    os.fsync(file)


def without_library():
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


def write_unseen(path, data, offset=0):
    """A writer that the library does not see: another program."""
    code = "import os,sys; f=os.open(sys.argv[1],os.O_WRONLY); os.pwrite(f,sys.argv[2].encode(),int(sys.argv[3]))"
    subprocess.run([sys.executable, "-c", code, path, data, str(offset)], check=True, env=without_library())


@case(b"0123456789")
def vfork_and_dup(path):
    # bug: the child's dup2 made the parent's standard output a descriptor of the file.
    file = opened(path)
    synced(file, b"01234")
    subprocess.run(["/bin/true"], stdout=file, check=True)
    os.write(1, b"no\n")
    synced(file, b"56789")


@case(b"0123456789")
def failed_dup(path):
    # bug: a dup2 that failed made the library forget the descriptor.
    file = opened(path)
    synced(file, b"01234")
    libc.dup2(999, file)
    synced(file, b"56789")


@case(b"01x3456789")
def unseen_write(path):
    # bug: a sync without logged changes was none.
    file = opened(path)
    synced(file, b"0123456789")
    write_unseen(path, "x", 2)
    os.fsync(file)


@case(b"01234xxx56789")
def unseen_append(path):
    # bug: a write hid that somebody else had made the file longer.
    file = opened(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    synced(file, b"01234")
    write_unseen(path, "xxx", 5)
    synced(file, b"56789")


@case(b"abcd456789")
def asynchronous(path):
    class Request(ctypes.Structure):
        _fields_ = [
            ("fd", ctypes.c_int),
            ("opcode", ctypes.c_int),
            ("priority", ctypes.c_int),
            ("buffer", ctypes.c_void_p),
            ("bytes", ctypes.c_size_t),
            ("event", ctypes.c_char * 64),
            ("private", ctypes.c_char * 32),
            ("offset", ctypes.c_long),
            ("reserved", ctypes.c_char * 32),
        ]

    file = opened(path)
    synced(file, b"0123456789")
    buffer = ctypes.create_string_buffer(b"abcd", 4)
    request = Request(fd=file, buffer=ctypes.addressof(buffer), bytes=4)
    request.event = b"\0" * 12 + b"\x01"
    assert libc.aio_write(ctypes.byref(request)) == 0
    while libc.aio_error(ctypes.byref(request)) == 115:
        time.sleep(0.01)
    assert libc.aio_return(ctypes.byref(request)) == 4
    os.fsync(file)


@case(b"n=7 x=2.5 s=abc 56789")
def printed(path):
    file = opened(path)
    synced(file, b"n=. x=... s=... ")
    os.lseek(file, 0, os.SEEK_SET)
    double, text = ctypes.c_double(2.5), ctypes.c_char_p(b"abc")
    assert libc.dprintf(file, b"n=%d x=%.1f s=%s ", ctypes.c_int(7), double, text) == 16
    synced(file, b"56789")


@case(b"0123456789")
def copied(path):
    with open(path + ".source", "wb") as source:
        source.write(b"56789")
    file, source = opened(path), os.open(path + ".source", os.O_RDONLY)
    synced(file, b"01234")
    assert os.copy_file_range(source, file, 2) == 2
    assert os.sendfile(file, source, None, 3) == 3
    os.fsync(file)


@case(b"ab234cd789")
def other_names(path):
    # bug: a file that was opened by another name was not followed, and not recognised.
    file = opened(path)
    synced(file, b"0123456789")
    os.link(path, os.path.dirname(path) + "/unmatched.link")
    os.symlink(path, os.path.dirname(path) + "/unmatched.symlink")
    for name, data, offset in (("link", b"ab", 0), ("symlink", b"cd", 5)):
        other = os.open(os.path.dirname(path) + "/unmatched." + name, os.O_WRONLY)
        os.pwrite(other, data, offset)
        os.fsync(other)


@case(b"ab23456789")
def open_before(path):
    # bug: a descriptor that was open before under another name was not known.
    before = os.path.dirname(path) + "/unmatched.before"
    earlier = opened(before)
    os.link(before, path)
    file = opened(path)
    synced(file, b"0123456789")
    os.pwrite(earlier, b"ab", 0)
    os.fsync(earlier)
    os.fsync(os.open(os.path.dirname(path), os.O_RDONLY))


@case(b"ab23x56789")
def ring(path):
    # bug: what a ring wrote was rolled back. A ring is made by a system call, and the write stands for what it may do.
    file = opened(path)
    synced(file, b"01234")
    parameters = ctypes.create_string_buffer(120)
    made = libc.syscall(425, 4, parameters)
    if made < 0 and ctypes.get_errno() not in (1, 38):
        raise OSError(ctypes.get_errno(), "io_uring_setup")
    write_unseen(path, "ab", 0)
    if made < 0:
        os.fsync(file)
    os.write(file, b"56789")
    os.pwrite(file, b"x", 4)
    os.fsync(file)


@case(b"ab")
def emptied(path):
    file = opened(path)
    synced(file, b"0123456789")
    other = os.open(path, os.O_WRONLY | os.O_TRUNC)
    os.write(other, b"ab")
    os.fsync(other)


def in_a_child(act):
    child = os.fork()
    if child == 0:
        try:
            act()
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def overwritten(file, data, offset=0):
    os.pwrite(file, data, offset)
    os.fsync(file)


@case(b"ab234")
def forked_child(path):
    # bug: what a forked child had synced was rolled back to what its parent had logged.
    file = opened(path)
    synced(file, b"01234")
    in_a_child(lambda: overwritten(file, b"ab"))


@case(b"ab23456789")
def forked_child_opens(path):
    file = opened(path)
    synced(file, b"01234")
    in_a_child(lambda: overwritten(opened(path), b"ab"))
    os.lseek(file, 5, os.SEEK_SET)
    synced(file, b"56789")


@case(b"ab23456789")
def child_was_first(path):
    # The child has the file open before the parent follows it.
    ready, done = os.pipe(), os.pipe()
    synced(opened(path + ".other"), b"another file")
    if os.fork() == 0:
        file = opened(path)
        os.write(ready[1], b"x")
        os.read(done[0], 1)
        overwritten(file, b"ab")
        os._exit(0)
    os.read(ready[0], 1)
    synced(opened(path), b"0123456789")
    os.write(done[1], b"x")
    os.wait()


@case(b"ab234")
def started_program(path):
    # A descriptor that another program inherits.
    file = opened(path)
    synced(file, b"01234")
    code = "import os; os.pwrite(1, b'ab', 0); os.fsync(1)"
    subprocess.run([sys.executable, "-c", code], stdout=file, check=True)


@case(b"ab234")
def started_program_opens(path):
    file = opened(path)
    synced(file, b"01234")
    code = "import os, sys; f = os.open(sys.argv[1], os.O_WRONLY); os.pwrite(f, b'ab', 0); os.fsync(f)"
    subprocess.run([sys.executable, "-c", code, path], check=True)


@case(b"ab234")
def dead_owner(path):
    # The owner of the area is killed, and its child goes on.
    ready = os.pipe()
    owner = os.fork()
    if owner == 0:
        file = opened(path)
        synced(file, b"01234")
        if os.fork() == 0:
            parent = os.getppid()
            os.kill(parent, signal.SIGKILL)
            while os.getppid() == parent:
                time.sleep(0.01)
            overwritten(file, b"ab")
            os.write(ready[1], b"x")
            os._exit(0)
        signal.pause()
    os.waitpid(owner, 0)
    os.close(ready[1])
    assert os.read(ready[0], 1) == b"x"


@case(b"ab234")
def another_image(path):
    # The owner of the area becomes another program.
    owner = os.fork()
    if owner == 0:
        file = opened(path)
        synced(file, b"01234")
        os.set_inheritable(file, True)
        code = f"import os; os.pwrite({file}, b'ab', 0); os.fsync({file}); os._exit(0)"
        os.execv(sys.executable, [sys.executable, "-c", code])
    os.waitpid(owner, 0)


@case(b"01ab4567cdgh")
def synced_by_flag(path):
    # bug: a child that inherited a descriptor with O_SYNC wrote without syncing: the library had taken the flag away.
    file = opened(path, os.O_RDWR | os.O_CREAT | os.O_SYNC)
    assert fcntl.fcntl(file, fcntl.F_GETFL) & os.O_SYNC == os.O_SYNC
    os.write(file, b"0123")
    os.writev(file, [b"45", b"6789"])
    assert os.lseek(file, 0, os.SEEK_CUR) == 10
    os.pwrite(file, b"ab", 2)
    os.lseek(file, 8, os.SEEK_SET)
    os.write(file, b"cd")
    more = opened(path, os.O_WRONLY | os.O_APPEND | os.O_DSYNC)
    os.write(more, b"ef")
    assert os.lseek(more, 0, os.SEEK_CUR) == 12
    in_a_child(lambda: os.pwrite(file, b"gh", 10))


@case(b"0123456789")
def synced_by_a_reader(path):
    # bug: a sync by a descriptor that cannot write was left to the file system, and recovery took the older log for newer.
    file = opened(path)
    synced(file, b"01234")
    os.write(file, b"56789")
    os.fsync(opened(path, os.O_RDONLY))
    # bug: a program ended if it synced no descriptor at all.
    assert libc.fsync(-1) == -1 and ctypes.get_errno() == errno.EBADF


@case(b"0123456789")
def synced_by_a_child(path):
    file = opened(path)
    synced(file, b"01234")
    os.write(file, b"56789")
    in_a_child(lambda: os.fsync(file))


@case(b"0123456789")
def synced_with_everything_by_a_program(path):
    file = opened(path)
    synced(file, b"01234")
    os.write(file, b"56789")
    subprocess.run(["sync"], check=True)


@case(b"01234")
def locked(path):
    # bug: a checkpoint closed a descriptor of the file, and with it the program lost its locks.
    file = opened(path, os.O_RDWR | os.O_CREAT)
    synced(file, b"01234")
    fcntl.lockf(file, fcntl.LOCK_EX)
    os.sync()
    code = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    other = subprocess.run([sys.executable, "-c", code, path], stderr=subprocess.PIPE, env=without_library())
    assert b"BlockingIOError" in other.stderr, "another process has got the lock"


@case(b"ab234")
def passed_on(path):
    # A process that `run` does not know gets the descriptor.
    file = opened(path)
    synced(file, b"01234")
    ours, theirs = socket.socketpair()
    code = """import array, os, socket
end = socket.socket(fileno=0)
message, parts, _, _ = end.recvmsg(1, 64)
file = array.array("i", parts[0][2][:4])[0]
os.pwrite(file, b"ab", 0)
os.fsync(file)"""
    receiver = subprocess.Popen([sys.executable, "-c", code], stdin=theirs, env=without_library())
    socket.send_fds(ours, [b"x"], [file])
    assert receiver.wait() == 0


@case(b"01234ab")
def static_image(path):
    # The owner of the area becomes a program that the library is not in.
    owner = os.fork()
    if owner == 0:
        file = opened(path)
        synced(file, b"01234")
        os.write(file, b"56")
        os.set_inheritable(file, True)
        code = f"import os; os.pwrite({file}, b'ab', 5); os.fsync({file}); os._exit(0)"
        os.execve(sys.executable, [sys.executable, "-c", code], without_library())
    os.waitpid(owner, 0)


@case(b"0123456789")
def new_directory(path):
    # bug: the area was refused for ever. cause: a directory that nobody had synced went with the crash, and the file with it.
    os.makedirs(path)
    synced(opened(path + "/" + os.path.basename(path)), b"0123456789")


@case(b"01234")
def in_another_root(path):
    # bug: ENOENT, and recovery would have looked for the file in the old root.
    child = os.fork()
    if child == 0:
        os.chroot(os.path.dirname(path))
        os.chdir("/")
        synced(opened("/" + os.path.basename(path)), b"01234")
        libc.prctl(1, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGSTOP)
    os.waitpid(child, os.WUNTRACED)


@case(b"01234")
def as_another_user(path):
    # bug: EBUSY, as the area was opened with the first file.
    directory = os.path.dirname(path) + "/for_all"
    os.makedirs(directory, exist_ok=True)
    os.chmod(directory, 0o1777)
    os.fsync(os.open(os.path.dirname(path), os.O_RDONLY))
    child = os.fork()
    if child == 0:
        os.setgid(65534)
        os.setuid(65534)
        synced(opened(directory + "/" + os.path.basename(path)), b"01234")
        libc.prctl(1, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGSTOP)
    os.waitpid(child, os.WUNTRACED)
    os.symlink(directory + "/" + os.path.basename(path), path)
    os.fsync(os.open(os.path.dirname(path), os.O_RDONLY))


def closed_by(close):
    """A program that closes all descriptors it may have, and gets their numbers again."""

    def act(path):
        file = os.dup2(opened(path), 0)
        synced(file, b"01234")
        close(3)
        others = [opened(path + ".other")]
        while others[-1] < 700:
            others.append(os.dup(others[0]))
        synced(file, b"56789")
        assert os.fstat(others[0]).st_size == 0, "the log is in another file"
        for fd in set(range(500, 700)) - set(others):
            assert libc.dup2(file, fd) < 0, "the program has taken our descriptor"
        synced(file, b"a")

    return act


def close_each(first):
    for fd in range(first, 1024):
        libc.close(fd)


def has_rights(path):
    found = os.stat(path)
    assert (found.st_mode & 0o7777, found.st_uid, found.st_gid, found.st_size) == (0o600, 1234, 1234, 15), found


@case(has_rights)
def changed_rights(path):
    # bug: recovery made the file with the mode and owner that it had when it was opened: a private key was everybody's.
    file = opened(path)
    synced(file, b"01234")
    os.fchmod(file, 0o600)
    synced(file, b"56789")
    os.fchown(file, 1234, 1234)
    synced(file, b"abcde")


def is_old(path):
    assert os.stat(path).st_mtime == 10**9, os.stat(path)


def has_attribute(path):
    assert os.getxattr(path, "user.it") == b"kept"


def changed_before_sync(change):
    """Something that the log has nothing of: the file system makes the next sync."""

    def act(path):
        file = opened(path)
        synced(file, b"01234")
        os.write(file, b"56789")
        change(file, path)
        os.fsync(file)

    return act


# bug: times and attributes that were set before a sync were lost.
for name, change, check in [
    ("changed_times", lambda file, path: os.utime(file, (10**9, 10**9)), is_old),
    ("changed_times_by_path", lambda file, path: os.utime(path, (10**9, 10**9)), is_old),
    ("changed_attribute", lambda file, path: os.setxattr(path, "user.it", b"kept"), has_attribute),
]:
    CASES[name] = (changed_before_sync(change), check)


@case(b"ABCD456789")
def namespaces(path):
    # bug: two processes, each number 1 of a namespace of its own, took each other for themselves: what the second one had synced was lost.
    code = """if True:
        import os, sys, time
        file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
        os.write(file, sys.argv[2].encode())
        os.fsync(file)
        print("synced", flush=True)
        time.sleep(1000)"""
    command = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", code, path]
    for data in "0123456789", "ABCD":
        ends = lambda: libc.prctl(1, signal.SIGKILL)
        program = subprocess.Popen([*command, data], stdout=subprocess.PIPE, preexec_fn=ends)
        assert program.stdout.readline() == b"synced\n"


for name, close in {
    "closed_each": close_each,
    "closed_range": lambda first: libc.close_range(first, 0xFFFFFFFF, 0),
    "closed_from": libc.closefrom,
    "closed_by_number": lambda first: libc.syscall(436, first, 1 << 16, 0),
}.items():
    CASES[name] = (closed_by(close), b"0123456789a")


def main():
    if sys.argv[1] == "names":
        print(*CASES)
        return
    name, directory = sys.argv[2:4]
    act, expected = CASES[name]
    path = os.path.join(directory, name)
    if sys.argv[1] == "check":
        if os.path.isdir(path):
            path += "/" + name
        if callable(expected):
            expected(path)
            return
        with open(path, "rb") as file:
            found = file.read()
        if found != expected:
            sys.exit(f"{name}: {found!r} instead of {expected!r}")
        return
    act(path)
    with open(sys.argv[4], "w") as ready:
        ready.write("ready")
    signal.pause()


main()
