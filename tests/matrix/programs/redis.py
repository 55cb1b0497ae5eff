"""Redis: append-only file and snapshots. The same commands give the same digest; crashes lose nothing that was acknowledged."""
import os
import socket
import subprocess
import sys
import threading
import time

from rig import await_true, need

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../system"))
import power_cut  # noqa: E402

NEEDS = ["redis-server", "redis-cli", "redis-check-aof", "redis-check-rdb"]
ALWAYS = ["--appendonly", "yes", "--appendfsync", "always", "--save", "", "--auto-aof-rewrite-percentage", "0"]
ALL = ["*"]


def version():
    return subprocess.run(["redis-server", "--version"], capture_output=True, text=True).stdout.split("v=")[1].split()[0]


def cli(rig, *words, codes=(0,)):
    return rig.call_plain("redis-cli", "-s", rig.notes + "/socket", *words, codes=codes)


def start(rig, *options, plain=False, match=None):
    command = ["redis-server", "--port", "0", "--unixsocket", rig.notes + "/socket", "--enable-debug-command", "yes", *options]
    program = rig.start_plain(command) if plain else rig.start(command, match=match)

    def answers():
        need(program.running(), program.words())
        return "PONG" in cli(rig, "ping", codes=(0, 1))

    await_true("redis-server does not answer", answers, pause_s=0.02)
    return program


def commands(rig, first, count):
    """A fixed sequence of commands for every type, sent as one pipe."""
    lines = []
    for number in range(first, first + count):
        lines += [
            f"set s:{number % 97} {'v' * (number * 7 % 900)}{number}",
            f"rpush l:{number % 13} {number} {number * 3}",
            f"hset h:{number % 17} f{number % 29} {number}",
            f"sadd set:{number % 7} m{number * 31 % 300}",
            f"zadd z:{number % 5} {number * 37 % 1000} m{number % 200}",
            f"xadd x 0-{number + 1} n {number}",
            f"incrby counter {number}",
        ]
        lines += [f"del s:{number * 5 % 97}"] if number % 9 == 8 else []
        lines += ["multi", f"append multi {number},", "lpop l:3", "exec"] if number % 6 == 5 else []
    with open(rig.notes + "/commands", "w") as file:
        file.write("\n".join(lines) + "\n")
    with open(rig.notes + "/commands") as file:
        rig.call_plain("redis-cli", "-s", rig.notes + "/socket", stdin=file)


def digest(rig):
    return cli(rig, "debug", "digest") + cli(rig, "dbsize")


def rewritten(rig):
    cli(rig, "bgrewriteaof")
    await_true("the rewrite does not end", lambda: "aof_rewrite_in_progress:0" in cli(rig, "info", "persistence"), pause_s=0.05)


def append_only(match, fsync):
    def case(rig):
        rig.patterns = match
        options = [*ALWAYS, "--appendfsync", fsync]
        found = []
        program = start(rig, *options)
        for round_ in range(3):
            commands(rig, round_ * 400, 400)
            if round_ < 2:
                rewritten(rig)
                commands(rig, round_ * 400 + 7, 100)
            found.append(digest(rig))
            program.stop()
            rig.call_plain("redis-check-aof", "appendonlydir/appendonly.aof.manifest")
            # By turns without and with run.
            program = start(rig, *options, plain=round_ == 1)
            found.append(digest(rig))
        need(found[0] == found[1] and found[2] == found[3] and found[4] == found[5], f"a start changed the data: {found}")
        program.stop()
        return found

    return case


def snapshots(rig):
    rig.patterns = ALL
    found = []
    options = ["--save", "", "--appendonly", "no"]
    for number in range(3):
        program = start(rig, *options)
        found.append(digest(rig))
        commands(rig, number * 200, 300)
        cli(rig, "save") if number % 2 else cli(rig, "bgsave")
        await_true("the snapshot does not end", lambda: "rdb_bgsave_in_progress:0" in cli(rig, "info", "persistence"), pause_s=0.05)
        rig.call_plain("redis-check-rdb", "dump.rdb")
        found.append(digest(rig))
        if number == 1:
            rig.crash(program, "main")
        else:
            program.stop()
    need(found[1] == found[2] and found[3] == found[4], "a start changed the data")
    return found


class Redis(power_cut.Redis):
    """A connection by the server's socket in the file system, so cases need no ports."""

    def __init__(self, rig):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(rig.notes + "/socket")
        self.file = self.socket.makefile("rb")


class Client(threading.Thread):
    """Writes until the server is gone, and counts what was acknowledged."""

    def __init__(self, rig, which, first):
        super().__init__(daemon=True)
        self.redis, self.which, self.number, self.done = Redis(rig), which, first, 0
        self.rig, self.cuts = rig, rig.cuts
        self.start()

    def run(self):
        try:
            while True:
                self.redis.call("SET", f"key:{self.which}:{self.number % 2000}", f"{self.number}:" + "x" * (self.number % 900))
                if self.rig.cuts != self.cuts:
                    break
                self.number += 1
                self.done += 1
                if self.which == 0 and self.number % 400 == 0:
                    self.redis.call("BGREWRITEAOF")
        except (ConnectionError, OSError):
            pass

    def check(self, redis):
        """Each key has the value acknowledged last, or the one after, which was under way."""
        for number in range(max(0, self.number - 2000), self.number):
            value = redis.call("GET", f"key:{self.which}:{number % 2000}") or "-1:"
            found = int(value.split(":")[0])
            need(found in (number, self.number) and value == f"{found}:" + "x" * (found % 900),
                 f"key {self.which}:{number % 2000}: {number} was acknowledged, {value[:20]} is there")


def crashed(match):
    def case(rig):
        rig.patterns = match
        firsts, clients = [0] * 4, []
        for number, kind in enumerate(rig.kinds(5)):
            program = start(rig, *ALWAYS)
            for client in clients:
                client.check(Redis(rig))
            clients = [Client(rig, which, first) for which, first in enumerate(firsts)]
            await_true("nothing is acknowledged", lambda: min(it.done for it in clients) >= 100 or not program.running())
            time.sleep(rig.rng.random() * 0.2)
            need(program.running(), program.words())
            rig.crash(program, kind)
            for client in clients:
                client.join(30)
                need(not client.is_alive(), "a client does not end")
            firsts = [client.number for client in clients]
            if number % 2:
                rig.recover()
        program = start(rig, *ALWAYS)
        for client in clients:
            client.check(Redis(rig))
        program.stop()
        rig.call_plain("redis-check-aof", "appendonlydir/appendonly.aof.manifest")
        return {"crashes": 5}

    return case


CASES = {
    "append always": append_only([], "always"),
    "append always, all files": append_only(ALL, "always"),
    "append everysec": append_only([], "everysec"),
    "snapshots": snapshots,
    "crash": crashed([]),
    "crash, all files": crashed(ALL),
}
SHORT = ("append always", "crash")
