"""Areas, structures, snapshots and batches."""

import builtins
import ctypes
import dataclasses
import enum
import os
from typing import (
    Any,
    ClassVar,
    Generator,
    ItemsView,
    Iterable,
    Iterator,
    List,
    MutableMapping,
    NamedTuple,
    Optional,
    Tuple,
    Type,
    TypeVar,
    Union,
    ValuesView,
    overload,
)

from ._handle import Child, Handle, Parent, Structure
from ._library import (
    EXCLUDED,
    INCLUDED,
    KEYS_ONLY,
    REVERSE,
    STATS,
    U64_MAX,
    UNBOUNDED,
    BytesLike,
    CAreaOptions,
    CBytes,
    CRange,
    CSlice,
    CStats,
    CStructure,
    ConflictError,
    ForkedError,
    call,
    data_of,
    lent,
    name_of,
    number,
    number_of,
    open_handle,
    path_of,
    positions,
    take,
    value,
    values,
)
from ._waiting import Bridges, Completions, in_thread

Path = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
D = TypeVar("D")
A = TypeVar("A", bound="Area")


class Kind(enum.IntEnum):
    """The kind of a structure."""

    LOG = 1
    QUEUE = 2
    MAP = 3
    TREE = 4


class StructureInfo(NamedTuple):
    """A structure in `Area.structures`."""

    name: str
    kind: Kind
    lazy: bool
    entries: int
    number: int


@dataclasses.dataclass(frozen=True)
class Stats:
    """Counters since the area was opened, and its present state, as struct swy_stats has them."""

    records: int
    record_bytes: int
    entries: int
    moved_bytes: int
    cleaned_segments: int
    checkpoints: int
    live_bytes: int
    live_bytes_max: int
    index_bytes: int
    free_segments: int
    read_errors: int
    #: Byte of the area whose damage keeps space from being reclaimed.
    damaged_at: Optional[int]
    #: Bytes of a batch, with some for each change.
    batch_bytes_max: int
    #: How often the area was opened, this time included.
    opened: int
    replayed_records: int
    #: A crash had cut the last write, which was not acknowledged.
    is_torn: bool
    #: Snapshots that are kept, and the memory that they alone keep, estimated.
    snapshots: int
    snapshot_bytes: int
    #: Those that have ended because they would have kept too much.
    snapshots_ended: int
    #: Tables that were found damaged, and the byte of the area where the first is.
    tables_damaged: int
    table_damaged_at: Optional[int]


def _options(
    create_bytes: int,
    index_bytes_max: Optional[int],
    cache_bytes_max: Optional[int],
    writes_in_flight_max: Optional[int],
    mapped: bool,
) -> CAreaOptions:
    def given(number: Optional[int], what: str, maximum: int = U64_MAX) -> int:
        if number == 0:
            raise ValueError(f"{what} is at least 1; None stands for the default")
        return 0 if number is None else number_of(number, what, maximum)

    return CAreaOptions(
        ctypes.sizeof(CAreaOptions),
        number_of(create_bytes, "create_bytes"),
        given(index_bytes_max, "index_bytes_max"),
        0 if cache_bytes_max is None else number_of(cache_bytes_max, "cache_bytes_max"),
        given(writes_in_flight_max, "writes_in_flight_max", 32),
        (1 if mapped else 0) | (2 if cache_bytes_max == 0 else 0),
    )


class Area(Parent):
    """The area in a file or block device; a missing file becomes one of `create_bytes`.

    An area belongs to the process that opened it. A forked child (multiprocessing's "fork", os.fork) gets ForkedError, and may
    open areas of its own.
    """

    _kind: ClassVar[str] = "area"

    def __init__(
        self,
        path: Path,
        create_bytes: int = 0,
        *,
        index_bytes_max: Optional[int] = None,
        cache_bytes_max: Optional[int] = None,
        writes_in_flight_max: Optional[int] = None,
        mapped: bool = False,
    ) -> None:
        options = _options(create_bytes, index_bytes_max, cache_bytes_max, writes_in_flight_max, mapped)
        self._begin(open_handle("area_open", path_of(path), ctypes.byref(options)))

    def _begin(self, handle: int) -> None:
        super().__init__(handle)
        self._bridges = Bridges(self)

    @classmethod
    def _of(cls: Type[A], handle: int) -> A:
        area = cls.__new__(cls)
        area._begin(handle)
        return area

    @classmethod
    def in_catalog(
        cls: Type[A],
        name: str,
        create_bytes: int = 0,
        *,
        socket: Optional[Path] = None,
        index_bytes_max: Optional[int] = None,
        cache_bytes_max: Optional[int] = None,
        writes_in_flight_max: Optional[int] = None,
    ) -> A:
        """The area that `switchyard areas serve` calls `name`: NAME of this user, UID/NAME of another user, or an export.

        A missing area of this user becomes one of `create_bytes`.
        """
        options = _options(create_bytes, index_bytes_max, cache_bytes_max, writes_in_flight_max, False)
        where = None if socket is None else path_of(socket)
        return cls._of(open_handle("area_open_in_catalog", where, name_of(name), ctypes.byref(options)))

    @classmethod
    def in_memory(cls: Type[A], create_bytes: int = 16 << 20) -> A:
        """An area in memory, for tests."""
        options = _options(create_bytes, None, None, None, False)
        return cls._of(open_handle("area_open_memory", ctypes.byref(options)))

    @classmethod
    async def open_async(cls: Type[A], path: Path, create_bytes: int = 0, **options: Any) -> A:
        """Opens beside the loop: opening reads the log."""
        return await in_thread(lambda: cls(path, create_bytes, **options))

    @staticmethod
    def format(path: Path, create_bytes: int = 0) -> None:
        """Makes a block device or file of zeros an area of `create_bytes`, or of all of it."""
        options = _options(create_bytes, None, None, None, False)
        call("area_format", path_of(path), ctypes.byref(options))

    def log(self, name: str, *, lazy: bool = False, existing: bool = False) -> "Log":
        """The log called `name`. A missing log is made, unless it has to be `existing`; if it is made now, `lazy` says that
        changes are durable with the next record that somebody waits for."""
        log: Log = self._open_structure(Log, name, lazy, existing)
        return log

    def queue(self, name: str, *, lazy: bool = False, existing: bool = False) -> "Queue":
        """The queue called `name`, as `log`."""
        queue: Queue = self._open_structure(Queue, name, lazy, existing)
        return queue

    def map(self, name: str, *, lazy: bool = False, existing: bool = False) -> "Map":
        """The map called `name`, as `log`."""
        found: Map = self._open_structure(Map, name, lazy, existing)
        return found

    def tree(self, name: str, *, lazy: bool = False, existing: bool = False) -> "Tree":
        """The tree called `name`, as `log`."""
        tree: Tree = self._open_structure(Tree, name, lazy, existing)
        return tree

    def structures(self) -> List[StructureInfo]:
        """All structures, in the order in which they were made."""
        return listed(open_handle("listing_open", self))

    def drop(self, name: str) -> None:
        """Drops a structure with all that is in it, durably."""
        call("area_drop", self, name_of(name))

    def snapshot(self) -> "Snapshot":
        """All maps and trees as they are now, durable on return. Leaving `with area.snapshot() as snapshot:` closes it."""
        snapshot: Snapshot = self._adopt(Snapshot(self))
        return snapshot

    async def snapshot_async(self) -> "Snapshot":
        """The same beside other tasks."""
        return await in_thread(self.snapshot)

    def batch(self) -> "Batch":
        """An empty batch. `with area.batch() as batch:` commits it at the end, unless an exception leaves it."""
        batch: Batch = self._adopt(Batch(self))
        return batch

    def completions(self) -> Completions:
        """For event loops other than asyncio's."""
        made: Completions = self._adopt(Completions(self))
        return made

    def stats(self) -> Stats:
        """Counters and state."""
        found = CStats(ctypes.sizeof(CStats))
        call("area_stats", self, ctypes.byref(found))
        fields = {name: getattr(found, name) for name in STATS}
        fields["damaged_at"] = None if found.damaged_at == U64_MAX else found.damaged_at
        fields["table_damaged_at"] = found.table_damaged_at if found.tables_damaged else None
        fields["is_torn"] = bool(found.is_torn)
        return Stats(**fields)

    @property
    def warning(self) -> Optional[str]:
        """A warning about the medium, such as that its files do not survive a power cut."""
        text = ctypes.c_char_p()
        found = call("area_warning", self, ctypes.byref(text))
        return text.value.decode() if found and text.value is not None else None

    @property
    def durable(self) -> int:
        """The watermark: this ticket, and all smaller ones, are durable."""
        return number("area_durable", self)

    def wait(self, ticket: int) -> None:
        """Waits until a ticket is durable."""
        call("area_wait", self, number_of(ticket, "a ticket"))

    async def wait_async(self, ticket: int) -> None:
        """The same beside other tasks."""
        await self._bridges.here().wait(number_of(ticket, "a ticket"))

    def sync(self) -> None:
        """Makes everything durable that was handed over so far, by anybody."""
        call("area_sync", self)

    async def sync_async(self) -> None:
        """The same beside other tasks."""
        await in_thread(self.sync)

    def grow(self, size: int = 0) -> int:
        """Lets the area have so many bytes at least, and all that its file or device has room for: the bytes that it has now."""
        return number("area_grow", self, number_of(size, "a size"))

    def close(self) -> None:
        """Closes the area and all that was opened of it. Lazy changes become durable."""
        try:
            if not self.closed:
                self._bridges.close()
        except ForkedError:
            # The loop is the parent's.
            pass
        super().close()

    async def close_async(self) -> None:
        """The same, after all that tasks of this loop wait for."""
        await self._bridges.drain()
        self._bridges.close()
        await in_thread(super().close)

    async def __aenter__(self: A) -> A:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close_async()


class _Listing(Handle):
    _kind = "listing"


def listed(handle: int) -> List[StructureInfo]:
    """What a listing has; it is closed."""
    found: List[StructureInfo] = []
    with _Listing(handle) as listing:
        it = CStructure(ctypes.sizeof(CStructure))
        while call("listing_next", listing, ctypes.byref(it)):
            name = it.name.decode()
            found.append(StructureInfo(name, Kind(it.kind), bool(it.is_lazy), it.entries, it.number))
    return found


def bounds_of(
    start: Optional[BytesLike], stop: Optional[BytesLike], after: bool, through: bool, flags: int = 0
) -> CRange:
    """A range of keys, as C has it."""
    low = None if start is None else data_of(start, "a key")
    high = None if stop is None else data_of(stop, "a key")
    return CRange(
        ctypes.sizeof(CRange),
        low,
        0 if low is None else len(low),
        high,
        0 if high is None else len(high),
        UNBOUNDED if low is None else EXCLUDED if after else INCLUDED,
        UNBOUNDED if high is None else INCLUDED if through else EXCLUDED,
        flags,
    )


def range_flags(keys_only: bool, reverse: bool) -> int:
    return (KEYS_ONLY if keys_only else 0) | (REVERSE if reverse else 0)


class Cursor(Handle):
    _kind = "cursor"

    def next(self) -> Optional[Tuple[bytes, bytes]]:
        key, found = CBytes(), CBytes()
        if not call("cursor_next", self, ctypes.byref(key), ctypes.byref(found)):
            return None
        return lent(key), lent(found)

    def entries(self) -> Generator[Tuple[bytes, bytes], None, None]:
        with self:
            while (entry := self.next()) is not None:
                yield entry


def _through(area: Area, handle: int) -> Iterator[Tuple[bytes, bytes]]:
    """The entries of a cursor, which ends with its area."""
    cursor: Cursor = area._adopt(Cursor(handle))
    return cursor.entries()


class _Positions(Structure):
    """What logs and queues have in common."""

    def _add(self, call_name: str, data: BytesLike) -> int:
        data = data_of(data, "an entry")
        return number(call_name, self, data, len(data))

    def _add_nowait(self, call_name: str, data: BytesLike) -> Tuple[int, int]:
        data = data_of(data, "an entry")
        position, ticket = ctypes.c_uint64(), ctypes.c_uint64()
        call(call_name, self, data, len(data), ctypes.byref(position), ctypes.byref(ticket))
        return position.value, ticket.value

    def positions(self) -> range:
        """From the first position that is there to the one that comes next."""
        return positions(f"{self._kind}_positions", self)

    def read(self, position: int) -> Optional[bytes]:
        """The entry at a position, or None."""
        return value(f"{self._kind}_read", self, number_of(position, "a position"))

    async def read_async(self, position: int) -> Optional[bytes]:
        """The same beside other tasks."""
        return await in_thread(self.read, position)

    def entries(self) -> Iterator[Tuple[int, bytes]]:
        """(position, entry) of all that is there now; of a queue without handing it out."""
        for position in self.positions():
            data = self.read(position)
            if data is not None:
                yield position, data


class Log(_Positions):
    """Append, read by position, trim from the front."""

    _kind: ClassVar[str] = "log"

    def append(self, data: BytesLike) -> int:
        """Adds to the end; the entry's position. Durable on return, unless the log is lazy."""
        return self._add("log_append", data)

    def append_nowait(self, data: BytesLike) -> Tuple[int, int]:
        """The same without waiting: position and ticket."""
        return self._add_nowait("log_append_async", data)

    async def append_async(self, data: BytesLike) -> int:
        """The same beside other tasks: durable when awaited."""
        position, ticket = self.append_nowait(data)
        await self.area.wait_async(ticket)
        return position

    def trim(self, floor: int) -> None:
        """Forgets the positions below `floor`; a floor beyond the end stands for the end."""
        call("log_trim", self, number_of(floor, "a floor"))

    def __iter__(self) -> Iterator[Tuple[int, bytes]]:
        return self.entries()

    def __getitem__(self, position: int) -> bytes:
        data = self.read(position)
        if data is None:
            raise IndexError(position)
        return data


class Queue(_Positions):
    """An entry is handed out to one, until it is acknowledged; after a crash, again."""

    _kind: ClassVar[str] = "queue"

    def push(self, data: BytesLike) -> int:
        """Adds to the end; the entry's position. Durable on return, unless the queue is lazy."""
        return self._add("queue_push", data)

    def push_nowait(self, data: BytesLike) -> Tuple[int, int]:
        """The same without waiting: position and ticket."""
        return self._add_nowait("queue_push_async", data)

    async def push_async(self, data: BytesLike) -> int:
        """The same beside other tasks: durable when awaited."""
        position, ticket = self.push_nowait(data)
        await self.area.wait_async(ticket)
        return position

    def pop(self) -> Optional[Tuple[int, bytes]]:
        """(position, entry), or None. Nobody else gets it before `give_up` or a restart."""
        position, found = ctypes.c_uint64(), CBytes()
        if not call("queue_pop", self, ctypes.byref(position), ctypes.byref(found)):
            return None
        return position.value, take(found)

    async def pop_async(self) -> Optional[Tuple[int, bytes]]:
        """The same beside other tasks. Does not wait for an entry."""
        return await in_thread(self.pop)

    def acknowledge(self, position: int) -> None:
        """The entry is never handed out again."""
        call("queue_acknowledge", self, number_of(position, "a position"))

    def acknowledge_nowait(self, position: int) -> int:
        """The same without waiting: the ticket."""
        return number("queue_acknowledge_async", self, number_of(position, "a position"))

    async def acknowledge_async(self, position: int) -> None:
        """The same beside other tasks."""
        await self.area.wait_async(self.acknowledge_nowait(position))

    def give_up(self, position: int) -> bool:
        """Gives an entry back, to be handed out again; False if it is not there any more."""
        return call("queue_give_up", self, number_of(position, "a position"))

    def __iter__(self) -> Iterator[Tuple[int, bytes]]:
        """Pops until the queue has no more."""
        return iter(self.pop, None)


class _Items(ItemsView[bytes, bytes]):
    def __iter__(self) -> Iterator[Tuple[bytes, bytes]]:
        keyed: Any = self._mapping  # type: ignore[attr-defined]
        entries: Iterator[Tuple[bytes, bytes]] = keyed._entries(0)
        return entries


class _Values(ValuesView[bytes]):
    def __iter__(self) -> Iterator[bytes]:
        keyed: Any = self._mapping  # type: ignore[attr-defined]
        return (data for _, data in keyed._entries(0))


class _Keyed(Structure, MutableMapping[bytes, bytes]):
    """What maps and trees have in common: a mapping of bytes to bytes, each change durable on its own.

    `update` and `clear` make one change for each key: a batch makes them together.
    """

    def _entries(self, flags: int) -> Iterator[Tuple[bytes, bytes]]:
        raise NotImplementedError

    def _key(self, key: BytesLike) -> Tuple[bytes, int]:
        key = data_of(key, "a key")
        return key, len(key)

    def put(self, key: BytesLike, data: BytesLike) -> None:
        """Sets the value of a key. Durable on return, unless the structure is lazy."""
        data = data_of(data, "a value")
        call(f"{self._kind}_put", self, *self._key(key), data, len(data))

    def put_nowait(self, key: BytesLike, data: BytesLike) -> int:
        """The same without waiting: the ticket."""
        data = data_of(data, "a value")
        return number(f"{self._kind}_put_async", self, *self._key(key), data, len(data))

    async def put_async(self, key: BytesLike, data: BytesLike) -> None:
        """The same beside other tasks."""
        await self.area.wait_async(self.put_nowait(key, data))

    def discard(self, key: BytesLike) -> None:
        """Removes a key, if it is there."""
        call(f"{self._kind}_remove", self, *self._key(key))

    def discard_nowait(self, key: BytesLike) -> int:
        """The same without waiting: the ticket."""
        return number(f"{self._kind}_remove_async", self, *self._key(key))

    async def discard_async(self, key: BytesLike) -> None:
        """The same beside other tasks."""
        await self.area.wait_async(self.discard_nowait(key))

    def _find(self, key: BytesLike) -> Optional[bytes]:
        return value(f"{self._kind}_get", self, *self._key(key))

    @overload
    def get(self, key: BytesLike) -> Optional[bytes]: ...

    @overload
    def get(self, key: BytesLike, default: Union[bytes, D]) -> Union[bytes, D]: ...

    def get(self, key: BytesLike, default: Any = None) -> Any:
        """The value of a key, or `default`."""
        data = self._find(key)
        return default if data is None else data

    async def get_async(self, key: BytesLike) -> Optional[bytes]:
        """The value of a key, or None, beside other tasks."""
        return await in_thread(self._find, key)

    def get_versioned(self, key: BytesLike) -> Optional[Tuple[bytes, int]]:
        """The value of a key and its version, or None. No other write has that version: `Batch.expect` takes it."""
        found, version = CBytes(), ctypes.c_uint64()
        if not call(f"{self._kind}_get_versioned", self, *self._key(key), ctypes.byref(found), ctypes.byref(version)):
            return None
        return take(found), version.value

    async def get_versioned_async(self, key: BytesLike) -> Optional[Tuple[bytes, int]]:
        """The same beside other tasks."""
        return await in_thread(self.get_versioned, key)

    def get_many(self, keys: Iterable[BytesLike]) -> List[Optional[bytes]]:
        """The values of some keys, in their order. What is not in memory is read together. They are no snapshot."""
        asked = [CSlice(*self._key(key)) for key in keys]
        return values(f"{self._kind}_get_many", self, asked=asked)

    async def get_many_async(self, keys: Iterable[BytesLike]) -> List[Optional[bytes]]:
        """The same beside other tasks."""
        return await in_thread(self.get_many, list(keys))

    def _value(self, key: BytesLike) -> bytes:
        data = self._find(key)
        if data is None:
            raise KeyError(key)
        return data

    def __setitem__(self, key: BytesLike, data: BytesLike) -> None:
        self.put(key, data)

    def __delitem__(self, key: BytesLike) -> None:
        self._value(key)
        self.discard(key)

    def __contains__(self, key: object) -> bool:
        return self._find(key) is not None  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[bytes]:
        """The keys, in order."""
        return (key for key, _ in self._entries(KEYS_ONLY))

    def items(self) -> ItemsView[bytes, bytes]:
        """Keys and values, in the order of the keys."""
        return _Items(self)

    def values(self) -> ValuesView[bytes]:
        """Values, in the order of their keys."""
        return _Values(self)

    def clear(self) -> None:
        for key in list(self):
            self.discard(key)


class Map(_Keyed):
    """Keys without order: a mapping of bytes to bytes."""

    _kind: ClassVar[str] = "map"

    def __getitem__(self, key: BytesLike) -> bytes:
        return self._value(key)

    def _entries(self, flags: int) -> Iterator[Tuple[bytes, bytes]]:
        return _through(self.area, open_handle("map_cursor_open", self, flags))


class Tree(_Keyed):
    """Keys in order: a mapping of bytes to bytes, with ranges.

    `tree[b"a":b"m"]` are the entries from b"a" on and before b"m".
    """

    _kind: ClassVar[str] = "tree"

    @overload
    def __getitem__(self, key: BytesLike) -> bytes: ...

    @overload
    def __getitem__(self, key: slice) -> Iterator[Tuple[bytes, bytes]]: ...

    def __getitem__(self, key: Union[BytesLike, slice]) -> Any:
        if not isinstance(key, slice):
            return self._value(key)
        if key.step is not None:
            raise ValueError("a range of a tree has no step")
        return self.range(key.start, key.stop)

    def range(
        self,
        start: Optional[BytesLike] = None,
        stop: Optional[BytesLike] = None,
        *,
        after: bool = False,
        through: bool = False,
        keys_only: bool = False,
        reverse: bool = False,
    ) -> Iterator[Tuple[bytes, bytes]]:
        """Entries from `start` on (or `after` it) and before `stop` (or `through` it), in the order of keys, or in `reverse`.

        Entries that are put or removed meanwhile may come or not. With `keys_only` values are not read, and empty.
        """
        bounds = bounds_of(start, stop, after, through, range_flags(keys_only, reverse))
        return _through(self.area, open_handle("tree_cursor_open", self, ctypes.byref(bounds)))

    def __reversed__(self) -> Iterator[bytes]:
        """The keys; the last one comes first."""
        return (key for key, _ in self.range(keys_only=True, reverse=True))

    def prefix(self, prefix: BytesLike, *, reverse: bool = False) -> Iterator[Tuple[bytes, bytes]]:
        """Entries whose keys begin with `prefix`, in the order of their keys, or in `reverse`."""
        start = data_of(prefix, "a prefix")
        body = start.rstrip(b"\xff")
        return self.range(start, body[:-1] + bytes([body[-1] + 1]) if body else None, reverse=reverse)

    def _entries(self, flags: int) -> Iterator[Tuple[bytes, bytes]]:
        return self.range(keys_only=bool(flags & KEYS_ONLY))


class Snapshot(Child):
    """All maps and trees of an area as they were at one moment, until it is closed.

    It copies nothing when it is taken. What is overwritten or removed later is kept for it. An area that needs that room ends
    its oldest snapshot, and reads of that raise EndedError. A structure that was not there at that moment is empty. An iterator
    that is not at its end keeps what it reads.
    """

    _kind: ClassVar[str] = "snapshot"

    def __init__(self, area: Area) -> None:
        super().__init__(area, open_handle("snapshot_open", area))

    def get(self, keyed: Union[Map, Tree], key: BytesLike) -> Optional[bytes]:
        """The value that a key of a map or tree had, or None."""
        keyed = _is(keyed, (Map, Tree))
        return value(f"snapshot_{keyed._kind}_get", self, keyed, *keyed._key(key))

    async def get_async(self, keyed: Union[Map, Tree], key: BytesLike) -> Optional[bytes]:
        """The same beside other tasks."""
        return await in_thread(self.get, keyed, key)

    def get_many(self, keyed: Union[Map, Tree], keys: Iterable[BytesLike]) -> List[Optional[bytes]]:
        """The values that some keys had, in their order. What is not in memory is read together."""
        keyed = _is(keyed, (Map, Tree))
        asked = [CSlice(*keyed._key(key)) for key in keys]
        return values(f"snapshot_{keyed._kind}_get_many", self, keyed, asked=asked)

    async def get_many_async(self, keyed: Union[Map, Tree], keys: Iterable[BytesLike]) -> List[Optional[bytes]]:
        """The same beside other tasks."""
        return await in_thread(self.get_many, keyed, list(keys))

    def keys(self, keyed: Union[Map, Tree]) -> Iterator[bytes]:
        """The keys that there were, in order."""
        return (key for key, _ in self._entries(keyed, KEYS_ONLY))

    def items(self, keyed: Union[Map, Tree]) -> Iterator[Tuple[bytes, bytes]]:
        """Keys and values, in the order of the keys."""
        return self._entries(keyed, 0)

    def _entries(self, keyed: Union[Map, Tree], flags: int) -> Iterator[Tuple[bytes, bytes]]:
        if not isinstance(keyed, Map):
            return self.range(keyed, keys_only=bool(flags & KEYS_ONLY))
        return _through(self.area, open_handle("snapshot_map_cursor_open", self, keyed, flags))

    def range(
        self,
        tree: Tree,
        start: Optional[BytesLike] = None,
        stop: Optional[BytesLike] = None,
        *,
        after: bool = False,
        through: bool = False,
        keys_only: bool = False,
        reverse: bool = False,
    ) -> Iterator[Tuple[bytes, bytes]]:
        """Entries of a tree, as `Tree.range`."""
        bounds = bounds_of(start, stop, after, through, range_flags(keys_only, reverse))
        handle = open_handle("snapshot_tree_cursor_open", self, _is(tree, Tree), ctypes.byref(bounds))
        return _through(self.area, handle)

    def positions(self, structure: Union[Log, Queue]) -> builtins.range:
        """From the first position of a log or queue that was there to the one that came next. Entries are not kept."""
        structure = _is(structure, (Log, Queue))
        return positions(f"snapshot_{structure._kind}_positions", self, structure)


class Batch(Child):
    """Changes of several structures of one area that become durable together, or not at all."""

    _kind: ClassVar[str] = "batch"

    def __init__(self, area: Area) -> None:
        super().__init__(area, open_handle("batch_open", area))
        #: Of the appends and pushes of the last commit or submit, in their order.
        self.positions: List[int] = []
        self._expects = False

    def append(self, log: Log, data: BytesLike) -> "Batch":
        """Adds to the end of a log."""
        data = data_of(data, "an entry")
        call("batch_append", self, _is(log, Log), data, len(data))
        return self

    def trim(self, log: Log, floor: int) -> "Batch":
        """Forgets positions of a log."""
        call("batch_trim", self, _is(log, Log), number_of(floor, "a floor"))
        return self

    def push(self, queue: Queue, data: BytesLike) -> "Batch":
        """Adds to the end of a queue."""
        data = data_of(data, "an entry")
        call("batch_push", self, _is(queue, Queue), data, len(data))
        return self

    def acknowledge(self, queue: Queue, position: int) -> "Batch":
        """Takes an entry out of a queue."""
        call("batch_acknowledge", self, _is(queue, Queue), number_of(position, "a position"))
        return self

    def put(self, keyed: Union[Map, Tree], key: BytesLike, data: BytesLike) -> "Batch":
        """Sets the value of a key of a map or tree."""
        data = data_of(data, "a value")
        keyed = _is(keyed, (Map, Tree))
        call(f"batch_{keyed._kind}_put", self, keyed, *keyed._key(key), data, len(data))
        return self

    def remove(self, keyed: Union[Map, Tree], key: BytesLike) -> "Batch":
        """Removes a key of a map or tree, if it is there."""
        keyed = _is(keyed, (Map, Tree))
        call(f"batch_{keyed._kind}_remove", self, keyed, *keyed._key(key))
        return self

    def expect(self, keyed: Union[Map, Tree], key: BytesLike, version: Optional[int]) -> "Batch":
        """Carries the batch out only if the value of a key has this version (`get_versioned`); None: if the key is missing.

        Otherwise the batch raises ConflictError, and nothing of it is done. The state before the batch counts.
        """
        keyed = _is(keyed, (Map, Tree))
        if version == 0:
            raise ValueError("a version is at least 1; None stands for a missing key")
        wanted = 0 if version is None else number_of(version, "a version")
        call(f"batch_{keyed._kind}_expect", self, keyed, *keyed._key(key), wanted)
        self._expects = True
        return self

    def clear(self) -> None:
        """Takes all changes out, and all that it expects."""
        call("batch_clear", self)
        self._expects = False

    def __len__(self) -> int:
        return self._lengths()[0]

    def _lengths(self) -> Tuple[int, int]:
        changes, additions = ctypes.c_size_t(), ctypes.c_size_t()
        call("batch_length", self, ctypes.byref(changes), ctypes.byref(additions))
        return changes.value, additions.value

    def _hand_over(self, name: str, *place: Any) -> List[int]:
        _, additions = self._lengths()
        room = (ctypes.c_uint64 * additions)()
        try:
            call(name, self, room, additions, *place)
        except ConflictError as error:
            structure, key = CBytes(), CBytes()
            if call("batch_conflict", self, ctypes.byref(structure), ctypes.byref(key)):
                error.structure, error.key = take(structure).decode(), take(key)
            raise
        self._expects = False
        self.positions = list(room)
        return self.positions

    def commit(self) -> List[int]:
        """Carries it out, durably, and empties it; the positions of its appends and pushes, in order."""
        return self._hand_over("batch_commit")

    def submit(self) -> Tuple[List[int], int]:
        """The same without waiting: positions and ticket."""
        ticket = ctypes.c_uint64()
        positions = self._hand_over("batch_submit", ctypes.byref(ticket))
        return positions, ticket.value

    async def commit_async(self) -> List[int]:
        """The same beside other tasks."""
        # What is expected may have to be read.
        positions, ticket = await in_thread(self.submit) if self._expects else self.submit()
        await self.area.wait_async(ticket)
        return positions

    def __exit__(self, exception: Optional[Type[BaseException]] = None, *_: object) -> None:
        try:
            if exception is None:
                self.commit()
        finally:
            self.close()

    async def __aenter__(self) -> "Batch":
        return self

    async def __aexit__(self, exception: Optional[Type[BaseException]] = None, *_: object) -> None:
        try:
            if exception is None:
                await self.commit_async()
        finally:
            self.close()


def _is(structure: Any, kinds: Any) -> Any:
    if not isinstance(structure, kinds):
        raise TypeError(f"a {type(structure).__name__} is not a structure that this call takes")
    return structure
