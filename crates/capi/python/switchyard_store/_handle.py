"""What all objects have in common: a handle of the C library, and its end."""

import weakref
from typing import Any, ClassVar, Optional, Type, TypeVar

from ._library import HANDLE, ClosedError, call, close_quietly, name_of, number, open_handle

T = TypeVar("T", bound="Handle")


class Handle:
    """Closed by `close`, at the end of `with`, and with the object. Any thread may use it."""

    _kind: ClassVar[str] = ""
    _is_open = False

    def __init__(self, handle: int) -> None:
        # ctypes hands this over. It stays after the end: the library knows that it is closed, and says so.
        self._as_parameter_ = handle
        self._is_open = True

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return not self._is_open

    def close(self) -> None:
        """Ends it. A second time does nothing."""
        was_open, self._is_open = self._is_open, False
        if was_open:
            call(f"{self._kind}_close", self)

    def __enter__(self: T) -> T:
        return self

    def __exit__(self, exception: Optional[Type[BaseException]] = None, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        was_open, self._is_open = self._is_open, False
        # At the end of the interpreter the functions may be gone.
        if was_open and close_quietly is not None:
            close_quietly(self._kind, self._as_parameter_)

    def __eq__(self, other: object) -> bool:
        # Not by content, as mappings are: two structures are the same if they are one.
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __reduce__(self) -> Any:
        raise TypeError(f"the {self._kind} belongs to the process that opened it, and cannot be pickled")

    def __repr__(self) -> str:
        state = "" if self._is_open else " closed"
        return f"<switchyard_store.{type(self).__name__}{state}>"


class Parent(Handle):
    """An area: closing it closes all that was opened of it, so that its file is free."""

    def __init__(self, handle: int) -> None:
        super().__init__(handle)
        # By id. Copies of it are one step of the interpreter, so it needs no lock that a fork could find taken.
        self._children: "weakref.WeakValueDictionary[int, Handle]" = weakref.WeakValueDictionary()

    def _open_structure(self, cls: Type[Any], name: str, lazy: bool, existing: bool) -> Any:
        flags = (1 if lazy else 0) | (2 if existing else 0)
        handle = open_handle(f"{cls._kind}_open", self, name_of(name), flags)
        return self._adopt(cls(self, handle, name))

    def _adopt(self, child: Any) -> Any:
        self._children[id(child)] = child
        # Another thread may have closed the area since: it sees the child, or this sees the end.
        if not self._is_open:
            child.close()
            raise ClosedError(HANDLE, f"the {self._kind} is closed")
        return child

    def close(self) -> None:
        try:
            super().close()
        finally:
            for reference in self._children.valuerefs():
                child = reference()
                if child is not None:
                    child.close()


class Child(Handle):
    """A part of an area."""

    def __init__(self, area: Any, handle: int) -> None:
        super().__init__(handle)
        #: The area.
        self.area = area


class Structure(Child):
    """A log, queue, map or tree."""

    def __init__(self, area: Any, handle: int, name: str) -> None:
        super().__init__(area, handle)
        self.name = name

    def __len__(self) -> int:
        return number(f"{self._kind}_length", self)

    def __repr__(self) -> str:
        state = "" if self._is_open else " closed"
        return f"<switchyard_store.{type(self).__name__} {self.name!r}{state}>"
