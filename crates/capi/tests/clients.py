"""What a Python program does with an area. argv[1] is the area's file."""

import sys

from switchyard_store import Area, StoreError

path = sys.argv[1]
try:
    Area(path)
    raise SystemExit("a missing file was opened")
except StoreError as error:
    assert error.code == -5 and str(error), error

with Area(path, create_bytes=16 << 20) as area:
    with area.log("log") as log, area.queue("queue") as queue, area.map("map") as kept:
        assert [log.append(bytes([i]) * i) for i in range(5)] == [0, 1, 2, 3, 4]
        log.trim(2)
        queue.push(b"job")
        queue.push(b"later")
        position, job = queue.pop()
        kept[job] = b"done"
        kept[b"\x00"] = b""
        del kept[b"\x00"]
        queue.acknowledge(position)

with Area(path) as area:
    with area.log("log") as log, area.queue("queue") as queue, area.map("map") as kept:
        assert list(log) == [(2, b"\x02\x02"), (3, b"\x03" * 3), (4, b"\x04" * 4)]
        assert [data for _, data in queue] == [b"later"] and len(queue) == 1
        assert kept[b"job"] == b"done" and b"\x00" not in kept and len(kept) == 1
