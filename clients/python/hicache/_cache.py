"""One rank of hicache in this process: the prefix cache, L1, L2 and L3 of an engine that keeps nothing but the model."""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import json
import os
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hicache import _abi, _tree_abi, ops
from hicache._buffers import _BUFFER_SIMPLE, _get_buffer, _PyBuffer, _release_buffer, wrong
from hicache._calls import Key, Keys
from hicache._errors import Code, Error, error_of
from hicache._store import Timeout, _log, milliseconds

# A thread that waits in the library looks up this often, for signals.
_SLICE_MS = 100
_TIERS = ("L1", "L2")
_caches: weakref.WeakSet[Cache] = weakref.WeakSet()


class Layer(NamedTuple):
    """Where one part of one layer lies in L1: token t of page p at address + p * page_stride + t * token_stride. Page 0 is padding."""

    address: int
    page_stride: int
    token_stride: int


class Info(NamedTuple):
    """A rank as it was opened."""

    rank: int
    ranks: int
    page_size: int
    layers: int
    #: Of each layer: 2 for K and V, 1 for a latent, 2 with an index key.
    parts: int
    is_host_addressable: bool
    #: Of L1 and L2, without padding.
    device_pages: int
    host_pages: int
    #: Of one token in one layer, for each part.
    row_bytes: tuple[int, ...]


class Ready(NamedTuple):
    """A request whose prefetch ended."""

    request: int
    fetched_tokens: int
    device_tokens: int
    host_tokens: int


class Facts(NamedTuple):
    """What all ranks know since a step."""

    #: Whether something is under way, and was when the step began.
    in_flight: bool
    was_in_flight: bool
    ready: list[Ready]
    #: Open requests to be released and matched again: a load failed.
    failed: list[int]


class News(NamedTuple):
    """Something that the engine is told."""

    #: "step": a step would make something known. "failure": `error` says what. "stored", "removed": pages that `tier` can serve from
    #: now on, or no longer. "cleared": nothing is cached any more. "lost": so many news were not taken in time.
    kind: str
    error: Error | None = None
    tier: str = ""
    #: The page before the first one; None at the start of a prompt.
    parent: Key | None = None
    keys: Keys = Keys(b"")
    tokens: memoryview = memoryview(b"").cast("I")
    extra_key: bytes = b""
    salt: bytes = b""
    lost: int = 0


class Answers(list):
    """An answer to each operation: its class is the one that the operation names, or Error."""

    def check(self) -> Answers:
        """Raises the first Error among them. Returns this."""
        for answer in self:
            if isinstance(answer, Error):
                raise answer
        return self


class Cache:
    """One rank, with the tree, L1, L2 and L3. An engine applies the operations of hicache.ops in the turns of its scheduler, and steps.

    With several ranks each process opens one, applies the same operations in the same order, and steps at the same places; one thread
    of each does. Other threads may wait for loads and poll for news.
    """

    def __init__(self, settings: Mapping[str, Any] | None = None, *, layers: Sequence[Layer | tuple[int, int, int]] | None = None,
                 l1_pages: int = 0, events: bool = False, timeout: float | None = 60.0, **more: Any) -> None:
        """Opens a rank. With several ranks it waits until all are there.

        @param settings By the names of the flags of hicache-rank, such as "device-pages"; for several ranks also "rank", "ranks" and
        "rendezvous". Those given by name have _ for -: Cache(device_pages=4096).
        @param layers The engine's own L1, part by part: layers[part * layers + layer]. None: hicache allocates it.
        @param l1_pages How many pages that is, with the padding page.
        @param events Whether poll() tells which pages L1 and L2 can serve.
        @param timeout How long apply() waits for a step of another thread; None is an hour.
        """
        self._handle: Any = None
        self._process = os.getpid()
        self._library = _tree_abi.library()
        self._timeout_ms = milliseconds(timeout)
        # Reentrant, because a finalizer may run anywhere.
        self._changed = threading.Condition(threading.RLock())  # Guards what follows.
        self._users = 0
        self._views = 0
        config = json.dumps({**(settings or {}), **{name.replace("_", "-"): value for name, value in more.items()}})
        options = _tree_abi.Options(ctypes.sizeof(_tree_abi.Options), _log, None, _tree_abi.EVENTS if events else 0, l1_pages)
        if layers is not None:
            options.layers = (_tree_abi.Layer * len(layers))(*(_tree_abi.Layer(*each) for each in layers))
            options.layer_count = len(layers)
        handle, error = ctypes.c_void_p(), _abi.Error()
        _raise_for(self._library.hc_cache_open(config.encode(), options, handle, error), error)
        self._handle = handle.value
        self.info = self._describe()
        _caches.add(self)

    # Turns.

    def apply(self, operations: Sequence[Any], *, timeout: Timeout = ...) -> Answers:
        """Applies operations of hicache.ops in order, and answers each; one that fails does not stop those behind it.

        @raises InvalidArgument an operation cannot be understood; none is applied then
        @raises DeadlineExceeded another thread was in a step all the time; they are applied after it, and their answers lost"""
        packed = _Packed(operations)
        try:
            with self._using() as cache:
                return self._answers(cache, packed, self._timeout_ms if timeout is ... else milliseconds(timeout))
        finally:
            packed.release()

    def do(self, operation: Any) -> Any:
        """Applies one operation. @raises Error it failed"""
        return self.apply([operation]).check()[0]

    def step(self, wait: float = 0.0) -> Facts:
        """Turns what ended meanwhile into facts, the same on every rank.

        @param wait How long to wait for something to end."""
        facts, error = _tree_abi.Facts(ctypes.sizeof(_tree_abi.Facts)), _abi.Error()
        with self._using() as cache:
            _raise_for(self._library.hc_cache_step(cache, milliseconds(wait), facts, error), error)
            ready = [Ready(*(getattr(facts.ready[i], name) for name in Ready._fields)) for i in range(facts.ready_count)]
            return Facts(bool(facts.in_flight), bool(facts.was_in_flight), ready, facts.failed[:facts.failed_count])

    def wait_for_layer(self, progress: Progress, layer: int, stream: int = 0) -> None:
        """Has what is queued on a CUDA stream from now on wait until a layer of a load is in L1. Without a GPU, it waits here.

        @param stream The address of a cudaStream_t."""
        error = _abi.Error()
        with self._using() as cache:
            _raise_for(self._library.hc_cache_wait_for_layer(cache, progress._handle, stream or None, layer, error), error)

    # L1.

    def layer(self, part: int, layer: int) -> Layer:
        """Where a part of a layer lies in L1."""
        where = _tree_abi.Layer()
        if not 0 <= part < self.info.parts or not 0 <= layer < self.info.layers:
            raise wrong(f"layer: part {part} of layer {layer}; expected less than {self.info.parts} and {self.info.layers}")
        with self._using() as cache:
            _raise_for(self._library.hc_cache_layer(cache, part, layer, where))
        return Layer(where.address, where.page_stride, where.token_stride)

    def view(self, part: int, layer: int) -> memoryview:
        """The bytes of a part of a layer in L1: [page, token, byte], page 0 for padding. For the CPU, where hicache allocated L1.
        The cache cannot be closed as long as it is used."""
        where, row_bytes, tokens = self.layer(part, layer), self.info.row_bytes[part], self.info.page_size
        if not self.info.is_host_addressable or where.token_stride != row_bytes or where.page_stride != tokens * row_bytes:
            raise error_of(Code.UNSUPPORTED, "view: L1 is not in host memory, or not one piece for each layer; expected layer()")
        pages = self.info.device_pages + 1
        memory = (ctypes.c_char * (pages * where.page_stride)).from_address(where.address)
        memory._hold = _View(self)
        return memoryview(memory).cast("B").cast("B", (pages, tokens, row_bytes))

    # News.

    def fileno(self) -> int:
        """A descriptor that is readable as long as news wait."""
        with self._using() as cache:
            return self._library.hc_cache_event_fd(cache)

    def poll(self, timeout: float | None = 0.0) -> list[News]:
        """Takes all news, waiting for the first."""
        end = time.monotonic() + milliseconds(timeout) / 1000
        while True:
            left_ms = max(0, round((end - time.monotonic()) * 1000))
            taken = ctypes.c_void_p()
            with self._using() as cache:
                code = self._library.hc_cache_poll(cache, min(left_ms, _SLICE_MS), taken)
            if code == 0:
                break
            if code != Code.DEADLINE_EXCEEDED:
                _raise_for(code)
            if left_ms <= _SLICE_MS:
                return []
        try:
            count = ctypes.c_size_t()
            items = self._library.hc_news_items(taken, count)
            return [_news_of(items[i]) for i in range(count.value)]
        finally:
            self._library.hc_news_free(taken)

    # All in all.

    def stats(self) -> dict[str, int]:
        """What this rank did."""
        counters = _tree_abi.Counters(ctypes.sizeof(_tree_abi.Counters))
        with self._using() as cache:
            _raise_for(self._library.hc_cache_stats(cache, counters))
        return {name: getattr(counters, name) for name in _tree_abi.COUNTER_NAMES}

    def close(self) -> None:
        """Gives the memory back, as soon as no other thread is in a call. Once closed, nothing happens.

        @raises BufferError a view of L1 is used somewhere"""
        if os.getpid() != self._process:
            return
        with self._changed:
            if self._views:
                raise BufferError(f"{self._views} views of L1 are still used")
            handle, self._handle = self._handle, None
            while self._users:
                self._changed.wait()
        if handle is not None:
            _raise_for(self._library.hc_cache_close(handle))

    def __enter__(self) -> Cache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            with contextlib.suppress(BufferError):
                self.close()

    def __reduce__(self):
        raise TypeError("a Cache cannot be pickled: it is one of this process; open one in the other")

    # What follows is this class's own.

    @contextlib.contextmanager
    def _using(self):
        """The library's cache, which is not closed meanwhile."""
        with self._changed:
            if self._handle is None:
                raise error_of(Code.STOPPING, "the cache is closed")
            handle = self._handle
            self._users += 1
        try:
            yield handle
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify_all()

    def _describe(self) -> Info:
        info = _tree_abi.Info(ctypes.sizeof(_tree_abi.Info))
        _raise_for(self._library.hc_cache_describe(self._handle, info))
        return Info(info.rank, info.ranks, info.page_size, info.layers, info.parts, bool(info.is_host_addressable), info.device_pages,
                    info.host_pages, tuple(info.row_bytes[:info.parts]))

    def _answers(self, cache: int, packed: _Packed, timeout_ms: int) -> Answers:
        handle, error = ctypes.c_void_p(), _abi.Error()
        end = time.monotonic() + timeout_ms / 1000
        code = self._library.hc_cache_apply(cache, packed.ops, len(packed.ops), min(timeout_ms, _SLICE_MS), handle, error)
        if not handle:
            _raise_for(code, error)
        owner = _Handle(self._library, handle)
        while code == Code.DEADLINE_EXCEEDED and time.monotonic() < end:
            code = self._library.hc_answers_wait(handle, _SLICE_MS, error)
        _raise_for(code, error)
        items = self._library.hc_answers_items(handle, None)
        return Answers(_answer_of(items[i], owner) for i in range(len(packed.ops)))


class Progress:
    """How far a load is, layer by layer. Any thread."""

    def __init__(self, owner: _Handle, handle: int) -> None:
        self._owner = owner
        self._handle = handle

    @property
    def done(self) -> int:
        """How many layers are in L1, from layer 0. @raises Error the others will not be"""
        layers = ctypes.c_uint32()
        _raise_for(self._owner.library.hc_progress_done(self._handle, layers))
        return layers.value

    def wait(self, layer: int) -> None:
        """Waits until a layer is in L1. @raises Error the load failed"""
        _raise_for(self._owner.library.hc_progress_wait(self._handle, layer))


class _Handle:
    """Answers of the library, which last as long as somebody refers to them."""

    def __init__(self, library: Any, handle: ctypes.c_void_p) -> None:
        self.library = library
        self._handle = handle

    def __del__(self) -> None:
        self.library.hc_answers_free(self._handle)


class _View:
    """A view of L1 that is used somewhere."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        with cache._changed:
            cache._views += 1

    def __del__(self) -> None:
        with self._cache._changed:
            self._cache._views -= 1


class _Packed:
    """Operations as the library takes them, until release()."""

    def __init__(self, operations: Sequence[Any]) -> None:
        self.ops = (_tree_abi.Op * len(operations))()
        self._kept: list[Any] = []
        self._buffers: list[_PyBuffer] = []
        try:
            for i, operation in enumerate(operations):
                try:
                    self._pack(operation, self.ops[i])
                except (Error, TypeError, OverflowError, AttributeError, ctypes.ArgumentError) as trouble:
                    sentence = getattr(trouble, "sentence", trouble)
                    raise wrong(f"operation {i}: {sentence}") from None
        except BaseException:
            self.release()
            raise

    def _pack(self, operation: Any, op: _tree_abi.Op) -> None:
        if type(operation) not in ops.KINDS:
            raise wrong(f"{type(operation).__name__}; expected one of hicache.ops")
        op.kind = ops.KINDS.index(type(operation)) + 1
        op.limit = _tree_abi.NO_LIMIT
        for name, value in vars(operation).items():
            if name == "tokens":
                op.tokens, op.token_count = self._tokens(value)
            elif name in ("extra_key", "salt"):
                self._kept.append(value)
                setattr(op, name, value)
                setattr(op, f"{name}_bytes", len(value))
            elif name == "ttl":
                op.ttl_ms = milliseconds_of(value)
            elif name == "tier":
                if value not in _TIERS:
                    raise wrong(f"tier: {value!r}; expected 'L1' or 'L2'")
                op.tier = _TIERS.index(value)
            elif name in ("chunked", "streaming"):
                op.flags |= (_tree_abi.CHUNKED if name == "chunked" else _tree_abi.STREAMING) if value else 0
            elif value is not None:
                _set_number(op, name, value)
        if type(operation) is ops.Match and operation.limit is None:
            op.limit = max(op.token_count, 1) - 1

    def _tokens(self, tokens: Any) -> tuple[int, int]:
        """Where 32-bit numbers are, and how many."""
        if hasattr(tokens, "data_ptr"):
            if tokens.device.type != "cpu":
                raise wrong("tokens: a tensor that is not in host memory")
            tokens = tokens.numpy()
        try:
            view = memoryview(tokens)
        except TypeError:
            view = None
        if view is None or view.format not in ("i", "I", "l", "L") or view.itemsize != 4 or not view.c_contiguous:
            if isinstance(tokens, (bytes, bytearray, str)):
                raise wrong("tokens: expected numbers, or a buffer of 32-bit numbers")
            tokens = array.array("I", tokens)
        buffer = _PyBuffer()
        _get_buffer(tokens, ctypes.addressof(buffer), _BUFFER_SIMPLE)
        self._buffers.append(buffer)
        return buffer.buf or 0, buffer.len // 4

    def release(self) -> None:
        for buffer in self._buffers:
            _release_buffer(ctypes.addressof(buffer))
        self._buffers.clear()


def milliseconds_of(seconds: float) -> int:
    """A time of any length."""
    if not seconds >= 0:
        raise wrong(f"ttl: {seconds}; expected seconds, 0 or more")
    return min(round(seconds * 1000), 2**64 - 1) if seconds < 1e15 else 2**64 - 1


def _set_number(op: _tree_abi.Op, name: str, value: int) -> None:
    least, most = (-2**31, 2**31 - 1) if name == "priority" else (0, 2**64 - 1)
    if not isinstance(value, int) or not least <= value <= most:
        raise wrong(f"{name}: {value!r}; expected a number from {least} to {most}")
    setattr(op, name, value)


def _raise_for(code: int, error: _abi.Error | None = None) -> None:
    _abi.library().raise_for(code, error)


def _numbers_at(address: int | None, count: int) -> memoryview:
    return memoryview(ctypes.string_at(address, 4 * count) if count else b"").cast("I")


def _answer_of(answer: _tree_abi.Answer, owner: _Handle) -> Any:
    if answer.code != 0:
        return error_of(answer.code, answer.text.decode(errors="replace"))
    made = ops.ANSWERS[answer.kind - 1]
    values = []
    for name in made._fields:
        if name == "l3_tiers":
            use = answer.l3.contents
            values.append(tuple((each.tier.decode(errors="replace"), each.tokens) for each in use.tiers[:use.tier_count]))
            continue
        value = getattr(answer.l3.contents if name.endswith("_estimate_ns") else answer, name)
        if name == "pages":
            value = _numbers_at(value, answer.page_count)
        elif name == "progress":
            value = Progress(owner, value) if value else None
        elif name in ("give_up", "l3_backend"):
            value = value.decode(errors="replace")
        elif name == "is_ready":
            value = bool(value)
        values.append(value)
    return made(*values)


def _news_of(news: _tree_abi.News) -> News:
    return News(
        _tree_abi.NEWS_KINDS[news.kind - 1] if 0 < news.kind <= len(_tree_abi.NEWS_KINDS) else "unknown",
        error_of(news.code, news.text.decode(errors="replace")) if news.code else None,
        _TIERS[news.tier] if news.key_count else "",
        Key(ctypes.string_at(news.parent, 32)) if news.parent else None,
        Keys(ctypes.string_at(news.keys, 32 * news.key_count) if news.key_count else b""),
        _numbers_at(news.tokens, news.token_count),
        ctypes.string_at(news.extra_key, news.extra_key_bytes) if news.extra_key_bytes else b"",
        ctypes.string_at(news.salt, news.salt_bytes) if news.salt_bytes else b"",
        news.lost)


@atexit.register
def _close_all() -> None:
    """Before the interpreter ends, which the library's threads would call for their log otherwise."""
    for cache in list(_caches):
        with contextlib.suppress(BufferError):
            cache.close()
