"""Values that are not bytes, names that are not text, numbers out of range: errors, before the library sees them."""

import pickle
import sys

from switchyard_store import Area, ConflictError


def raises(kind, work, *arguments, **named):
    try:
        work(*arguments, **named)
    except kind as error:
        assert str(error), kind
        return error
    raise SystemExit(f"{work} raises no {kind}")


for create_bytes in ("1", 1.5, None, True):
    raises(TypeError, Area, sys.argv[1], create_bytes=create_bytes)
for create_bytes in (-1, 1 << 64):
    raises(ValueError, Area, sys.argv[1], create_bytes=create_bytes)
raises(ValueError, Area, sys.argv[1], create_bytes=1 << 24, writes_in_flight_max=33)
raises(ValueError, Area, sys.argv[1], create_bytes=1 << 24, writes_in_flight_max=0)
raises(ValueError, Area, sys.argv[1] + "\0x")
raises(TypeError, Area, 7)
raises(TypeError, Area.in_catalog, b"name")

with Area(sys.argv[1], create_bytes=16 << 20) as area:
    kept, tree, log, queue = area.map("map"), area.tree("tree"), area.log("log"), area.queue("queue")
    for name in (b"bytes", None, 7):
        raises(TypeError, area.map, name)
    for name in ("", "zero\0", "n" * 65, "ä" * 33):
        raises(ValueError, area.map, name)
    assert area.map("ä" * 32).name == "ä" * 32
    for value in ("text", None, 7, [1], {}):
        raises(TypeError, kept.put, b"k", value)
        raises(TypeError, kept.put, value, b"v")
        raises(TypeError, kept.get, value)
        raises(TypeError, kept.__contains__, value)
        raises(TypeError, log.append, value)
        raises(TypeError, queue.push, value)
        raises(TypeError, area.batch().put, kept, value, b"v")
        if value is not None:
            raises(TypeError, tree.range, value)
    for position in ("1", 1.0, None, True):
        raises(TypeError, log.read, position)
        raises(TypeError, log.trim, position)
        raises(TypeError, queue.acknowledge, position)
        raises(TypeError, area.wait, position)
    for position in (-1, 1 << 64):
        raises(ValueError, log.read, position)
        raises(ValueError, queue.give_up, position)
    for data in (bytearray(b"a\0b"), memoryview(b"a\0b"), memoryview(b"xa\0b")[1:], memoryview(b"ab\0zbz")[::2][:0]):
        kept[b"k"] = data
        assert kept[bytearray(b"k")] == bytes(data)
    # No zero ends a key or a value.
    kept[b"a\0b"] = b"\0\0"
    assert kept[b"a\0b"] == b"\0\0" and b"a" not in kept
    assert kept[b""] if b"" in kept else True
    kept[b""] = b"empty key"
    assert kept[b""] == b"empty key"
    for thing in (area, kept, log, area.batch(), area.snapshot()):
        raises(TypeError, pickle.dumps, thing)
        assert thing == thing and hash(thing) == hash(thing)
    assert kept != area.map("map") and "map" in repr(kept)
    error = raises(ValueError, area.wait, 1 << 40)
    assert pickle.loads(pickle.dumps(error)).code == error.code
    error = raises(ConflictError, area.batch().expect(kept, b"a\0b", None).commit)
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.structure, copy.key, str(copy)) == ("map", b"a\0b", str(error)) and copy.key == error.key
