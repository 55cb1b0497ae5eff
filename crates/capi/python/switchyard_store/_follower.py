"""Followers: areas of other processes, read-only."""

import builtins
import ctypes
from typing import Any, ClassVar, Iterable, Iterator, List, NamedTuple, Optional, Tuple, Type, TypeVar

from ._area import Cursor, Path, StructureInfo, bounds_of, listed, range_flags
from ._handle import Handle
from ._library import (
    KEYS_ONLY,
    BytesLike,
    CFollowerOptions,
    CMoment,
    CSlice,
    call,
    data_of,
    name_of,
    number_of,
    open_handle,
    path_of,
    positions,
    value,
    values,
)
from ._waiting import in_thread

F = TypeVar("F", bound="Follower")

STEADY, UNFLUSHED, UNCACHED = 1, 2, 4


class Moment(NamedTuple):
    """The state of an area after a record. Later moments are greater."""

    epoch: int
    record: int


def _options(steady: bool, flushes: bool, cache_bytes_max: Optional[int]) -> CFollowerOptions:
    return CFollowerOptions(
        ctypes.sizeof(CFollowerOptions),
        0 if cache_bytes_max is None else number_of(cache_bytes_max, "cache_bytes_max"),
        (STEADY if steady else 0)
        | (0 if flushes else UNFLUSHED)
        | (UNCACHED if cache_bytes_max == 0 else 0),
        0,
    )


class Follower(Handle):
    """The area in a file or block device that another process has open: read-only.

    It shows one moment; `refresh` goes to the newest one that is durable. If a moment is gone, as its owner has used its space
    anew, a read refreshes by itself. A `steady` follower raises GoneError instead, so all reads between two refreshes are of one
    moment. Structures are named in each call.
    """

    _kind: ClassVar[str] = "follower"

    def __init__(
        self,
        path: Path,
        *,
        steady: bool = False,
        flushes: bool = True,
        cache_bytes_max: Optional[int] = None,
    ) -> None:
        options = _options(steady, flushes, cache_bytes_max)
        super().__init__(open_handle("follower_open", path_of(path), ctypes.byref(options)))

    @classmethod
    def in_catalog(
        cls: Type[F],
        name: str,
        *,
        socket: Optional[Path] = None,
        steady: bool = False,
        flushes: bool = True,
        cache_bytes_max: Optional[int] = None,
    ) -> F:
        """The area, or export, that `switchyard areas serve` calls `name`."""
        options = _options(steady, flushes, cache_bytes_max)
        where = None if socket is None else path_of(socket)
        follower = cls.__new__(cls)
        opened = open_handle("follower_open_in_catalog", where, name_of(name), ctypes.byref(options))
        Handle.__init__(follower, opened)
        return follower

    def _moment(self, name: str) -> Moment:
        found = CMoment(ctypes.sizeof(CMoment))
        call(name, self, ctypes.byref(found))
        return Moment(found.epoch, found.record)

    def refresh(self) -> Moment:
        """Shows what is durable now."""
        return self._moment("follower_refresh")

    async def refresh_async(self) -> Moment:
        """The same beside other tasks."""
        return await in_thread(self.refresh)

    @property
    def moment(self) -> Moment:
        """The moment that it shows."""
        return self._moment("follower_moment")

    def structures(self) -> List[StructureInfo]:
        """All structures, in the order in which they were made."""
        return listed(open_handle("follower_listing_open", self))

    def get(self, name: str, key: BytesLike) -> Optional[bytes]:
        """The value of a key of a map or tree, or None."""
        key = data_of(key, "a key")
        return value("follower_get", self, name_of(name), key, len(key))

    def get_many(self, name: str, keys: Iterable[BytesLike]) -> List[Optional[bytes]]:
        """The values of some keys, in their order, of one moment."""
        whole = [data_of(key, "a key") for key in keys]
        asked = [CSlice(key, len(key)) for key in whole]
        return values("follower_get_many", self, name_of(name), asked=asked)

    def read(self, name: str, position: int) -> Optional[bytes]:
        """The entry at a position of a log or queue, or None. Nothing is popped."""
        return value("follower_read", self, name_of(name), number_of(position, "a position"))

    def positions(self, name: str) -> builtins.range:
        """From the first position of a log or queue that is there to the one that comes next."""
        return positions("follower_positions", self, name_of(name))

    def range(
        self,
        name: str,
        start: Optional[BytesLike] = None,
        stop: Optional[BytesLike] = None,
        *,
        after: bool = False,
        through: bool = False,
        keys_only: bool = False,
        reverse: bool = False,
    ) -> Iterator[Tuple[bytes, bytes]]:
        """Entries of a tree, as `Tree.range`; without bounds those of a map, too, which has no `reverse`."""
        bounds: Any = bounds_of(start, stop, after, through, range_flags(keys_only, reverse))
        return Cursor(open_handle("follower_cursor_open", self, name_of(name), ctypes.byref(bounds))).entries()

    def keys(self, name: str) -> Iterator[bytes]:
        """The keys of a map or tree, in order."""
        bounds: Any = bounds_of(None, None, False, False, KEYS_ONLY)
        cursor = Cursor(open_handle("follower_cursor_open", self, name_of(name), ctypes.byref(bounds)))
        return (key for key, _ in cursor.entries())
