"""SQLite's workloads: a script, a load that notes what was committed, the check of the notes."""
import multiprocessing
import os
import sqlite3
import subprocess
import sys
import time


def opened(path, mode, synchronous):
    base = sqlite3.connect(path, isolation_level=None, timeout=60)
    base.execute(f"pragma journal_mode={mode}")
    base.execute(f"pragma synchronous={synchronous}")
    return base


def script(path, mode, synchronous):
    base = opened(path, mode, synchronous)
    base.execute("pragma wal_autocheckpoint=40")
    base.execute("pragma cache_size=10")
    base.execute("create table t(n integer primary key, value blob)")
    base.execute("create index i on t(value)")
    for number in range(150):
        base.execute("begin")
        for row in range(number % 7 + 1):
            base.execute("insert into t values(?, ?)", (number * 10 + row, b"%d" % number * (number % 300)))
        if number % 5 == 2:
            base.execute("savepoint s")
            base.execute("update t set value = x'00' where n % 3 = 0")
            base.execute("rollback to s")
        base.execute("rollback" if number % 9 == 8 else "commit")
        if number % 50 == 49:
            base.execute("delete from t where n % 4 = 1")
            base.execute("vacuum")
    base.execute("pragma wal_checkpoint(truncate)")
    base.close()


def one(path, note, mode, synchronous, worker, workers, first):
    base = opened(path, mode, synchronous)
    base.execute("pragma wal_autocheckpoint=60")
    number = int(first)
    handle = os.open(note, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    while True:
        name = f"{worker}:{number}"
        try:
            base.execute("insert or replace into t values(?, ?)", (name, "y" * (number * 7 % 3000)))
        except sqlite3.OperationalError as error:
            # SQLite's own answer to writers that meet: try again.
            if "locked" in str(error):
                continue
            raise
        os.write(handle, f"{name}\n".encode())
        number += 1


def load(path, note, mode, synchronous, workers, start, first):
    workers = int(workers)
    base = opened(path, mode, synchronous)
    base.execute("create table if not exists t(name text primary key, value text)")
    if workers == 1:
        base.close()
        return one(path, note, mode, synchronous, 0, 1, first)
    if start == "spawn":
        base.close()
        command = [sys.executable, __file__, "one", path, note, mode, synchronous]
        running = [subprocess.Popen([*command, str(it), str(workers), first]) for it in range(workers)]
        sys.exit(max(it.wait() for it in running))
    # As a prefork server: the parent has used the database, and keeps it open without a connection in the children.
    base.close()
    context = multiprocessing.get_context("fork")
    running = [context.Process(target=one, args=(path, note, mode, synchronous, it, workers, first)) for it in range(workers)]
    for it in running:
        it.start()
    for it in running:
        it.join()


def hold(path, note, number):
    base = opened(path, "wal", "full")
    base.execute("create table if not exists t(n)")
    base.execute("insert into t values(?)", (int(number),))
    with open(note, "a") as file:
        file.write(number + "\n")
    time.sleep(600)


def check(path, lines):
    base = sqlite3.connect(path, timeout=60)
    sound = base.execute("pragma integrity_check").fetchone()
    if sound != ("ok",):
        sys.exit(f"the database is damaged: {sound}")
    found = dict(base.execute("select name, value from t"))
    noted = open(lines).read().split()
    lost = [it for it in noted if found.get(it) != "y" * (int(it.split(":")[1]) * 7 % 3000)]
    if lost:
        sys.exit(f"{len(lost)} of {len(noted)} acknowledged rows are missing: {lost[:5]} … {lost[-3:]}")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
