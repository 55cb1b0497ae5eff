"""What programs in Python do with files that they want to keep.

A load notes each line when what it names is durable: replace (a new file takes the place of the old one), append (a journal of
several threads), workers (multiprocessing, a file each and one for all), children (output of programs goes to a file).
"""
import json
import logging.handlers
import mmap
import multiprocessing
import os
import pickle
import random
import shelve
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import zipfile


def sync_directory(path):
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(handle)
    os.close(handle)


def replace_file(path, data):
    with tempfile.NamedTemporaryFile(dir=os.path.dirname(path), delete=False) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)
    sync_directory(os.path.dirname(path))


def noted(path):
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    return lambda words: os.write(handle, f"{words}\n".encode())


def opened_to_append(path):
    """What a crash left by half at the end becomes a line of its own: the next record would be part of it."""
    file = open(path, "ab", buffering=0)
    file.write(b"\n")
    return file


def record(number):
    return (f"{number}:" + "z" * (number * 13 % 2000) + "\n").encode()


# Loads.


def replace(directory, note, first):
    note, number = noted(note), int(first)
    while True:
        replace_file(f"{directory}/state{number % 3}.json", json.dumps({"number": number, "fill": "f" * (number % 5000)}).encode())
        note(number)
        number += 1


def check_replace(directory, lines):
    newest = {}
    for number in map(int, open(lines).read().split()):
        newest[number % 3] = number
    for which, number in newest.items():
        found = json.load(open(f"{directory}/state{which}.json"))
        if found["number"] < number or len(found["fill"]) != found["number"] % 5000:
            sys.exit(f"state{which} has {found['number']}, {number} was acknowledged")


def append(directory, note, first):
    note, lock = noted(note), threading.Lock()
    journal = opened_to_append(f"{directory}/journal")
    numbers = iter(range(int(first), 1 << 40))

    def one():
        while True:
            with lock:
                number = next(numbers)
                journal.write(record(number))
            os.fdatasync(journal.fileno())
            note(number)

    # A file that was just made is durable with its directory.
    sync_directory(directory)
    threads = [threading.Thread(target=one) for _ in range(4)]
    for it in threads:
        it.start()
    for it in threads:
        it.join()


def missing_in(path, lines):
    """Numbers of notes without their records in the file. What a crash left by half may be anywhere, in a line of its own."""
    found = set(open(path, "rb").read().split(b"\n"))
    return [it for it in map(int, lines) if record(it)[:-1] not in found]


def check_append(directory, lines):
    lost = missing_in(f"{directory}/journal", open(lines).read().split())
    if lost:
        sys.exit(f"{len(lost)} acknowledged records are lost: {lost[:5]}")


def worker(directory, note, which, first, lock):
    note, number = noted(note), int(first)
    own = opened_to_append(f"{directory}/own{which}")
    shared = open(f"{directory}/shared", "ab", buffering=0)
    sync_directory(directory)
    while True:
        own.write(record(number))
        os.fsync(own.fileno())
        with lock:
            shared.write(record(number * 10 + which))
        os.fsync(shared.fileno())
        note(f"{which} {number}")
        number += 1


def workers(directory, note, first):
    # The parent has the files open, as fork leaves them to its children.
    kept = opened_to_append(f"{directory}/shared")
    os.fsync(kept.fileno())
    context = multiprocessing.get_context("fork")
    lock = context.Lock()
    running = [context.Process(target=worker, args=(directory, note, it, first, lock)) for it in range(3)]
    for it in running:
        it.start()
    for it in running:
        it.join()


def check_workers(directory, lines):
    shared, own = [], {}
    for which, number in (map(int, line.split()) for line in open(lines)):
        shared.append(number * 10 + which)
        own.setdefault(which, []).append(number)
    lost = missing_in(f"{directory}/shared", shared)
    for which, numbers in own.items():
        lost += missing_in(f"{directory}/own{which}", numbers)
    if lost:
        sys.exit(f"{len(lost)} acknowledged records are lost: {lost[:5]}")


def children(directory, note, first):
    note, number = noted(note), int(first)
    out = opened_to_append(f"{directory}/out.log")
    subprocess.run(["sh", "-c", 'echo >>"$1"', "sh", f"{directory}/second.log"], check=True)
    sync_directory(directory)
    while True:
        # One child writes to the parent's descriptor, another one opens the file by itself.
        subprocess.run(["printf", "%s", record(number * 2).decode()], stdout=out, check=True)
        out.write(record(number * 2 + 1))
        os.fsync(out.fileno())
        subprocess.run(["sh", "-c", 'printf "%s" "$1" >>"$2" && sync "$2"', "sh", record(number).decode(), f"{directory}/second.log"],
                       check=True)
        note(number)
        number += 1


def check_children(directory, lines):
    numbers = list(map(int, open(lines).read().split()))
    lost = missing_in(f"{directory}/out.log", [it for number in numbers for it in (number * 2, number * 2 + 1)])
    lost += missing_in(f"{directory}/second.log", numbers)
    if lost:
        sys.exit(f"{len(lost)} acknowledged records are lost: {lost[:5]}")


# The script.


def script(directory):
    os.mkdir(directory)
    os.chdir(directory)
    os.umask(0o022)
    rng = random.Random(7)
    for part in (replaces, logs, maps, databases, copies, processes, signals, positions, streams):
        part(rng)
        print(part.__name__, "done")


def replaces(rng):
    for number in range(40):
        replace_file(os.path.abspath(f"state{number % 4}.json"), json.dumps(list(range(rng.randrange(500)))).encode())


def logs(rng):
    logger = logging.getLogger("matrix")
    logger.setLevel(logging.INFO)
    handler = logging.handlers.RotatingFileHandler("rotated.log", maxBytes=4000, backupCount=3)
    logger.addHandler(handler)
    for number in range(300):
        logger.info("%d %s", number, "l" * rng.randrange(90))
        if number % 20 == 0:
            os.fsync(handler.stream.fileno())
    handler.close()


def maps(rng):
    with open("mapped", "w+b") as file:
        file.truncate(100_000)
        with mmap.mmap(file.fileno(), 0) as view:
            for _ in range(200):
                at = rng.randrange(99_000)
                view[at:at + 10] = b"%010d" % at
            view.flush()
            os.fsync(file.fileno())
            view[0:5] = b"after"
        file.seek(50_000)
        file.write(b"written beside the map")
        file.flush()
        os.fsync(file.fileno())


def databases(rng):
    os.mkdir("kept")
    with shelve.open("kept/shelf") as shelf:
        for number in range(100):
            shelf[str(number % 30)] = [number] * rng.randrange(50)
        shelf.sync()
    with shelve.open("kept/shelf") as shelf:
        print(sorted((key, len(shelf[key])) for key in shelf))
    base = sqlite3.connect("base.sqlite")
    base.execute("create table t(n, value)")
    with base:
        base.executemany("insert into t values(?, ?)", [(it, rng.randrange(100)) for it in range(500)])
    print(base.execute("select count(*), total(value) from t").fetchone())
    base.close()
    with open("pickled", "wb") as file:
        pickle.dump({it: str(it) * it for it in range(100)}, file)
        file.flush()
        os.fsync(file.fileno())
    with zipfile.ZipFile("packed.zip", "w") as packed:
        packed.writestr(zipfile.ZipInfo("one"), "1" * 10_000)
        packed.writestr(zipfile.ZipInfo("two"), "2" * 10)


def copies(rng):
    with open("source", "wb") as file:
        file.write(rng.randbytes(300_000))
        file.flush()
        os.fsync(file.fileno())
    shutil.copyfile("source", "copy1")
    shutil.copy2("source", "copy2")
    with open("source", "rb") as source, open("copy3", "w+b") as target:
        os.copy_file_range(source.fileno(), target.fileno(), 200_000)
        os.sendfile(target.fileno(), source.fileno(), 0, 1000)
        os.fsync(target.fileno())
        # What a copy leaves is read by the same descriptor.
        print(len(os.pread(target.fileno(), 300_000, 0)))
    os.link("copy1", "linked")
    os.symlink("copy1", "symbolic")
    os.rename("copy2", "renamed")
    shutil.copytree(".", "../copied", ignore=shutil.ignore_patterns("kept"), symlinks=True)
    shutil.move("../copied", "moved")
    shutil.rmtree("moved")


def processes(rng):
    with open("child.log", "wb") as file:
        file.write(b"first\n")
        file.flush()
        subprocess.run(["sh", "-c", "echo second; echo third >&2"], stdout=file, stderr=file, check=True)
        file.write(b"fourth\n")
        file.flush()
        os.fsync(file.fileno())
        # After vfork the standard output of the parent must still be its own.
        print("printed by the parent")
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            os.write(file.fileno(), b"forked\n")
            os.fsync(file.fileno())
            os._exit(0)
        os.waitpid(child, 0)
        file.write(b"last\n")
        os.fsync(file.fileno())
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(pool.map(written, range(6)))
    with subprocess.Popen(["tee", "teed.log"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        process.stdin.write(b"teed\n" * 1000)


def written(number):
    with open(f"spawned{number}.json", "w") as file:
        json.dump([number] * number, file)
        file.flush()
        os.fsync(file.fileno())
    return os.path.getsize(f"spawned{number}.json")


def signals(rng):
    # A thread waits for a signal that every thread of the program blocks, as servers do. Nobody else may take the signal.
    before = signal.signal(signal.SIGTERM, lambda *_: print("another thread took the signal"))
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    found = []
    for _ in range(3):
        waits = threading.Thread(target=lambda: found.append(signal.sigtimedwait({signal.SIGTERM}, 5)))
        waits.start()
        subprocess.run(["sh", "-c", f"sleep 0.1; kill -TERM {os.getpid()}"], check=True)
        waits.join()
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    signal.signal(signal.SIGTERM, before)
    print("signals:", [it is not None for it in found])


def positions(rng):
    handle = os.open("positions", os.O_RDWR | os.O_CREAT, 0o644)
    for number in range(300):
        at = rng.randrange(50_000)
        if number % 3:
            os.pwrite(handle, b"%d" % number, at)
        elif number % 2:
            os.lseek(handle, at, os.SEEK_SET)
            os.writev(handle, [b"one", b"two", b"%d" % number])
        else:
            os.ftruncate(handle, at)
        if number % 10 == 0:
            os.fdatasync(handle)
    os.posix_fallocate(handle, 0, 60_000)
    other = os.dup(handle)
    os.lseek(other, 0, os.SEEK_END)
    os.write(handle, b"by the position of the other")
    os.close(handle)
    os.fsync(other)
    os.close(other)
    handle = os.open("synced", os.O_WRONLY | os.O_CREAT | os.O_DSYNC | os.O_APPEND, 0o600)
    for number in range(50):
        os.write(handle, record(number))
    os.close(handle)


def streams(rng):
    with open("text", "w+", encoding="utf-8", errors="replace", newline="\n") as file:
        for number in range(1000):
            print("line", number, "é" * rng.randrange(20), file=file)
        file.seek(0)
        file.truncate(5000)
        file.seek(0, os.SEEK_END)
        file.write("end\n")
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)
        print(sum(len(it) for it in file.readlines()))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
