"""A client of RESP for t_44_kv.sh, with nothing of the project's code.

compare A B SEED COUNT    the same random commands to two servers: the same replies
write PORT FILE           sets keys until the connection ends; FILE gets what was acknowledged
check PORT FILE           every acknowledged write is there, or a later one of its key
garbage PORT SEED COUNT   streams that are no requests, or nearly requests
fill PORT COUNT BYTES     sets keys
"""

import os
import random
import socket
import sys


class Client:
    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", int(port)), timeout=20)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self.socket.makefile("rb")

    def send(self, *commands):
        self.socket.sendall(b"".join(encode(words) for words in commands))

    def reply(self):
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise EOFError
        kind, rest = line[:1], line[1:-2]
        if kind in b"+-:_,#":
            return line
        if kind in b"$=":
            return line if int(rest) < 0 else line + self.file.read(int(rest) + 2)
        count = int(rest) * (2 if kind == b"%" else 1)
        return [line] + [self.reply() for _ in range(count)]

    def ask(self, *words):
        self.send(words)
        return self.reply()


def encode(words):
    words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    head = b"*%d\r\n" % len(words)
    return head + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def command(rng):
    key = lambda: rng.choice(["k%d" % rng.randrange(12), "n%d" % rng.randrange(4)])
    number = lambda: rng.choice([0, 1, -1, 7, "x", "", "01", " 1", 2**63 - 1, -(2**63), 2**63, rng.randrange(1000)])
    value = lambda: rng.choice([number(), "v%d" % rng.randrange(100), "", b"\x00\r\n\xff", "y" * 300])
    end = lambda: rng.choice(["ex", "px", "EX", "exat", "pxat"])
    time = lambda: rng.choice([0, -5, 500000, "x", 2**62, 4102444800])
    # A key that has ended when it is set counts in Redis until somebody asks for it.
    ends = lambda: rng.choice([[end(), 4102444800000], [rng.choice(["ex", "px"]), time()], ["exat", rng.choice([0, "x", 2**62])]])
    flags = lambda: rng.choice([[], ["nx"], ["xx"], ["NX", "GET"], ["get"], ["keepttl"], ends(), ["nx", "xx"],
                                ["ex"], ["bad"], ["xx", "get"] + ends(), ["keepttl"] + ends()])
    limits = lambda: rng.choice([[], ["nx"], ["xx"], ["gt"], ["LT"], ["nx", "gt"], ["gt", "lt"], ["bad"]])
    choices = [
        lambda: ["set", key(), value()],
        lambda: ["set", key(), value()] + flags(),
        lambda: ["get", key()],
        lambda: ["setnx", key(), value()],
        lambda: ["setex", key(), time(), value()],
        lambda: ["psetex", key(), rng.choice([1000000, 0, "x"]), value()],
        lambda: ["getset", key(), value()],
        lambda: ["getdel", key()],
        lambda: ["mget"] + [key() for _ in range(rng.randrange(5))],
        lambda: ["mset"] + [rng.choice([key(), value()]) for _ in range(rng.randrange(7))],
        lambda: [rng.choice(["del", "unlink", "exists"])] + [key() for _ in range(rng.randrange(4))],
        lambda: [rng.choice(["incr", "decr", "INCR"]), key()],
        lambda: [rng.choice(["incrby", "decrby"]), key(), number()],
        lambda: ["append", key(), value()],
        lambda: ["strlen", key()],
        lambda: [rng.choice(["expire", "pexpire", "expireat"]), key(), time()] + limits(),
        lambda: ["ttl", key()],
        lambda: ["persist", key()],
        lambda: ["type", key()],
        lambda: ["dbsize"],
        lambda: ["echo", value()],
        lambda: ["ping"] + [value() for _ in range(rng.randrange(3))],
        lambda: ["select", rng.choice([0, "x"])],
        lambda: ["nosuch%d" % rng.randrange(3)] + [value() for _ in range(rng.randrange(5))],
        lambda: [rng.choice(["get", "set", "incr", "flushall", "echo", "expire"])] + [key() for _ in range(rng.randrange(4))],
        lambda: ["client", rng.choice(["getname", "setname", "nosuch"])] + [value() for _ in range(rng.randrange(2))],
        lambda: ["hello", rng.choice([2, 3, 4, "x"])],
        lambda: ["scan", rng.choice([0, "x", 0]), "count", rng.choice([1000, 0, "x"])],
        lambda: ["keys", rng.choice(["*", "k*", "[kn]1", "?1", "none"])],
    ]
    if rng.randrange(200) == 0:
        return ["flushall"]
    return rng.choice(choices)()


def plain(words, reply):
    """Leaves out what two servers need not have in common: orders of keys, and their own names."""
    name = str(words[0]).lower()
    if isinstance(reply, list):
        if name == "hello":
            return "hello", reply[0]
        if name == "scan" and len(reply) == 3:
            # Several shards take several calls.
            return "scan"
        if name == "keys":
            return sorted(map(repr, reply))
    return reply


def compare(a, b, seed, count):
    rng, servers = random.Random(int(seed)), [Client(a), Client(b)]
    for server in servers:
        server.ask("flushall")
    for number in range(int(count) // 20):
        commands = [command(rng) for _ in range(20)]
        for server in servers:
            server.send(*commands)
        for words in commands:
            replies = [plain(words, server.reply()) for server in servers]
            # A moment may pass between the two.
            if str(words[0]).lower() == "ttl" and replies[0] != replies[1]:
                times = [int(reply[1:]) for reply in replies]
                if min(times) > 0 and abs(times[0] - times[1]) <= 1:
                    continue
            if replies[0] != replies[1]:
                sys.exit("%r: %r, and %r" % (words, replies[0], replies[1]))


def write(port, path):
    client, rng, number, name = Client(port), random.Random(path), 0, os.path.basename(path)
    # A line at a time, so that others see how far this is.
    with open(path, "w", buffering=1) as file:
        try:
            while True:
                batch = []
                for _ in range(rng.randrange(1, 30)):
                    number += 1
                    batch.append((rng.randrange(500), number))
                client.send(*[["set", "%s-%d" % (name, key), value] for key, value in batch])
                for key, value in batch:
                    # What was asked for may be there, too.
                    file.write("asked %d %d\n" % (key, value))
                for key, value in batch:
                    if client.reply() != b"+OK\r\n":
                        sys.exit("a write is refused")
                    file.write("done %d %d\n" % (key, value))
        except (OSError, EOFError):
            pass
    print(number)


def check(port, path):
    asked, done = {}, {}
    with open(path) as file:
        for line in file:
            what, key, value = line.split()
            if what == "asked":
                asked.setdefault(int(key), []).append(int(value))
            else:
                done[int(key)] = int(value)
    client, name = Client(port), os.path.basename(path)
    client.send(*[["get", "%s-%d" % (name, key)] for key in done])
    for key, value in done.items():
        reply = client.reply()
        found = int(reply.split(b"\r\n")[1]) if reply != b"$-1\r\n" else None
        if found is None or found < value or found not in asked[key]:
            sys.exit("%s-%d is %r; %d was acknowledged" % (name, key, found, value))
    print(len(done))


def garbage(port, seed, count):
    rng = random.Random(int(seed))
    whole = encode(["set", "g", "x" * 50]) + encode(["mget", "a", "b", "c"])
    for number in range(int(count)):
        kind = rng.randrange(3)
        if kind == 0:
            stream = rng.randbytes(rng.randrange(2000))
        elif kind == 1:
            stream = bytearray(whole * 5)
            for _ in range(rng.randrange(1, 5)):
                stream[rng.randrange(len(stream))] = rng.randrange(256)
        else:
            stream = rng.choice([b"*1000000000\r\n", b"*1\r\n$99999999999\r\n", b"$5\r\nhello\r\n", b"*-5\r\n" * 100,
                                 b"*3\r\n$3\r\nset\r\n$1\r\na\r\n$60000000\r\nabc", b'"' * 100 + b"\r\n"])
        with socket.create_connection(("127.0.0.1", int(port)), timeout=5) as peer:
            peer.sendall(bytes(stream))
            if rng.randrange(2):
                peer.shutdown(socket.SHUT_WR)
                try:
                    while peer.recv(65536):
                        pass
                except ConnectionResetError:
                    pass


def fill(port, count, length):
    client, value = Client(port), "z" * int(length)
    for first in range(0, int(count), 100):
        client.send(*[["set", "f%d" % number, value] for number in range(first, first + 100)])
        for _ in range(100):
            if client.reply() != b"+OK\r\n":
                sys.exit("a write is refused")


if __name__ == "__main__":
    {"compare": compare, "write": write, "check": check, "garbage": garbage, "fill": fill}[sys.argv[1]](*sys.argv[2:])
