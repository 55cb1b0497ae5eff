"""What a process was told is durable is there after it was killed. argv[1] is the area's file."""

import asyncio
import os
import signal
import sys
import warnings

from switchyard_store import Area


def fill(pipe):
    async def run():
        area = Area(sys.argv[1], create_bytes=32 << 20)
        kept = area.tree("tree")

        async def put(start):
            for i in range(start, 1 << 40, 8):
                await kept.put_async(b"%016d" % i, b"x" * 50)
                os.write(pipe, b"%016d" % i)

        await asyncio.gather(*(put(start) for start in range(len(kept), len(kept) + 8)))

    asyncio.run(run())


# Python 3.12 warns of a fork with threads: that is what is tested.
warnings.simplefilter("ignore", DeprecationWarning)
told = set()
for round in range(5):
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        fill(writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as lines:
        for _ in range(100 + 10 * round):
            told.add(lines.read(16))
        os.kill(pid, signal.SIGKILL)
        rest = lines.read()
        told.update(rest[i : i + 16] for i in range(0, len(rest), 16))
    os.waitpid(pid, 0)
    with Area(sys.argv[1]) as area:
        missing = [key for key in told if key not in area.tree("tree")]
        assert not missing, missing
