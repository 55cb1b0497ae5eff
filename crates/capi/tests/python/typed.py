"""A program that mypy --strict checks, and that is wrong where a comment says so."""

import asyncio
from typing import Iterator, Optional, Tuple

from switchyard_store import Area, Batch, Kind, Log, Map, Queue, Snapshot, Stats, Tree


def use(path: str) -> None:
    with Area(path, create_bytes=1 << 24) as area:
        log: Log = area.log("log")
        queue: Queue = area.queue("queue")
        kept: Map = area.map("map", lazy=True)
        tree: Tree = area.tree("tree", existing=False)
        position: int = log.append(b"x")
        data: Optional[bytes] = log.read(position)
        popped: Optional[Tuple[int, bytes]] = queue.pop()
        kept[b"k"] = data or b""
        value: bytes = kept[b"k"]
        found: Iterator[Tuple[bytes, bytes]] = tree[b"a":b"b"]
        one: bytes = tree[b"a"]
        default: bytes = kept.get(b"k", b"")
        with area.batch() as batch:
            made: Batch = batch.put(kept, b"k", value).push(queue, one)
        versioned: Optional[Tuple[bytes, int]] = kept.get_versioned(b"k")
        if versioned is not None:
            batch.expect(kept, b"k", versioned[1]).expect(tree, b"k", None).commit()
        with area.snapshot() as snapshot:
            taken: Snapshot = snapshot
            held: Optional[bytes] = taken.get(kept, b"k")
            keys: Iterator[bytes] = taken.keys(tree)
            last: Iterator[Tuple[bytes, bytes]] = taken.range(tree, b"a", reverse=True)
            first: int = taken.positions(log).start
            taken.range(kept)  # type: ignore[arg-type]
            taken.get(log, b"k")  # type: ignore[arg-type]
            print(held, keys, last, first, list(reversed(tree)))
        stats: Stats = area.stats()
        kind: Kind = area.structures()[0].kind
        print(popped, found, default, made, stats.records, kind, batch.positions[0])
        kept["text"] = b"v"  # type: ignore[index]
        log.append("text")  # type: ignore[arg-type]
        batch.append(tree, b"x")  # type: ignore[arg-type]
        batch.expect(log, b"x", None)  # type: ignore[arg-type]


async def tasks(path: str) -> None:
    async with await Area.open_async(path, create_bytes=1 << 24) as area:
        position: int = await area.log("log").append_async(b"x")
        await area.map("map").put_async(b"k", b"v")
        value: Optional[bytes] = await area.map("map").get_async(b"k")
        async with area.batch() as batch:
            batch.append(area.log("log"), b"x")
        print(position, value)


if __name__ == "__main__":
    asyncio.run(tasks("x"))
