"""What POSIX and ext4 permit after a script: each line's effect on the files, what was synced, and what may be there after a cut.

Shares no code with what it judges. A file's history is a list of layers; a byte may come from any layer down to the newest durable
one that covers it. A name's history is a list of (line, file); a sync of the file or the directory makes the newest one a floor.
"""
import os
import re

CREATE, EXCLUSIVE, TRUNCATE, APPEND, CLOEXEC = os.O_CREAT, os.O_EXCL, os.O_TRUNC, os.O_APPEND, os.O_CLOEXEC
END = 1 << 40


def filled(seed, count):
    return bytes((seed * 37 + (at >> 4) * 11 + at) % 251 + 1 for at in range(count))


class File:
    def __init__(self, line):
        self.born, self.now, self.links, self.mode = line, bytearray(), 0, 0
        self.layers = []          # (line, from, to, bytes or None for zeros)
        self.durable = []         # (line, from, to): what was there at that line is on the medium
        self.sizes = [(line, 0)]
        self.synced = self.size_synced = None
        self.names = set()
        self.moved = False

    def put(self, line, at, data):
        size = len(self.now)
        if not data:
            return
        if at > size:
            self.layers.append((line, size, at, None))
            self.now.extend(bytes(at - size))
        self.now[at:at + len(data)] = data
        self.layers.append((line, at, at + len(data), bytes(data)))
        self.sizes.append((line, len(self.now)))

    def resize(self, line, size):
        old = len(self.now)
        self.layers.append((line, min(size, old), END, None))
        del self.now[size:]
        self.now.extend(bytes(size - len(self.now)))
        self.sizes.append((line, size))

    def zero(self, line, at, to):
        to = min(to, len(self.now))
        if at < to:
            self.now[at:to] = bytes(to - at)
            self.layers.append((line, at, to, None))

    def sync(self, line, at=0, to=END):
        self.durable.append((line, at, to))
        # ext4 keeps the size on the medium below what it has not written yet.
        if to >= len(self.now):
            self.size_synced = line
        if (at, to) == (0, END):
            self.synced = line

    def permits(self, found):
        """None, or what is wrong with `found`."""
        if found == self.now:
            return None
        floor = -1 if self.size_synced is None else self.size_synced
        before = [size for line, size in self.sizes if line <= floor]
        sizes = before[-1:] + [size for line, size in self.sizes if line > floor]
        if self.size_synced is None:
            sizes.append(0)
        if not min(sizes) <= len(found) <= max(sizes):
            return f"{len(found)} bytes; permitted are {min(sizes)} to {max(sizes)}"
        floor_size = (before or [0])[-1]
        for start in range(0, len(found), 64):
            end = min(start + 64, len(found))
            if found[start:end] == self.now[start:end]:
                continue
            for at in range(start, end):
                if not self.permits_byte(at, found[at], floor_size):
                    return f"byte {at} is {found[at]}, of an older write or of none"
        return None

    def permits_byte(self, at, byte, floor_size):
        floor = max((line for line, a, b in self.durable if a <= at < b), default=-1)
        for line, a, b, data in reversed(self.layers):
            if a <= at < b:
                if byte == (data[at - a] if data else 0):
                    return True
                if line <= floor:
                    return byte == 0 and at >= floor_size
        return byte == 0


class Open:
    def __init__(self, file, flags):
        self.file, self.flags, self.at = file, flags, 0


class Process:
    def __init__(self, descriptors, slots):
        self.descriptors, self.slots = dict(descriptors), list(slots)   # number: [Open, close on exec]


class Model:
    def __init__(self, patterns=()):
        self.names, self.history, self.floors, self.files = {}, {}, {}, []
        self.processes = {0: Process({}, [-1] * 12)}
        self.problems = []

    def bind(self, line, name, file):
        self.history.setdefault(name, [(-1, None)]).append((line, file))
        old = self.names.get(name)
        if old:
            old.links -= 1
        if file:
            file.links += 1
            file.names.add(name)
            self.names[name] = file
        else:
            self.names.pop(name, None)

    def synced(self, line, file, data_only=False, at=0, to=END):
        file.sync(line, at, to)
        if data_only and file.moved:
            return
        for name, owner in self.names.items():
            if owner is file:
                self.floors[name] = line

    def opened(self, process, slot):
        number = process.slots[slot] if 0 <= slot < 12 else -1
        return process.descriptors.get(number, [None])[0]

    def step(self, line, words, result, maybe=False):
        """The effect of a line. `maybe`: nobody knows whether it happened, so it counts as a change and as no sync."""
        owner, call, a, b, c, d, source, target = words
        p = self.processes[owner]
        handler = getattr(self, "do_" + call, None)
        if handler and (maybe or result is not None):
            handler(line, p, a, b, c, d, source, target, result, maybe)

    def do_open(self, line, p, a, flags, mode, d, name, _, result, maybe):
        if not maybe and result < 0:
            return
        name = norm(name)
        file = self.names.get(name)
        if file is None:
            if not flags & CREATE:
                return
            file = File(line)
            self.files.append(file)
            self.bind(line, name, file)
        elif flags & CREATE and flags & EXCLUSIVE:
            return
        if flags & TRUNCATE and len(file.now):
            file.resize(line, 0)
        if not maybe:
            p.slots[a] = result
            p.descriptors[result] = [Open(file, flags), bool(flags & CLOEXEC)]

    def do_close(self, line, p, a, b, c, d, s, t, result, maybe):
        if not maybe and result == 0:
            p.descriptors.pop(p.slots[a], None)

    def do_read(self, line, p, a, b, at, d, s, t, result, maybe):
        it = self.opened(p, a)
        if it and at < 0 and not maybe and result > 0:
            it.at += result

    def do_lseek(self, line, p, a, b, c, d, s, t, result, maybe):
        it = self.opened(p, a)
        if it and not maybe and result >= 0:
            it.at = result

    def written(self, line, it, data, at, maybe, sync, moves):
        if it is None or (it.flags & 3) == os.O_RDONLY:
            return
        if it.flags & APPEND:
            at = len(it.file.now)
        it.file.put(line, at, data)
        if moves:
            it.at = at + len(data)
        if not maybe and data and (sync or it.flags & os.O_DSYNC):
            full = (it.flags & os.O_SYNC) == os.O_SYNC
            self.synced(line, it.file, not full, at, at + len(data))

    def do_write(self, line, p, a, b, c, d, s, t, result, maybe):
        it = self.opened(p, a)
        if it and (maybe or result > 0):
            self.written(line, it, filled(line, b)[:b if maybe else result], it.at, maybe, False, True)

    do_writev = do_dprintf = do_write

    def do_pwrite(self, line, p, a, b, c, d, s, t, result, maybe, sync=False):
        if maybe or result > 0:
            self.written(line, self.opened(p, a), filled(line, b)[:b if maybe else result], c, maybe, sync, False)

    def do_pwritev2(self, line, p, a, b, c, d, s, t, result, maybe):
        it = self.opened(p, a)
        if it and d & 16:
            c = len(it.file.now)
        self.do_pwrite(line, p, a, b, c, d, s, t, result, maybe, bool(d & 6))

    def do_aio(self, line, p, a, b, c, d, s, t, result, maybe):
        self.do_pwrite(line, p, a, b, c, d, s, t, result, maybe)
        it = self.opened(p, a)
        if d and not maybe and result >= 0 and it:
            self.synced(line, it.file)

    def do_mmap(self, line, p, a, b, c, d, s, t, result, maybe):
        it = self.opened(p, a)
        count = min(b, len(it.file.now) - c) if it and maybe else result
        if it and count and count > 0 and (it.flags & 3) == os.O_RDWR:
            it.file.put(line, c, filled(line, b)[:count])
            if d and not maybe:
                self.synced(line, it.file, False, c & ~4095, c + count)

    def do_stream(self, line, p, a, b, c, d, name, t, result, maybe):
        if not maybe and result == -1:
            return
        name = norm(name)
        if name not in self.names:
            self.files.append(File(line))
            self.bind(line, name, self.files[-1])
        file = self.names[name]
        file.put(line, len(file.now), filled(line, b))
        if d and not maybe and result == b:
            self.synced(line, file)

    def do_fsync(self, line, p, a, b, c, d, s, t, result, maybe, data_only=False):
        it = self.opened(p, a)
        if it and not maybe and result == 0:
            self.synced(line, it.file, data_only)

    def do_fdatasync(self, *rest):
        self.do_fsync(*rest, True)

    def do_syncfs(self, line, p, a, b, c, d, s, t, result, maybe):
        if self.opened(p, a) and not maybe and result == 0:
            for file in self.files:
                file.sync(line)
            for name in self.history:
                self.floors[name] = line

    def do_dirsync(self, line, p, a, b, c, d, directory, t, result, maybe):
        if not maybe and result == 0:
            for name in self.history:
                if (os.path.dirname(name) or ".") == directory:
                    self.floors[name] = line

    def do_ftruncate(self, line, p, a, b, c, d, s, t, result, maybe):
        it = self.opened(p, a)
        if it and (maybe or result == 0) and (it.flags & 3):
            it.file.resize(line, b)

    def do_truncate(self, line, p, a, b, c, d, name, t, result, maybe):
        if norm(name) in self.names and (maybe or result == 0):
            self.names[norm(name)].resize(line, b)

    def do_fallocate(self, line, p, a, b, c, mode, s, t, result, maybe):
        it = self.opened(p, a)
        if not it or not (maybe or result == 0) or not it.flags & 3:
            return
        if mode & 0x12:
            it.file.zero(line, b, b + c)
        if not mode & 1 and b + c > len(it.file.now):
            it.file.resize(line, b + c)

    def do_rename(self, line, p, a, b, c, d, source, target, result, maybe):
        source, target = norm(source), norm(target)
        file = self.names.get(source)
        if not file or file is self.names.get(target) or not (maybe or result == 0):
            return
        file.moved = True
        self.bind(line, target, file)
        self.bind(line, source, None)

    def do_link(self, line, p, a, b, c, d, source, target, result, maybe):
        file = self.names.get(norm(source))
        if file and (maybe or result == 0) and norm(target) not in self.names:
            file.moved = True
            self.bind(line, norm(target), file)

    def do_unlink(self, line, p, a, b, c, d, name, t, result, maybe):
        if norm(name) in self.names and (maybe or result == 0):
            self.bind(line, norm(name), None)

    def do_dup(self, line, p, a, b, c, d, s, t, result, maybe):
        if not maybe and result >= 0:
            p.descriptors[result] = [self.opened(p, a), False]
            p.slots[b] = result

    def do_dup2(self, line, p, a, b, c, d, s, t, result, maybe):
        if not maybe and result >= 0 and p.slots[a] != p.slots[b]:
            p.descriptors[result] = [self.opened(p, a), False]

    def do_dup3(self, line, p, a, b, flags, d, s, t, result, maybe):
        if not maybe and result >= 0:
            p.descriptors[result] = [self.opened(p, a), bool(flags & CLOEXEC)]

    def do_fdup(self, *rest):
        self.do_dup(*rest)

    def do_sendfile(self, line, p, a, b, c, d, s, t, result, maybe):
        out, source = self.opened(p, a), self.opened(p, b)
        if out and source and (maybe or result > 0):
            self.written(line, out, self.sent(out, source, c, d if maybe else result), out.at, maybe, False, True)

    @staticmethod
    def sent(out, source, at, count):
        """The bytes of a copy. A file that is sent into itself grows and changes as it is read: its pages are not copied before."""
        if out.file is not source.file:
            return bytes(source.file.now[at:at + count])
        work, data = bytearray(source.file.now), b""
        ahead = out.at - at if out.at > at else count
        while len(data) < count:
            part = bytes(work[at + len(data):at + count][:ahead])
            if not part:
                break
            place = out.at + len(data)
            work.extend(bytes(max(0, place - len(work))))
            work[place:place + len(part)] = part
            data += part
        return data

    def do_copy(self, line, p, a, b, c, d, s, t, result, maybe):
        out, source = self.opened(p, a), self.opened(p, b)
        if out and source and (maybe or result > 0):
            self.written(line, out, bytes(source.file.now[c:c + (3000 if maybe else result)]), d, maybe, False, False)

    def do_fork(self, line, p, a, b, c, d, s, t, result, maybe):
        if not maybe and result == 1:
            self.processes[b] = Process(p.descriptors, p.slots)

    def do_vexec(self, line, p, a, b, c, d, s, t, result, maybe):
        self.do_fork(line, p, a, b, c, d, s, t, result, maybe)
        if maybe or result != 1:
            return
        child = self.processes[b]
        source = self.opened(p, c) if c >= 0 else None
        if source and d >= 0 and child.slots[d] >= 0 and child.slots[c] != child.slots[d]:
            child.descriptors[child.slots[d]] = [source, False]
        self.drop_cloexec(child)

    def do_exec(self, line, p, *rest):
        self.drop_cloexec(p)

    @staticmethod
    def drop_cloexec(p):
        p.descriptors = {number: it for number, it in p.descriptors.items() if not it[1]}

    def judge(self, found):
        """`found`: name to bytes. Returns what is lost or should not be."""
        problems = []
        for name, changes in self.history.items():
            floor = self.floors.get(name, -1)
            before = [file for line, file in changes if line <= floor]
            permitted = before[-1:] + [file for line, file in changes if line > floor]
            if name not in found:
                if None not in permitted:
                    problems.append(f"{name} is missing, synced at line {floor}")
                continue
            if all(file is None for file in permitted):
                problems.append(f"{name} is there, removed durably at line {floor}")
                continue
            wrong = [file.permits(found[name]) for file in permitted if file]
            if None not in wrong:
                problems.append(f"{name}: {wrong[-1]}; synced at line {permitted[-1] and permitted[-1].synced}")
        for name in set(found) - set(self.history):
            problems.append(f"{name} is nobody's")
        for file in self.files:
            kept = file.links > 0 and not any(it is not file for name in file.names for line, it in self.history[name]
                                              if line > (file.synced or 0))
            if file.synced is not None and kept and not any(n in found and file.permits(found[n]) is None for n in file.names):
                problems.append(f"a file synced at line {file.synced} is under none of {sorted(file.names)}")
        return problems

    def exact(self, found):
        now = {name: bytes(file.now) for name, file in self.names.items()}
        return [f"{name}: not as the program left it" for name in sorted(set(now) | set(found)) if now.get(name) != found.get(name)]


def norm(name):
    return re.sub(r"^\./", "", name)
