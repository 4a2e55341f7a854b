"""SGLang's hierarchical cache with a hicache-node as its storage: the class for `--hicache-storage-backend dynamic`.

    --enable-hierarchical-cache --hicache-storage-backend dynamic --hicache-storage-backend-extra-config
    '{"backend_name": "hicache", "module_path": "hicache.sglang", "class_name": "HicacheStorage", "interface_v1": 1,
      "hicache_storage_pass_prefix_keys": true, "socket": "/run/hicache/node"}'

SGLang's keys say which tokens a page is for, and nothing else. What else makes its bytes what they are is in the name, too: sglang_identity.py, and here
rank, the pool's layout, type and sizes, and whether pages are whole or in pieces. So engines that differ in any of that never see each other's pages.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import sglang
import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolTransferResult

from hicache._buffers import Pointers, wrong
from hicache._calls import Call
from hicache._errors import Code, Error, error_of
from hicache._plugin import BATCH_BYTES, MOST_KEYS, Space, Trouble, changed_calls, own_settings
from hicache._store import Store
from hicache.sglang_identity import changed_seams, identify, kv_type

logger = logging.getLogger(__name__)

# How to begin copies with a store.
Starter = Callable[[Store], Callable[..., Call]]

KV = "kv"
# What SGLang reads of hicache-storage-backend-extra-config.
_OF_SGLANG = ("backend_name", "module_path", "class_name", "interface_v1", "hicache_storage_pass_prefix_keys", "prefetch_threshold", "prefetch_timeout_base",
              "prefetch_timeout_per_ki_token", "tp_lcm_size", "enable_metadata_cache", "metadata_ttl")
# Pools whose pages are the same on all ranks of tensor parallelism, by their classes: latents and index keys. All others are cut by heads or states.
_REPLICATED = re.compile("MLA.*|.*Indexer.*|.*IndexK.*|DeepSeekV4.*|LogicalHostPool")

# The newest release that was tried.
_TRIED = "0.5.23"


class HicacheStorage(HiCacheStorage):
    """Pages of SGLang in a node. Any thread. What fails is a miss, and the reason is logged once, until something succeeds."""

    def __init__(self, storage_config: Any, kwargs: dict | None = None) -> None:
        """@raises InvalidArgument a setting is wrong: the attach fails"""
        warn_of_unknown_version(HicacheStorage)
        config, settings = storage_config, own_settings(storage_config.extra_config or {}, "hicache-storage-backend-extra-config", _OF_SGLANG)
        self._shard = _identity(config, ["tp_rank", "tp_size"])
        # Of a model whose KV is the same on all ranks of tensor parallelism, each rank reads what one has stored.
        self._kv_shard = _identity(config, ["dcp_rank", "dcp_size", "logical_page_size"]) if config.is_mla_model else self._shard
        self._suffixes: dict[str, str] = {}
        self._pools: dict[str, Any] = {}
        self._is_whole: dict[str, bool] = {}
        self._uses_pieces = bool((config.extra_config or {}).get("interface_v1", 0))
        self._trouble = Trouble(logger)
        stage = _identity(config, ["pp_rank", "pp_size", "attn_cp_rank", "attn_cp_size"])
        self._space = Space(identify(settings, {"format": {"plug-in": "storage", "mla": config.is_mla_model, **stage}}, has_draft=True), settings, logger)

    # What the engine tells.

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        self.mem_pool_host = mem_pool_host
        self._register(KV, mem_pool_host, is_whole=not self._uses_pieces)
        logger.info("hicache: pages are called %s", self._suffixes[KV])

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        if str(host_pool_name) != KV:
            self._register(str(host_pool_name), host_pool, is_whole=False)

    def _register(self, name: str, pool: Any, is_whole: bool) -> None:
        sizes = None if is_whole else _pieces(pool)
        if sizes is None and name == KV and not is_whole:
            raise wrong(f"interface_v1: pages of the layout {pool.layout} have no addresses; expected interface_v1 0")
        self._is_whole[name] = sizes is None
        if sizes is None:
            flat = pool.get_dummy_flat_data_page()
            sizes = [flat.numel() * flat.element_size()]
        shard = self._kv_shard if name == KV or _REPLICATED.fullmatch(type(pool).__name__) else self._shard
        geometry = {"pool": name, "kind": type(pool).__name__, "layout": getattr(pool, "layout", ""), "dtype": kv_type(pool),
                    "format": getattr(pool, "storage_format_tag", None), "page": getattr(pool, "page_size", 1), "sizes": sizes, "whole": self._is_whole[name], **shard}
        self._pools[name] = pool
        self._suffixes[name] = json.dumps(geometry, sort_keys=True)

    # Which pages are there.

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """How many pages are there, from the first one on. Those of other hosts are brought to the node."""
        found, store = 0, self._space.store
        for first in range(0, len(keys) if store is not None else 0, MOST_KEYS):
            names = store.names(self._texts(KV, keys[first:first + MOST_KEYS]))
            prefix = self._trouble.note(store.prefetch(names, chain=True)).prefix
            found += prefix
            if prefix < len(names):
                break
        return found

    def batch_exists_v2(self, keys: list[str], pool_transfers: Any = None, extra_info: Any = None) -> PoolTransferResult:
        """Of several pools: for which lengths of the prefix all of them have what they need."""
        pages = self.batch_exists(keys)
        hits = {KV: pages} if pages else {}
        lengths = list(range(1, pages + 1))
        for transfer in pool_transfers or []:
            if not lengths:
                break
            good = self._lengths(transfer, keys[:pages])
            if good:
                hits[transfer.name] = max(good)
            lengths = [length for length in lengths if length in good]
        return PoolTransferResult(lengths[-1] if lengths else 0, hits, lengths)

    def _lengths(self, transfer: Any, keys: list[str]) -> set[int]:
        """For which lengths of the prefix a pool has what it needs."""
        policy = getattr(transfer.hit_policy, "value", transfer.hit_policy)
        there = self._there(str(transfer.name), keys)
        missing = there.index(False) if False in there else len(there)
        if policy == "all_pages":
            return set(range(1, missing + 1))
        if policy == "trailing_pages":
            tail = max(1, len(transfer.keys or []))
            return {length for length in range(1, len(keys) + 1) if all(there[max(0, length - tail):length])}
        raise error_of(Code.UNSUPPORTED, f"the hit policy {policy} of the pool {transfer.name} is not known")

    def _there(self, pool: str, keys: list[str]) -> list[bool]:
        there: list[bool] = []
        store = self._space.store
        if store is None:
            return [False] * len(keys)
        for first in range(0, len(keys), MOST_KEYS):
            there += self._trouble.note(store.prefetch(self._texts(pool, keys[first:first + MOST_KEYS]))).ok
        return there

    # Pages in pieces, in the engine's host memory.

    def batch_get_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        return self._copy(KV, keys, host_indices, _getter)

    def batch_set_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        return self._copy(KV, keys, host_indices, self._putter(KV, extra_info))

    def batch_get_v2(self, transfers: Sequence[Any], extra_info: Any = None) -> dict[str, list[bool]]:
        return {transfer.name: self._transfer(transfer, _getter, is_get=True) for transfer in transfers}

    def batch_set_v2(self, transfers: Sequence[Any], extra_info: Any = None) -> dict[str, list[bool]]:
        return {transfer.name: self._transfer(transfer, lambda store: store.start_put, is_get=False) for transfer in transfers}

    def _transfer(self, transfer: Any, start: Starter, is_get: bool) -> list[bool]:
        name, keys = str(transfer.name), transfer.keys or []
        pool, indices = self._pools[name], transfer.host_indices
        page = getattr(pool, "page_size", 1) or 1
        if indices is None or len(indices) != len(keys) * page:
            logger.error("hicache: pool %s: %s places for %d pages of %d; nothing is copied", name, "no" if indices is None else len(indices), len(keys), page)
            return [False] * len(keys)
        if not self._is_whole[name]:
            return self._copy(name, keys, indices, start)
        places = indices.tolist()[::page]
        if not is_get:
            return self._batches(name, keys, [pool.get_data_page(place, flat=True).contiguous() for place in places], start)
        flat = [pool.get_dummy_flat_data_page() for _ in keys]
        read = self._batches(name, keys, flat, start)
        for is_read, place, data in zip(read, places, flat, strict=True):
            if is_read:
                pool.set_from_flat_data_page(place, data)
        return read

    def _copy(self, pool: str, keys: list[str], host_indices: Any, start: Starter) -> list[bool]:
        if self._is_whole[pool]:
            raise error_of(Code.UNSUPPORTED, "pages in pieces were asked for, but the engine was started without interface_v1")
        addresses, lengths = self._pools[pool].get_page_buffer_meta(host_indices)
        return self._batches(pool, keys, Pointers(addresses, lengths), start)

    # Whole pages, in tensors.

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        return self.batch_get([key], [target_location])[0]

    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> list[Any]:
        self._need_whole()
        read = self._batches(KV, keys, list(target_locations), _getter)
        return [target if is_read else None for is_read, target in zip(read, target_locations, strict=True)]

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        return self.batch_set([key], [value])

    def batch_set(self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None) -> bool:
        self._need_whole()
        return all(self._batches(KV, keys, [value.contiguous() for value in values], self._putter(KV, None)))

    def _need_whole(self) -> None:
        if not self._is_whole.get(KV, False):
            raise error_of(Code.UNSUPPORTED, "whole pages were asked for, but the engine was started with interface_v1")

    # The rest.

    def clear(self) -> None:
        """Nobody knows the names of all pages, so they cannot be removed from here."""
        raise error_of(Code.UNSUPPORTED, 'a node\'s pages are not cleared by an engine: restart the node, or give this model another "namespace"')

    def get_stats(self) -> None:
        return None

    def close(self) -> None:
        self._space.close()

    def _texts(self, pool: str, keys: Sequence[str]) -> list[str]:
        suffix = self._suffixes[pool]
        return [key + suffix for key in keys]

    def _putter(self, pool: str, extra_info: Any) -> Starter:
        """Puts pages as a chain, behind the last page of the prefix, so that the node evicts none before those that follow it."""
        before = getattr(extra_info, "prefix_keys", None)

        def of(store: Store) -> Callable[..., Call]:
            parents = [store.names(self._texts(pool, before[-1:]))[0] if before else None]

            def start(names: Any, pages: Any) -> Call:
                call = store.start_put(names, pages, chain=True, parent=parents[-1])
                parents.append(names[-1])
                return call

            return start

        return of

    def _batches(self, pool: str, keys: list[str], pages: Any, starter: Starter) -> list[bool]:
        """Copies pages, in several batches at a time; which of them are fine."""
        store = self._space.store
        if not keys or store is None:
            return [False] * len(keys)
        start, names = starter(store), store.names(self._texts(pool, keys))
        pieces = len(pages.addresses) // len(keys) if isinstance(pages, Pointers) else 1
        size = sum(pages.lengths[:pieces]) if isinstance(pages, Pointers) else pages[0].numel() * pages[0].element_size()
        step = min(max(BATCH_BYTES // max(size, 1), 1), MOST_KEYS)
        calls: list[Call] = []
        try:
            for i in range(0, len(keys), step):
                calls.append(start(names[i:i + step], _part(pages, i * pieces, (i + step) * pieces)))
            return [is_fine for call in calls for is_fine in self._trouble.note(call.result()).ok]
        finally:
            settle(calls)


def _getter(store: Store) -> Callable[..., Call]:
    return store.start_get


def settle(calls: Iterable[Call]) -> None:
    """Waits until no call uses its memory any more, before somebody else may."""
    for call in calls:
        with contextlib.suppress(Error):
            call.result()


def warn_of_unknown_version(part: type) -> None:
    """A release that nobody has tried may work: each call is checked as far as it can be.

    @param part What of a plug-in SGLang calls.
    """
    version = getattr(sglang, "__version__", _TRIED)
    numbers = [[int(number) for number in re.findall(r"\d+", each.split("+")[0])[:3]] for each in (version, _TRIED)]
    if numbers[0] > numbers[1]:
        logger.warning("hicache: SGLang %s is newer than %s, the newest that hicache was tried with", version, _TRIED)
    for call in changed_calls(part):
        logger.warning("hicache: SGLang %s calls %s: such a call fails", version, call)
    for seam in changed_seams():
        raise error_of(Code.UNSUPPORTED, f"SGLang {version} has {seam}: hicache cannot see there what its pages are")


def _identity(config: Any, names: list[str]) -> dict[str, Any]:
    return {name: getattr(config, name, None) for name in names}


def _pieces(pool: Any) -> list[int] | None:
    """The bytes of each piece of a page; None if its pages have no addresses."""
    try:
        return list(pool.get_page_buffer_meta(torch.arange(getattr(pool, "page_size", 1) or 1))[1])
    except (AttributeError, NotImplementedError, ValueError):
        return None


def _part(pages: Any, first: int, last: int) -> Any:
    if isinstance(pages, Pointers):
        return Pointers(pages.addresses[first:last], pages.lengths[first:last])
    return pages[first:last]
