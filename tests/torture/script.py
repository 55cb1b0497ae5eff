"""A random script of calls from a seed, for actor.c: lines of [process, call, a, b, c, d, name, name]."""
import os
import random

NAMES = ["f0", "f1", "f2", "f3", "u0", "u1", "d/f4", "d/u2", "e/f5", "e/u3"]
SIZES = [1, 7, 100, 512, 1000, 4000, 4096, 5000, 9000, 20000]
WEIGHTS = {
    "open": 14, "close": 4, "lseek": 3, "write": 18, "writev": 4, "pwrite": 10, "pwritev2": 3, "aio": 2, "mmap": 2, "stream": 2,
    "dprintf": 1, "fsync": 12, "fdatasync": 10, "syncfs": 0.5, "sync_file_range": 1, "dirsync": 3, "ftruncate": 3, "truncate": 2,
    "fallocate": 2, "rename": 3, "link": 1.5, "unlink": 2.5, "dup": 2, "dup2": 2, "dup3": 1, "fdup": 1, "setofd": 1, "mkdir": 1, "sendfile": 1, "copy": 1, "setlk": 2, "getlk": 2,
    "flock": 1, "fork": 1.5, "vexec": 1.5, "exec": 0.7, "end": 1.5, "read": 6, "stat": 3,
}


def offset(rng):
    return rng.choice([0, 0, 10, 100, 512, 4096, 5000, 12000, rng.randrange(30000)])


def make(seed):
    rng = random.Random(f"script {seed}")
    lines, alive, made = [], {0: None}, 0
    # The C library's asynchronous I/O does not survive fork.
    forked = set()
    calls = {call: weight for call, weight in WEIGHTS.items() if rng.random() < 0.8 or call in ("open", "write", "fsync")}
    add = lambda process, call, a=0, b=0, c=0, d=0, source="-", target="-": lines.append(
        [process, call, a, b, c, d, source, target])
    slots = rng.choice([2, 4, 8])
    end = lambda process, how: (add(process, how, 0, rng.randrange(3)), add(alive.pop(process), "wait", 0, process))
    for _ in range(rng.choice([15, 40, 80, 150])):
        process, call = rng.choice(list(alive)), rng.choices(list(calls), list(calls.values()))[0]
        if not any(line[1] == "open" for line in lines):
            call = "open"
        slot, other, name, size = rng.randrange(slots), rng.randrange(slots), rng.choice(NAMES), rng.choice(SIZES)
        if call == "open":
            flags = rng.choice([os.O_RDWR, os.O_RDWR, os.O_WRONLY, os.O_RDONLY]) | (os.O_CREAT if rng.random() < 0.8 else 0)
            for flag, chance in ((os.O_TRUNC, 0.1), (os.O_APPEND, 0.25), (os.O_EXCL, 0.1), (os.O_CLOEXEC, 0.3), (os.O_SYNC, 0.06),
                                 (os.O_DSYNC, 0.06)):
                flags |= flag if rng.random() < chance else 0
            if flags & 3 == os.O_RDONLY:
                flags &= ~os.O_TRUNC
            add(process, call, slot, flags, rng.choice([0o644, 0o600]), 0, rng.choice(["", "", "./"]) + name)
        elif call in ("close", "fsync", "fdatasync", "syncfs", "sync_file_range"):
            add(process, call, slot)
        elif call == "lseek":
            add(process, call, slot, offset(rng), rng.choice([0, 0, 1]))
        elif call in ("write", "writev", "dprintf"):
            add(process, call, slot, size if rng.random() < 0.99 else 1200000)
            if rng.random() < 0.3:
                add(process, rng.choice(["fsync", "fdatasync"]), slot)
        elif call in ("pwrite", "pwritev2", "aio", "mmap"):
            if call == "aio" and process in forked:
                continue
            flag = rng.choice([0, 2, 4, 16]) if call == "pwritev2" else rng.randrange(2)
            add(process, call, slot, size, offset(rng), flag)
        elif call == "stream":
            add(process, call, 0, size, 0, rng.randrange(2), name)
        elif call == "dirsync":
            add(process, call, source=rng.choice([".", "d", "e"]))
        elif call == "ftruncate":
            add(process, call, slot, offset(rng))
        elif call == "truncate":
            add(process, call, 0, offset(rng), source=name)
        elif call == "fallocate":
            add(process, call, slot, offset(rng), size, rng.choice([0, 1, 3, 0x10]))
        elif call in ("rename", "link"):
            add(process, call, source=name, target=rng.choice(NAMES))
        elif call == "unlink":
            add(process, call, source=name)
        elif call in ("dup", "dup2"):
            add(process, call, slot, other)
        elif call == "dup3":
            add(process, call, slot, other, rng.choice([0, os.O_CLOEXEC]))
        elif call == "fdup":
            add(process, call, slot, other, rng.choice([0, 5, 40]))
        elif call == "mkdir":
            add(process, call, source="e")
        elif call == "setofd":
            add(process, call, slot, rng.choice([0, 1, 2]), offset(rng), 100)
        elif call == "sendfile":
            add(process, call, slot, other, offset(rng), size)
        elif call == "copy":
            add(process, call, slot, other, offset(rng), offset(rng))
        elif call in ("setlk", "getlk"):
            add(process, call, slot, rng.choice([0, 1, 2]) if call == "setlk" else rng.choice([0, 1]), offset(rng), 100)
        elif call == "flock":
            add(process, call, slot, rng.choice([1, 2, 8]))
        elif call in ("fork", "vexec"):
            if made < 6:
                made += 1
                # A duplicate comes from a slot of the same process, or none.
                pair = rng.random() < 0.5 and call == "vexec"
                add(process, call, 0, made, slot if pair else -1, other if pair else -1)
                alive[made] = process
                if call == "fork":
                    forked.add(made)
        elif call == "exec":
            if process:
                forked.discard(process)
                add(process, call)
        elif call == "end":
            leaves = [it for it in alive if it and it not in alive.values()]
            if leaves:
                end(rng.choice(leaves), rng.choice(["exit", "exit", "die"]))
        elif call == "read":
            add(process, call, slot, size, rng.choice([-1, offset(rng)]))
        elif call == "stat":
            add(process, call, rng.choice([-1, slot]), source=name)
    while len(alive) > 1:
        end(next(it for it in alive if it and it not in alive.values()), "exit")
    return lines
