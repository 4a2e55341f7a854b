"""LMCache with a hicache-node below it.

`NativeClient` is for `lmcache server`, as the connector of an L2 adapter:

    --l2-adapter '{"type": "native_plugin", "module_path": "hicache.lmcache", "class_name": "NativeClient",
      "adapter_params": {"socket": "/run/hicache/node", "model_id": "content:6d1f… bfloat16", "base_requests_only": true}}'

`HicacheConnectorAdapter` is for LMCache inside of an engine, as a remote storage:

    remote_storage_plugins: ["hicache"]
    extra_config:
      remote_storage_plugin.hicache.module_path: hicache.lmcache
      remote_storage_plugin.hicache.class_name: HicacheConnectorAdapter
      remote_storage_plugin.hicache.socket: /run/hicache/node
      remote_storage_plugin.hicache.model_id: content:6d1f…
      remote_storage_plugin.hicache.base_requests_only: true

LMCache tells its plug-ins neither which weights an engine has nor which adapter or prompt embeddings a request has, and its keys have none of that. So the
operator says it: what `hicachectl model-id` prints for the model's folder, and that requests are for the model itself.
"""

from __future__ import annotations

import asyncio
import collections
import json
import os
import re
import select
import struct
import threading
import time
import urllib.parse
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import lmcache
import torch
from lmcache.logging import init_logger
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.storage_backend.connector import ConnectorAdapter
from lmcache.v1.storage_backend.connector.base_connector import RemoteConnector

from hicache._buffers import wrong
from hicache._calls import Call, Keys, Lease, Result
from hicache._errors import Code, Error, error_of
from hicache._plugin import BATCH_BYTES, MOST_KEYS, Space, Trouble, own_settings
from hicache.identity import Identity, Source

logger = init_logger(__name__)

# With which the tests ran.
_TESTED = ("0.5",)

# Pages of one lease: it lasts until all of them were read, so a lease of few does not keep the client's share for those that never are.
_LEASE_PAGES = 16
# Calls that the library has at a time, of those that read and of those that write: more would wait there, with their time running.
_OPEN_CALLS = 8


# What the operator has to say.
_SAID = "base_requests_only"


def _space(given: dict[str, Any], where: str, facts: dict[str, Any], engines: Sequence[str] = (), **options: Any) -> Space:
    """@raises InvalidArgument a setting is wrong or missing"""
    settings = own_settings({name: value for name, value in given.items() if name != _SAID}, where, (_SAID, *engines))
    if not settings.model_id:
        raise wrong(f'{where}: "model_id": expected a text that says what LMCache\'s keys do not: the weights, as hicachectl model-id prints them for the '
                    "model's folder, with what the engine is told beside it, and the data type of the KV")
    if str(given.get(_SAID)).lower() not in ("true", "1"):
        raise wrong(f'{where}: "{_SAID}": expected true, which says that no engine serves adapters (LoRA) or prompt embeddings: LMCache\'s keys do not tell '
                    "them apart")
    operator = {"operator": settings.operator} if settings.operator else {}
    identity = Identity({"format": {"engine": "lmcache", **facts}, **operator}, {"model": Source(called=settings.model_id)}, logger)
    return Space(identity, settings, logger, **options)


def _warn_of_versions() -> None:
    if ".".join(lmcache.__version__.split(".")[:2]) not in _TESTED:
        logger.warning("hicache: LMCache %s was not tested, but %s was; going on as long as its interfaces answer as expected", lmcache.__version__,
                       ", ".join(_TESTED))


class _Batch:
    """What LMCache submitted at once, done in as many calls as it takes. `rest` begins the calls for what the first ones left."""

    def __init__(self, number: int, keys: Sequence[str], names: Keys, rest: Callable[[_Batch, list[int]], None] | None = None) -> None:
        self.number, self.keys, self.names, self.rest = number, keys, names, rest
        self.memory: Sequence[memoryview] = ()
        self.is_set = False
        self.ok = [False] * len(keys)
        # The submission itself is one, so that nothing is over before all was submitted.
        self.open_calls = 1
        self.error = ""


class _Piece(NamedTuple):
    """One call of a batch, for the pages at `places`."""

    batch: _Batch
    places: list[int]
    begin: Callable[[], Call]


class _Lane:
    """Calls of one kind: some under way, the others wait."""

    def __init__(self) -> None:
        self.waiting: collections.deque[_Piece] = collections.deque()
        self.open: dict[Call, _Piece] = {}


class NativeClient:
    """Chunks of `lmcache server` in a node, for LMCache's NativeConnectorL2Adapter. Any thread; no call waits for the node.

    A look-up pins what it finds, so that it is still there when it is loaded, for up to `lease` seconds. LMCache tells its adapter when it
    does not need a chunk any more, and the adapter does not tell us, so what is never loaded stays pinned for that time.
    """

    def __init__(self, *, lease: float = 10.0, **settings: Any) -> None:
        """@param settings Where the node is, "model_id" and "base_requests_only", and others as for the plug-ins of engines.
        @raises InvalidArgument a setting is wrong: the server does not start
        """
        _warn_of_versions()
        self._space = _space(settings, "adapter_params", {"mode": "server"}, ("lease",), lease=lease)
        self._store = self._space.store
        self._lock = threading.Lock()  # Guards what follows.
        self._last = 0
        self._reads, self._writes = _Lane(), _Lane()
        self._done: list[tuple[int, bool, str, list[bool]]] = []
        self._pins: dict[str, Lease] = {}
        self._lease_s = lease
        self._pinned: collections.deque[tuple[float, weakref.ref[Lease], list[str]]] = collections.deque()
        self._trouble = Trouble(logger)
        self._is_closed = False
        # LMCache polls one descriptor, for completions of the library and for what ends without it.
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.epoll()
        self._poll.register(self._store.fileno(), select.EPOLLIN)
        self._poll.register(self._event, select.EPOLLIN)

    # What LMCache calls.

    def event_fd(self) -> int:
        """Readable as long as drain_completions() has something to give."""
        return self._poll.fileno()

    def submit_batch_set(self, keys: list[str], memoryviews: list[memoryview]) -> int:
        with self._lock:
            batch = self._batch(keys, memoryviews)
            batch.is_set = True
            for places in _portions(memoryviews, range(len(keys))):
                pages = [memoryviews[i] for i in places]
                self._add(self._writes, batch, places, partial(self._store.start_put, _some(batch.names, places), pages))
            return self._submit(batch)

    def submit_batch_get(self, keys: list[str], memoryviews: list[memoryview]) -> int:
        """Reads by the leases that look-ups left, and what has none without."""
        with self._lock:
            batch = self._batch(keys, memoryviews, self._get)
            by_lease: dict[Lease, list[int]] = {}
            for place, key in enumerate(keys):
                lease = self._pins.pop(key, None)
                if lease is not None:
                    by_lease.setdefault(lease, []).append(place)
            for lease, places in by_lease.items():
                self._get(batch, places, lease)
            return self._submit(batch)

    def submit_batch_exists(self, keys: list[str]) -> int:
        """Pins what is there. What is there beyond the client's share of leases is said to be there too: loading it may fail, which LMCache takes
        for a miss."""
        with self._lock:
            self._forget_old_pins()
            batch = self._batch(keys, rest=self._look_up)
            for first in range(0, len(keys), _LEASE_PAGES):
                places = list(range(first, min(first + _LEASE_PAGES, len(keys))))
                self._add(self._reads, batch, places, partial(self._store.start_pin, _some(batch.names, places)))
            return self._submit(batch)

    def submit_batch_delete(self, keys: list[str]) -> int:
        with self._lock:
            batch = self._batch(keys)
            for key in keys:
                self._pins.pop(key, None)
            for first in range(0, len(keys), MOST_KEYS):
                places = list(range(first, min(first + MOST_KEYS, len(keys))))
                self._add(self._reads, batch, places, partial(self._store.start_remove, _some(batch.names, places)))
            return self._submit(batch)

    def drain_completions(self) -> list[tuple[int, bool, str, list[bool]]]:
        """(number, whether all pages are fine, what was wrong, and whether each page is fine) of the batches that are done."""
        with self._lock:
            if self._is_closed:
                return []
            for call in self._store.poll():
                for lane in (self._reads, self._writes):
                    piece = lane.open.pop(call, None)
                    if piece is not None:
                        self._end(piece, call)
            self._begin()
            try:
                os.eventfd_read(self._event)
            except BlockingIOError:
                pass
            done, self._done = self._done, []
            return done

    def close(self) -> None:
        """No memory of LMCache is used any more when this returns."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            for lane in (self._reads, self._writes):
                lane.waiting.clear()
            self._pins.clear()
            self._pinned.clear()
        self._space.close()
        with self._lock:
            self._reads.open.clear()
            self._writes.open.clear()
        self._poll.close()
        os.close(self._event)

    # With the lock held.

    def _batch(self, keys: list[str], memory: Sequence[memoryview] = (), rest: Any = None) -> _Batch:
        if self._is_closed:
            raise error_of(Code.STOPPING, "the client is closed")
        self._last += 1
        batch = _Batch(self._last, list(keys), self._store.names(keys), rest)
        batch.memory = memory
        return batch

    def _submit(self, batch: _Batch) -> int:
        self._begin()
        self._ended(batch)
        return batch.number

    def _add(self, lane: _Lane, batch: _Batch, places: list[int], begin: Callable[[], Call]) -> None:
        batch.open_calls += 1
        lane.waiting.append(_Piece(batch, places, begin))

    def _get(self, batch: _Batch, places: list[int], lease: Lease | None = None) -> None:
        for some in _portions(batch.memory, places):
            pages = [batch.memory[i] for i in some]
            self._add(self._reads, batch, some, partial(self._store.start_get, _some(batch.names, some), pages, lease=lease))

    def _look_up(self, batch: _Batch, places: list[int]) -> None:
        for first in range(0, len(places), MOST_KEYS):
            some = places[first:first + MOST_KEYS]
            self._add(self._reads, batch, some, partial(self._store.start_exists, _some(batch.names, some)))

    def _begin(self) -> None:
        for lane in (self._reads, self._writes):
            while lane.waiting and len(lane.open) < _OPEN_CALLS:
                piece = lane.waiting.popleft()
                try:
                    lane.open[piece.begin()] = piece
                except Error as trouble:
                    self._trouble.tell(trouble)
                    piece.batch.error = str(trouble)
                    self._ended(piece.batch)

    def _end(self, piece: _Piece, call: Call) -> None:
        batch = piece.batch
        try:
            result: Result = call.result()
        except Error as trouble:
            batch.error = str(trouble)
            self._ended(batch)
            return
        self._trouble.note(result)
        if result.error is not None:
            batch.error = str(result.error)
        for place, is_fine in zip(piece.places, result.ok, strict=True):
            batch.ok[place] = is_fine
        if isinstance(result, Lease):
            keys = [batch.keys[place] for place in piece.places if batch.ok[place]]
            self._pins.update(dict.fromkeys(keys, result))
            self._pinned.append((time.monotonic() + self._lease_s, weakref.ref(result), keys))
        self._ended(batch)

    def _ended(self, batch: _Batch) -> None:
        batch.open_calls -= 1
        if batch.open_calls == 0:
            self._go_on(batch)

    def _go_on(self, batch: _Batch) -> None:
        """All calls of a batch are done: begins those for the rest, or gives it back."""
        rest, batch.rest = batch.rest, None
        left = [place for place, is_fine in enumerate(batch.ok) if not is_fine]
        if rest is not None and left:
            batch.error = ""
            rest(batch, left)
            self._begin()
            return
        is_fine = not left if batch.is_set else not batch.error or any(batch.ok)
        self._done.append((batch.number, is_fine, batch.error, batch.ok))
        os.eventfd_write(self._event, 1)

    def _forget_old_pins(self) -> None:
        now = time.monotonic()
        while self._pinned and self._pinned[0][0] < now:
            _, lease, keys = self._pinned.popleft()
            for key in keys:
                if key in self._pins and self._pins[key] is lease():
                    del self._pins[key]


def _portions(memory: Sequence[memoryview], places: Sequence[int]) -> list[list[int]]:
    """The places, in portions of so many bytes as one call should have."""
    portions: list[list[int]] = []
    size = BATCH_BYTES
    for place in places:
        if size + memory[place].nbytes > BATCH_BYTES or len(portions[-1]) == MOST_KEYS:
            portions.append([])
            size = 0
        portions[-1].append(place)
        size += memory[place].nbytes
    return portions


def _some(names: Keys, places: Sequence[int]) -> Keys:
    return Keys(b"".join(names[place] for place in places))


class HicacheConnectorAdapter(ConnectorAdapter):
    """Makes connectors for `hicache:///path/of/the/socket?namespace=…` or `hicache://HOST:PORT?…`, and for remote storages that are called `hicache` or `hicache.…`."""

    def __init__(self) -> None:
        super().__init__("hicache://")

    def can_parse(self, url: str) -> bool:
        return url.startswith(self.schema) or re.match(r"plugin://hicache(\.|$)", url) is not None

    def create_connector(self, context: Any) -> HicacheConnector:
        return HicacheConnector(context)


class HicacheConnector(RemoteConnector):
    """Chunks of a LMCache that is inside of an engine in a node. Its methods are called in LMCache's event loop, those that are not `async` in any
    thread. What fails is a miss."""

    def __init__(self, context: Any) -> None:
        """@raises InvalidArgument a setting is wrong: LMCache logs it and does without the node"""
        super().__init__(context.config, context.metadata)
        _warn_of_versions()
        given, where = _given(context)
        config, metadata = context.config, context.metadata
        if config.remote_serde not in (None, "naive"):
            raise wrong(f'remote_serde: "{config.remote_serde}" is not allowed: the node keeps chunks as they are; expected "naive"')
        if config.pre_caching_hash_algorithm == "builtin" and "PYTHONHASHSEED" not in os.environ:
            logger.warning("hicache: LMCache names chunks by Python's hash, which differs in each process: set PYTHONHASHSEED, or "
                           "pre_caching_hash_algorithm: sha256_cbor, or no other process finds these chunks")
        facts = {"mode": "engine", "kv_shape": list(metadata.kv_shape), "kv_dtype": str(metadata.kv_dtype), "mla": metadata.use_mla, "chunk": metadata.chunk_size,
                 "layerwise": config.use_layerwise, "hash": config.pre_caching_hash_algorithm}
        # A call ends before LMCache stops waiting for it.
        given.setdefault("timeout", max(config.blocking_timeout_secs - 1, 1))
        self._space = _space(given, where, facts, ("module_path", "class_name"))
        self._store = self._space.store
        self._cpu = context.local_cpu_backend
        self._trouble = Trouble(logger)

    async def exists(self, key: Any) -> bool:
        return self._trouble.note(await self._store.start_prefetch([key.to_string()])).pages == 1

    def exists_sync(self, key: Any) -> bool:
        return self._trouble.note(self._store.prefetch([key.to_string()])).pages == 1

    def support_batched_contains(self) -> bool:
        return True

    def batched_contains(self, keys: Sequence[Any]) -> int:
        """How many chunks are there, from the first one on."""
        found = 0
        for first in range(0, len(keys), MOST_KEYS):
            some = [key.to_string() for key in keys[first:first + MOST_KEYS]]
            prefix = self._trouble.note(self._store.prefetch(some, chain=True)).prefix
            found += prefix
            if prefix < len(some):
                break
        return found

    async def get(self, key: Any) -> Any:
        reading = asyncio.ensure_future(self._read(key.to_string()))
        try:
            return await asyncio.shield(reading)
        except asyncio.CancelledError:
            # Its memory is in use until the call is done.
            reading.add_done_callback(_give_back)
            raise

    async def _read(self, key: str) -> Any:
        """A memory object, or None. The chunk says how it is to be allocated, and stays pinned meanwhile."""
        names = self._store.names([key])
        with self._trouble.note(await self._store.start_pin(names, in_place=True)) as lease:
            if lease.pages == 0:
                return None
            head, shapes, dtypes, layout = _described(lease[0])
            chunk = self._cpu.allocate(shapes, dtypes, layout)
            if chunk is None:
                return None
            read = self._trouble.note(await self._store.start_get(names, [[bytearray(head), chunk.byte_array]], lease=lease))
            if read.pages == 1:
                return chunk
            chunk.ref_count_down()
            return None

    async def put(self, key: Any, memory_obj: Any) -> None:
        self._trouble.note(await self._store.start_put([key.to_string()], [[_description(memory_obj), memory_obj.byte_array]]))

    def remove_sync(self, key: Any) -> bool:
        return self._trouble.note(self._store.remove([key.to_string()])).pages == 1

    def support_ping(self) -> bool:
        return True

    async def ping(self) -> int:
        """0, or why the node does not answer."""
        error = (await self._store.start_exists(["ping"])).error
        return 0 if error is None else int(error.code)

    async def list(self) -> list[str]:
        raise error_of(Code.UNSUPPORTED, "a node knows digests of names, and no names: it cannot list them")

    async def close(self) -> None:
        self._space.close()


def _given(context: Any) -> tuple[dict[str, Any], str]:
    """Settings of the URL, or of the entries `remote_storage_plugin.NAME.…`, and what they are called."""
    if context.plugin_name is None:
        url = urllib.parse.urlsplit(context.url)
        where = {"address": url.netloc} if url.netloc else {"socket": urllib.parse.unquote(url.path)}
        return {**where, **dict(urllib.parse.parse_qsl(url.query))}, context.url
    where = f"remote_storage_plugin.{context.plugin_name}"
    extra = context.config.extra_config or {}
    return {name.removeprefix(where + "."): value for name, value in extra.items() if name.startswith(where + ".")}, where


# The length of the text that follows, which says what the bytes behind it are.
_HEAD = struct.Struct("<I")


def _description(chunk: Any) -> bytes:
    """What stands before the bytes of a chunk."""
    text = json.dumps([[list(shape) for shape in chunk.get_shapes()], [str(dtype).removeprefix("torch.") for dtype in chunk.get_dtypes()],
                       chunk.get_memory_format().name]).encode()
    return _HEAD.pack(len(text)) + text


def _described(page: memoryview) -> tuple[int, list[torch.Size], list[torch.dtype], MemoryFormat]:
    """The bytes of the description, shapes, types and layout."""
    end = _HEAD.size + _HEAD.unpack_from(page)[0]
    shapes, dtypes, layout = json.loads(bytes(page[_HEAD.size:end]))
    return end, [torch.Size(shape) for shape in shapes], [getattr(torch, name) for name in dtypes], MemoryFormat[layout]


def _give_back(reading: asyncio.Future) -> None:
    if not reading.cancelled() and reading.exception() is None and reading.result() is not None:
        reading.result().ref_count_down()
