#!/usr/bin/env python3
"""The cables of the nemesis' rack: a TAP device for each machine, and what happens to the frames between them.

    switch.py NAME…      makes tap-NAME for each, says "ready", then takes a line of JSON for each change of the rules

A rule is for frames from one machine to another: {"from": "node1", "to": "tor", "cut": true, "loss": 0.1, "duplicate": 0.1, "corrupt":
0.01, "reorder": 0.1, "delay_s": 0.001, "jitter_s": 0.001, "rate": 1000000}. A line is the list of all rules. Linux' own emulation of
networks (netem) is no part of many kernels, so this is a program; a TAP device hands over whole frames, without offloads.

The last byte of a machine's MAC address is its place in the list, counted from 1.
"""
import fcntl
import heapq
import json
import os
import random
import selectors
import struct
import sys
import time

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
ETHERNET, IP_UDP = 14, 17
# Frames that wait at a time for their delay or rate; more are dropped, as by a switch.
WAITING_MAX = 4096
# Frames from one machine before the next one's turn.
BATCH = 16
FRAME_MAX = 65536


def open_tap(name):
    handle = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(handle, TUNSETIFF, struct.pack("16sH22x", ("tap-" + name).encode(), IFF_TAP | IFF_NO_PI))
    return handle


def corrupt(rng, frame):
    """Flips a bit. Half of the rack's packets lose their UDP checksum, so that the bit gets as far as the rack's own one."""
    frame = bytearray(frame)
    udp = len(frame) > ETHERNET + 28 and frame[12:14] == b"\x08\x00" and frame[23] == IP_UDP and not struct.unpack_from(">H", frame, 20)[0] & 0x3FFF
    if udp and rng.random() < 0.5:
        frame[40:42] = b"\0\0"
        at = rng.randrange(ETHERNET + 28, len(frame))
    else:
        at = rng.randrange(ETHERNET, len(frame))
    frame[at] ^= 1 << rng.randrange(8)
    return bytes(frame)


class Switch:
    def __init__(self, names):
        self.names = {name: at for at, name in enumerate(names)}
        self.taps = [open_tap(name) for name in names]
        self.rules, self.free_at, self.waiting, self.count = {}, {}, [], 0
        self.rng = random.Random()
        self.lines = b""

    def set_rules(self, text):
        self.rules = {(self.names[it["from"]], self.names[it["to"]]): it for it in json.loads(text)}

    def send(self, to, frame):
        try:
            os.write(self.taps[to], frame)
        except OSError:
            pass  # The interface is down, or its queue is full.

    def treat(self, rule, pair, frame):
        rng, now = self.rng, time.monotonic()
        if rule.get("cut") or rng.random() < rule.get("loss", 0):
            return
        if rng.random() < rule.get("corrupt", 0):
            frame = corrupt(rng, frame)
        for _ in range(2 if rng.random() < rule.get("duplicate", 0) else 1):
            due = now + rule.get("delay_s", 0) + rng.random() * rule.get("jitter_s", 0)
            if rng.random() < rule.get("reorder", 0):
                due += rng.random() * 0.02
            if rule.get("rate"):
                due = max(due, self.free_at.get(pair, 0)) + len(frame) / rule["rate"]
                self.free_at[pair] = due
            if due <= now:
                self.send(pair[1], frame)
            elif len(self.waiting) < WAITING_MAX:
                self.count += 1
                heapq.heappush(self.waiting, (due, self.count, pair[1], frame))

    def receive(self, source):
        for _ in range(BATCH):
            try:
                frame = os.read(self.taps[source], FRAME_MAX)
            except OSError:
                return
            to = frame[5] - 1
            if frame[0] & 1 or not 0 <= to < len(self.taps):
                continue
            rule = self.rules.get((source, to))
            if rule is None:
                self.send(to, frame)
            else:
                self.treat(rule, (source, to), frame)

    def control(self):
        data = os.read(0, 1 << 20)
        if not data:
            sys.exit(0)
        self.lines += data
        *whole, self.lines = self.lines.split(b"\n")
        if whole:
            self.set_rules(whole[-1])

    def run(self):
        poller = selectors.EpollSelector()
        for at, handle in enumerate(self.taps):
            poller.register(handle, selectors.EVENT_READ, at)
        poller.register(0, selectors.EVENT_READ, None)
        while True:
            wait = max(0, self.waiting[0][0] - time.monotonic()) if self.waiting else None
            for key, _ in poller.select(wait):
                if key.data is None:
                    self.control()
                else:
                    self.receive(key.data)
            now = time.monotonic()
            while self.waiting and self.waiting[0][0] <= now:
                _, _, to, frame = heapq.heappop(self.waiting)
                self.send(to, frame)


if __name__ == "__main__":
    switch = Switch(sys.argv[1:])
    print("ready", flush=True)
    switch.run()
