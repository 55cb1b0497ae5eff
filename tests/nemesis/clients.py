#!/usr/bin/env python3
"""Clients of the rack under test: each is a process with one connection at a time, over NBD or NVMe/TCP.

    clients.py CONFIG      CONFIG is JSON; see `Client`. Ends when its standard input does, and
                           asks for less from each byte on that comes there.

Every sector that a client writes says which write wrote it, where it belongs, and a checksum. So a read shows which write each sector is
from, and sectors that are torn or somebody else's are seen. What was asked and answered goes to a file, one marshalled request after the other.
"""
import json
import marshal
import os
import random
import select
import struct
import sys
import time
import zlib

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from nbd import Gone, Nbd  # noqa: E402
from nvme import Nvme  # noqa: E402

SECTOR = 512
# Checksum of the rest, volume, sector of the volume, write.
STAMP = struct.Struct(">IIQQ")
FILL = (SECTOR - STAMP.size) // 8
TORN = -1
MEBI = 1 << 20
# An NVMe status that sends the host to another path: path related, or "internal path error".
PATH_RELATED = 3
SHUTDOWN = 108


def stamped(volume, first, count, id):
    fill = struct.pack(">Q", id * 0x9E3779B97F4A7C15 & (1 << 64) - 1) * FILL
    tail, sectors = struct.pack(">Q", id) + fill, []
    for sector in range(first, first + count):
        rest = struct.pack(">IQ", volume, sector) + tail
        sectors.append(struct.pack(">I", zlib.crc32(rest)) + rest)
    return b"".join(sectors)


def runs(volume, first, data):
    """(first, count, id) of equal sectors in a row: 0 for zeros, TORN for what no client has written there."""
    found, zeros = [], bytes(SECTOR)
    for at in range(0, len(data), SECTOR):
        sector, place = data[at:at + SECTOR], first + at // SECTOR
        crc, of, stamp, id = STAMP.unpack_from(sector)
        if sector == zeros:
            id = 0
        elif crc != zlib.crc32(sector[4:]) or of != volume or stamp != place:
            id = TORN
        if found and found[-1][2] == id:
            found[-1][1] += 1
        else:
            found.append([place, 1, id])
    return [tuple(it) for it in found]


class Log:
    def __init__(self, path):
        self.file = open(path, "ab", buffering=1 << 16)

    def put(self, record):
        marshal.dump(record, self.file)


class Connection:
    """One connection to a gateway, whichever way."""

    def __init__(self, config, gateway, limit):
        self.gateway, self.kind = gateway, config["protocol"]
        address = (config["gateways"][gateway], config["ports"][self.kind])
        if self.kind == "nbd":
            self.session = Nbd(address, config["volume"], limit)
        else:
            self.session = Nvme(address, config["volume"], config["name"], limit)
        self.size, self.began = self.session.size, time.monotonic_ns()

    def is_elsewhere(self, status):
        """True if the answer says that another gateway serves the volume."""
        if self.kind == "nbd":
            return status == SHUTDOWN
        return status >> 8 & 7 == PATH_RELATED


class Client:
    def __init__(self, config):
        self.config, self.name = config, config["name"]
        self.rng = random.Random(config["seed"])
        self.log = Log(config["log"])
        self.connection, self.number, self.asked = None, 0, 0
        self.gateway = config["first"]
        self.flying, self.free = {}, []
        self.next_at = 0

    def drop(self, why):
        """Gives the connection up; nobody knows what becomes of the requests that are under way."""
        if self.connection is None:
            return
        self.connection.session.close()
        for request in self.flying.values():
            self.log.put(self.record(request, None, None, ()))
        self.log.put(("dropped", self.name, time.monotonic_ns(), self.connection.gateway, why))
        self.flying, self.connection = {}, None
        self.gateway = (self.gateway + 1) % len(self.config["gateways"])

    def record(self, request, end, status, blocks):
        kind, first, count, id, start, fua = request
        return ("request", f"{self.name}.{self.number}", kind, first, count, id, start, end, status, fua, blocks, self.connection.gateway)

    def connect(self):
        try:
            self.connection = Connection(self.config, self.gateway, 3.0)
        except Gone as gone:
            self.log.put(("refused", self.name, time.monotonic_ns(), self.gateway, str(gone)))
            self.gateway = (self.gateway + 1) % len(self.config["gateways"])
            return False
        self.number += 1
        self.log.put(("connected", self.name, time.monotonic_ns(), self.gateway, f"{self.name}.{self.number}"))
        return True

    def choose(self):
        """(kind, first sector, sectors, FUA) of the next request."""
        rng, sectors = self.rng, self.connection.size // SECTOR
        kind = rng.choices(("read", "write", "flush", "zero", "trim"), self.config["mix"])[0]
        if kind == "flush":
            return kind, 0, 0, False
        most = rng.choices((1, 8, 32, 128, 512, 2048), (15, 45, 25, 12, 2, 1))[0]
        count = min(rng.randrange(1, most + 1) if rng.random() < 0.5 else most, sectors)
        if rng.random() < 0.7:
            window = rng.choice(self.config["windows"])
            first = window + rng.randrange(-512, 512)
        else:
            first = rng.randrange(sectors)
        if rng.random() < 0.7:
            first, count = first & ~7, count + 7 & ~7
        first = max(0, min(first, sectors - count))
        # NVMe's deallocation has no FUA.
        takes_fua = kind in ("write", "zero") or kind == "trim" and self.config["protocol"] == "nbd"
        return kind, first, count, takes_fua and rng.random() < 0.08

    def ask(self):
        kind, first, count, fua = self.choose()
        self.asked += 1
        id = self.config["base"] + self.asked if kind in ("write", "zero", "trim") else 0
        data = stamped(self.config["number"], first, count, id) if kind == "write" else b""
        cookie = self.free.pop() if self.free else len(self.flying)
        request = ("zero" if kind == "trim" else kind, first, count, id, time.monotonic_ns(), fua)
        self.flying[cookie] = request
        self.connection.session.submit(kind, cookie, first * SECTOR, count * SECTOR, data, fua)

    def answer(self, cookie, status, data):
        end = time.monotonic_ns()
        request = self.flying.pop(cookie, None)
        if request is None:
            raise Gone("an answer to nothing")
        self.free.append(cookie)
        blocks = runs(self.config["number"], request[1], data) if request[0] == "read" and not status else ()
        if status and self.connection.is_elsewhere(status):
            # The request's fate is not known: another gateway may have taken over meanwhile.
            self.log.put(self.record(request, None, status, ()))
            raise Gone("served elsewhere")
        self.log.put(self.record(request, end, status, blocks))

    def turn(self):
        if self.connection is None:
            self.free = []
            if not self.connect():
                time.sleep(0.2)
                return
        now = time.monotonic()
        try:
            if now >= self.next_at and len(self.flying) < self.config["depth"]:
                self.ask()
                self.next_at = max(now - 0.1, self.next_at) + self.rng.expovariate(self.config["rate"])
            wait = 0.1 if len(self.flying) >= self.config["depth"] else max(0.0, min(0.1, self.next_at - time.monotonic()))
            for cookie, status, data in self.connection.session.poll(wait):
                self.answer(cookie, status, data)
            oldest = min((it[4] for it in self.flying.values()), default=None)
            if oldest is not None and time.monotonic_ns() - oldest > self.config["patience_s"] * 1e9:
                raise Gone("no answer in time")
        except Gone as gone:
            self.drop(str(gone))

    def is_told(self):
        """Each byte that comes makes the client slower; the end of the input ends it."""
        said = os.read(0, 1)
        self.config["rate"] /= 4
        return bool(said)

    def run(self):
        last = time.monotonic()
        while not select.select([0], [], [], 0)[0] or self.is_told():
            self.turn()
            if time.monotonic() - last > 1:
                self.log.file.flush()
                last = time.monotonic()
        until = time.monotonic() + self.config["patience_s"]
        while self.flying and self.connection and time.monotonic() < until:
            try:
                for cookie, status, data in self.connection.session.poll(0.1):
                    self.answer(cookie, status, data)
            except Gone as gone:
                self.drop(str(gone))
        self.drop("the end")
        self.log.file.close()


class Reader(Client):
    """Flushes a volume and reads the whole of it once; fails if that takes longer than `patience_s`."""

    def run(self):
        until, size, at = time.monotonic() + self.config["patience_s"], None, -1
        while size is None or at * MEBI < size:
            if time.monotonic() > until:
                self.log.file.close()
                sys.exit(f"{self.name} cannot read the volume in time, from {at} MiB")
            if self.connection is None and not self.connect():
                time.sleep(0.2)
                continue
            size, start = self.connection.size, time.monotonic_ns()
            count = min(MEBI, size - at * MEBI) // SECTOR
            request = ("flush", 0, 0, 0, start, False) if at < 0 else ("read", at * MEBI // SECTOR, count, 0, start, False)
            self.flying[1] = request
            try:
                self.connection.session.submit(request[0], 1, request[1] * SECTOR, request[2] * SECTOR)
                done = []
                while not done:
                    done = self.connection.session.poll(0.2)
                    if time.monotonic() > until:
                        raise Gone("no answer in time")
                self.answer(*done[0])
                if not done[0][1]:
                    at += 1
            except Gone as gone:
                self.drop(str(gone))
        self.drop("the end")
        self.log.file.close()


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        config = json.load(file)
    (Reader if config.get("whole") else Client)(config).run()
