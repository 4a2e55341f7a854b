"""A client of this host's node."""

from __future__ import annotations

import array
import asyncio
import atexit
import collections
import contextlib
import ctypes
import itertools
import json
import logging
import math
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from types import EllipsisType
from typing import Any

from hicache import _abi
from hicache._buffers import Parts, Pointers, address_of, wrong
from hicache._calls import Call, Key, Keys, Lease, PinCall, Result, Watch
from hicache._errors import Code, Error, error_of

# A key as engines have them, or one that was named already.
KeyLike = bytes | str | Key
# Seconds; None is as long as the library allows, and ... what the store was opened with.
Timeout = float | None | EllipsisType

_LONGEST_MS = 3_600_000
# A thread that waits in the library looks up this often: for signals, and whether the store is being closed.
SLICE_MS = 100
_COMPLETIONS = 64

_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}
_logger = logging.getLogger("hicache")
# Whether this thread is in the log callback, where the library must not be called.
_in_log = threading.local()
# What finalizers had to put off for that reason.
_put_off: collections.deque[Callable[[], None]] = collections.deque()
_stores: weakref.WeakSet[Store] = weakref.WeakSet()


def put_off(final: Callable[[], None]) -> None:
    """Does what a finalizer has to do: later, if the library must not be called now."""
    if getattr(_in_log, "is_active", False):
        _put_off.append(final)
    else:
        final()


@_abi.LOG
def _log(_user: int, level: int, text: bytes) -> None:
    _in_log.is_active = True
    try:
        _logger.log(_LEVELS.get(level, logging.ERROR), "%s", text.decode(errors="replace"))
    finally:
        _in_log.is_active = False


def milliseconds(seconds: float | None) -> int:
    """A time for the library; None is as long as it allows."""
    if seconds is None or seconds >= _LONGEST_MS / 1000:
        return _LONGEST_MS
    if not seconds >= 0:
        raise wrong(f"timeout: {seconds}; expected seconds, 0 or more, or None")
    return math.ceil(seconds * 1000)


class Store:
    """Pages of bytes in the memory of a node, this host's or another one's. Any thread, and any number of them at a time.

    Each call takes a batch. `put` and its like wait and return a Result; `start_put` and its like return a Call, to be awaited or
    asked for its result() later. A page that failed raises nothing: the Result tells, and its check() raises. Times are in seconds.
    """

    def __init__(self, socket: str | os.PathLike[str] | None = None, namespace: str = "", *, address: str | None = None,
                 tls_cert: str | os.PathLike[str] | None = None, tls_key: str | os.PathLike[str] | None = None,
                 tls_ca: str | os.PathLike[str] | None = None, tenant: str | None = None, timeout: float | None = 10.0,
                 threads: int | None = None, calls: int | None = None, lease: float | None = None) -> None:
        """Opens a client. The node need not be there: it is asked with the first call.

        @param socket Where the node of this host listens.
        @param address Instead, where one of another machine listens: HOST:PORT. Pages that are pinned there are copied to this process.
        @param tls_cert This client's certificate, for an address; with its key, and the authority's certificate.
        @param namespace Whatever makes pages differ that have the same key: model, dtype, layout, rank.
        @param tenant Whose share at the node this client counts for.
        @param timeout How long a call may take that does not say otherwise; None is an hour.
        @param threads Batches that are done at a time; 4 if None.
        @param calls Calls that may be open at a time; 1024 if None.
        @param lease How long pages are pinned; as long as the node allows if None.
        """
        self._handle: Any = None
        self._process = os.getpid()
        self._library = _abi.library()
        files = {"tls_cert": tls_cert, "tls_key": tls_key, "tls_ca": tls_ca, "socket": socket}
        settings = {name: None if file is None else os.fspath(file) for name, file in files.items()}
        settings |= {"address": address, "namespace": namespace, "tenant": tenant, "threads": threads, "calls": calls,
                     "lease_ms": None if lease is None else milliseconds(lease)}
        config = json.dumps({name: value for name, value in settings.items() if value is not None})
        self.socket, self.address, self.namespace, self.tenant = settings["socket"], address, namespace, tenant
        #: The one of both that was given.
        self.where = self.socket or address
        self._timeout_ms = milliseconds(timeout)
        # Reentrant, because a finalizer may run anywhere.
        self._changed = threading.Condition(threading.RLock())  # Guards what follows.
        self._users = 0
        self._using = _Using(self)
        self._is_closing = False
        self._pins = 0
        self._numbers = itertools.count(1)
        self._open: dict[int, Call] = {}
        self._watches: dict[asyncio.AbstractEventLoop, Watch] = {}
        self._leases: weakref.WeakSet[Lease] = weakref.WeakSet()
        handle, error = ctypes.c_void_p(), _abi.Error()
        options = _abi.Options(ctypes.sizeof(_abi.Options), _log, None)
        self._library.raise_for(self._library.hc_open(config.encode(), options, handle, error), error)
        self._handle = handle.value
        _stores.add(self)

    # Batches, waiting.

    def put(self, keys: Sequence[KeyLike], pages: Sequence[Any] | Pointers, *, chain: bool = False, parent: KeyLike | None = None,
            timeout: Timeout = ...) -> Result:
        """Stores pages: see start_put()."""
        return self.start_put(keys, pages, chain=chain, parent=parent, timeout=timeout).result()

    def get(self, keys: Sequence[KeyLike], pages: Sequence[Any] | Pointers, *, lease: Lease | None = None,
            timeout: Timeout = ...) -> Result:
        """Reads pages: see start_get()."""
        return self.start_get(keys, pages, lease=lease, timeout=timeout).result()

    def exists(self, keys: Sequence[KeyLike], *, timeout: Timeout = ...) -> Result:
        """Which pages the node has now; `prefix` says how many from the first on. They may go at any time: pin what has to stay."""
        return self.start_exists(keys, timeout=timeout).result()

    def prefetch(self, keys: Sequence[KeyLike], *, chain: bool = False, timeout: Timeout = ...) -> Result:
        """Brings pages of other hosts to the node, and says which are there then: see start_prefetch()."""
        return self.start_prefetch(keys, chain=chain, timeout=timeout).result()

    def pin(self, keys: Sequence[KeyLike], *, chain: bool = False, in_place: bool = False, timeout: Timeout = ...) -> Lease:
        """Keeps pages in the node: see start_pin()."""
        return self.start_pin(keys, chain=chain, in_place=in_place, timeout=timeout).result()

    def remove(self, keys: Sequence[KeyLike], *, timeout: Timeout = ...) -> Result:
        """Removes pages of this namespace from the node. One that is not there counts as removed."""
        return self.start_remove(keys, timeout=timeout).result()

    # Batches, without waiting.

    def start_put(self, keys: Sequence[KeyLike], pages: Sequence[Any] | Pointers, *, chain: bool = False,
                  parent: KeyLike | None = None, timeout: Timeout = ...) -> Call:
        """Stores pages. What is there already is not written again, and counts as stored.

        @param pages For each key its bytes: a buffer, a tensor in host memory, (address, bytes), or a list of those, which are put one
        behind the other; or Pointers for all of them. They must not change until the call is done.
        @param chain Each page follows the one before it: the node evicts no page before those that follow it.
        @param parent The page before the first one.
        """
        packed = self.names(keys).packed
        parents = self._parents(packed, chain, parent)
        return self._start_pages(self._library.hc_put, packed, parents, Parts(pages, len(packed) // 32, False), timeout)

    def start_get(self, keys: Sequence[KeyLike], pages: Sequence[Any] | Pointers, *, lease: Lease | None = None,
                  timeout: Timeout = ...) -> Call:
        """Reads pages into memory, and verifies each. Pages of other hosts are brought to the node first, as long as there is time.

        @param pages As for start_put(), writable, and of the length that was stored. Those of a page that is not fine hold any bytes.
        @param lease Read these pages and no others, without asking the node.
        """
        packed = self.names(keys).packed
        pin = self._pin_of(lease)
        parts = Parts(pages, len(packed) // 32, True)
        call = self._start_pages(self._library.hc_get, packed, bytes(len(packed)), parts, timeout, pin.handle if pin else None)
        return call

    def start_exists(self, keys: Sequence[KeyLike], *, timeout: Timeout = ...) -> Call:
        """As exists()."""
        return self._start_keys(self._library.hc_lookup, keys, timeout)

    def start_prefetch(self, keys: Sequence[KeyLike], *, chain: bool = False, timeout: Timeout = ...) -> Call:
        """As prefetch().

        @param chain No page behind the first one that is missing is of use.
        """
        return self._start_keys(self._library.hc_prefetch, keys, timeout, _abi.CHAIN if chain else 0)

    def start_pin(self, keys: Sequence[KeyLike], *, chain: bool = False, in_place: bool = False, timeout: Timeout = ...) -> PinCall:
        """Keeps pages in the node, after bringing those of other hosts, until the Lease ends.

        @param chain No page behind the first one that is missing is of use.
        @param in_place Verify all bytes, so that they can be read where they are: lease[i].
        """
        flags = (_abi.CHAIN if chain else 0) | (_abi.IN_PLACE if in_place else 0)
        return self._start_keys(self._library.hc_pin, keys, timeout, flags, PinCall)

    def start_remove(self, keys: Sequence[KeyLike], *, timeout: Timeout = ...) -> Call:
        """As remove()."""
        return self._start_keys(self._library.hc_remove, keys, timeout)

    # Others.

    def names(self, keys: Sequence[KeyLike]) -> Keys:
        """The keys that pages with these names have in this namespace. A Key stays what it is."""
        if isinstance(keys, Keys):
            return keys
        if isinstance(keys, (bytes, str)):
            raise wrong("keys: expected a sequence of them, not a single one")
        texts = [key.encode() if isinstance(key, str) else key for key in keys if not isinstance(key, Key)]
        if odd := [text for text in texts if not isinstance(text, bytes)]:
            raise wrong(f"keys: one is a {type(odd[0]).__name__}; expected bytes, str or Key")
        packed = bytearray(32 * max(len(texts), 1))
        lengths = array.array("Q", map(len, texts) if texts else [0])
        with self._using as handle:
            self._library.raise_for(self._library.hc_names(handle, b"".join(texts), address_of(lengths), len(texts), address_of(packed)))
        if len(texts) == len(keys):
            return Keys(bytes(packed[:32 * len(texts)]))
        made = iter([bytes(packed[i:i + 32]) for i in range(0, 32 * len(texts), 32)])
        return Keys(b"".join(key if isinstance(key, Key) else next(made) for key in keys))

    def connect(self, timeout: Timeout = ...) -> None:
        """Connects to the node, for those who want to know early.

        @raises Unreachable, DeadlineExceeded
        """
        error = _abi.Error()
        with self._using as handle:
            self._library.raise_for(self._library.hc_connect(handle, self._milliseconds(timeout), error), error)

    def clear(self, *, evict_first: bool = False, timeout: Timeout = ...) -> int:
        """Withdraws all pages of this namespace from the node.

        @param evict_first They stay, and leave the node's memory before all others until they are used again. For the pages of a model's version that has ended.
        @return how many there were in memory
        """
        pages, error = ctypes.c_uint64(), _abi.Error()
        with self._using as handle:
            self._library.raise_for(self._library.hc_clear(handle, evict_first, self._milliseconds(timeout), pages, error), error)
        return pages.value

    def node_status(self, timeout: Timeout = ...) -> dict[str, int]:
        """How the node is, with the names of hc_node_state."""
        state, error = _abi.NodeState(size=ctypes.sizeof(_abi.NodeState)), _abi.Error()
        with self._using as handle:
            self._library.raise_for(self._library.hc_node_status(handle, self._milliseconds(timeout), state, error), error)
        return {name: getattr(state, name) for name in _abi.NODE_STATE_NAMES}

    def stats(self) -> dict[str, int]:
        """What this client did, with the names of hc_counters."""
        counters = _abi.Counters(size=ctypes.sizeof(_abi.Counters))
        with self._using as handle:
            self._library.raise_for(self._library.hc_stats(handle, counters))
        return {name: getattr(counters, name) for name in _abi.COUNTER_NAMES}

    def fileno(self) -> int:
        """A descriptor that is readable as long as poll() has something to take. It is the store's."""
        with self._using as handle:
            return self._library.hc_event_fd(handle)

    def poll(self, timeout: float | None = 0) -> list[Call]:
        """Calls that are done since somebody looked last, waiting up to that time for the first one. For those who begin calls and
        neither await them nor wait for their result()."""
        end = time.monotonic() + milliseconds(timeout) / 1000
        while True:
            left_ms = max(math.ceil((end - time.monotonic()) * 1000), 0)
            taken = self._take(min(left_ms, SLICE_MS))
            if taken or left_ms == 0:
                return taken

    @property
    def is_closed(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """Ends all leases and calls, and the connection. A call that is open fails, and no memory is used any more when this returns.

        @raises BufferError somebody still has a view of a page in place
        """
        if self._handle is None or os.getpid() != self._process:
            return
        with self._changed:
            for lease in list(self._leases):
                lease.unpin()
            if self._pins and not self._is_closing:
                raise BufferError(f"{self._pins} leases have pages that somebody still reads in place; delete these views first")
            was_closing, self._is_closing = self._is_closing, True
            while self._users or (was_closing and self._handle is not None):
                self._changed.wait()
            if was_closing:
                return
        self._library.hc_close(self._handle)
        with self._changed:
            ended, self._handle = list(self._open.values()), None
            self._open.clear()
            self._changed.notify_all()
            for call in ended:
                call._fail(error_of(Code.STOPPING, "the store was closed before the call was done"))
                call._wake(None)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is None or os.getpid() != self._process:
            return
        warnings.warn(f"a hicache.Store of {self.where} was not closed", ResourceWarning, source=self)
        put_off(self.close)

    def __reduce__(self):
        raise TypeError("a Store cannot be pickled: it is a connection of this process; open one in the other process")

    def __repr__(self) -> str:
        return f"<hicache.Store of {self.where}, namespace {self.namespace!r}{', closed' if self._is_closing else ''}>"

    # What follows is the store's own, and that of its calls and leases.

    def _enter(self) -> int:
        if os.getpid() != self._process:
            raise error_of(Code.FORKED, "the store belongs to the process that this one was forked from; open another one here")
        while _put_off:
            _put_off.popleft()()
        with self._changed:
            if self._is_closing:
                raise error_of(Code.STOPPING, "the store is closed")
            self._users += 1
            return self._handle

    def _leave(self) -> None:
        with self._changed:
            self._users -= 1
            if self._is_closing:
                self._changed.notify_all()

    def _milliseconds(self, timeout: Timeout) -> int:
        return self._timeout_ms if timeout is ... else milliseconds(timeout)

    def _parents(self, packed: bytes, chain: bool, parent: KeyLike | None) -> bytes:
        """Of each of these keys the page before it."""
        first = self.names([parent]).packed if parent is not None else bytes(32)
        return (first + packed[:-32] if chain else first * (len(packed) // 32)) if packed else b""

    @staticmethod
    def _pin_of(lease: Lease | None) -> Any:
        """What a call has to read from, if it has to."""
        pin = lease._pin if lease is not None else None
        if lease is not None and pin is None:
            raise error_of(Code.UNKNOWN_ID, "lease: it is over, or nothing was pinned")
        return pin

    def _start_keys(self, function: Any, keys: Sequence[KeyLike], timeout: Timeout, flags: int = 0, kind: type = Call) -> Any:
        packed = self.names(keys).packed
        call = kind(self, (ctypes.c_int32 * (len(packed) // 32))(), None)
        # The library copies the keys before it returns.
        return self._start(function, bytearray(packed or b"\0"), len(packed) // 32, call, timeout, flags)

    def _start_pages(self, function: Any, packed: bytes, parents: bytes, parts: Parts, timeout: Timeout,
                     lease: int | None = None) -> Call:
        call = Call(self, (ctypes.c_int32 * (len(packed) // 32))(), parts)
        try:
            return self._start(function, parts.pack(packed, parents), len(packed) // 32, call, timeout, 0, lease)
        except BaseException:
            parts.release()
            raise

    def _start(self, function: Any, items: bytearray, count: int, call: Call, timeout: Timeout, flags: int,
               lease: int | None = None) -> Any:
        number = next(self._numbers)
        how = _abi.Call(ctypes.sizeof(_abi.Call), flags, self._milliseconds(timeout), number, ctypes.addressof(call._codes), lease)
        ticket, error = ctypes.c_uint64(), _abi.Error()
        with self._using as handle:
            self._open[number] = call
            code = function(handle, address_of(items), count, how, ticket, error)
            if code == Code.LIMIT_REACHED and self._take(0):  # Of calls for which nobody waits any more.
                code = function(handle, address_of(items), count, how, ticket, error)
            if code != 0:
                del self._open[number]
            else:
                call._ticket = ticket.value
        self._library.raise_for(code, error)
        return call

    def _finish(self, done: _abi.Completion, here: asyncio.AbstractEventLoop | None = None) -> Call | None:
        """A completion was taken: ends its call."""
        with self._changed:
            call = self._open.pop(done.user, None)
            if call is not None:
                call._complete(done)
                call._wake(here)
                self._changed.notify_all()
            return call

    def _take(self, timeout_ms: int, here: asyncio.AbstractEventLoop | None = None) -> list[Call]:
        """Takes completions, whoever waits for them, and ends their calls."""
        completions, count = (_abi.Completion * _COMPLETIONS)(), ctypes.c_size_t()
        with self._using as handle:
            self._library.raise_for(self._library.hc_poll(handle, completions, _COMPLETIONS, timeout_ms, count))
            calls = [self._finish(done, here) for done in completions[:count.value]]
        return [call for call in calls if call is not None]

    def _wait(self, call: Call) -> None:
        """Until the call is done. One thread waits in the library; others wait for it, or for whoever takes the completion."""
        with self._changed:
            is_first, call._is_awaited = not call._is_awaited, True
        try:
            while not call.done:
                if not is_first or self._is_closing or not self._wait_first(call):
                    with self._changed:
                        self._changed.wait_for(lambda: call.done, SLICE_MS / 1000)
        finally:
            if is_first:
                call._is_awaited = False

    def _wait_first(self, call: Call) -> bool:
        """Waits for a while. False if somebody else took the completion, or the store is being closed."""
        try:
            with self._using as handle:
                # It is there already if a signal's handler raised just when it had come.
                code = 0 if call._completion.ticket else self._library.hc_wait(handle, call._ticket, SLICE_MS, call._completion)
                if code == 0:
                    self._finish(call._completion)
        except Error as trouble:
            if trouble.code == Code.STOPPING:
                return False
            raise
        if code not in (Code.OK, Code.DEADLINE_EXCEEDED, Code.UNKNOWN_ID, Code.STOPPING):
            self._library.raise_for(code)
        return code in (Code.OK, Code.DEADLINE_EXCEEDED)

    async def _watch(self, call: Call) -> None:
        """Until the call is done, or the waiting is cancelled."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        with self._changed:
            if call.done:
                return
            if loop not in self._watches:
                self._watches[loop] = Watch(loop, self.fileno(), self._ready)
            watch = self._watches[loop]
            watch.count += 1
            call._watchers.append((loop, future))
        try:
            await future
        finally:
            with self._changed:
                watch.count -= 1
                if watch.count == 0:
                    del self._watches[loop]
                    watch.end(loop)

    def _ready(self, loop: asyncio.AbstractEventLoop) -> None:
        """The loop says that completions wait."""
        with contextlib.suppress(Error):  # It is being closed: then those who await are told.
            self._take(0, loop)

    def _lease_pages(self, handle: int, count: int) -> tuple[Any, int]:
        """Pages of a lease that is not unpinned, and how long it still lasts."""
        pages, left_ms = (_abi.LeasedPage * max(count, 1))(), ctypes.c_uint32()
        with self._using:
            self._library.raise_for(self._library.hc_lease_pages(handle, 0, count, pages, left_ms))
        return pages, left_ms.value

    def _end_pin(self, handle: int) -> None:
        """Nobody refers to a lease any more. Called by a finalizer, so anywhere."""
        if os.getpid() != self._process:
            return
        put_off(lambda: self._unpin(handle))

    def _unpin(self, handle: int) -> None:
        self._library.hc_unpin(handle)
        with self._changed:
            self._pins -= 1


class _Using:
    """The library's client, which is not closed meanwhile. Any number of times at once."""

    def __init__(self, store: Store) -> None:
        self._store = weakref.proxy(store)

    def __enter__(self) -> int:
        return self._store._enter()

    def __exit__(self, *_: object) -> None:
        self._store._leave()


@atexit.register
def _close_all() -> None:
    """Before the interpreter ends, which the library's threads would call for their log otherwise."""
    for store in list(_stores):
        with contextlib.suppress(BufferError):
            store.close()
