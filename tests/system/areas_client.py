#!/usr/bin/env python3
"""A program with a storage area, that behaves or does not. Shares no code with what it tests (docs/format/areas.md).

  areas_client.py fill SOCKET NAME BYTE               fills an area of its own
  areas_client.py attack SOCKET MINE OTHERS KIND      KIND: file, or device if descriptors are of block devices
  areas_client.py canary DEVICE                       the window of a plain loop device is moved, and that is noticed
  areas_client.py read-only SOCKET EXPORT KIND        what an export lets its reader do
  areas_client.py redirected SOCKET EXPORT PATH       an export is its owner's to serve: PATH is told, and nothing handed out
  areas_client.py write-on SOCKET NAME STATE          writes durably until it is killed; counts in STATE
  areas_client.py grab SOCKET NAME MIB                makes areas until it is refused; prints how many it got
  areas_client.py hold SOCKET                         as many connections as it gets, silent, for ever
  areas_client.py deaf SOCKET                         asks and asks, and never reads an answer
  areas_client.py fuzz SOCKET COUNT                   packets that are none
  areas_client.py descriptors SOCKET                  sends descriptors along that nobody asked for
  areas_client.py starve SOCKET NAME WAY RATE BYTES   tries to move more than RATE operations and BYTES a second; fails if it does
  areas_client.py churn SOCKET STATE                  makes, grows and deletes areas; notes what was acknowledged
"""
import array
import ctypes
import errno
import fcntl
import json
import mmap
import os
import random
import signal
import socket
import struct
import sys
import time

MIB = 1 << 20
OWN = 0xFFFFFFFF
MALFORMED, UNKNOWN, EXISTS, NOT_PERMITTED, INVALID, QUOTA, NO_ROOM, IN_USE, FAILED, BUSY = range(1, 11)
LOOP = {"SET_FD": 0x4C00, "CLR_FD": 0x4C01, "SET_STATUS64": 0x4C04, "GET_STATUS64": 0x4C05, "CHANGE_FD": 0x4C06,
        "SET_CAPACITY": 0x4C07, "SET_DIRECT_IO": 0x4C08, "SET_BLOCK_SIZE": 0x4C09}
BLKPG, BLKROSET, BLKRRPART, BLKDISCARD, BLKZEROOUT = 0x1269, 0x125D, 0x125F, 0x1277, 0x127F
FS_IOC_SETFLAGS, FS_IMMUTABLE, FS_APPEND = 0x40086602, 0x10, 0x20


class Refused(Exception):
    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


def text(value):
    value = value.encode()
    return struct.pack("<H", len(value)) + value


def packet(kind, fields=b""):
    return b"SWYA" + bytes([1, kind, 0, 0]) + fields


class Server:
    def __init__(self, path):
        self.s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.s.connect(path)

    def ask(self, kind, fields=b""):
        self.s.send(packet(kind, fields))
        answer, files, _, _ = socket.recv_fds(self.s, 4096, 4)
        if not answer:
            raise ConnectionResetError("the server is gone")
        assert answer[:5] == b"SWYA\x01", answer
        if answer[5] == 132:
            code, length = struct.unpack_from("<HH", answer, 8)
            raise Refused(code, answer[12:12 + length].decode())
        return answer[5], answer[8:], files

    def create(self, name, size, mode=0o600, owner=OWN):
        self.ask(1, struct.pack("<QIIHIQ", size, owner, OWN, mode, 0, 0) + text(name))

    def open(self, name, write):
        kind, fields, files = self.ask(2, bytes([write]) + text(name))
        assert kind == 130, kind
        return files, struct.unpack_from("<QQ", fields)[1]

    def resize(self, name, size):
        self.ask(3, struct.pack("<Q", size) + text(name))

    def delete(self, name):
        self.ask(4, b"\0" + text(name))

    def areas(self):
        found, after, more = {}, 0, True
        while more:
            _, fields, _ = self.ask(7, struct.pack("<Q", after))
            more, at = fields[0], 1
            while at < len(fields):
                after, size, owner, _, _, state, is_open, _, _, length = struct.unpack_from("<QQIIHBBIQH", fields, at)
                at += 42
                found[fields[at:at + length].decode()] = (size, owner, state, is_open)
                at += length
        return found


def refused(code, call, *arguments):
    try:
        call(*arguments)
    except Refused as refusal:
        assert refusal.code == code, f"refused with {refusal.code}, not {code}: {refusal}"
        return
    raise AssertionError(f"{call} {arguments} was not refused")


def fails(call, *arguments, but=()):
    """The operating system refuses; returns how."""
    try:
        call(*arguments)
    except OSError as error:
        assert error.errno not in but, error
        return error.errno
    raise AssertionError(f"{call} {arguments} was not refused")


def size_of(fd):
    return os.lseek(fd, 0, os.SEEK_END)


# Descriptors come with O_DIRECT where there is such a thing: aligned memory.
def block(byte=0, size=4096):
    memory = mmap.mmap(-1, size)
    memory.write(bytes([byte]) * size)
    return memory


def fill(path, name, byte):
    (fd, *lock), size = Server(path).open(name, True)
    assert size_of(fd) == size
    data = block(byte, MIB)
    for at in range(0, size, MIB):
        assert os.pwrite(fd, data, at) == MIB
    os.fsync(fd)


def only_mine(fd, size, byte):
    """Nothing that can be reached through it is anybody else's."""
    end = size_of(fd)
    assert end <= size, f"{end} bytes can be reached, {size} are mine"
    buffer = block(0)
    for at in range(0, end, 64 << 10):
        if os.preadv(fd, [buffer], at):
            assert buffer[0] in (0, byte), f"at {at} there is {buffer[0]:#x}"


def attack(path, mine, others, kind):
    server = Server(path)
    for write in (False, True):
        refused(NOT_PERMITTED, server.open, others, write)
    for call in (server.delete, lambda name: server.resize(name, 512 * MIB)):
        refused(NOT_PERMITTED, call, others)
    refused(NOT_PERMITTED, server.create, "for-root", 8 * MIB, 0o600, 0)
    refused(UNKNOWN, server.open, "../table", True)
    refused(INVALID, server.create, "../x", 8 * MIB)
    files, size = server.open(mine, True)
    fd = files[0]
    refused(IN_USE, server.open, mine, True)
    refused(IN_USE, Server(path).open, mine, True)
    byte = 0x11
    data = block(byte)
    for at in range(0, size, MIB):
        assert os.pwrite(fd, data, at) == 4096
    # Again through /proc, and around the server.
    for flags in (os.O_RDWR, os.O_RDONLY, os.O_WRONLY | os.O_TRUNC):
        for each in files:
            assert fails(os.open, f"/proc/self/fd/{each}", flags) == errno.EACCES
    assert fails(os.open, os.readlink(f"/proc/self/fd/{fd}"), os.O_RDWR) in (errno.EACCES, errno.ENOENT)
    assert fails(os.fchmod, fd, 0o666) == errno.EPERM
    assert fails(os.fchown, fd, os.getuid(), -1) == errno.EPERM
    for each in files:
        fails(fcntl.ioctl, each, FS_IOC_SETFLAGS, struct.pack("<I", FS_IMMUTABLE | FS_APPEND))
    # The lock is no file to fill the disk with.
    for lock in files[1:]:
        assert fails(os.write, lock, b"x") == errno.EBADF
        assert fails(os.ftruncate, lock, MIB) == errno.EINVAL
    far = size + 64 * MIB
    if kind == "file":
        os.pwrite(fd, data, size)
        os.pwrite(fd, data, far)
        until(lambda: size_of(fd) == size, "what was written beyond the end is cut off")
        os.ftruncate(fd, far)
        until(lambda: size_of(fd) == size, "an extended area is cut to its size")
        os.posix_fallocate(fd, size, 32 * MIB)
        until(lambda: size_of(fd) == size, "space taken is given back")
        os.ftruncate(fd, 4096)
        until(lambda: size_of(fd) == size and os.fstat(fd).st_blocks * 512 >= size, "what was cut is there again")
    else:
        for at in (size, far):
            assert fails(os.pwrite, fd, data, at) in (errno.ENOSPC, errno.EIO, errno.EINVAL)
        assert fails(os.ftruncate, fd, far) in (errno.EINVAL, errno.EPERM)
        fails(os.posix_fallocate, fd, size, MIB)
        for request in (BLKDISCARD, BLKZEROOUT):
            for offset, length in ((size, MIB), (size - 4096, 8192), (2 ** 64 - 4096, 8192)):
                fails(fcntl.ioctl, fd, request, struct.pack("<QQ", offset, length))
        for operation in (1, 2, 3):
            partition = ctypes.create_string_buffer(struct.pack("<qqi132x", 0, 512 * MIB, 1))
            argument = struct.pack("<iiiiQ", operation, 0, 152, 0, ctypes.addressof(partition))
            fails(fcntl.ioctl, fd, BLKPG, argument)
        for request in (BLKRRPART, BLKROSET):
            fails(fcntl.ioctl, fd, request, struct.pack("<I", 1))
        only_mine(fd, size, byte)
        move_the_window(fd, size, byte)
    only_mine(fd, size, byte)
    print("nothing of it worked")


def move_the_window(fd, size, byte):
    """A loop device lets whoever may write it move its window over what lies below."""
    status = bytearray(232)
    try:
        fcntl.ioctl(fd, LOOP["GET_STATUS64"], status)
    except OSError:
        return
    for offset, limit in ((0, 0), (0, 2 ** 40), (4 * MIB, 0), (64 * MIB, 0), (2 ** 63, 0), (0, 512 * MIB)):
        struct.pack_into("<QQ", status, 24, offset, limit)
        try:
            fcntl.ioctl(fd, LOOP["SET_STATUS64"], bytes(status))
        except OSError:
            continue
        only_mine(fd, size, byte)
    for name, argument in (("SET_CAPACITY", 0), ("SET_BLOCK_SIZE", 512), ("SET_DIRECT_IO", 0), ("SET_FD", 0), ("CHANGE_FD", 0)):
        try:
            fcntl.ioctl(fd, LOOP[name], argument)
        except OSError:
            pass
        only_mine(fd, size, byte)
    # Left behind for the next one who opens it: moved, and about to go.
    struct.pack_into("<QQ", status, 24, 4 * MIB, 4 * MIB)
    try:
        fcntl.ioctl(fd, LOOP["SET_STATUS64"], bytes(status))
    except OSError:
        pass


def canary(device):
    fd = os.open(device, os.O_RDWR)
    try:
        move_the_window(fd, size_of(fd), ord("S"))
    except AssertionError:
        return
    raise SystemExit("the window was not moved, or nobody noticed")


def until(condition, what):
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError(f"not in half a minute: {what}")


def read_only(path, export, kind):
    server = Server(path)
    refused(NOT_PERMITTED, server.open, export, True)
    files, size = server.open(export, False)
    assert len(files) == 1
    fd = files[0]
    buffer = block()
    assert os.preadv(fd, [buffer], size - 4096) == 4096 and buffer[0] == 0x22, "the owner's data"
    mapped = mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ)
    assert mapped[0] == 0x22
    assert fails(os.pwrite, fd, buffer, 0) == errno.EBADF
    assert fails(os.ftruncate, fd, 0) in (errno.EINVAL, errno.EBADF)
    fails(os.posix_fallocate, fd, 0, 4096)
    try:
        mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        raise AssertionError("it was mapped for writing")
    except PermissionError:
        pass
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_RDWR)
    assert fails(os.pwrite, fd, buffer, 0) == errno.EBADF
    for flags in (os.O_RDWR, os.O_RDONLY):
        assert fails(os.open, f"/proc/self/fd/{fd}", flags) == errno.EACCES
    if kind == "device":
        for request in (BLKDISCARD, BLKZEROOUT):
            fails(fcntl.ioctl, fd, request, struct.pack("<QQ", 0, 4096))
        for name in ("SET_STATUS64", "SET_CAPACITY", "SET_BLOCK_SIZE", "SET_DIRECT_IO", "CHANGE_FD"):
            argument = bytes(232) if name == "SET_STATUS64" else 0
            fails(fcntl.ioctl, fd, LOOP[name], argument)
    # Keeping the owner out is not among a reader's rights either.
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.lockf(os.dup(fd), fcntl.LOCK_SH | fcntl.LOCK_NB)
    print("ready", flush=True)
    signal.pause()


def redirected(path, export, where):
    for access in (b"\0", b"\1"):
        kind, fields, files = Server(path).ask(2, access + text(export))
        assert (kind, fields, files) == (131, text(where), []), (kind, fields, files)


def write_on(path, name, state):
    (fd, *lock), size = Server(path).open(name, True)
    count = 0
    while True:
        data = block(count % 251)
        at = count * 4096 % size
        os.pwrite(fd, data, at)
        os.fdatasync(fd)
        count += 1
        with open(state + ".new", "w") as file:
            file.write(str(count))
        os.rename(state + ".new", state)


def grab(path, name, size):
    server, got = Server(path), 0
    while True:
        try:
            server.create(f"{name}-{got}", size)
        except Refused as refusal:
            assert refusal.code in (QUOTA, NO_ROOM), refusal
            print(got)
            return
        got += 1


def hold(path):
    held = []
    while len(held) < 400:
        try:
            held.append(Server(path))
        except OSError:
            break
    print(len(held), flush=True)
    signal.pause()


def deaf(path):
    servers = [Server(path) for _ in range(8)]
    for server in servers:
        server.s.setblocking(False)
    print("ready", flush=True)
    while True:
        for server in servers:
            try:
                server.s.send(packet(7, struct.pack("<Q", 0)))
            except OSError:
                time.sleep(0.001)


def fuzz(path, count):
    rng = random.Random(1)
    good = [packet(1, struct.pack("<QIIHIQ", 8 * MIB, OWN, OWN, 0o600, 0, 0) + text("fuzz")), packet(2, b"\1" + text("fuzz")),
            packet(3, struct.pack("<Q", 9 * MIB) + text("fuzz")), packet(4, b"\0" + text("fuzz")),
            packet(5, b"\0" + bytes(4) + text("fuzz") + text("f") + text("/x")), packet(6, text("f")),
            packet(7, bytes(8)), packet(8, text("")),
            packet(9, struct.pack("<IQ", 1, 1) + text("fuzz")), b"", b"\0", packet(200), packet(1, bytes(4080)), bytes(60000)]
    server, malformed = Server(path), 0
    for _ in range(count):
        message = bytearray(rng.choice(good))
        for _ in range(rng.randrange(4)):
            if message:
                at = rng.randrange(len(message))
                message[at:at + rng.randrange(2)] = rng.randbytes(rng.randrange(3))
        try:
            server.s.send(message)
            answer, files, _, _ = socket.recv_fds(server.s, 65536, 4)
            for fd in files:
                os.close(fd)
            assert not answer or (answer[:5] == b"SWYA\x01" and answer[5] >= 129), answer
            if not answer or (answer[5] == 132 and answer[8] == MALFORMED):
                malformed += 1
                server = Server(path)
        except (BrokenPipeError, ConnectionResetError):
            server = Server(path)
    print(f"{malformed} of {count} were malformed")
    assert malformed > count // 10


def descriptors(path):
    for _ in range(50):
        server = Server(path)
        files = array.array("i", [os.open("/dev/null", os.O_RDONLY) for _ in range(100)])
        for _ in range(5):
            server.s.sendmsg([packet(7, bytes(8))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
            server.s.recv(4096)
        for fd in files:
            os.close(fd)


# A device begins with as much as it may move in this time, and more of it may be under way.
BURST = 0.5


def starve(path, name, way, operations, size):
    """As much as it can for three seconds, and what the device was asked for meanwhile."""
    files, length = Server(path).open(name, True)
    fd = files[0]
    print("ready", flush=True)
    large = way in ("large", "buffered")
    data = block(7, 256 << 10 if large else 4096)
    if way == "buffered":
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_DIRECT)
    stat, device = os.fstat(fd), None
    if stat.st_rdev:
        device = f"/sys/dev/block/{os.major(stat.st_rdev)}:{os.minor(stat.st_rdev)}/stat"

    def asked():
        with open(device) as file:
            words = [int(word) for word in file.read().split()]
        return words[0] + words[4], (words[2] + words[6]) * 512

    def work(fd, rng, stop):
        count = 0
        while time.monotonic() < stop:
            at = rng.randrange(length // len(data)) * len(data)
            begin = time.monotonic()
            if way == "read":
                os.preadv(fd, [data], at)
            else:
                os.pwrite(fd, data, at)
            count += 1
            if way == "buffered" and count % 4 == 0:
                os.fsync(fd)
            if way == "again" and time.monotonic() - begin > 0.02:
                # Its burst is used up: is there another one for who opens it again?
                break
        return count

    begin, before = time.monotonic(), asked() if device else None
    stop, moved = begin + 3, 0
    if way == "again":
        os.close(fd)
        while time.monotonic() < stop:
            try:
                files, _ = Server(path).open(name, True)
            except Refused as refusal:
                assert refusal.code == IN_USE, refusal
                continue
            moved += work(files[0], random.Random(moved), stop)
            for each in files:
                os.close(each)
    else:
        pipes = []
        for seed in range(4):
            source, sink = os.pipe()
            pipes.append(source)
            if os.fork() == 0:
                os.write(sink, struct.pack("<Q", work(fd, random.Random(seed), stop)))
                os._exit(0)
            os.close(sink)
        moved = sum(struct.unpack("<Q", os.read(pipe, 8))[0] for pipe in pipes)
    elapsed = time.monotonic() - begin
    if device and way not in ("again", "buffered"):
        count, total = (after - was for after, was in zip(asked(), before))
        assert total >= moved * len(data), f"{moved} of {len(data)} bytes, and the device moved {total}"
    elif way == "buffered":
        count, total = 0, asked()[1] - before[1] if device else moved * len(data)
    else:
        count, total = moved, moved * len(data)
    # What the kernel writes back by itself is of a group of its own.
    groups = 2 if way == "buffered" else 1
    most = [int(rate * (elapsed + BURST) * groups) for rate in (operations, size)]
    print(f"{way}: {count} operations, {total} bytes in {elapsed:.2f} s; at most {most}")
    assert count <= most[0] and total <= most[1], "more than its rate"
    assert total >= min(size, operations * 4096) * elapsed / 8, "next to nothing: this says little of a rate"


def churn(path, state):
    """Keeps in STATE what is acknowledged, and what is asked for at the moment."""
    rng = random.Random(os.getpid())
    try:
        with open(state) as file:
            told = json.load(file)
    except FileNotFoundError:
        told = {"areas": {}, "asked": None}
    def note(asked):
        told["asked"] = asked
        with open(state + ".new", "w") as file:
            json.dump(told, file)
        os.rename(state + ".new", state)
    server, areas = Server(path), told["areas"]
    # What was under way when the server was killed may have been done, or not.
    there = {name: size for name, (size, _, kind, _) in server.areas().items() if kind == 2 and name.startswith("c-")}
    asked = told["asked"] or [None, None, None]
    for name in set(areas) | set(there):
        if name == asked[1]:
            assert there.get(name) in (areas.get(name), asked[2]), (name, there.get(name), areas.get(name), asked)
        else:
            assert there.get(name) == areas.get(name), (name, there.get(name), areas.get(name))
    areas.clear()
    areas.update(there)
    note(None)
    print("ready", flush=True)
    while True:
        name = f"c-{rng.randrange(5)}"
        size = rng.randrange(8, 17) * MIB
        if name not in areas:
            step, new = "create", size
        elif rng.random() < 0.5:
            step, new = "resize", max(size, areas[name])
        else:
            step, new = "delete", None
        note([step, name, new])
        try:
            if step == "create":
                server.create(name, size)
            elif step == "resize":
                server.resize(name, new)
            else:
                server.delete(name)
        except Refused as refusal:
            assert refusal.code in (QUOTA, NO_ROOM), refusal
            new = areas.get(name)
        except OSError:
            return
        if new is None:
            areas.pop(name, None)
        else:
            areas[name] = new
        note(None)


def main():
    command, path, *rest = sys.argv[1:]
    if command == "fill":
        fill(path, rest[0], int(rest[1], 0))
    elif command == "attack":
        attack(path, *rest)
    elif command == "read-only":
        read_only(path, *rest)
    elif command == "write-on":
        write_on(path, *rest)
    elif command == "grab":
        grab(path, rest[0], int(rest[1]) * MIB)
    elif command == "starve":
        starve(path, *rest[:2], *map(int, rest[2:]))
    elif command == "fuzz":
        fuzz(path, int(rest[0]))
    else:
        {"hold": hold, "deaf": deaf, "descriptors": descriptors, "churn": churn, "canary": canary,
         "redirected": redirected}[command](path, *rest)


if __name__ == "__main__":
    main()
