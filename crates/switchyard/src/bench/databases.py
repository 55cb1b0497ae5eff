"""Durable writes of one database, one after the other: databases.py PROGRAM DIRECTORY COUNT BYTES. Prints mean and median in µs, and the
mean processor time of this process. PROGRAM is sqlite, sqlite-delete (journal mode DELETE instead of WAL), or leveldb."""
import os
import sys
import time

program, directory, count, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
if program.startswith("sqlite"):
    import sqlite3
    database = sqlite3.connect(os.path.join(directory, "it.db"), isolation_level=None)
    asked = "delete" if program == "sqlite-delete" else "wal"
    mode = database.execute(f"PRAGMA journal_mode={asked}").fetchone()[0]
    assert mode == asked, mode
    database.execute("PRAGMA synchronous=FULL")
    database.execute("CREATE TABLE it (key INTEGER PRIMARY KEY, value BLOB)")
    put = lambda key, value: database.execute("INSERT INTO it VALUES (?, ?)", (key, value))
    rows = lambda: database.execute("SELECT count(*) FROM it").fetchone()[0]
else:
    import plyvel
    database = plyvel.DB(os.path.join(directory, "it"), create_if_missing=True)
    put = lambda key, value: database.put(b"%016d" % key, value, sync=True)
    rows = lambda: sum(1 for _ in database.iterator(include_value=False))
value, times, used = os.urandom(size), [], time.process_time_ns()
for key in range(count):
    begin = time.perf_counter_ns()
    put(key, value)
    times.append(time.perf_counter_ns() - begin)
used = time.process_time_ns() - used
assert rows() == count
database.close()
print(sum(times) / count / 1000, sorted(times)[count // 2] / 1000, used / count / 1000)
