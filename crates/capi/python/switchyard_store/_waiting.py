"""Changes that nobody waits for: completions, and how asyncio learns of them."""

import asyncio
import ctypes
import itertools
import weakref
from typing import Any, Callable, ClassVar, Dict, List, Tuple, TypeVar

from ._handle import Child
from ._library import HANDLE, CCompletion, ClosedError, call, error_of, number_of, open_handle

T = TypeVar("T")

#: Completions that are collected at once.
_STEP = 256


class Completions(Child):
    """Tells when tickets are durable: `fileno` can be read (select, epoll, an event loop), `collect` says which.

    asyncio needs none: the methods with `_async` have one for each loop.
    """

    _kind: ClassVar[str] = "completions"

    def __init__(self, area: Any) -> None:
        super().__init__(area, open_handle("completions_open", area))

    def fileno(self) -> int:
        """An eventfd that can be read as long as there is something to collect. Do not read it."""
        descriptor = ctypes.c_int()
        call("completions_descriptor", self, ctypes.byref(descriptor))
        return descriptor.value

    def add(self, ticket: int, tag: int) -> None:
        """Asks to be told when `ticket` is durable, with a number of the caller's."""
        call("completions_add", self, number_of(ticket, "a ticket"), number_of(tag, "a tag"))

    def collect(self) -> List[Tuple[int, int, int]]:
        """What has ended: (tag, ticket, code), where code is 0 if the ticket is durable. Does not wait."""
        room, count = (CCompletion * _STEP)(), ctypes.c_size_t()
        found: List[Tuple[int, int, int]] = []
        while True:
            call("completions_collect", self, room, _STEP, ctypes.byref(count))
            found.extend((it.tag, it.ticket, it.code) for it in room[: count.value])
            if count.value < _STEP:
                return found


class _Bridge:
    """The completions of one area in one loop."""

    def __init__(self, area: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._completions = Completions(area)
        self._waiting: "Dict[int, asyncio.Future[None]]" = {}
        self._tags = itertools.count()
        loop.add_reader(self._completions.fileno(), self._collect)

    def wait(self, ticket: int) -> "asyncio.Future[None]":
        tag, future = next(self._tags), self.loop.create_future()
        self._completions.add(ticket, tag)
        self._waiting[tag] = future
        return future

    def _collect(self) -> None:
        for tag, ticket, code in self._completions.collect():
            future = self._waiting.pop(tag)
            # A task that was cancelled does not wait any more; its change stands.
            if future.done():
                continue
            if code == 0:
                future.set_result(None)
            else:
                future.set_exception(error_of(code, f"ticket {ticket} did not become durable: open the area anew"))

    async def drain(self) -> None:
        """Until all that is waited for has ended."""
        while self._waiting:
            await asyncio.wait(list(self._waiting.values()))

    def close(self) -> None:
        # A loop that is closed has no readers any more.
        if not self.loop.is_closed():
            self.loop.remove_reader(self._completions.fileno())
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(ClosedError(HANDLE, "the area was closed"))
        self._completions.close()


class Bridges:
    """The bridges of an area."""

    def __init__(self, area: Any) -> None:
        self._area = weakref.ref(area)
        self._bridges: Dict[int, _Bridge] = {}

    def here(self) -> _Bridge:
        """That of the running loop."""
        loop = asyncio.get_running_loop()
        found = self._bridges.get(id(loop))
        if found is not None and found.loop is loop:
            return found
        for key, bridge in list(self._bridges.items()):
            if bridge.loop.is_closed():
                self._bridges.pop(key)
                bridge.close()
        made = self._bridges[id(loop)] = _Bridge(self._area(), loop)
        return made

    async def drain(self) -> None:
        found = self._bridges.get(id(asyncio.get_running_loop()))
        if found is not None:
            await found.drain()

    def close(self) -> None:
        while self._bridges:
            self._bridges.popitem()[1].close()


async def in_thread(work: Callable[..., T], *arguments: Any) -> T:
    """Runs what waits for the medium beside the loop."""
    return await asyncio.get_running_loop().run_in_executor(None, work, *arguments)
