"""What programs see of their own files, for t_20_run_effects.sh: it has to be the same with `switchyard run` and without.

`act NAME DIRECTORY` does something with files of DIRECTORY whose names begin with `f`, and prints what it has seen. `names` lists
the cases.
"""

import ctypes
import errno
import fcntl
import os
import resource
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

libc = ctypes.CDLL(None, use_errno=True)
CASES = {}


def case(act):
    CASES[act.__name__] = act
    return act


def opened(path, flags=os.O_RDWR | os.O_CREAT, mode=0o644):
    return os.open(path, flags, mode)


def synced(file, data=b"0123456789"):
    os.write(file, data)
    os.fsync(file)


def outside():
    """The environment of a program that the library is not in."""
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


def lock_from_outside(path, call):
    code = f"import fcntl, sys; fcntl.{call}(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    other = subprocess.run([sys.executable, "-c", code, path], stderr=subprocess.PIPE, env=outside())
    return "taken by another" if b"BlockingIOError" in other.stderr else "free"


def of_area(path):
    """What the area would make of a file after a crash of the machine; none if it has nothing of the file, as without an area."""
    area = os.environ.get("SWITCHYARD_AREA")
    if not area:
        return None
    with tempfile.TemporaryDirectory() as copies:
        subprocess.run([os.environ["SWITCHYARD"], "export", area, copies], env=outside(), check=True, stdout=subprocess.DEVNULL)
        return contents(copies + path) if os.path.exists(copies + path) else None


def contents(path):
    with open(path, "rb") as file:
        return file.read()


def after_crash(path):
    return of_area(path) or contents(path)


def said(call):
    try:
        call()
        return "fine"
    except OSError as error:
        return errno.errorcode[error.errno]


@case
def many_closed(directory):
    # bug: EMFILE after a thousand files. cause: each closed file kept a descriptor until a checkpoint.
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    for number in range(1500):
        file = opened(f"{directory}/f{number}")
        synced(file)
        os.close(file)
    print("closed", file)


@case
def many_open(directory):
    # bug: each open file counted twice. fix: the library's descriptors are beyond the program's limit.
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    files = []
    try:
        while True:
            files.append(opened(f"{directory}/f{len(files)}", os.O_RDWR | os.O_CREAT | (os.O_DSYNC if len(files) % 2 else 0)))
            synced(files[-1])
    except OSError as error:
        print(len(files), errno.errorcode[error.errno], files[-1], resource.getrlimit(resource.RLIMIT_NOFILE)[0])


@case
def flock_of_a_closed_file(directory):
    # bug: flock outlived close. cause: the library's descriptor was a duplicate, which has the same lock.
    for flags in (0, os.O_DSYNC):
        file = opened(directory + "/f", os.O_RDWR | os.O_CREAT | flags)
        fcntl.flock(file, fcntl.LOCK_EX)
        synced(file)
        print(lock_from_outside(directory + "/f", "flock"))
        os.close(file)
        print(lock_from_outside(directory + "/f", "flock"))


@case
def locks_of_a_process(directory):
    # bug: a checkpoint, and a second opening, ended locks of fcntl(2). cause: the library closed a descriptor of the file.
    path = directory + "/f"
    file = opened(path)
    synced(file)
    fcntl.lockf(file, fcntl.LOCK_EX)
    os.sync()
    print(lock_from_outside(path, "lockf"))
    more = opened(path, os.O_RDWR | os.O_DSYNC)
    print(lock_from_outside(path, "lockf"))
    synced(more)
    os.sync()
    print(lock_from_outside(path, "lockf"))
    os.close(more)
    print(lock_from_outside(path, "lockf"))
    # The lock is there before the file is followed.
    with open(directory + "/f.more", "wb"):
        pass
    reader = os.open(directory + "/f.more", os.O_RDONLY)
    fcntl.lockf(reader, fcntl.LOCK_SH)
    file = opened(directory + "/f.more", os.O_WRONLY | os.O_DSYNC)
    synced(file)
    os.sync()
    print(lock_from_outside(directory + "/f.more", "lockf"))


@case
def descriptors_of_locked_files(directory):
    # bug: each closed file that had been locked kept a descriptor for ever.
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    for number in range(400):
        file = opened(f"{directory}/f{number}")
        fcntl.lockf(file, fcntl.LOCK_EX)
        synced(file)
        os.close(file)
    print("closed", file)


@case
def space_of_removed_files(directory):
    # bug: a removed file kept its space until a checkpoint.
    for number in range(3):
        path = f"{directory}/f{number}"
        file = opened(path)
        synced(file, b"x" * 100000)
        if number == 0:
            os.unlink(path)
            os.close(file)
        else:
            os.close(file)
            os.unlink(path) if number == 1 else subprocess.run(["rm", path], env=outside(), check=True)
    file = opened(f"{directory}/f3")
    synced(file, b"x" * 100000)
    if os.fork() == 0:
        # bug: a forked child kept the descriptors of its parent's library.
        os.close(file)
        os.execve("/bin/sleep", ["sleep", "6"], outside())
    os.unlink(f"{directory}/f3")
    os.close(file)
    child = os.fork()
    if child == 0:
        time.sleep(4)
        os._exit(any("/f" in os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                     if os.path.lexists(f"/proc/self/fd/{fd}") and os.readlink(f"/proc/self/fd/{fd}").endswith("(deleted)")))
    time.sleep(5)
    print(os.waitpid(child, 0)[1])
    left = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}")]
    print([name for name in left if name.endswith("(deleted)") and "/f" in name])


@case
def run_what_was_written(directory):
    # bug: ETXTBSY. cause: the library had the file open for writing.
    for flags in (0, os.O_DSYNC):
        path = directory + "/f.program"
        file = opened(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | flags, 0o755)
        with open("/bin/true", "rb") as program:
            synced(file, program.read())
        os.close(file)
        print(said(lambda: subprocess.run([path], check=True)))


@case
def unreadable_directory(directory):
    # bug: EIO for ever. cause: the library opened the directory to sync it.
    os.mkdir(directory + "/hidden", 0o733)
    os.chmod(directory + "/hidden", 0o733)
    os.setgid(65534)
    os.setuid(65534)
    file = opened(directory + "/hidden/f")
    synced(file)
    os.sync()
    print(said(lambda: synced(file)))
    os.rename(directory + "/hidden/f", directory + "/hidden/f2")
    print(said(lambda: synced(file)))
    os.unlink(directory + "/hidden/f2")
    os.sync()
    print(said(lambda: synced(file)))
    file = opened(directory + "/hidden/f3")
    print(said(lambda: synced(file)))


@case
def another_user(directory):
    # bug: EBUSY. cause: the area was opened with the first file, by a user who may not.
    os.chmod(directory, 0o777)
    os.setgid(65534)
    os.setuid(65534)
    file = opened(directory + "/f")
    print(said(lambda: synced(file)))
    subprocess.run([sys.executable, "-c", "import os, sys; f = os.open(sys.argv[1], os.O_WRONLY); os.write(f, b'ab'); os.fsync(f)",
                    directory + "/f"], check=True)
    print(os.pread(file, 20, 0))


@case
def another_root(directory):
    # bug: ENOENT. cause: the area's path led nowhere in the new root.
    os.chroot(directory)
    os.chdir("/")
    file = opened("/f")
    print(said(lambda: synced(file)))
    os.rename("/f", "/f2")
    print(said(lambda: synced(file)))
    os.unlink("/f2")
    print(os.listdir("/"))


@case
def two_at_once(directory):
    # bug: EBUSY for the second of two processes that came at the same time.
    code = "import os, sys; f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); os.write(f, b'x'); os.fsync(f)"
    for _ in range(5):
        both = [subprocess.Popen([sys.executable, "-c", code, f"{directory}/f{n}"], stderr=subprocess.PIPE) for n in range(4)]
        print([b"" if p.wait() == 0 else p.stderr.read()[-60:] for p in both])


@case
def exact_end_of_room(directory):
    # A short write counts as far as it went.
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    import signal
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    file = opened(directory + "/f")
    print(os.write(file, b"x" * 900), os.write(file, b"y" * 900), said(lambda: os.write(file, b"z")))
    os.fsync(file)
    print(os.fstat(file).st_size)


@case
def without_a_name(directory):
    file = os.open(directory, os.O_TMPFILE | os.O_RDWR, 0o644)
    synced(file)
    assert libc.linkat(file, b"", -100, (directory + "/f.named").encode(), 0x1000) == 0
    synced(file)
    print(sorted(os.listdir(directory)), os.path.getsize(directory + "/f.named"))


@case
def signals_of_a_process(directory):
    # bug: a signal that every thread of the program had blocked ran its handler in a thread of the library.
    import signal

    synced(opened(directory + "/f"))
    signal.signal(signal.SIGUSR1, lambda *_: print("handled"))
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    os.kill(os.getpid(), signal.SIGUSR1)
    print(signal.sigtimedwait([signal.SIGUSR1], 2) is not None)


@case
def settings_of_a_process(directory):
    # bug: with patterns that match everything, files of /proc could not be written. fix: only what outlasts the machine is followed.
    os.symlink("/proc/self/coredump_filter", directory + "/f-link")
    with open("/proc/self/coredump_filter") as file:
        before = int(file.read(), 16)
    file = os.open(directory + "/f-link", os.O_WRONLY | os.O_TRUNC)
    print(os.write(file, b"%d" % (before ^ 1)))
    os.close(file)
    with open("/proc/self/coredump_filter") as file:
        print(int(file.read(), 16) == before ^ 1)


def make_ring():
    """A ring of the program, of which the library tells the user."""
    ring = libc.syscall(425, 4, ctypes.create_string_buffer(120))
    if ring >= 0:
        os.close(ring)


@case
def standard_error_without_a_reader(directory):
    # bug: SIGPIPE killed the program. cause: the library's line to the user.
    reader, writer = os.pipe()
    code = """
import ctypes, os, signal, sys
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.write(file, b"data"), os.fsync(file)
sys.stdin.read()
ctypes.CDLL(None).syscall(425, 4, ctypes.create_string_buffer(120))
os.write(file, b"data"), os.fsync(file)
print("ends well", os.path.getsize(sys.argv[1]), signal.sigpending(), flush=True)
"""
    other = subprocess.Popen([sys.executable, "-c", code, directory + "/f"], stdin=subprocess.PIPE, stderr=writer)
    os.close(writer)
    os.close(reader)
    other.stdin.close()
    print(other.wait())


@case
def number_of_standard_error(directory):
    # bug: a line to the user overwrote the file that had got the number 2.
    file = opened(directory + "/f")
    synced(file)
    kept = os.dup(2)
    os.close(2)
    data = opened(directory + "/data")
    os.write(data, b"A" * 64)
    os.lseek(data, 0, os.SEEK_SET)
    make_ring()
    synced(file)
    os.dup2(kept, 2)
    with open(directory + "/data", "rb") as file:
        print(data, file.read())


def until_refused(directory, limit):
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    files = []
    try:
        while True:
            files.append(opened(f"{directory}/f{len(files)}"))
            synced(files[-1])
    except OSError as error:
        print(errno.errorcode[error.errno], len(files) > limit - 20)
    return files


@case
def descriptors_of_a_hard_limit(directory):
    # bug: half of the descriptors were the library's, and then it took a look that failed for a ring. fix: it closes its own.
    files = until_refused(directory, 1024)
    print([said(lambda: synced(file, b"more")) for file in files[::200]], [os.path.getsize(f"{directory}/f{n}") for n in (0, 400, 800)])
    for file in files:
        os.close(file)
    print(opened(directory + "/f") == files[0])


@case
def descriptors_of_a_soft_limit(directory):
    # The library's are above it, and stay: the file is followed still.
    resource.setrlimit(resource.RLIMIT_NOFILE, (1000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    file = opened(directory + "/f")
    others = []
    try:
        while True:
            others.append(os.dup(file))
    except OSError as error:
        print(errno.errorcode[error.errno], others[-1])
    for other in others:
        os.close(other)
    synced(file)
    above = [fd for fd in map(int, os.listdir("/proc/self/fd")) if fd >= 1000]
    print(any(os.readlink(f"/proc/self/fd/{fd}") == directory + "/f" for fd in above) or "SWITCHYARD_AREA" not in os.environ)


@case
def descriptors_of_a_low_hard_limit(directory):
    files = until_refused(directory, 200)
    for file in files[:2]:
        os.close(file)
    print(os.pipe() == tuple(files[:2]), said(lambda: socket.socket()))


@case
def appending_by_another_descriptor(directory):
    # bug: O_APPEND was believed to be the descriptor's. cause: it is the opening's, and another descriptor of that may change it.
    file = opened(directory + "/f", os.O_RDWR | os.O_CREAT | os.O_DSYNC)
    other = os.dup(file)
    os.write(file, b"0123456789")
    fcntl.fcntl(other, fcntl.F_SETFL, os.O_APPEND)
    os.lseek(file, 0, os.SEEK_SET)
    os.write(file, b"abc")
    print(after_crash(directory + "/f"), os.lseek(file, 0, os.SEEK_CUR))
    file = opened(directory + "/f.more", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    other = os.dup(file)
    synced(file)
    if os.fork() == 0:
        fcntl.fcntl(other, fcntl.F_SETFL, 0)
        os._exit(0)
    os.wait()
    os.pwrite(file, b"abc", 0)
    os.fsync(file)
    print(after_crash(directory + "/f.more"))


@case
def appending_for_one_write(directory):
    # bug: the log had a write with RWF_NOAPPEND at the end of the file.
    file = opened(directory + "/f", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    synced(file)
    for flags, data in ((0x20, b"abc"), (0x10, b"def"), (0x80, b"ghi"), (0x40, b"jkl")):
        written = said(lambda: os.pwritev(file, [data], 1, flags))
        os.fsync(file)
        print(flags, written, after_crash(directory + "/f"))


@case
def attributes_of_an_inode(directory):
    # bug: a crash took attributes that were synced. fix: the file system makes the sync, and the area has nothing of the file.
    file = opened(directory + "/f")
    synced(file)
    flags = struct.unpack("i", fcntl.ioctl(file, 0x80086601, bytes(8))[:4])[0]
    fcntl.ioctl(file, 0x40086602, struct.pack("q", flags | 0x40))
    os.write(file, b"x")
    os.fsync(file)
    print(of_area(directory + "/f"), bool(fcntl.ioctl(file, 0x80086601, bytes(8))[0] & 0x40))


def main():
    if sys.argv[1] == "names":
        print(*CASES)
        return
    CASES[sys.argv[2]](sys.argv[3])


if __name__ == "__main__":
    main()
