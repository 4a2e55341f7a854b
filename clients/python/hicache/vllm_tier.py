"""The node as a secondary tier of vLLM, behind the host tier that vLLM has itself.

    --kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {
      "spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 8589934592, "blocks_per_chunk": 4,
      "secondary_tiers": [{"type": "HicacheTier", "module_path": "hicache.vllm_tier", "socket": "/run/hicache/node"}]}}'
"""

from __future__ import annotations

import collections
import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy
from vllm.v1.kv_offload.base import Locality, LookupResult, Medium, OffloadingEvent, RequestOffloadingContext, get_offload_group_idx
from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager

from hicache._calls import Call, Keys
from hicache._plugin import MOST_CALLS, MOST_KEYS, Space, Transfer, Trouble, own_settings, putter
from hicache._store import Store
from hicache.vllm import format_of, logger, warn_of_versions
from hicache.vllm_identity import engine_core, identify

try:
    from vllm.v1.metrics.cache_hit_source import CacheHitSource
except ImportError:
    # Before 0.32 vLLM does not ask.
    CacheHitSource = None


class _Job(Transfer):
    """A job that vLLM gave to a tier."""

    def __init__(self, job: Any, is_load: bool, trouble: Trouble) -> None:
        super().__init__(trouble)
        self.number = job.job_id
        self.is_load = is_load
        #: In the order of the pages.
        self.keys: list[bytes] = []


def _alone(method: Callable[..., Any]) -> Callable[..., Any]:
    """From vLLM 0.33 on a second thread may call a tier."""

    @functools.wraps(method)
    def locked(self: HicacheTier, *arguments: Any, **named: Any) -> Any:
        with self._lock:
            return method(self, *arguments, **named)

    return locked


class HicacheTier(SecondaryTierManager):
    """The node behind vLLM's own host tier: a page is a chunk of all ranks, as it lies there. Runs in the scheduler's process; any thread, one at a time."""

    medium = Medium.STORAGE
    cache_hit_source = CacheHitSource and CacheHitSource.HOST

    def __init__(self, offloading_spec: Any, primary_kv_view: memoryview, tier_type: str, backpressure_detector: Any = None,
                 enable_kv_events: bool = False, locality: str | None = None, **settings: Any) -> None:
        """@raises InvalidArgument a setting is wrong: the engine does not start"""
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        given = own_settings(settings, "secondary_tiers: HicacheTier")
        warn_of_versions(HicacheTier)
        identity = identify(engine_core(), given, {"format": {"plug-in": "tier", "chunk bytes": self.block_size_bytes, **format_of(offloading_spec.config)}},
                            ("blocks", "connector"))
        self.locality = Locality(locality) if locality is not None else None
        self._space = Space(identity, given, logger, calls=MOST_CALLS)
        self._chunks = len(primary_kv_view)
        self._first = numpy.asarray(primary_kv_view).ctypes.data
        self._lock = threading.RLock()  # Guards what follows.
        self._jobs: dict[int, _Job] = {}
        # For each request and group the last chunk that was put.
        self._last: dict[tuple[str, int], bytes] = {}
        self._trouble = Trouble(logger)
        self._events: list[OffloadingEvent] = []
        self._wants_events = enable_kv_events and offloading_spec.kv_events_config.enable_kv_cache_events
        self._lookups = _Lookups(tier_type, self._space, self._trouble)

    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def lookup(self, key: bytes, req_context: Any) -> LookupResult:
        found = self._lookups.lookup(key, req_context)
        return LookupResult.RETRY if found is None else LookupResult.HIT if found else LookupResult.MISS

    def on_schedule_end(self, context: Any) -> None:
        self._lookups.flush()

    @_alone
    def on_request_finished(self, req_context: Any) -> None:
        self._lookups.cleanup(req_context.req_id)
        for last in [last for last in self._last if last[0] == req_context.req_id]:
            del self._last[last]

    @_alone
    def submit_store(self, job_metadata: Any) -> None:
        job = self._jobs[job_metadata.job_id] = _Job(job_metadata, is_load=False, trouble=self._trouble)
        context = job_metadata.req_context
        groups: dict[int, list[tuple[int, bytes, int]]] = collections.defaultdict(list)
        for key, chunk in zip(job_metadata.keys, job_metadata.chunk_ids, strict=True):
            groups[get_offload_group_idx(key)].append((context.get_offload_key_position(key) or 0, key, int(chunk)))
        for group, chunks in groups.items():
            chunks.sort()
            keys = [key for _, key, _ in chunks]
            parent = self._last.get((context.req_id, group))
            if parent == keys[0]:
                parent = None  # Stored once more.
            self._begin(job, lambda store, parent=parent: putter(store.start_put, parent), keys, [chunk for *_, chunk in chunks])
            self._last[context.req_id, group] = keys[-1]

    @_alone
    def submit_load(self, job_metadata: Any) -> None:
        job = self._jobs[job_metadata.job_id] = _Job(job_metadata, is_load=True, trouble=self._trouble)
        self._begin(job, lambda store: store.start_get, list(job_metadata.keys), [int(chunk) for chunk in job_metadata.chunk_ids])

    @_alone
    def get_finished_jobs(self) -> list[JobResult]:
        if not self._jobs:
            return []
        self._space.poll()
        return [self._finish(job) for job in list(self._jobs.values()) if job.is_done]

    def has_pending_work(self) -> bool:
        return bool(self._jobs)

    @_alone
    def take_events(self) -> list[OffloadingEvent]:
        events, self._events = self._events, []
        return events

    @_alone
    def drain_jobs(self) -> None:
        for job in self._jobs.values():
            job.are_fine()

    def shutdown(self) -> None:
        self._lookups.shutdown()
        self._space.close()

    def _begin(self, job: _Job, start: Callable[[Store], Callable[[Keys, Any], Call]], keys: list[bytes], chunks: list[int]) -> None:
        job.keys += keys
        store = self._space.store
        # What is not there to be copied would end the process.
        if store is None or not all(0 <= chunk < self._chunks for chunk in chunks):
            if store is not None:
                logger.error("hicache: vLLM named chunks that its memory has not: %s of %d; nothing is copied", chunks, self._chunks)
            job.miss(len(keys))
            return
        memory = [(self._first + chunk * self.block_size_bytes, self.block_size_bytes) for chunk in chunks]
        job.begin(start(store), store.names(keys), memory, self.block_size_bytes)

    def _finish(self, job: _Job) -> JobResult:
        del self._jobs[job.number]
        are_fine = job.are_fine()
        fine = [key for key, is_fine in zip(job.keys, are_fine, strict=True) if is_fine]
        if job.is_load:
            self._lookups.mark_miss([key for key, is_fine in zip(job.keys, are_fine, strict=True) if not is_fine])
        elif fine and self._wants_events:
            self._events.append(OffloadingEvent(keys=fine, medium=self.medium, removed=False, locality=self.locality))
        return JobResult(job.number, all(are_fine), fine if job.is_load else None, time.monotonic() - job.began_at, job.bytes)


class _Lookups(AsyncLookupManager):
    """vLLM's thread that looks chunks up, a scheduler's step at a time."""

    def __init__(self, tier_type: str, space: Space, trouble: Trouble) -> None:
        self._space = space
        self._trouble = trouble
        super().__init__(tier_type)

    def batch_lookup(self, keys: list[bytes], req_context: Any) -> list[bool]:
        """Which chunks the node has, after bringing those of other hosts. They are not pinned: vLLM looks again if one is lost."""
        store = self._space.store
        if store is None:
            return [False] * len(keys)
        parts = [keys[first:first + MOST_KEYS] for first in range(0, len(keys), MOST_KEYS)]
        return [is_there for part in parts for is_there in self._trouble.note(store.prefetch(part)).ok]
