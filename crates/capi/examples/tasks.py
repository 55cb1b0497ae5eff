"""asyncio: a hundred tasks, each of whose changes is durable when it is awaited."""

import asyncio
import sys

from switchyard_store import Area


async def serve(number, area):
    await area.log("events").append_async(b"request %d" % number)
    async with area.batch() as batch:
        batch.put(area.map("state"), b"%d" % number, b"seen").push(area.queue("replies"), b"reply %d" % number)


async def main(path):
    async with await Area.open_async(path, create_bytes=64 << 20) as area:
        await asyncio.gather(*(serve(number, area) for number in range(100)))
        print(len(area.log("events")), len(area.map("state")), len(area.queue("replies")))


asyncio.run(main(sys.argv[1]))
