"""multiprocessing and os.fork: the child is told, and the parent loses nothing. argv[1:3] are files of areas."""

import multiprocessing
import os
import sys
import threading
import time
import warnings

from switchyard_store import Area, ClosedError, ForkedError

path, its_path = sys.argv[1:3]
# Python 3.12 warns of a fork with threads: that is what is tested.
warnings.simplefilter("ignore", DeprecationWarning)


def child(area, kept, snapshot, answers):
    said = []
    for work in (
        lambda: kept.put(b"k", b"child"),
        lambda: kept[b"k"],
        lambda: len(kept),
        area.sync,
        area.batch,
        area.snapshot,
        lambda: snapshot.get(kept, b"k"),
        lambda: next(snapshot.keys(kept)),
    ):
        try:
            work()
            said.append("done")
        except ForkedError as error:
            assert "forked" in str(error)
            said.append("refused")
    with Area(its_path, create_bytes=16 << 20) as own:
        own.map("map")[b"k"] = b"own"
    snapshot.close()
    kept.close()
    area.close()
    answers.put(said)


with Area(path, create_bytes=16 << 20) as area:
    kept = area.map("map")
    kept[b"k"] = b"before"
    snapshot = area.snapshot()
    kept[b"k"] = b"parent"
    context = multiprocessing.get_context("fork")
    for _ in range(5):
        answers = context.Queue()
        process = context.Process(target=child, args=(area, kept, snapshot, answers))
        process.start()
        assert answers.get(timeout=60) == ["refused"] * 8
        process.join()
        assert process.exitcode == 0
        assert snapshot.get(kept, b"k") == b"before"
    # "spawn" pickles: that is refused before a process begins.
    try:
        multiprocessing.get_context("spawn").Process(target=child, args=(area, kept, snapshot, None)).start()
        raise SystemExit("an area was pickled")
    except TypeError as error:
        assert str(error).startswith("the area belongs") and "cannot be pickled" in str(error), error
    # A child that just ends, with all objects alive.
    if os.fork() == 0:
        sys.exit(0)
    assert os.wait()[1] == 0
    assert kept[b"k"] == b"parent"
    kept[b"after"] = b"parent"

    # Threads of one process share an area.
    def work(number):
        for i in range(50):
            kept[b"%d/%d" % (number, i)] = b"x"
            with area.batch() as batch:
                batch.append(log, b"%d" % i)

    log = area.log("log")
    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(log) == 400 and len(kept) == 402

# Closing an area while threads open parts of it: the file is free afterwards.
def open_parts():
    try:
        while True:
            area.map("map").put(b"k", b"parent")
            area.batch()
            with area.snapshot() as snapshot:
                assert snapshot.get(area.map("map"), b"k") == b"parent"
    except ClosedError:
        pass


for _ in range(20):
    area = Area(path)
    threads = [threading.Thread(target=open_parts) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.001)
    area.close()
    for thread in threads:
        thread.join()
with Area(path) as area, Area(its_path) as own:
    assert area.map("map")[b"k"] == b"parent" and area.map("map")[b"after"] == b"parent"
    assert own.map("map")[b"k"] == b"own"
