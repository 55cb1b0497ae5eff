"""Switchyard's storage areas: logs, queues, maps and trees that are durable when a call returns.

    with Area("app.area", create_bytes=256 << 20) as area:
        jobs, done = area.queue("jobs"), area.map("done")
        jobs.push(b"a job")
        for position, job in jobs:
            with area.batch() as batch:                     # both or neither
                batch.acknowledge(jobs, position).put(done, job, b"yes")

The library libswitchyard_store.so.0 is found beside this package, below its prefix, on the loader's path, or where
$SWITCHYARD_STORE says.
"""

from ._area import Area, Batch, Kind, Log, Map, Queue, Snapshot, Stats, StructureInfo, Tree
from ._follower import Follower, Moment
from ._library import (
    BusyError,
    BytesLike,
    ClosedError,
    ConflictError,
    DamagedError,
    DeniedError,
    EndedError,
    FailedError,
    ForkedError,
    FullError,
    GoneError,
    InvalidError,
    KindError,
    MissingError,
    ResourceError,
    StoreError,
    TooLargeError,
    UnusableError,
    version,
)
from ._waiting import Completions

__all__ = [
    "Area",
    "Batch",
    "BusyError",
    "BytesLike",
    "ClosedError",
    "Completions",
    "ConflictError",
    "DamagedError",
    "DeniedError",
    "EndedError",
    "FailedError",
    "Follower",
    "ForkedError",
    "FullError",
    "GoneError",
    "InvalidError",
    "Kind",
    "KindError",
    "Log",
    "Map",
    "MissingError",
    "Moment",
    "Queue",
    "ResourceError",
    "Snapshot",
    "Stats",
    "StoreError",
    "StructureInfo",
    "TooLargeError",
    "Tree",
    "UnusableError",
    "version",
]
