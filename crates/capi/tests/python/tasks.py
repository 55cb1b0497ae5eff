"""asyncio: a thousand changes in flight, reads beside them, cancelled tasks, several loops. argv[1] is the area's file."""

import asyncio
import select
import sys

from switchyard_store import Area, ClosedError, ConflictError, StoreError

IN_FLIGHT = 1000


async def count_up(area, kept):
    """Adds one to a number that other tasks change, too."""
    while True:
        found = await kept.get_versioned_async(b"number")
        number, version = found or (b"0", None)
        try:
            async with area.batch() as batch:
                batch.expect(kept, b"number", version).put(kept, b"number", b"%d" % (int(number) + 1))
            return
        except ConflictError as error:
            assert error.structure == "map" and error.key == b"number"


async def many(path):
    async with await Area.open_async(path, create_bytes=64 << 20) as area:
        kept, log, queue, tree = area.map("map"), area.log("log"), area.queue("queue"), area.tree("tree")
        puts = [kept.put_async(b"%d" % i, b"value %d" % i) for i in range(IN_FLIGHT)]
        appends = [log.append_async(b"%d" % i) for i in range(IN_FLIGHT)]
        results = await asyncio.gather(*puts, *appends)
        assert len(kept) == len(log) == IN_FLIGHT
        assert sorted(results[IN_FLIGHT:]) == list(range(IN_FLIGHT))
        values = await asyncio.gather(*(kept.get_async(b"%d" % i) for i in range(0, IN_FLIGHT, 10)))
        assert values == [b"value %d" % i for i in range(0, IN_FLIGHT, 10)]
        position = await queue.push_async(b"job")
        assert await queue.pop_async() == (position, b"job") and await queue.pop_async() is None
        await queue.acknowledge_async(position)
        await tree.put_async(b"k", b"v")
        await tree.discard_async(b"k")
        async with area.batch() as batch:
            batch.put(tree, b"both", b"1").append(log, b"both")
        assert batch.positions == [IN_FLIGHT] and await log.read_async(IN_FLIGHT) == b"both"
        try:
            async with area.batch() as batch:
                batch.put(tree, b"never", b"1")
                raise KeyError
        except KeyError:
            assert b"never" not in tree
        await asyncio.gather(*(count_up(area, kept) for _ in range(20)))
        assert kept.pop(b"number") == b"20"
        with await area.snapshot_async() as snapshot:
            await kept.put_async(b"1", b"later")
            assert await snapshot.get_async(kept, b"1") == b"value 1"
            assert await snapshot.get_many_async(kept, [b"2", b"none"]) == [b"value 2", None]
        await area.sync_async()
        # A task that is cancelled does not wait; its change stands, and others are told of theirs.
        tasks = [asyncio.ensure_future(kept.put_async(b"cancelled %d" % i, b"x")) for i in range(100)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(result is None for result in ended[1::2])
        area.sync()
        assert sum(b"cancelled %d" % i in kept for i in range(100)) >= 50
        # What is still in flight when the area is closed ends first.
        last = asyncio.ensure_future(kept.put_async(b"last", b"x"))
        await asyncio.sleep(0)
    await last
    try:
        await kept.put_async(b"k", b"v")
    except ClosedError:
        pass
    else:
        raise SystemExit("the map is closed")


async def abandon(area):
    """Closing an area in the midst of tasks tells them."""
    tasks = [asyncio.ensure_future(area.map("map").put_async(b"%d" % i, b"x")) for i in range(50)]
    await asyncio.sleep(0)
    area.close()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        assert result is None or isinstance(result, StoreError), result


async def one(area, key):
    await area.map("map").put_async(key, b"x")
    return key in area.map("map")


asyncio.run(many(sys.argv[1]))
with Area(sys.argv[1]) as area:
    assert len(area.map("map")) >= IN_FLIGHT + 51
    # One area, several loops, one after the other.
    for i in range(5):
        assert asyncio.run(one(area, b"loop %d" % i))
    # Other loops: a descriptor that can be read.
    completions, kept = area.completions(), area.map("map")
    tickets = {i: kept.put_nowait(b"poll %d" % i, b"x") for i in range(100)}
    for tag, ticket in tickets.items():
        completions.add(ticket, tag)
    found = []
    while len(found) < 100:
        assert select.select([completions], [], [], 60)[0]
        found += completions.collect()
    assert sorted(tag for tag, _, _ in found) == list(range(100))
    assert all(code == 0 and tickets[tag] == ticket for tag, ticket, code in found)
    assert not select.select([completions], [], [], 0)[0] and completions.collect() == []
    asyncio.run(abandon(area))
