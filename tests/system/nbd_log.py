#!/usr/bin/env python3
"""Writes stamped sectors to an NBD export and remembers what it was promised; later checks that the promises hold.

Shares no code with what it tests. Every write covers one or several 4 KiB blocks; each 512-byte sector holds its own
number and the number of the write. Per sector the state file keeps the durable floor (the newest write acknowledged
before a completed FLUSH was sent) and the newest write that was sent: after a crash a sector may hold any write from
the floor on, nothing older and nothing else, and must hold the same when it is read again.

  nbd_log.py write HOST:PORT/EXPORT STATE SECONDS   until the time is up or the server is gone
  nbd_log.py follow TARGET,TARGET… STATE SECONDS    the same at whichever target serves, until the time is up or SIGTERM
  nbd_log.py check HOST:PORT/EXPORT STATE           and takes what is there as the new floor
"""
import json
import os
import random
import signal
import socket
import struct
import sys
import time
import zlib

SECTOR, BLOCK, DEPTH = 512, 4096, 16
# The server stops, or serves the export no more: it hangs up (NBD protocol, error values).
ESHUTDOWN = 108
STAMP = struct.Struct(">QQI")


class Gone(Exception):
    """The server closed or reset the connection."""


class Nbd:
    def __init__(self, target):
        server, export = target.rsplit("/", 1)
        host, port = server.rsplit(":", 1)
        self.s = socket.create_connection((host, int(port)), timeout=60)
        self.s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = bytearray()
        magic, option, _ = struct.unpack(">QQH", self.take(18))
        assert (magic, option) == (0x4E42444D41474943, 0x49484156454F5054)
        name = export.encode()
        body = struct.pack(">I", len(name)) + name + struct.pack(">H", 0)
        self.put(struct.pack(">I", 3) + struct.pack(">QII", option, 7, len(body)) + body)
        self.size = None
        while True:
            _, _, kind, length = struct.unpack(">QIII", self.take(20))
            data = self.take(length)
            if kind == 1:
                break
            assert kind == 3, f"the server refuses: {kind:#x} {data!r}"
            if data[:2] == b"\0\0":
                self.size = struct.unpack(">Q", data[2:10])[0]

    def put(self, data):
        try:
            self.s.sendall(data)
        except (ConnectionError, socket.timeout) as error:
            raise Gone from error

    def take(self, count):
        while len(self.buffer) < count:
            try:
                more = self.s.recv(1 << 18)
            except ConnectionError as error:
                raise Gone from error
            if not more:
                raise Gone
            self.buffer += more
        data = bytes(self.buffer[:count])
        del self.buffer[:count]
        return data

    def send(self, command, cookie, offset=0, length=0, data=b"", flags=0):
        self.put(struct.pack(">IHHQQI", 0x25609513, flags, command, cookie, offset, length) + data)

    def reply(self):
        magic, error, cookie = struct.unpack(">IIQ", self.take(16))
        assert magic == 0x67446698
        return error, cookie


def stamp(sector, write):
    head = STAMP.pack(sector, write, zlib.crc32(struct.pack(">QQ", sector, write)))
    return (head * (SECTOR // len(head) + 1))[:SECTOR]


def load(path):
    if os.path.exists(path):
        with open(path) as file:
            return json.load(file)
    return {"next": 1, "floor": {}, "newest": {}}


def save(path, state):
    with open(path + ".tmp", "w") as file:
        json.dump(state, file)
    os.rename(path + ".tmp", path)


def write(target, path, seconds):
    until = time.monotonic() + seconds
    counts = write_until(target, path, lambda: time.monotonic() >= until)
    print(f"{counts['writes']} writes and {counts['flushes']} flushes acknowledged")


def follow(targets, path, seconds):
    until, stopped = time.monotonic() + seconds, []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    is_over = lambda: bool(stopped) or time.monotonic() >= until
    total, connections = {"writes": 0, "flushes": 0}, 0
    while not is_over():
        for target in targets.split(","):
            try:
                Nbd(target)
            except (AssertionError, Gone, OSError):
                time.sleep(0.02)
                continue
            connections += 1
            for name, count in write_until(target, path, is_over).items():
                total[name] += count
    print(f"{total['writes']} writes and {total['flushes']} flushes acknowledged, {connections} connections")


def write_until(target, path, is_over):
    state = load(path)
    rng = random.Random(state["next"])
    floor, newest = state["floor"], state["newest"]
    acked, busy, flying, flushing = {}, set(), {}, {}
    counts = {"writes": 0, "flushes": 0}
    try:
        nbd = Nbd(target)
        blocks = min(nbd.size // BLOCK, 2048)
        while True:
            while len(flying) + len(flushing) < DEPTH and not is_over():
                number = state["next"]
                state["next"] += 1
                if rng.random() < 0.03:
                    flushing[number] = dict(acked)
                    nbd.send(3, number)
                    continue
                first = rng.randrange(blocks)
                count = rng.choice((1, 1, 1, 2, 8))
                touched = [b for b in range(first, min(first + count, blocks))]
                if busy & set(touched):
                    continue
                # Some requests cover only a part of a block: the rest must stay.
                skip, keep = (rng.randrange(8), 1) if rng.random() < 0.2 else (0, 8 * len(touched))
                sectors = range(first * 8 + skip, first * 8 + skip + keep)
                busy |= set(touched)
                for sector in sectors:
                    newest[str(sector)] = number
                fua = rng.random() < 0.05
                flying[number] = (touched, sectors, fua)
                data = b"".join(stamp(sector, number) for sector in sectors)
                nbd.send(1, number, sectors[0] * SECTOR, len(data), data, 1 if fua else 0)
            if not flying and not flushing:
                break
            error, cookie = nbd.reply()
            if error == ESHUTDOWN:
                raise Gone
            assert error == 0, f"the server answered {error}"
            if cookie in flushing:
                floor.update({k: max(v, floor.get(k, 0)) for k, v in flushing.pop(cookie).items()})
                counts["flushes"] += 1
            else:
                touched, sectors, fua = flying.pop(cookie)
                busy -= set(touched)
                for sector in sectors:
                    acked[str(sector)] = cookie
                    if fua:
                        floor[str(sector)] = cookie
                counts["writes"] += 1
    except (Gone, ConnectionError):
        pass
    save(path, state)
    return counts


def read_all(nbd, blocks):
    data = bytearray()
    for block in range(0, blocks, 64):
        length = min(64, blocks - block) * BLOCK
        nbd.send(0, block, block * BLOCK, length)
        error, _ = nbd.reply()
        assert error == 0, f"reading block {block}: the server answered {error}"
        data += nbd.take(length)
    return bytes(data)


def check(target, path):
    state = load(path)
    floor, newest = state["floor"], state["newest"]
    nbd = Nbd(target)
    blocks = min(nbd.size // BLOCK, 2048)
    data = read_all(nbd, blocks)
    bad = 0
    for sector in range(blocks * 8):
        key, found = str(sector), data[sector * SECTOR:(sector + 1) * SECTOR]
        low, high = floor.get(key, 0), newest.get(key, 0)
        if found == bytes(SECTOR):
            held = 0
        else:
            place, held, _ = STAMP.unpack(found[:STAMP.size])
            if found != stamp(place, held) or place != sector:
                print(f"sector {sector}: neither zeros nor a whole write: {found[:32].hex()}")
                bad += 1
                continue
        if not low <= held <= high:
            print(f"sector {sector}: holds write {held}, promised were {low} to {high}")
            bad += 1
        floor[key] = newest[key] = held
    nbd.send(3, 1)
    assert nbd.reply()[0] == 0
    if read_all(nbd, blocks) != data:
        print("a second read returned other data")
        bad += 1
    save(path, state)
    if bad:
        sys.exit(f"{bad} promises broken")


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2], sys.argv[3], float(sys.argv[4]))
    elif sys.argv[1] == "follow":
        follow(sys.argv[2], sys.argv[3], float(sys.argv[4]))
    else:
        check(sys.argv[2], sys.argv[3])
