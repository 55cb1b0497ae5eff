"""The C library by ctypes, its errors, and what values may be handed to it.

ctypes needs neither a compiler nor a version of Python, so one wheel suits all of them. A call costs about a microsecond, a
durable change tens of them; ctypes lets other threads run meanwhile.
"""

import ctypes
import os
import pathlib
from ctypes import POINTER, Structure, c_char_p, c_int, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any, Dict, List, Optional, Type, Union

SONAME = "libswitchyard_store.so.0"
BytesLike = Union[bytes, bytearray, memoryview]
U64_MAX = 2**64 - 1

UNBOUNDED, INCLUDED, EXCLUDED = 0, 1, 2
LAZY, EXISTING = 1, 2
KEYS_ONLY, REVERSE = 1, 2


class StoreError(Exception):
    """An operation failed; `code` is a number of enum swy_code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code

    def __reduce__(self) -> Any:
        return type(self), (self.code, str(self))


class InvalidError(StoreError, ValueError):
    """An argument is not what the call takes."""


class FullError(StoreError):
    """No room: of the area, its index, the disk or a quota; or too many snapshots. Nothing was done."""


class FailedError(StoreError):
    """A write failed: the area takes nothing more. Open it anew to see what is there."""


class DamagedError(StoreError):
    """A checksum does not match, or data were lost to damage."""


class UnusableError(StoreError):
    """The area cannot be opened, or the medium cannot be read."""


class ClosedError(StoreError):
    """The object, or its area, is closed."""


class ForkedError(StoreError):
    """The object belongs to the process that this one was forked from."""


class KindError(StoreError):
    """The name belongs to a structure of another kind."""


class TooLargeError(StoreError, ValueError):
    """A name, key, value or batch is too long. Nothing was done."""


class MissingError(StoreError, LookupError):
    """There is no such file, area or structure; or the structure was dropped."""


class BusyError(StoreError):
    """Another process has the area."""


class DeniedError(StoreError):
    """The system or the server of areas forbids it."""


class ResourceError(StoreError):
    """The system refuses memory, a thread or a descriptor."""


class GoneError(StoreError):
    """The moment that a steady follower showed is gone: refresh it."""


class EndedError(StoreError):
    """The snapshot has ended, as the area needed the memory or space that it kept: take another one."""


class ConflictError(StoreError):
    """A key is not as the batch expects. Nothing was done."""

    def __init__(self, code: int, text: str, structure: str = "", key: bytes = b"") -> None:
        super().__init__(code, text)
        #: Name of the map or tree.
        self.structure = structure
        self.key = key

    def __reduce__(self) -> Any:
        return type(self), (self.code, str(self), self.structure, self.key)


HANDLE = -6
_ERRORS: Dict[int, Type[StoreError]] = {
    -1: InvalidError,
    -2: FullError,
    -3: FailedError,
    -4: DamagedError,
    -5: UnusableError,
    HANDLE: ClosedError,
    -7: ForkedError,
    -8: KindError,
    -9: TooLargeError,
    -10: MissingError,
    -11: BusyError,
    -12: DeniedError,
    -13: ResourceError,
    -14: GoneError,
    -15: ConflictError,
    -16: EndedError,
}


class CBytes(Structure):
    _fields_ = [("data", c_void_p), ("length", c_size_t)]


class CSlice(Structure):
    _fields_ = [("data", c_char_p), ("length", c_size_t)]


class CAreaOptions(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("create_bytes", c_uint64),
        ("index_bytes_max", c_uint64),
        ("cache_bytes_max", c_uint64),
        ("writes_in_flight_max", c_uint32),
        ("flags", c_uint32),
    ]


class CFollowerOptions(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("cache_bytes_max", c_uint64),
        ("flags", c_uint32),
        ("reserved", c_uint32),
    ]


class CMoment(Structure):
    _fields_ = [("size", c_size_t), ("epoch", c_uint64), ("record", c_uint64)]


class CRange(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("start", c_char_p),
        ("start_length", c_size_t),
        ("stop", c_char_p),
        ("stop_length", c_size_t),
        ("start_bound", c_uint32),
        ("stop_bound", c_uint32),
        ("flags", c_uint64),
    ]


class CStructure(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("entries", c_uint64),
        ("number", c_uint32),
        ("kind", c_uint32),
        ("is_lazy", c_uint32),
        ("name_length", c_uint32),
        ("name", ctypes.c_char * 72),
    ]


STATS = (
    "records record_bytes entries moved_bytes cleaned_segments checkpoints live_bytes live_bytes_max index_bytes "
    "free_segments read_errors damaged_at batch_bytes_max opened replayed_records is_torn "
    "snapshots snapshot_bytes snapshots_ended tables_damaged table_damaged_at"
).split()


class CStats(Structure):
    _fields_ = [("size", c_size_t), *((name, c_uint64) for name in STATS)]


class CCompletion(Structure):
    _fields_ = [("tag", c_uint64), ("ticket", c_uint64), ("code", c_int32), ("reserved", c_uint32)]


def _signatures() -> Dict[str, List[Any]]:
    handle, out = c_void_p, c_void_p
    bytes_out, number_out = POINTER(CBytes), POINTER(c_uint64)
    data = [c_char_p, c_size_t]
    options = POINTER(CAreaOptions)
    calls: Dict[str, List[Any]] = {
        "area_open": [c_char_p, options, out],
        "area_open_in_catalog": [c_char_p, c_char_p, options, out],
        "area_open_memory": [options, out],
        "area_format": [c_char_p, options],
        "area_sync": [handle],
        "area_grow": [handle, c_uint64, number_out],
        "area_durable": [handle, number_out],
        "area_wait": [handle, c_uint64],
        "area_stats": [handle, POINTER(CStats)],
        "area_drop": [handle, c_char_p],
        "area_warning": [handle, POINTER(c_char_p)],
        "follower_open": [c_char_p, POINTER(CFollowerOptions), out],
        "follower_open_in_catalog": [c_char_p, c_char_p, POINTER(CFollowerOptions), out],
        "follower_refresh": [handle, POINTER(CMoment)],
        "follower_moment": [handle, POINTER(CMoment)],
        "follower_get": [handle, c_char_p, *data, bytes_out],
        "follower_get_many": [handle, c_char_p, POINTER(CSlice), c_size_t, POINTER(CBytes)],
        "follower_read": [handle, c_char_p, c_uint64, bytes_out],
        "follower_positions": [handle, c_char_p, number_out, number_out],
        "follower_listing_open": [handle, out],
        "follower_cursor_open": [handle, c_char_p, POINTER(CRange), out],
        "listing_open": [handle, out],
        "listing_next": [handle, POINTER(CStructure)],
        "log_append": [handle, *data, number_out],
        "log_append_async": [handle, *data, number_out, number_out],
        "log_read": [handle, c_uint64, bytes_out],
        "log_trim": [handle, c_uint64],
        "log_positions": [handle, number_out, number_out],
        "queue_push": [handle, *data, number_out],
        "queue_push_async": [handle, *data, number_out, number_out],
        "queue_pop": [handle, number_out, bytes_out],
        "queue_acknowledge": [handle, c_uint64],
        "queue_acknowledge_async": [handle, c_uint64, number_out],
        "queue_give_up": [handle, c_uint64],
        "queue_read": [handle, c_uint64, bytes_out],
        "queue_positions": [handle, number_out, number_out],
        "tree_cursor_open": [handle, POINTER(CRange), out],
        "map_cursor_open": [handle, c_uint32, out],
        "cursor_next": [handle, bytes_out, bytes_out],
        "snapshot_open": [handle, out],
        "snapshot_map_cursor_open": [handle, handle, c_uint32, out],
        "snapshot_tree_cursor_open": [handle, handle, POINTER(CRange), out],
        "snapshot_log_positions": [handle, handle, number_out, number_out],
        "snapshot_queue_positions": [handle, handle, number_out, number_out],
        "batch_open": [handle, out],
        "batch_append": [handle, handle, *data],
        "batch_trim": [handle, handle, c_uint64],
        "batch_push": [handle, handle, *data],
        "batch_acknowledge": [handle, handle, c_uint64],
        "batch_conflict": [handle, bytes_out, bytes_out],
        "batch_length": [handle, POINTER(c_size_t), POINTER(c_size_t)],
        "batch_clear": [handle],
        "batch_commit": [handle, number_out, c_size_t],
        "batch_submit": [handle, number_out, c_size_t, number_out],
        "completions_open": [handle, out],
        "completions_descriptor": [handle, POINTER(c_int)],
        "completions_add": [handle, c_uint64, c_uint64],
        "completions_collect": [handle, POINTER(CCompletion), c_size_t, POINTER(c_size_t)],
    }
    for kind in ("map", "tree"):
        calls[f"{kind}_put"] = [handle, *data, *data]
        calls[f"{kind}_put_async"] = [handle, *data, *data, number_out]
        calls[f"{kind}_get"] = [handle, *data, bytes_out]
        calls[f"{kind}_get_versioned"] = [handle, *data, bytes_out, number_out]
        calls[f"{kind}_get_many"] = [handle, POINTER(CSlice), c_size_t, POINTER(CBytes)]
        calls[f"snapshot_{kind}_get"] = [handle, handle, *data, bytes_out]
        calls[f"snapshot_{kind}_get_many"] = [handle, handle, POINTER(CSlice), c_size_t, POINTER(CBytes)]
        calls[f"{kind}_remove"] = [handle, *data]
        calls[f"{kind}_remove_async"] = [handle, *data, number_out]
        calls[f"batch_{kind}_put"] = [handle, handle, *data, *data]
        calls[f"batch_{kind}_remove"] = [handle, handle, *data]
        calls[f"batch_{kind}_expect"] = [handle, handle, *data, c_uint64]
    structures = ("log", "queue", "map", "tree")
    for kind in structures:
        calls[f"{kind}_open"] = [handle, c_char_p, c_uint32, out]
        calls[f"{kind}_length"] = [handle, number_out]
    for kind in (*structures, "area", "batch", "completions", "cursor", "follower", "listing", "snapshot"):
        calls[f"{kind}_close"] = [handle]
    return calls


def _candidates() -> List[str]:
    """$SWITCHYARD_STORE alone; else beside this file (a wheel), PREFIX/lib (`make install`), the loader's path."""
    asked = os.environ.get("SWITCHYARD_STORE")
    if asked:
        return [asked]
    here = pathlib.Path(__file__).resolve()
    near = [here.parent / SONAME, *(parent / SONAME for parent in list(here.parents)[2:5])]
    return [*(str(path) for path in near if path.exists()), SONAME]


def _load() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(_candidates()[0])
    except OSError as error:
        told = f"{error}: install the library by `make install` or a wheel, or name its file in SWITCHYARD_STORE"
        raise ImportError(told) from error
    for name, arguments in _signatures().items():
        call = getattr(library, f"swy_{name}")
        call.restype, call.argtypes = c_int, arguments
    library.swy_bytes_free.restype, library.swy_bytes_free.argtypes = None, [POINTER(CBytes)]
    for name in ("error", "version"):
        getattr(library, f"swy_{name}").restype = c_char_p
    return library


_library = _load()


def version() -> str:
    """The version of the C library."""
    text: bytes = _library.swy_version()
    return text.decode()


def call(name: str, *arguments: Any) -> bool:
    """True for SWY_OK, False for SWY_NONE."""
    code: int = getattr(_library, f"swy_{name}")(*arguments)
    if code < 0:
        raise error_of(code, _library.swy_error().decode("utf-8", "replace"))
    return code == 0


def error_of(code: int, text: str) -> StoreError:
    return _ERRORS.get(code, StoreError)(code, text)


def close_quietly(kind: str, handle: int) -> None:
    """For __del__, which has nobody to tell."""
    getattr(_library, f"swy_{kind}_close")(handle)


def take(found: CBytes) -> bytes:
    """The bytes of a call, which are freed."""
    try:
        return ctypes.string_at(found.data, found.length) if found.length else b""
    finally:
        _library.swy_bytes_free(ctypes.byref(found))


def lent(found: CBytes) -> bytes:
    """A copy of bytes that a cursor lends."""
    return ctypes.string_at(found.data, found.length) if found.length else b""


def data_of(value: BytesLike, what: str) -> bytes:
    """Bytes for the library. Text has more than one form as bytes, so it is refused."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"{what} is bytes, not {type(value).__name__}")


def name_of(value: str) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"a name is str, not {type(value).__name__}")
    if "\0" in value:
        raise ValueError("a name has no zero characters")
    return value.encode()


def path_of(value: Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]) -> bytes:
    path = os.fsencode(value)
    if b"\0" in path:
        raise ValueError("a path has no zero characters")
    return path


def number_of(value: int, what: str, maximum: int = U64_MAX) -> int:
    """A number that the library takes: ctypes would cut others without a word."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} is int, not {type(value).__name__}")
    if not 0 <= value <= maximum:
        raise ValueError(f"{what} is 0 to {maximum}, not {value}")
    return value


def open_handle(name: str, *arguments: Any) -> int:
    handle = c_void_p()
    call(name, *arguments, ctypes.byref(handle))
    assert handle.value is not None, "a call that succeeds gives a handle"
    return handle.value


def number(name: str, *arguments: Any) -> int:
    """The number that a call gives as its last argument."""
    found = c_uint64()
    call(name, *arguments, ctypes.byref(found))
    return found.value


def value(name: str, *arguments: Any) -> Optional[bytes]:
    """The bytes that a call gives as its last argument, if there are any."""
    found = CBytes()
    return take(found) if call(name, *arguments, ctypes.byref(found)) else None


def values(name: str, *arguments: Any, asked: List[CSlice]) -> List[Optional[bytes]]:
    """The bytes that a call gives for each of the keys that its last arguments ask for."""
    found = (CBytes * len(asked))()
    call(name, *arguments, (CSlice * len(asked))(*asked), len(asked), found)
    return [None if it.data is None else take(it) for it in found]


def positions(name: str, *arguments: Any) -> range:
    """The first position and the next one, as a call gives them as its last arguments."""
    first, after = c_uint64(), c_uint64()
    call(name, *arguments, ctypes.byref(first), ctypes.byref(after))
    return range(first.value, after.value)
