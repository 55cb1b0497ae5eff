"""What t_11_run.sh needs beside shell: loads that note what was acknowledged, a power cut of a file system, checks.

The note of acknowledged operations lies outside the file system that is cut: one line each, written when the answer is there.
"""

import fcntl
import os
import signal
import socket
import sqlite3
import struct
import sys
import time

EXT4_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = 2


def stopped(pid):
    """True if no thread of the process runs on: each has stopped, or stops when its call of the kernel ends."""
    states = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/stat") as file:
            states.append(file.read().rsplit(")", 1)[1].split()[0])
    # The first thread that sees the signal tells the others.
    return all(it in "TtDZX" for it in states) and ("T" in states or len(states) == 1)


def cut(directory, *pids):
    """Everything that is only in the page cache of the ext4 at `directory` is lost from here on, as by a power cut.

    The programs stop before. Otherwise they would see errors of the files, and tell them to an area that nobody has cut off; and an
    fsync that is under way may return 0 though ext4 has lost its data, which nobody may note as acknowledged.
    """
    for pid in pids:
        os.kill(int(pid), signal.SIGSTOP)
    until = time.monotonic() + 30
    while not all(stopped(pid) for pid in pids):
        if time.monotonic() > until:
            sys.exit("a program does not stop")
        time.sleep(0.0005)
    handle = os.open(directory, os.O_RDONLY)
    fcntl.ioctl(handle, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))


class Redis:
    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", int(port)))
        self.file = self.socket.makefile("rb")

    def call(self, *parts):
        parts = [str(part).encode() for part in parts]
        request = b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
        self.socket.sendall(request)
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError
        if line[:1] == b"$":
            length = int(line[1:])
            return None if length < 0 else self.file.read(length + 2)[:-2].decode()
        if line[:1] == b"-":
            raise ConnectionError(line)
        return line[1:-2].decode()


def redis_load(port, note, first):
    """SETs until the server is gone; every seventh connection's worth is a rewrite of the append-only file in between."""
    number = int(first)
    with open(note, "a", buffering=1) as acknowledged:
        try:
            redis = Redis(port)
            while True:
                redis.call("SET", f"key:{number % 5000}", f"{number}:" + "x" * (number % 900))
                acknowledged.write(f"{number}\n")
                if number % 3000 == 2999:
                    redis.call("BGREWRITEAOF")
                number += 1
        except (ConnectionError, OSError):
            pass


def redis_check(port, note):
    """Each key has the value acknowledged last, or the one after, which was under way."""
    newest = {}
    numbers = [int(line) for line in open(note) if line.endswith("\n")]
    for number in numbers:
        newest[number % 5000] = number
    redis = Redis(port)
    for key, number in newest.items():
        value = redis.call("GET", f"key:{key}") or "-1:"
        found = int(value.split(":")[0])
        under_way = numbers[-1] + 1
        if found != number and found != under_way:
            sys.exit(f"key {key}: {number} was acknowledged, {found} is there")
        if value != f"{found}:" + "x" * (found % 900):
            sys.exit(f"key {key} is damaged")
    print(len(numbers), "acknowledged,", len(newest), "keys checked")


def sqlite_load(path, note, first):
    number = int(first)
    base = sqlite3.connect(path, isolation_level=None)
    base.execute("pragma journal_mode=wal")
    base.execute("pragma synchronous=full")
    base.execute("pragma wal_autocheckpoint=50")
    base.execute("create table if not exists t(number integer primary key, value text)")
    with open(note, "a", buffering=1) as acknowledged:
        while True:
            try:
                base.execute("insert or replace into t values(?, ?)", (number, "y" * (number % 700)))
            except sqlite3.Error:
                return
            acknowledged.write(f"{number}\n")
            number += 1


def sqlite_check(path, note):
    base = sqlite3.connect(path)
    if base.execute("pragma integrity_check").fetchone() != ("ok",):
        sys.exit("the database is damaged")
    found = {number for number, in base.execute("select number from t")}
    numbers = {int(line) for line in open(note) if line.endswith("\n")}
    if numbers - found:
        sys.exit(f"{len(numbers - found)} acknowledged rows are missing: {sorted(numbers - found)[:5]}")
    print(len(numbers), "acknowledged rows are there")


def level_load(path, note, first):
    import plyvel

    number = int(first)
    base = plyvel.DB(path, create_if_missing=True, write_buffer_size=1 << 18)
    with open(note, "a", buffering=1) as acknowledged:
        while True:
            try:
                base.put(b"%d" % number, b"z" * (number % 800), sync=True)
            except plyvel.Error:
                return
            acknowledged.write(f"{number}\n")
            number += 1


def level_check(path, note):
    import plyvel

    base = plyvel.DB(path)
    numbers = [int(line) for line in open(note) if line.endswith("\n")]
    for number in numbers:
        if base.get(b"%d" % number) != b"z" * (number % 800):
            sys.exit(f"{number} was acknowledged and is not there")
    print(len(numbers), "acknowledged keys are there")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
