"""Switchyard's storage areas: a log, a queue and a map that are durable when a call returns.

    with Area("app.area", create_bytes=256 << 20) as area:
        jobs, done = area.queue("jobs"), area.map("done")
        jobs.push(b"a job")
        for position, job in jobs:
            done[job] = b"yes"
            jobs.acknowledge(position)

The library is found beside this file, on the loader's path, or where SWITCHYARD_STORE says.
"""

import ctypes
import os
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint64, c_void_p


class StoreError(Exception):
    """An operation failed; `code` is a SWY_ constant of switchyard_store.h."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


def _load():
    name = "libswitchyard_store.so"
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    path = os.environ.get("SWITCHYARD_STORE") or (beside if os.path.exists(beside) else name)
    library = ctypes.CDLL(path)
    library.swy_error.restype = c_char_p
    calls = {
        "swy_area_open": [c_char_p, c_uint64, c_void_p],
        "swy_area_open_in_catalog": [c_char_p, c_char_p, c_uint64, c_void_p],
        "swy_area_sync": [c_void_p],
        "swy_log_append": [c_void_p, c_char_p, c_size_t, c_void_p],
        "swy_log_read": [c_void_p, c_uint64, c_void_p, c_void_p],
        "swy_log_trim": [c_void_p, c_uint64],
        "swy_log_positions": [c_void_p, c_void_p, c_void_p],
        "swy_queue_push": [c_void_p, c_char_p, c_size_t, c_void_p],
        "swy_queue_pop": [c_void_p, c_void_p, c_void_p, c_void_p],
        "swy_queue_acknowledge": [c_void_p, c_uint64],
        "swy_queue_give_up": [c_void_p, c_uint64],
        "swy_queue_length": [c_void_p, c_void_p],
        "swy_map_put": [c_void_p, c_char_p, c_size_t, c_char_p, c_size_t],
        "swy_map_get": [c_void_p, c_char_p, c_size_t, c_void_p, c_void_p],
        "swy_map_remove": [c_void_p, c_char_p, c_size_t],
        "swy_map_length": [c_void_p, c_void_p],
    }
    for kind in ("log", "queue", "map"):
        calls[f"swy_{kind}_open"] = [c_void_p, c_char_p, c_void_p]
    for name, arguments in calls.items():
        call = getattr(library, name)
        call.restype, call.argtypes = c_int, arguments
    for name in ("area", "log", "queue", "map"):
        call = getattr(library, f"swy_{name}_close")
        call.restype, call.argtypes = None, [c_void_p]
    library.swy_free.restype, library.swy_free.argtypes = None, [c_void_p, c_size_t]
    return library


_library = _load()


def _call(name, *arguments):
    """True for SWY_OK, False for SWY_NONE."""
    code = getattr(_library, name)(*arguments)
    if code < 0:
        raise StoreError(code, _library.swy_error().decode("utf-8", "replace"))
    return code == 0


def _take(data, length):
    try:
        return ctypes.string_at(data.value, length.value) if length.value else b""
    finally:
        _library.swy_free(data, length)


class _Handle:
    _kind = ""

    def __init__(self, handle):
        self._handle = handle

    @property
    def _as_parameter_(self):
        if not self._handle:
            raise ValueError("it is closed")
        return self._handle

    def close(self):
        handle, self._handle = self._handle, None
        if handle:
            getattr(_library, f"swy_{self._kind}_close")(handle)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        self.close()


class Area(_Handle):
    """The area in a file or block device; a missing file becomes one of `create_bytes`."""

    _kind = "area"
    _handle = None

    def __init__(self, path, create_bytes=0):
        handle = c_void_p()
        _call("swy_area_open", os.fsencode(path), create_bytes, byref(handle))
        super().__init__(handle)

    @classmethod
    def in_catalog(cls, name, create_bytes=0, socket=None):
        """The area that `switchyard areas serve` calls `name`; one that it does not have becomes one of `create_bytes`."""
        handle = c_void_p()
        where = None if socket is None else os.fsencode(socket)
        _call("swy_area_open_in_catalog", where, name.encode(), create_bytes, byref(handle))
        area = cls.__new__(cls)
        _Handle.__init__(area, handle)
        return area

    def sync(self):
        _call("swy_area_sync", self)

    def _open(self, cls, name):
        handle = c_void_p()
        _call(f"swy_{cls._kind}_open", self, name.encode(), byref(handle))
        return cls(handle)

    def log(self, name):
        return self._open(Log, name)

    def queue(self, name):
        return self._open(Queue, name)

    def map(self, name):
        return self._open(Map, name)


class Log(_Handle):
    """Append, read by position, trim from the front."""

    _kind = "log"

    def append(self, data):
        position = c_uint64()
        _call("swy_log_append", self, data, len(data), byref(position))
        return position.value

    def read(self, position):
        """The entry, or None."""
        data, length = c_void_p(), c_size_t()
        found = _call("swy_log_read", self, position, byref(data), byref(length))
        return _take(data, length) if found else None

    def trim(self, floor):
        _call("swy_log_trim", self, floor)

    def positions(self):
        first, after = c_uint64(), c_uint64()
        _call("swy_log_positions", self, byref(first), byref(after))
        return range(first.value, after.value)

    def __iter__(self):
        for position in self.positions():
            data = self.read(position)
            if data is not None:
                yield position, data


class Queue(_Handle):
    """Each entry is handed out until it is acknowledged; after a crash, again."""

    _kind = "queue"

    def push(self, data):
        position = c_uint64()
        _call("swy_queue_push", self, data, len(data), byref(position))
        return position.value

    def pop(self):
        """(position, data), or None."""
        position, data, length = c_uint64(), c_void_p(), c_size_t()
        found = _call("swy_queue_pop", self, byref(position), byref(data), byref(length))
        return (position.value, _take(data, length)) if found else None

    def acknowledge(self, position):
        _call("swy_queue_acknowledge", self, position)

    def give_up(self, position):
        return _call("swy_queue_give_up", self, position)

    def __iter__(self):
        return iter(self.pop, None)

    def __len__(self):
        entries = c_uint64()
        _call("swy_queue_length", self, byref(entries))
        return entries.value


class Map(_Handle):
    """Keys and values are bytes."""

    _kind = "map"

    def __setitem__(self, key, data):
        _call("swy_map_put", self, key, len(key), data, len(data))

    def get(self, key, default=None):
        data, length = c_void_p(), c_size_t()
        found = _call("swy_map_get", self, key, len(key), byref(data), byref(length))
        return _take(data, length) if found else default

    def __getitem__(self, key):
        data = self.get(key)
        if data is None:
            raise KeyError(key)
        return data

    def __delitem__(self, key):
        self[key]
        _call("swy_map_remove", self, key, len(key))

    def __contains__(self, key):
        return self.get(key) is not None

    def __len__(self):
        entries = c_uint64()
        _call("swy_map_length", self, byref(entries))
        return entries.value
