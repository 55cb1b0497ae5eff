#!/usr/bin/env python3
"""Keeps four verified requests in flight at a volume, comes back to whichever gateway serves it, and tells the pauses.

A request that had no answer is asked again at the next gateway. Each read has to show the newest write that was acknowledged, or
one after it. A pause is a time of more than 200 ms in which no request is answered.

  nbd_pauses.py VOLUME SECONDS HOST:PORT…
"""
import random
import struct
import sys
import time

from nbd_log import Gone, Nbd

BLOCK, BLOCKS, DEPTH, PAUSE_S = 4096, 1024, 4, 0.2


def content(block, number):
    return struct.pack(">QQ", block, number) * (BLOCK // 16)


class Client:
    def __init__(self, volume, servers):
        self.targets = [f"{server}/{volume}" for server in servers]
        self.acked, self.newest = [0] * BLOCKS, [0] * BLOCKS
        self.flying, self.number, self.done = {}, 0, 0
        self.rng = random.Random(1)
        self.connect()

    def connect(self):
        """Tries every gateway until one serves the volume, and asks it what had no answer."""
        until = time.monotonic() + 60
        while time.monotonic() < until:
            for target in self.targets:
                try:
                    self.nbd = Nbd(target)
                    for cookie, (writes, block) in self.flying.items():
                        self.ask(cookie, writes, block)
                    return
                except (Gone, AssertionError, OSError):
                    pass
            time.sleep(0.005)
        sys.exit("nobody serves the volume for a minute")

    def ask(self, cookie, writes, block):
        data = content(block, cookie) if writes else b""
        self.nbd.send(int(writes), cookie, block * BLOCK, BLOCK, data)

    def fill(self):
        while len(self.flying) < DEPTH:
            block = self.rng.randrange(BLOCKS)
            if any(block == other for _, other in self.flying.values()):
                continue
            self.number += 1
            writes = self.rng.random() < 0.7
            self.flying[self.number] = (writes, block)
            if writes:
                self.newest[block] = self.number
            self.ask(self.number, writes, block)

    def answer(self):
        error, cookie = self.nbd.reply()
        if error == 108:
            raise Gone
        assert error == 0, f"error {error}"
        writes, block = self.flying[cookie]
        if writes:
            self.acked[block] = cookie
        else:
            seen_block, seen = struct.unpack(">QQ", (data := self.nbd.take(BLOCK))[:16])
            assert data == content(seen_block, seen), f"block {block} is mixed"
            known = seen == self.acked[block] and seen_block == (block if seen else 0)
            assert known, f"block {block} has write {seen}, and write {self.acked[block]} was acknowledged"
        del self.flying[cookie]
        self.done += 1

    def run(self, seconds):
        until, last, pauses = time.monotonic() + seconds, time.monotonic(), []
        while time.monotonic() < until:
            try:
                self.fill()
                self.answer()
            except Gone:
                self.connect()
                continue
            now = time.monotonic()
            if now - last > PAUSE_S:
                pauses.append(now - last)
                print(f"pause {1000 * pauses[-1]:.0f} ms", flush=True)
            last = now
        pauses.sort()
        return pauses


client = Client(sys.argv[1], sys.argv[3:])
print("open", flush=True)
pauses = client.run(float(sys.argv[2]))
median = 1000 * pauses[len(pauses) // 2] if pauses else 0
longest = 1000 * pauses[-1] if pauses else 0
print(f"{len(pauses)} pauses, median {median:.0f} ms, longest {longest:.0f} ms, {client.done} requests verified")
