"""SGLang's prefix cache with a hicache-node behind it, and no host tier of SGLang's own: the class for its external linker.

    --enable-unified-cache-external-linker --unified-cache-external-linker-backend dynamic --unified-cache-external-linker-config
    '{"linker": "HicacheLinker", "linker_module_path": "hicache.sglang_linker", "linker_extra_config": {"socket": "/run/hicache/node"}}'

SGLang aborts a request whose load fails, so a look-up answers with what is pinned in the node, and a load reads that and nothing else: it needs
no word of the node. A page is stored in a few parts, each with the bytes of some layers, and parts are loaded in the order of the layers: the forward
pass begins when the first of them are there.
"""

from __future__ import annotations

import collections
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import LayerWiseLoadCounter, UnifiedCacheLinker
from sglang.srt.runtime_context import get_parallel

from hicache._buffers import Pointers
from hicache._calls import AnyResult, Call, Keys, Lease, Result
from hicache._errors import Code, Error, error_of
from hicache._plugin import BATCH_BYTES, MOST_KEYS, Space, Trouble, own_settings
from hicache._store import Store
from hicache.sglang import settle, warn_of_unknown_version
from hicache.sglang_identity import identify, kv_type

logger = logging.getLogger(__name__)

# A page has at most as many parts, none of fewer bytes: more parts let the forward pass begin earlier, and cost a name each.
_MOST_PARTS, _PART_BYTES = 4, 16 << 10
# How long a look-up may hold up the scheduler, and how long no node is asked after one that took all of it.
_LOOKUP_S, _PAUSE_S = 0.5, 5.0
# How long pages stay pinned for a request, how long for one that is not looked up again, and when a look-up that found too little is repeated.
_LEASE_S, _IDLE_S, _RETRY_S = 60.0, 5.0, 1.0
# Batches that are written at a time.
_WINDOW = 16


class _Part(NamedTuple):
    """Some layers in a row, each with its buffers, and what makes their names those of these bytes."""

    first_layer: int
    layers: list[list[torch.Tensor]]
    suffix: str


class _Pinned:
    """What the node keeps for a request."""

    def __init__(self, store: Store | None, keys: list[str]) -> None:
        self.store, self.keys = store, keys
        self.leases: list[Lease] = []
        self.pages = 0
        self.made = self.used = time.monotonic()

    def answers(self, store: Store | None, keys: list[str], now: float) -> bool:
        """Whether another look-up has the same answer."""
        most = _LEASE_S / 2 if self.pages == len(keys) else _RETRY_S
        return now - self.made < most and self.keys == keys and self.store is store

    def unpin(self) -> None:
        for lease in self.leases:
            lease.unpin()


class _Load(NamedTuple):
    keys: list[str]
    pinned: _Pinned | None
    slots: torch.Tensor


class _Reading(NamedTuple):
    """A part of pages on its way into host memory, which the calls use."""

    staged: list[list[torch.Tensor]]
    calls: list[Call]


class HicacheLinker(UnifiedCacheLinker):
    """Pages of SGLang's device pool in a node. Its methods are for the scheduler's thread, and wait for nothing but a short look-up (and
    reset(), for what is under way)."""

    def __init__(self, server_args: Any, params: Any, *, components: Any, extra_config: dict[str, Any] | None = None, forward_stream: Any = None,
                 **_: Any) -> None:
        """@raises InvalidArgument, Error(UNSUPPORTED) a setting is wrong, or the model has more than pages of plain KV: the engine does not start"""
        warn_of_unknown_version(HicacheLinker)
        self.forward_stream = forward_stream
        pool, self._page = params.token_to_kv_pool_allocator.get_kvcache(), params.page_size
        layers = _layers(pool, components, params)
        self.pools = {PoolName.KV: pool}
        self.layer_done_counter = LayerWiseLoadCounter(len(layers))
        self._device = layers[0][0].device
        is_shared = len(layers[0]) == 1  # MLA: the same bytes on all ranks.
        group = params.attn_tp_cache_group or params.tp_cache_group
        rank, size = (torch.distributed.get_rank(group), torch.distributed.get_world_size(group)) if torch.distributed.is_initialized() else (0, 1)
        self._is_writer = not is_shared or rank == 0
        self._parts = _parts(layers, self._page, {} if is_shared else {"tp_rank": rank, "tp_size": size}, type(pool).__name__, kv_type(pool))
        settings = own_settings(extra_config or {}, "linker_extra_config")
        stage = {name: getattr(params, name, None) for name in ("pp_rank", "pp_size", "attn_cp_rank", "attn_cp_size")}
        self._space = Space(identify(settings, {"format": {"plug-in": "linker", **stage}}), settings, logger, lease=_LEASE_S)
        self._trouble = Trouble(logger)
        self._resume = 0.0
        self._lock = threading.Lock()  # Guards the pins.
        self._pinned: dict[str, _Pinned] = {}
        self._idle: threading.Timer | None = None
        self._is_closed = False
        self._queued: dict[str, _Load] = {}
        self._offloaded: collections.deque[bool] = collections.deque()
        self._module = torch.get_device_module(self._device)
        self._loading = ThreadPoolExecutor(1, "hicache-load", self._module.set_device, (self._device,))
        self._offloading = ThreadPoolExecutor(1, "hicache-offload", self._module.set_device, (self._device,))
        logger.info("hicache: pages are kept in %d parts, the first is called %s", len(self._parts), self._parts[0].suffix)

    # What the scheduler asks.

    def lookup(self, rid: str, transfers: Sequence[Any]) -> list[int]:
        """The lengths of the prefix, in pages, that are pinned for this request."""
        keys, now = list(_only(transfers).keys), time.monotonic()
        store = self._space.store
        with self._lock:
            pinned = self._pinned.get(rid)
        if pinned is None or not pinned.answers(store, keys, now):
            # First the new lease, so that no page goes in between.
            made, old = self._pin(store, keys), pinned
            with self._lock:
                self._pinned[rid] = pinned = made
            if old is not None:
                old.unpin()
        with self._lock:
            pinned.used = now
            self._watch_idle()
        return list(range(1, pinned.pages + 1))

    def _watch_idle(self) -> None:
        """Ends leases that nobody asks for any more, in an engine that has nothing to do as well. With the lock held."""
        if self._idle is None and self._pinned and not self._is_closed:
            self._idle = threading.Timer(_IDLE_S, self._unpin_idle)
            self._idle.daemon = True
            self._idle.start()

    def _unpin_idle(self) -> None:
        with self._lock:
            self._idle, now = None, time.monotonic()
            for rid in [rid for rid, pinned in self._pinned.items() if now - pinned.used >= _IDLE_S]:
                self._pinned.pop(rid).unpin()
            self._watch_idle()

    def _pin(self, store: Store | None, keys: list[str]) -> _Pinned:
        """Pins whole pages, from the first on, as many as the node has and this client may."""
        pinned, step, end = _Pinned(store, keys), MOST_KEYS // len(self._parts), time.monotonic() + _LOOKUP_S
        while store is not None and pinned.pages < len(keys) and self._resume <= time.monotonic() < end:
            some = keys[pinned.pages:pinned.pages + step]
            lease = self._note(store.pin(self._names(store, some, self._parts), chain=True, timeout=max(end - time.monotonic(), 0)))
            pinned.leases.append(lease)
            pages = lease.prefix // len(self._parts)
            pinned.pages += pages
            if pages < len(some):
                break
        return pinned

    def _note(self, result: AnyResult) -> AnyResult:
        """Logs what went wrong, and leaves a node alone that does not answer in time."""
        if result.error is not None and result.error.code == Code.DEADLINE_EXCEEDED:
            self._resume = time.monotonic() + _PAUSE_S
        return self._trouble.note(result)

    def load(self, rid: str, transfers: Sequence[Any]) -> bool:
        """Queues a load. The answer is the same on all ranks: what fails here is told by finish_layer_wise_loading()."""
        transfer = _only(transfers)
        with self._lock:
            pinned = self._pinned.pop(rid, None)
        self._queued[rid] = _Load(list(transfer.keys), pinned, transfer.device_indices)
        return True

    def start_layer_wise_loading(self) -> int:
        if not self._queued:
            return -1
        loads, self._queued = list(self._queued.values()), {}
        index = self.layer_done_counter.update_producer()
        self._loading.submit(self._on_a_stream, self._load, index, loads, self.record_offload_ready())
        return index

    def finish_layer_wise_loading(self, counter_index: int) -> bool:
        return self.layer_done_counter.finish(counter_index)

    def cancel_queued_load(self, rid: str) -> bool:
        load = self._queued.pop(rid, None)
        if load is not None and load.pinned is not None:
            load.pinned.unpin()
        return load is not None

    def offload(self, transfers: Sequence[Any], session_id: str | None = None) -> bool:
        """Queues pages to be stored. SGLang counts completions on all ranks in step, so each is queued and completed, whatever becomes of it."""
        transfer = _only(transfers)
        # The name of the moment: what is computed with other weights later is called otherwise.
        self._offloading.submit(self._on_a_stream, self._offload, self._space.store, list(transfer.keys), transfer.device_indices, self.record_offload_ready())
        return True

    def num_completed_offloads(self) -> int:
        return len(self._offloaded)

    def pop_completed_offload(self) -> bool:
        return self._offloaded.popleft()

    def reset(self) -> None:
        """Ends what is under way, and unpins everything."""
        for rid in list(self._queued):
            self.cancel_queued_load(rid)
        for thread in (self._loading, self._offloading):
            thread.submit(lambda: None).result()
        self._offloaded.clear()
        with self._lock:
            for pinned in self._pinned.values():
                pinned.unpin()
            self._pinned.clear()
        self.layer_done_counter.reset()

    def close(self) -> None:
        self.reset()
        with self._lock:
            self._is_closed = True
            if self._idle is not None:
                self._idle.cancel()
        self._loading.shutdown()
        self._offloading.shutdown()
        self._space.close()

    def _on_a_stream(self, work: Callable[..., None], *arguments: Any) -> None:
        with self._module.stream(self._module.Stream()):
            work(*arguments)

    # In the thread for loads.

    def _load(self, index: int, loads: list[_Load], events: list[Any]) -> None:
        """Copies the pages of several requests to the device, layer by layer."""
        readings: collections.deque[_Reading] = collections.deque()
        try:
            for event in events:
                event.synchronize()
            if not all(load.pinned and load.pinned.keys[:len(load.keys)] == load.keys and len(load.keys) <= load.pinned.pages for load in loads):
                raise error_of(Code.UNKNOWN_ID, "a load of pages that no look-up has pinned")
            slots = torch.cat([load.slots for load in loads])
            # The next part is read while one is copied to the device.
            self._read(self._parts[0], loads, readings)
            for part, after in zip(self._parts, [*self._parts[1:], None], strict=True):
                for call in readings[0].calls:
                    call.result().check()
                if after is not None:
                    self._read(after, loads, readings)
                for i, buffers in enumerate(part.layers):
                    for buffer, rows in zip(buffers, readings[0].staged[i], strict=True):
                        buffer[slots] = rows.to(self._device, non_blocking=True)
                    self._until_copied()
                    self.layer_done_counter.complete(index, part.first_layer + i)
                readings.popleft()
        except BaseException as trouble:
            logger.error("hicache: a load failed: %s", trouble)
            if isinstance(trouble, Error) and trouble.code == Code.CORRUPT_PAGE:
                self._withdraw(loads)
            self.layer_done_counter.fail(index, trouble)
        finally:
            settle(call for reading in readings for call in reading.calls)
            for load in loads:
                if load.pinned is not None:
                    load.pinned.unpin()

    def _withdraw(self, loads: list[_Load]) -> None:
        """Removes pages, all parts of them, one of which is damaged: others would fail for them too, and what is there is not stored again."""
        step = MOST_KEYS // len(self._parts)
        for store, keys in ((load.pinned.store, load.keys[i:i + step]) for load in loads if load.pinned and load.pinned.store
                            for i in range(0, len(load.keys), step)):
            self._note(store.remove(self._names(store, keys, self._parts), timeout=_LOOKUP_S))

    def _read(self, part: _Part, loads: list[_Load], readings: collections.deque[_Reading]) -> None:
        """Begins to read a part of pages into host memory, by their leases."""
        staged, pieces = self._stage(part, sum(len(load.keys) for load in loads))
        at, calls = 0, list[Call]()
        readings.append(_Reading(staged, calls))
        for load in loads:
            step = MOST_KEYS // len(self._parts)
            store = load.pinned.store if load.pinned else None
            for lease, first in zip(load.pinned.leases if store else [], range(0, len(load.keys), step), strict=False):
                names = self._names(store, load.keys[first:first + step], [part])
                # Of one call a single thread of the library copies.
                some = max(-(-len(names) // 4), 1)
                for i in range(0, len(names), some):
                    those = names[i:i + some]
                    calls.append(store.start_get(those, pieces(at, len(those)), lease=lease))
                    at += len(those)

    # In the thread for offloads.

    def _offload(self, store: Store | None, keys: list[str], slots: torch.Tensor, events: list[Any]) -> None:
        """Stores pages, and says whether they all are in the node."""
        is_stored = True
        try:
            if self._is_writer:
                for event in events:
                    event.synchronize()
                is_stored = store is not None and self._put(store, keys, slots)
        except BaseException as trouble:
            logger.error("hicache: pages were not stored: %s", trouble)
            is_stored = False
        self._offloaded.append(is_stored)

    def _put(self, store: Store, keys: list[str], slots: torch.Tensor) -> bool:
        """Copies those pages from the device that the node has not."""
        if time.monotonic() < self._resume:
            return False
        there, step = 0, MOST_KEYS // len(self._parts)
        for first in range(0, len(keys), step):
            result = self._note(store.exists(self._names(store, keys[first:first + step], self._parts)))
            if result.error is not None:
                return False
            there += result.prefix // len(self._parts)
            if result.prefix < len(result):
                break
        return there == len(keys) or all([self._put_part(store, part, keys, there, slots) for part in self._parts])

    def _put_part(self, store: Store, part: _Part, keys: list[str], there: int, slots: torch.Tensor) -> bool:
        missing = len(keys) - there
        staged, pieces = self._stage(part, missing)
        places = slots[there * self._page:]
        for buffers, rows in zip(part.layers, staged, strict=True):
            for buffer, into in zip(buffers, rows, strict=True):
                into.copy_(buffer[places], non_blocking=True)
        self._until_copied()
        names = self._names(store, keys[max(there - 1, 0):], [part])
        parent, names = (names[0], names[1:]) if there else (None, names)
        some = max(BATCH_BYTES * missing // max(sum(rows.nbytes for layer in staged for rows in layer), 1), 1)
        under_way: collections.deque[Call] = collections.deque()
        is_stored = True
        try:
            for i in range(0, missing, min(some, MOST_KEYS)):
                if len(under_way) == _WINDOW:
                    is_stored &= self._is_stored(under_way.popleft().result())
                those = names[i:i + min(some, MOST_KEYS)]
                under_way.append(store.start_put(those, pieces(i, len(those)), chain=True, parent=parent))
                parent = those[-1]
            return all([self._is_stored(call.result()) for call in under_way]) and is_stored
        finally:
            settle(under_way)

    def _is_stored(self, result: Result) -> bool:
        return self._note(result).pages == len(result)

    # In both.

    def _stage(self, part: _Part, pages: int) -> tuple[list[list[torch.Tensor]], Callable[[int, int], Pointers]]:
        """Host memory for a part of pages, for each layer and buffer in one piece, and where in it some of the pages are."""
        staged = [[torch.empty((pages * self._page, *buffer.shape[1:]), dtype=buffer.dtype, pin_memory=self._device.type == "cuda") for buffer in buffers]
                  for buffers in part.layers]
        places = [(rows.data_ptr(), rows.nbytes // max(pages, 1)) for layer in staged for rows in layer]

        def pieces(first: int, count: int) -> Pointers:
            return Pointers([at + i * size for i in range(first, first + count) for at, size in places], [size for _, size in places] * count)

        return staged, pieces

    def _names(self, store: Store, keys: Sequence[str], parts: Sequence[_Part]) -> Keys:
        return store.names([key + part.suffix for key in keys for part in parts])

    def _until_copied(self) -> None:
        self._module.current_stream().synchronize()


def _only(transfers: Sequence[Any]) -> Any:
    if len(transfers) != 1 or transfers[0].name != PoolName.KV:
        raise error_of(Code.UNSUPPORTED, f"pools other than kv are not supported: {[str(transfer.name) for transfer in transfers]}")
    return transfers[0]


def _layers(pool: Any, components: Any, params: Any) -> list[list[torch.Tensor]]:
    """The buffers of each layer, whose rows are tokens."""
    kind = type(pool).__name__
    others = [getattr(each, "name", str(each)) for each in components if getattr(each, "name", str(each)) != "FULL"]
    if others:
        raise error_of(Code.UNSUPPORTED, f"models with {', '.join(others)} beside full attention are not supported by the linker; "
                       "expected --enable-hierarchical-cache with hicache.sglang")
    drafts = [*getattr(params, "mtp_draft_device_pools", ()), *getattr(params, "sidecar_draft_device_pools", ())]
    if kind not in ("MHATokenToKVPool", "MLATokenToKVPool") or drafts:
        raise error_of(Code.UNSUPPORTED, f"the KV of {kind}{' with that of a draft model' if drafts else ''} is not supported by the linker; "
                       "expected MHATokenToKVPool or MLATokenToKVPool alone")
    if getattr(get_parallel(), "dcp_size", 1) > 1:
        raise error_of(Code.UNSUPPORTED, "context parallelism of decoding (dcp) is not supported by the linker")
    layout = getattr(pool, "kv_cache_layout", "nhd")
    if layout != "nhd" or getattr(pool, "k_scale_buffer", None) is not None:
        raise error_of(Code.UNSUPPORTED, f"the layout {layout}, or its scales, are not supported by the linker; expected nhd without scales")
    is_mha = kind == "MHATokenToKVPool"
    layers = [list(kv) for kv in zip(pool.k_buffer, pool.v_buffer, strict=True)] if is_mha else [[kv] for kv in pool.kv_buffer]
    if not layers:
        raise error_of(Code.UNSUPPORTED, "the pool has no layers")
    return layers


def _parts(layers: list[list[torch.Tensor]], page: int, shard: dict[str, int], kind: str, dtype: str) -> list[_Part]:
    """Layers in groups of about the same size."""
    sizes = [[list(buffer.shape[1:]) + [buffer.element_size()] for buffer in buffers] for buffers in layers]
    page_bytes = sum(buffer[0].nbytes for buffers in layers for buffer in buffers) * page
    count = max(min(_MOST_PARTS, len(layers), page_bytes // _PART_BYTES), 1)
    return [_Part(first, layers[first:last], json.dumps({"pool": kind, "dtype": dtype, "page": page, "first": first, "layers": sizes[first:last], "of": len(layers), **shard},
                                                        sort_keys=True)) for first, last in _even(len(layers), count)]


def _even(total: int, count: int) -> Iterator[tuple[int, int]]:
    for i in range(count):
        yield total * i // count, total * (i + 1) // count
