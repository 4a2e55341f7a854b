"""Calls that were begun, what became of them, and leases."""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from hicache import _abi
from hicache._errors import Code, Error, NotFound, error_of

if TYPE_CHECKING:
    from hicache._buffers import Parts
    from hicache._store import Store


AnyResult = TypeVar("AnyResult", bound="Result")


class Key(bytes):
    """The name of a page as the node knows it: 32 bytes. Store.names() makes them."""

    def __new__(cls, digest: bytes) -> Key:
        if len(digest) != 32:
            raise error_of(Code.INVALID_ARGUMENT, f"key: {len(digest)} bytes; expected 32")
        return super().__new__(cls, digest)


class Keys(Sequence):
    """Keys of pages, one behind the other in memory: several calls with the same pages name them once."""

    def __init__(self, packed: bytes) -> None:
        self.packed = bytes(packed)

    def __len__(self) -> int:
        return len(self.packed) // 32

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            first, last, step = at.indices(len(self))
            if step == 1:
                return Keys(self.packed[32 * first:32 * last])
            return Keys(b"".join(self[i] for i in range(*at.indices(len(self)))))
        if not -len(self) <= at < len(self):
            raise IndexError("no such key")
        at %= len(self)
        return Key(self.packed[32 * at:32 * at + 32])


class Result:
    """What became of each page of a call. A page that failed raises nothing by itself: check() does."""

    __slots__ = ("_codes", "pages", "prefix", "error")

    def __init__(self, codes: Any, pages: int, prefix: int, error: Error | None) -> None:
        self._codes = codes
        #: How many pages are fine: stored, read, there, pinned or removed.
        self.pages = pages
        #: How many of them come before the first that is not.
        self.prefix = prefix
        #: Of the first page that failed otherwise than by not being there.
        self.error = error

    def __len__(self) -> int:
        return len(self._codes)

    @property
    def codes(self) -> list[int]:
        """A Code for each page, as a number."""
        return list(self._codes)

    @property
    def ok(self) -> list[bool]:
        """For each page, whether it is fine."""
        return [code == 0 for code in self._codes]

    def check(self: AnyResult) -> AnyResult:
        """Raises if a page is not fine. Returns this."""
        if self.error is not None:
            raise self.error
        if self.pages < len(self):
            raise NotFound(Code.NOT_FOUND, f"{len(self) - self.pages} of {len(self)} pages are not there")
        return self

    def __repr__(self) -> str:
        trouble = f", error={str(self.error)!r}" if self.error is not None else ""
        return f"<{type(self).__name__} of {len(self)} pages: {self.pages} fine, the first {self.prefix} of them in a row{trouble}>"


class _Pin:
    """A lease of the library, which lasts until nobody refers to it: neither a Lease nor a view of a page's bytes."""

    def __init__(self, store: Store, handle: int) -> None:
        self.store = store
        self.handle = handle
        store._pins += 1

    def __del__(self) -> None:
        self.store._end_pin(self.handle)


class Lease(Result):
    """Pages that the node keeps as they are. Ends by unpin(), by the end of a `with`, or by its time; as long as a view of its bytes
    is used somewhere, its pages stay pinned, for that time."""

    __slots__ = ("_pin", "_pages", "_bases", "__weakref__")

    def __init__(self, result: Result, pin: _Pin | None) -> None:
        super().__init__(result._codes, result.pages, result.prefix, result.error)
        self._pin = pin
        self._pages: Any = None
        self._bases: dict[int, Any] = {}

    def _described(self) -> Any:
        if self._pin is None:
            if self.pages:
                raise error_of(Code.UNKNOWN_ID, "the lease is over: it was unpinned")
            return (_abi.LeasedPage * len(self))()
        if self._pages is None:
            self._pages = self._pin.store._lease_pages(self._pin.handle, len(self))[0]
        return self._pages

    @property
    def sizes(self) -> list[int]:
        """The bytes of each page; 0 for one that is not pinned."""
        return [page.bytes for page in self._described()]

    @property
    def left(self) -> float:
        """Seconds until the lease ends by its time. Whoever reads in place must not use what it read after that."""
        return self._pin.store._lease_pages(self._pin.handle, 0)[1] / 1000 if self._pin is not None else 0.0

    def __getitem__(self, at: int) -> memoryview:
        """The bytes of a page where they are, to be read: only with pin(…, in_place=True)."""
        page = self._described()[at]
        if not page.bytes:
            raise NotFound(Code.NOT_FOUND, f"page {at} is not pinned")
        if not page.data:
            raise error_of(Code.INVALID_ARGUMENT, "the pages were not pinned to be read in place; expected pin(…, in_place=True)")
        base = self._bases.get(at % len(self))
        if base is None:
            base = (ctypes.c_char * page.bytes).from_address(page.data)
            base._pin = self._pin
            self._bases[at % len(self)] = base
        return memoryview(base).cast("B").toreadonly()

    def __iter__(self) -> Iterator[memoryview]:
        return (self[i] for i in range(len(self)))

    def unpin(self) -> None:
        """Ends the lease, as soon as no view of its bytes is used any more."""
        self._bases.clear()
        self._pages = None
        self._pin = None

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.unpin()

    def __reduce__(self):
        raise TypeError("a Lease cannot be pickled: it is one of this process; pin the pages in the other one")


class Call:
    """A batch that was begun. Wait for it by result(), by `await`, or by Store.poll(). Its buffers are in use until then, even if the
    waiting was cancelled."""

    def __init__(self, store: Store, codes: Any, parts: Parts | None) -> None:
        self._store = store
        self._codes = codes
        self._parts = parts
        # What it copies, kept as long as it may.
        self._offload: Any = None
        self._ticket = 0
        self._completion = _abi.Completion()
        self._is_awaited = False
        self._watchers: list[tuple[asyncio.AbstractEventLoop, asyncio.Future]] = []
        self._result: Result | None = None
        self._failure: Error | None = None

    @property
    def done(self) -> bool:
        """Whether there is a result, or a failure."""
        return self._result is not None or self._failure is not None

    def result(self) -> Any:
        """Waits for the call; returns a Result, or a Lease for pin().

        @raises Error the store was closed first"""
        if not self.done:
            self._store._wait(self)
        if self._failure is not None:
            raise self._failure
        return self._result

    def __await__(self):
        if not self.done:
            yield from self._store._watch(self).__await__()
        return self.result()

    def __reduce__(self):
        raise TypeError("a Call cannot be pickled: it is one of this process")

    # What follows is called by the store.

    def _complete(self, done: _abi.Completion) -> None:
        """Takes what became of it. Once."""
        if self._parts is not None:
            self._parts.release()
            self._parts = None
        error = None
        if done.error.code != 0:
            text = done.error.text.decode(errors="replace")
            error = error_of(done.error.code, text or _abi.library().hc_code_sentence(done.error.code).decode())
        result = Result(self._codes, done.pages, done.prefix, error)
        self._result = self._make_result(result, done)

    def _make_result(self, result: Result, done: _abi.Completion) -> Result:
        return result

    def _fail(self, failure: Error) -> None:
        if self._parts is not None:
            self._parts.release()
            self._parts = None
        self._failure = failure

    def _wake(self, here: asyncio.AbstractEventLoop | None) -> None:
        """Tells those who await it; `here` is the loop whose thread this is."""
        for loop, future in self._watchers:
            if loop is here:
                _end(future)
                continue
            try:
                loop.call_soon_threadsafe(_end, future)
            except RuntimeError:
                pass  # The loop is closed, so nobody awaits any more.
        self._watchers.clear()


class PinCall(Call):
    """A Call whose result is a Lease."""

    def _make_result(self, result: Result, done: _abi.Completion) -> Result:
        lease = Lease(result, _Pin(self._store, done.lease) if done.lease else None)
        self._store._leases.add(lease)
        return lease


class Watch:
    """An event loop that looks for completions, as long as something is awaited there."""

    def __init__(self, loop: asyncio.AbstractEventLoop, event: int, ready: Any) -> None:
        # A descriptor of its own: the library's may be closed before the loop knows.
        self.event = os.dup(event)
        self.count = 0
        loop.add_reader(self.event, ready, loop)

    def end(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.remove_reader(self.event)
        os.close(self.event)


def _end(future: asyncio.Future) -> None:
    if not future.done():
        future.set_result(None)
