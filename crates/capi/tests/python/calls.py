"""What a Python program does with an area. argv[1] is the area's file."""

import sys

from switchyard_store import (
    Area,
    BusyError,
    ClosedError,
    ConflictError,
    EndedError,
    Follower,
    FullError,
    GoneError,
    Kind,
    KindError,
    MissingError,
    Moment,
    StoreError,
    TooLargeError,
    version,
)


def raises(kind, work, *arguments, **named):
    try:
        work(*arguments, **named)
    except kind as error:
        assert str(error), kind
        return error
    raise SystemExit(f"{work} raises no {kind}")


path = sys.argv[1]
error = raises(MissingError, Area, path)
assert error.code == -10 and isinstance(error, (StoreError, LookupError))

with Area(path, create_bytes=16 << 20, writes_in_flight_max=2, index_bytes_max=64 << 20, cache_bytes_max=0) as area:
    raises(BusyError, Area, path)
    log, queue, kept, tree = area.log("log"), area.queue("queue"), area.map("map"), area.tree("tree")
    assert [log.append(bytes([i]) * i) for i in range(5)] == [0, 1, 2, 3, 4]
    log.trim(2)
    queue.push(b"job")
    queue.push(b"later")
    assert list(queue.entries()) == [(0, b"job"), (1, b"later")]
    position, job = queue.pop()
    kept[job] = b"done"
    kept[b"\x00"] = b""
    del kept[b"\x00"]
    queue.acknowledge(position)
    for key in (b"b", b"a", b"ab", b"\xff", b"\xff\xff"):
        tree[key] = key.upper()
    lazy = area.map("lazy", lazy=True)
    lazy[b"k"] = b"v"
    raises(KindError, area.map, "log")
    raises(MissingError, area.map, "nowhere", existing=True)
    raises(TooLargeError, area.map, "n" * 65)
    raises(TooLargeError, kept.put, b"k" * 65536, b"")
    error = raises(TooLargeError, log.append, bytes(1 << 20))
    assert str(area.stats().batch_bytes_max) in str(error)

    # Another process would follow it just so.
    follower = Follower(path)
    first = follower.moment
    assert isinstance(first, Moment) and first.epoch > 0 and first.record > 0
    assert [(it.name, it.kind) for it in follower.structures()] == [(it.name, it.kind) for it in area.structures()]
    assert follower.get("map", b"job") == b"done" and follower.get("tree", b"none") is None
    assert follower.get_many("tree", [b"a", b"none", bytearray(b"b")]) == [b"A", None, b"B"]
    assert follower.positions("log") == range(2, 5) and follower.read("log", 3) == bytes([3]) * 3
    assert follower.read("log", 0) is None and follower.read("queue", 1) == b"later"
    assert list(follower.range("tree", b"a", b"b")) == [(b"a", b"A"), (b"ab", b"AB")]
    assert list(follower.range("tree", b"a", b"b", reverse=True)) == [(b"ab", b"AB"), (b"a", b"A")]
    assert list(follower.range("tree", b"a", b"b", keys_only=True, reverse=True)) == [(b"ab", b""), (b"a", b"")]
    raises(ValueError, follower.range, "map", reverse=True)
    assert list(follower.range("map")) == [(b"job", b"done")] and list(follower.keys("map")) == [b"job"]
    raises(KindError, follower.get, "log", b"x")
    raises(KindError, follower.read, "map", 0)
    raises(MissingError, follower.get, "nowhere", b"x")
    raises(TypeError, follower.get, "map", "text")
    tree[b"new"] = b"seen"
    assert follower.get("tree", b"new") is None, "it shows its moment"
    assert follower.refresh() > first and follower.get("tree", b"new") == b"seen"
    del tree[b"new"]
    assert GoneError(-14, "gone").code == -14
    with Follower(path, steady=True, flushes=False, cache_bytes_max=0) as steady:
        assert steady.moment >= first
    raises(ClosedError, steady.refresh)

# The owner has gone, and the area can still be read.
assert follower.refresh().record >= first.record and follower.get("tree", b"ab") == b"AB"
follower.close()

# Closing an area closes what was opened of it, so that its file is free.
assert area.closed and log.closed and "closed" in repr(log)
raises(ClosedError, log.append, b"x")
raises(ClosedError, area.sync)
area.close()

with Area(path) as area:
    with area.log("log") as log, area.queue("queue") as queue, area.map("map") as kept:
        assert list(log) == [(2, b"\x02\x02"), (3, b"\x03" * 3), (4, b"\x04" * 4)]
        assert log.positions() == range(2, 5) and len(log) == 3 and log[3] == b"\x03" * 3
        raises(IndexError, log.__getitem__, 5)
        assert [data for _, data in queue] == [b"later"] and len(queue) == 1
        assert queue.give_up(1) and not queue.give_up(0) and queue.pop() == (1, b"later")
        assert kept[b"job"] == b"done" and b"\x00" not in kept and len(kept) == 1
        assert kept.get(b"none") is None and kept.get(b"none", 7) == 7
        raises(KeyError, kept.__getitem__, b"none")
        raises(KeyError, kept.__delitem__, b"none")
        kept.discard(b"none")
        kept.update({b"x": b"1", b"y": b"2"})
        assert dict(kept) == {b"job": b"done", b"x": b"1", b"y": b"2"}
        assert list(kept) == [b"job", b"x", b"y"] and list(kept.values()) == [b"done", b"1", b"2"]
        assert kept.pop(b"x") == b"1" and kept.setdefault(b"y", b"3") == b"2"
        kept.clear()
        assert not kept and list(kept.items()) == []
    lazy = area.map("lazy")
    assert lazy[b"k"] == b"v"
    tree = area.tree("tree")
    assert list(tree) == [b"a", b"ab", b"b", b"\xff", b"\xff\xff"]
    assert list(tree[b"a":b"b"]) == [(b"a", b"A"), (b"ab", b"AB")]
    assert [key for key, _ in tree[:b"b"]] == [b"a", b"ab"] and [key for key, _ in tree[b"b":]] == [
        b"b",
        b"\xff",
        b"\xff\xff",
    ]
    assert [key for key, _ in tree.range(b"a", b"b", after=True, through=True)] == [b"ab", b"b"]
    assert list(tree.range(b"b", keys_only=True))[0] == (b"b", b"")
    assert list(tree[b"b":b"a"]) == []
    assert list(tree.range(b"a", b"b", reverse=True)) == [(b"ab", b"AB"), (b"a", b"A")]
    assert list(tree.range(b"a", after=True, reverse=True, keys_only=True))[-2:] == [(b"b", b""), (b"ab", b"")]
    assert list(reversed(tree)) == list(tree)[::-1] and list(tree.range(b"b", b"a", reverse=True)) == []
    assert [key for key, _ in tree.prefix(b"a", reverse=True)] == [b"ab", b"a"]
    raises(TypeError, reversed, lazy)
    assert [key for key, _ in tree.prefix(b"a")] == [b"a", b"ab"]
    assert [key for key, _ in tree.prefix(b"\xff")] == [b"\xff", b"\xff\xff"]
    assert len(list(tree.prefix(b""))) == 5
    raises(ValueError, tree.__getitem__, slice(b"a", b"b", 2))
    assert tree.get_many([b"b", b"none", bytearray(b"a")]) == [b"B", None, b"A"] and tree.get_many([]) == []
    lazy[b"empty"] = b""
    assert lazy.get_many(iter([b"empty", b"k"])) == [b"", b"v"]
    raises(TypeError, tree.get_many, ["text"])
    kinds = {found.name: (found.kind, found.lazy, found.entries) for found in area.structures()}
    assert kinds["tree"] == (Kind.TREE, False, 5) and kinds["lazy"] == (Kind.MAP, True, 2)
    # A range that is left early lets go of its cursor.
    for _ in range(3):
        next(iter(tree[b"a":]))

    log = area.log("log")
    with area.batch() as batch:
        assert len(batch) == 0
        batch.append(log, b"both").put(tree, b"c", b"C").remove(tree, b"a").put(kept := area.map("map"), b"m", b"M")
        batch.push(queue := area.queue("queue"), b"q")
        assert len(batch) == 5
    assert batch.positions == [5, 2] and log[5] == b"both" and b"a" not in tree and kept[b"m"] == b"M"
    with area.batch() as batch:
        batch.acknowledge(queue, 1).trim(log, 6)
    assert len(log) == 0 and len(queue) == 1
    try:
        with area.batch() as batch:
            batch.put(tree, b"never", b"")
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert b"never" not in tree and batch.closed
    batch = area.batch()
    raises(TypeError, batch.put, log, b"k", b"v")
    raises(TypeError, batch.append, tree, b"v")
    with Area.in_memory() as other:
        raises(ValueError, batch.put, other.map("map"), b"k", b"v")
    batch.put(tree, b"d", b"D")
    batch.clear()
    assert batch.commit() == []

    assert kept.get_versioned(b"v") is None
    with area.batch() as batch:
        batch.expect(kept, b"v", None).put(kept, b"v", b"1")
    value, first = kept.get_versioned(b"v")
    assert value == b"1" and first > 0
    with area.batch() as batch:
        batch.expect(kept, b"v", first).expect(tree, b"none", None).put(kept, b"v", b"1")
    assert kept.get_versioned(b"v")[1] != first, "the same value is another write"
    for expected in (first, None):
        batch = area.batch().expect(kept, bytearray(b"v"), expected).put(tree, b"never", b"")
        for hand_over in (batch.commit, batch.submit):
            error = raises(ConflictError, hand_over)
            assert error.code == -15 and (error.structure, error.key) == ("map", b"v") and "map" in str(error)
        assert len(batch) == 1 and b"never" not in tree
        batch.clear()
        assert batch.commit() == []
    raises(ConflictError, area.batch().expect(tree, b"none", 1).commit)
    raises(TypeError, area.batch().expect, log, b"k", None)
    raises(TypeError, area.batch().expect, kept, b"k", "1")
    raises(ValueError, area.batch().expect, kept, b"k", 0)
    del kept[b"v"]

    # All maps and trees of one moment, whatever happens to them.
    queue.push(b"kept")
    kept.update({b"x": b"old", b"y": b"old"})
    before, entries, reverse = log.positions(), list(tree.items()), list(tree.range(reverse=True))
    with area.snapshot() as snapshot:
        kept[b"x"] = b"new"
        del kept[b"y"]
        tree.clear()
        log.append(b"unseen")
        assert snapshot.get(kept, b"x") == b"old" and snapshot.get(kept, bytearray(b"none")) is None
        assert snapshot.get_many(kept, [b"y", b"none"]) == [b"old", None] and snapshot.get_many(tree, []) == []
        assert snapshot.get_many(tree, [b"c"]) == [b"C"] and snapshot.get(tree, b"c") == b"C" and b"c" not in tree
        assert list(snapshot.keys(kept)) == [b"m", b"x", b"y"]
        assert list(snapshot.items(kept)) == [(b"m", b"M"), (b"x", b"old"), (b"y", b"old")]
        assert list(snapshot.items(tree)) == list(snapshot.range(tree)) == entries and entries
        assert list(snapshot.range(tree, reverse=True)) == reverse == entries[::-1]
        assert list(snapshot.keys(tree)) == [key for key, _ in entries]
        assert list(snapshot.range(tree, b"b", b"c", after=True, through=True, keys_only=True)) == [(b"c", b"")]
        assert snapshot.positions(log) == before != log.positions() and len(snapshot.positions(queue)) == len(queue)
        assert snapshot.get(area.map("made later"), b"k") is None
        assert area.stats().snapshots == 1 and area.stats().table_damaged_at is None
        raises(TypeError, snapshot.get, log, b"k")
        raises(TypeError, snapshot.keys, queue)
        raises(TypeError, snapshot.range, kept)
        raises(TypeError, snapshot.positions, tree)
        raises(TypeError, snapshot.get, kept, "text")
        begun = snapshot.items(tree)
        assert next(begun) == entries[0]
    assert snapshot.closed and list(begun) == entries[1:], "an iterator keeps what it reads"
    raises(ClosedError, snapshot.get, kept, b"k")
    raises(ClosedError, snapshot.get_many, kept, [b"k"])
    for work in (snapshot.keys, snapshot.items):
        raises(ClosedError, work, kept)
    raises(ClosedError, snapshot.range, tree)
    raises(ClosedError, snapshot.positions, log)
    assert area.stats().snapshots == 0
    with Area.in_memory() as other:
        theirs, snapshot = other.map("map"), other.snapshot()
        assert "another area" in str(raises(ValueError, snapshot.get, kept, b"x"))
        many = [other.snapshot() for _ in range(63)]
        raises(FullError, other.snapshot)
    assert snapshot.closed and all(it.closed for it in many)
    raises(ClosedError, snapshot.get, theirs, b"k")
    raises(ClosedError, other.snapshot)

    position, ticket = log.append_nowait(b"later")
    area.wait(ticket)
    assert area.durable >= ticket and log[position] == b"later"
    raises(ValueError, area.wait, 1 << 60)
    stats = area.stats()
    assert stats.damaged_at is None and stats.is_torn is False and stats.opened >= 2 and stats.records > 0
    assert area.warning is None or len(area.warning) > 10
    area.drop("tree")
    raises(MissingError, tree.put, b"k", b"v")
    # Bug: a dropped structure read like an empty one.
    for read in (len, list, lambda it: it.get(b"k"), lambda it: it[b"k"], lambda it: it.get_many([b"k"]), lambda it: b"k" in it):
        raises(MissingError, read, tree)
    dropped = area.log("dropped")
    area.drop("dropped")
    for read in (len, list, lambda it: it.read(0), lambda it: it.positions()):
        raises(MissingError, read, dropped)
    area.sync()
    before = area.grow()
    assert "at most" in str(raises(FullError, area.grow, 1 << 50))
    assert area.grow(before + (1 << 20)) > before

# A snapshot that would keep too much ends, and the area goes on.
with Area(path + "-small", create_bytes=16 << 20, index_bytes_max=1 << 20) as area:
    kept = area.map("map", lazy=True)
    for i in range(300):
        kept[b"%d" % i] = bytes(4000)
    snapshot = area.snapshot()
    begun = snapshot.items(kept)
    assert next(begun) == (b"0", bytes(4000))
    for i in range(30000):
        kept[b"%d" % (i % 300)] = bytes(4000)
        if i % 300 == 0 and area.stats().snapshots_ended:
            break
    error = raises(EndedError, snapshot.get, kept, b"1")
    assert error.code == -16 and "ended" in str(error)
    raises(EndedError, snapshot.keys, kept)
    raises(EndedError, list, begun)
    snapshot.close()
    with area.snapshot() as snapshot:
        assert snapshot.get(kept, b"1") == bytes(4000)
assert version().count(".") == 2

# Bug: an iterator read on after its area was closed, and kept the file from others.
with Area(path + "-iterated", create_bytes=16 << 20) as area:
    kept, tree = area.map("map"), area.tree("tree")
    for i in range(40):
        kept[b"%d" % i] = tree[b"%d" % i] = b"v"
    snapshot = area.snapshot()
    begun = [iter(kept), iter(tree), iter(kept.items()), tree.range(reverse=True), snapshot.range(tree), snapshot.items(kept)]
    for it in begun:
        next(it)
for it in begun:
    raises(ClosedError, next, it)
Area(path + "-iterated").close()
