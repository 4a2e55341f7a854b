"""vLLM with a hicache-node as its host tier. As a tier behind vLLM's own: vllm_tier.py.

    --kv-transfer-config '{"kv_connector": "HicacheConnector", "kv_connector_module_path": "hicache.vllm", "kv_role": "kv_both",
      "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {"socket": "/run/hicache/node", "block_size": 64}}'

vLLM's keys say which tokens a chunk of blocks is for, by a hash, and in which group of layers. What else makes its bytes what they are is in the name,
too: vllm_identity.py. So engines that differ in any of that never see each other's pages.

The scheduler claims a hit for pages alone that it has pinned in the node. If one is lost nevertheless, the workers say so, and vLLM does what
`kv_load_failure_policy` says: it computes the tokens itself, or fails the request.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import itertools
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.logger import init_logger
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec
from vllm.v1.kv_offload.base import (GPULoadStoreSpec, LoadStoreSpec, Locality, LookupResult, Medium, OffloadingEvent, OffloadingManager,
                                     OffloadingSpec, OffloadingWorker, PrepareStoreOutput, RequestOffloadingContext, TransferResult,
                                     get_offload_group_idx, make_offload_key)

from hicache._buffers import wrong
from hicache._calls import Lease
from hicache._errors import Code, Error, error_of
from hicache._offload import Offload, Tensor
from hicache._plugin import MOST_CALLS, MOST_KEYS, Space, Stores, Transfer, Trouble, changed_calls, own_settings, putter
from hicache._store import Store
from hicache.vllm_identity import changed_seams, engine_core, identify

# A child of vLLM's own logger, whose lines the user sees.
logger = init_logger(f"vllm.{__name__}")

_TESTED = ("0.31", "0.32", "0.33")
# What vLLM reads of kv_connector_extra_config, for this connector.
_OF_VLLM = ("spec_name", "spec_module_path", "block_size", "blocks_per_chunk", "self_describing_kv_events", "offload_prompt_only")
# Where the connector tells the spec what a spec is not told.
_TOLD = "hicache"
# Look-ups that wait for the node at a time: one that waits for other hosts does not hold up the others.
_SEARCHES = 4
# A request that waits longer for room in the engine has its pages looked up, and pinned, again.
_PIN_SECONDS = 30.0


class HicacheConnector(OffloadingConnector):
    """vLLM's connector for offloading, which also knows what to do when a page is lost."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        """@raises InvalidArgument, Error(UNSUPPORTED) a setting is wrong: the engine does not start"""
        warn_of_versions(HicacheConnector, HicacheOffloadingSpec, Manager, Worker)
        if "sync_load_budget_bytes" in vllm_config.kv_transfer_config.kv_connector_extra_config:
            raise wrong('kv_connector_extra_config: "sync_load_budget_bytes": vLLM takes no failure of such a load, and a page may be lost; expected none with '
                        "HicacheConnector")
        super().__init__(_with_told(vllm_config, kv_cache_config), role, kv_cache_config)
        if self.connector_scheduler is not None and vllm_config.kv_transfer_config.kv_load_failure_policy != "recompute":
            logger.warning('hicache: requests fail whose pages are lost; with "kv_load_failure_policy": "recompute" they are computed instead')

    @classmethod
    def build_prom_metrics(cls, vllm_config: Any, *more: Any) -> Any:
        return super().build_prom_metrics(_with_spec(vllm_config, {}), *more)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        if not request.skip_reading_prefix_cache and not self.scheduler.manager.search(request, num_computed_tokens):
            return None, False
        return super().get_num_new_matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        if num_external_tokens == 0:
            self.scheduler.manager.release(request.request_id)

    def update_connector_output(self, connector_output: Any) -> None:
        for request_id in connector_output.failed_recving or ():
            self.scheduler.manager.give_up(request_id)
        super().update_connector_output(connector_output)

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        results = super().get_transfer_results(finished_req_ids)
        results.failed_recving |= self.connector_worker.worker.take_failed()
        return results


def warn_of_versions(*parts: type) -> None:
    """@param parts What of a plug-in vLLM calls."""
    if ".".join(vllm.__version__.split(".")[:2]) not in _TESTED:
        logger.warning("hicache: vLLM %s was not tested, but %s was; going on as long as its interfaces answer as expected", vllm.__version__,
                       ", ".join(_TESTED))
    for call in itertools.chain.from_iterable(map(changed_calls, parts)):
        logger.warning("hicache: vLLM %s calls %s: such a call fails", vllm.__version__, call)
    for seam in changed_seams():
        raise error_of(Code.UNSUPPORTED, f"vLLM {vllm.__version__} has {seam}: hicache cannot see there what its pages are")


def _with_told(vllm_config: Any, kv_cache_config: Any) -> Any:
    """A configuration with our spec, and with what the spec has to know of the others."""
    prefix_groups = [i for i, group in enumerate(kv_cache_config.kv_cache_groups) if isinstance(group.kv_cache_spec, FullAttentionSpec)]
    groups = [[type(group.kv_cache_spec).__name__, group.kv_cache_spec.block_size, group.kv_cache_spec.page_size_bytes, len(group.layer_names)]
              for group in kv_cache_config.kv_cache_groups]
    has_state = any(isinstance(group.kv_cache_spec, MambaSpec) for group in kv_cache_config.kv_cache_groups)
    return _with_spec(vllm_config, {_TOLD: {"groups": groups, "prefix_groups": prefix_groups, "has_state": has_state}})


def _with_spec(vllm_config: Any, more: dict[str, Any]) -> Any:
    transfer = vllm_config.kv_transfer_config
    extra = {**transfer.kv_connector_extra_config, "spec_name": "HicacheOffloadingSpec", "spec_module_path": __name__, **more}
    made = copy.copy(vllm_config)
    made.kv_transfer_config = dataclasses.replace(transfer, kv_connector_extra_config=extra)
    return made


def format_of(config: Any) -> dict[str, Any]:
    """How vLLM puts a chunk together."""
    return {"layout": config.kv_cache_layout, "canonical": config.canonical_layout, "replicated": config.replicated_layout,
            "blocks": [[group.group_id, group.tokens_per_block] for group in config.groups], "chunk": config.cache.blocks_per_chunk,
            "tokens per hash": config.cache.tokens_per_hash, "world": config.parallel.world_size}


class HicacheOffloadingSpec(OffloadingSpec):
    """vLLM's host tier in the node: shared by all engines of the host, and there when they end."""

    def __init__(self, config: Any) -> None:
        """@raises InvalidArgument a setting is wrong, or the connector is not ours: the engine does not start"""
        super().__init__(config)
        told = config.extra_config.get(_TOLD)
        if told is None:
            raise wrong('kv-transfer-config: expected "kv_connector": "HicacheConnector" with "kv_connector_module_path": "hicache.vllm": vLLM\'s own '
                        "connector ends the engine when a page is lost")
        self._settings = own_settings({name: value for name, value in config.extra_config.items() if name != _TOLD}, "kv_connector_extra_config", _OF_VLLM)
        self._told = told
        if told["has_state"] and self.blocks_per_chunk > 1:
            raise wrong(f'kv_connector_extra_config: "blocks_per_chunk": {self.blocks_per_chunk}: vLLM has the recurrent state of this model for the ends of some '
                        'blocks alone, so that chunks of several lack some of it, and are never found; expected 1')

    def get_manager(self) -> Manager:
        identity = identify(engine_core(), self._settings, {"format": {"plug-in": "connector", "groups": self._told["groups"], **format_of(self.config)}},
                            ("blocks",))
        groups = [_Group(group.group_id, group.tokens_per_block * self.blocks_per_chunk, self.tokens_per_hash,
                         group.group_id in self._told["prefix_groups"]) for group in self.config.groups]
        return Manager(Space(identity, self._settings, logger, calls=MOST_CALLS), groups, self.config.parallel.world_size,
                       self.kv_events_config.enable_kv_cache_events)

    def get_worker(self, kv_caches: Any) -> Worker:
        parallel = self.config.parallel
        worker = Worker(Stores(self._settings, calls=MOST_CALLS), kv_caches, [group.group_id for group in self.config.groups], self.blocks_per_chunk,
                        parallel.rank)
        logger.info("hicache: rank %d of %d copies chunks of %s bytes, one number for each group of layers", parallel.rank,
                    parallel.world_size, worker.page_bytes)
        return worker


class _Group(NamedTuple):
    """A group of layers whose KV is kept in the same blocks."""

    number: int
    tokens: int
    tokens_per_hash: int
    # Whether a token needs the KV of all before it, so that nothing behind a missing chunk is of use.
    is_prefix: bool

    def keys(self, hashes: Sequence[bytes], first_token: int) -> list[bytes]:
        """The keys of a prompt's chunks, without those that lie before a token."""
        step = self.tokens // self.tokens_per_hash
        return [make_offload_key(each, self.number) for each in hashes[step - 1::step][first_token // self.tokens:]]


class Pages(LoadStoreSpec):
    """What the scheduler tells the workers of a job."""

    def __init__(self, request_id: str, keys: Collection[bytes], namespace: str | None, parents: dict[int, bytes]) -> None:
        self.request_id = request_id
        self.keys = list(keys)
        # None if it is not known yet whose pages they are.
        self.namespace = namespace
        # For each group the chunk before the first one.
        self.parents = parents


def _name(key: bytes, rank: int) -> bytes:
    """What a rank's part of a chunk is called."""
    return key + f"/{rank}".encode()


class _Pinned(NamedTuple):
    found: frozenset[bytes]
    leases: list[Lease]


class _Request:
    """What the scheduler's side knows of a request."""

    def __init__(self) -> None:
        self.search: Future[_Pinned] | None = None
        self.store: Store | None = None
        self.searched_at = 0.0
        self.is_loading = False
        self.is_finished = False
        # A page of it was lost, so nothing more is loaded for it.
        self.is_given_up = False
        # For each group the last chunk that is there, or is being stored.
        self.last: dict[int, bytes] = {}


class Manager(OffloadingManager):
    """The scheduler's side: which chunks are there, and stay until they are loaded. Used by one thread."""

    def __init__(self, space: Space, groups: list[_Group], ranks: int, wants_events: bool) -> None:
        self._space = space
        # Those first that say how much of the others can be of use.
        self._groups = sorted(groups, key=lambda group: not group.is_prefix)
        # Of all groups, since a hit needs each of them.
        self._shortest = max(group.tokens for group in groups)
        self._has_told_of_length = False
        logger.info("hicache: chunks have %s tokens, one number for each group of layers; of a prompt only whole chunks are kept", [group.tokens for group in groups])
        self._ranks = ranks
        self._requests: dict[str, _Request] = {}
        self._trouble = Trouble(logger)
        self._threads = ThreadPoolExecutor(_SEARCHES, "hicache-search")
        self._wants_events = wants_events
        self._checks: collections.deque[Future[list[bytes]]] = collections.deque()

    # What the connector tells.

    def search(self, request: Any, first_token: int) -> bool:
        """Looks a request's chunks up, and pins them, in a thread of its own. False as long as that goes on."""
        known = self._requests.get(request.request_id)
        store = self._space.store
        if request.num_tokens < self._shortest and not self._has_told_of_length:
            self._has_told_of_length = True
            logger.warning("hicache: a prompt of %d tokens is shorter than a chunk of %d: nothing of it is kept, nor of others as short", request.num_tokens,
                           self._shortest)
        if known is None or known.is_given_up or known.is_loading or request.num_tokens - first_token < self._shortest or store is None:
            return True
        if known.search is None or known.store is not store or time.monotonic() - known.searched_at > _PIN_SECONDS:
            self._drop(known)
            known.searched_at, known.store = time.monotonic(), store
            known.search = self._threads.submit(self._pin, store, list(request.block_hashes), first_token)
        return known.search.done()

    def release(self, request_id: str) -> None:
        """A request is computed from here on: it loads nothing of what was pinned for it."""
        known = self._requests.get(request_id)
        if known is not None and not known.is_loading:
            self._drop(known)

    def give_up(self, request_id: str) -> None:
        """A page that was to be loaded is lost. The request loads nothing any more: what was lost once may be lost again."""
        known = self._requests.get(request_id)
        if known is not None:
            known.is_given_up = True

    # What vLLM asks.

    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:
        self._requests[req_context.req_id] = _Request()
        return RequestOffloadingContext()

    def lookup(self, key: bytes, req_context: Any) -> LookupResult:
        known = self._requests.get(req_context.req_id)
        if known is None or known.search is None or known.is_given_up or known.store is not self._space.store:
            return LookupResult.MISS
        if not known.search.done():
            return LookupResult.RETRY
        return LookupResult.HIT if key in known.search.result().found else LookupResult.MISS

    def prepare_load(self, keys: Collection[bytes], req_context: Any) -> Pages:
        known = self._requests[req_context.req_id]
        known.is_loading = True
        pages = self._pages(keys, req_context.req_id)
        for key in keys:
            known.last[get_offload_group_idx(key)] = key
        return pages

    def complete_load(self, keys: Collection[bytes], req_context: Any) -> None:
        known = self._requests.get(req_context.req_id)
        if known is None:
            return
        known.is_loading = False
        self._drop(known)
        if known.is_finished:
            del self._requests[req_context.req_id]

    def prepare_store(self, keys: Collection[bytes], req_context: Any) -> PrepareStoreOutput:
        known = self._requests.setdefault(req_context.req_id, _Request())
        pages = self._pages(keys, req_context.req_id)
        for key in keys:
            known.last[get_offload_group_idx(key)] = key
        # All of them, since the node knows best which it has: it writes none twice.
        return PrepareStoreOutput(list(keys), pages, [])

    def complete_store(self, keys: Collection[bytes], req_context: Any, success: bool = True) -> None:
        store = self._space.store
        if self._wants_events and store is not None:
            self._checks.append(self._threads.submit(self._there, store, list(keys)))

    def on_request_finished(self, req_context: Any) -> None:
        known = self._requests.get(req_context.req_id)
        if known is None:
            return
        known.is_finished = True
        if not known.is_loading:
            self._drop(known)
            del self._requests[req_context.req_id]

    def take_events(self) -> Iterator[OffloadingEvent]:
        """What was stored, once the node has said that it is there on all ranks. What the node evicts is not told."""
        while self._checks and self._checks[0].done():
            keys = self._checks.popleft().result()
            if keys:
                yield OffloadingEvent(keys=keys, medium=Medium.CPU, removed=False, locality=Locality.LOCAL)

    def has_pending_work(self) -> bool:
        return bool(self._checks)

    def reset_cache(self) -> None:
        """The node's pages stay: they are those of other engines, too, and of the same weights. If the engine's have changed, its identity has."""
        self._checks.clear()
        for request_id, known in list(self._requests.items()):
            known.is_loading = False
            known.last.clear()
            self._drop(known)
            if known.is_finished:
                del self._requests[request_id]

    def shutdown(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._space.close()

    # In the threads.

    def _pin(self, store: Store, hashes: list[bytes], first_token: int) -> _Pinned:
        found: set[bytes] = set()
        leases: list[Lease] = []
        try:
            for group in self._groups:
                keys = group.keys(hashes, first_token)
                step = max(MOST_KEYS // self._ranks, 1)
                before = len(found)
                for first in range(0, len(keys), step):
                    part = keys[first:first + step]
                    lease = store.pin(self._names(store, part), chain=group.is_prefix)
                    self._trouble.note(lease)
                    leases.append(lease)
                    there = self._on_all_ranks(part, lease.ok)
                    found.update(there)
                    if group.is_prefix and len(there) < len(part):
                        break
                if group.is_prefix and len(found) == before:
                    break  # Without the first chunk of this group none of another one is of use.
        except Error as trouble:
            self._trouble.tell(trouble)
        return _Pinned(frozenset(found), leases)

    def _there(self, store: Store, keys: list[bytes]) -> list[bytes]:
        """Which of these chunks the node has now, on all ranks."""
        try:
            step = max(MOST_KEYS // self._ranks, 1)
            parts = [keys[first:first + step] for first in range(0, len(keys), step)]
            return [key for part in parts for key in self._on_all_ranks(part, store.exists(self._names(store, part)).ok)]
        except Error as trouble:
            self._trouble.tell(trouble)
            return []

    # The rest.

    def _names(self, store: Store, keys: list[bytes]) -> Any:
        return store.names([_name(key, rank) for key in keys for rank in range(self._ranks)])

    def _on_all_ranks(self, keys: list[bytes], are_fine: list[bool]) -> list[bytes]:
        return [key for i, key in enumerate(keys) if all(are_fine[i * self._ranks:(i + 1) * self._ranks])]

    def _pages(self, keys: Collection[bytes], request_id: str) -> Pages:
        store = self._space.store
        return Pages(request_id, keys, store.namespace if store is not None else None, dict(self._requests[request_id].last))

    @staticmethod
    def _drop(known: _Request) -> None:
        """Ends the leases of a request, or lets a search go that is still under way: its leases end with it."""
        search, known.search = known.search, None
        if search is not None and search.done() and not search.cancelled():
            for lease in search.result().leases:
                lease.unpin()


class _Job(Transfer):
    """A job that vLLM gave to a worker."""

    def __init__(self, number: int, pages: Pages, is_load: bool, trouble: Trouble) -> None:
        super().__init__(trouble)
        self.number = number
        self.pages = pages
        self.is_load = is_load


class Worker(OffloadingWorker):
    """A rank's side: copies chunks between the blocks of the engine and the node, which the library's threads do. Used by one thread."""

    def __init__(self, stores: Stores, kv_caches: Any, group_numbers: list[int], blocks_per_chunk: int, rank: int) -> None:
        """@raises Error the blocks are not in host memory"""
        self._stores = stores
        self._blocks_per_chunk = blocks_per_chunk
        self._rank = rank
        self._group_numbers = group_numbers
        self._jobs: dict[int, _Job] = {}
        self._failed: set[str] = set()
        self._trouble = Trouble(logger)
        self._kept = [tensor.tensor for tensor in kv_caches.tensors]
        for tensor in self._kept:
            if tensor.device.type != "cpu":
                raise error_of(Code.UNSUPPORTED, f"the engine's blocks are on {tensor.device}, and HicacheConnector copies blocks in host memory "
                               "alone; use vLLM's OffloadingConnector with its TieringOffloadingSpec, and HicacheTier of hicache.vllm_tier "
                               "as a secondary tier")
        self._refs = [[self._tensor(ref) for ref in refs] for refs in kv_caches.group_data_refs]
        #: The bytes of a chunk, for each group; 0 for one of which this rank has no layer.
        self.page_bytes = [sum(tensor.block_bytes for tensor in tensors) * blocks_per_chunk for tensors in self._refs]
        # Of the store used last.
        self._store: Store | None = None
        self._groups: list[Offload | None] = []

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: Any) -> bool:
        return self._submit(_Job(job_id, dst_spec, is_load=False, trouble=self._trouble), src_spec)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: GPULoadStoreSpec, expedited: bool = False) -> bool:
        """@param expedited The load is for a request that runs already (vLLM 0.33), and vLLM takes no failure of it: the connector refuses to be started so."""
        return self._submit(_Job(job_id, src_spec, is_load=True, trouble=self._trouble), dst_spec)

    def get_finished(self) -> list[TransferResult]:
        if not self._jobs:
            return []
        self._stores.poll()
        done = [job for job in self._jobs.values() if job.is_done]
        return [self._finish(job) for job in done]

    def take_failed(self) -> set[str]:
        """Requests whose pages could not be loaded, of the jobs that get_finished() told of."""
        failed, self._failed = self._failed, set()
        return failed

    def wait(self, job_ids: set[int]) -> None:
        for each in job_ids:
            if each in self._jobs:
                self._jobs[each].are_fine()

    def shutdown(self) -> None:
        self._stores.close()

    def _finish(self, job: _Job) -> TransferResult:
        """vLLM is told of a success in any case: its connector takes no other, and ours asks for failures itself."""
        del self._jobs[job.number]
        if not all(job.are_fine()):
            if job.is_load:
                self._failed.add(job.pages.request_id)
            return TransferResult(job.number, True)
        return TransferResult(job.number, True, job.bytes, time.monotonic() - job.began_at)

    def _submit(self, job: _Job, spec: GPULoadStoreSpec) -> bool:
        self._jobs[job.number] = job
        is_known = self._open(job.pages.namespace)
        first_block = 0
        for group, (count, first) in enumerate(zip(spec.group_sizes, spec.block_indices, strict=True)):
            blocks = spec.block_ids[first_block:first_block + count]
            first_block += count
            keys = [key for key in job.pages.keys if get_offload_group_idx(key) == self._group_numbers[group]]
            chunks = self._chunks(job, blocks, first % self._blocks_per_chunk, len(keys))
            if chunks is None or not is_known or self._groups[group] is None:
                job.miss(max(len(keys), 1))
            elif keys:
                self._begin(job, group, keys, chunks)
        return True

    def _open(self, namespace: str | None) -> bool:
        """Whether pages of this name can be copied."""
        if namespace is None:
            return False
        try:
            store = self._stores.of(namespace)
            if store is not self._store:
                for group in filter(None, self._groups):
                    group.close()
                self._groups = [Offload(store, tensors, self._blocks_per_chunk) if tensors else None for tensors in self._refs]
                self._store = store
            return True
        except Error as trouble:
            self._trouble.tell(trouble)
            return False

    def _tensor(self, ref: Any) -> Tensor:
        tensor = self._kept[ref.tensor_idx]
        return Tensor(tensor.data_ptr(), tensor.shape[0], tensor.stride(0) * tensor.element_size(), ref.page_size_bytes)

    def _chunks(self, job: _Job, blocks: Any, skipped: int, chunks: int) -> list[list[int | None]] | None:
        """The blocks of whole chunks; None in place of those that the engine does not want.

        @param blocks In their order, without gaps.
        @param skipped Blocks of the first chunk that are not among them.
        @return None if they are not the blocks of so many chunks. A load may leave out some of the first and the last chunk; what is stored has to be
        whole, since nobody would see what is missing.
        """
        step = self._blocks_per_chunk
        left = chunks * step - skipped - len(blocks)
        if chunks == 0 and len(blocks) == 0:
            return []
        if not 0 <= left < step or (not job.is_load and (skipped or left)):
            return None
        slots = [*[None] * skipped, *map(int, blocks), *[None] * left]
        return [slots[first:first + step] for first in range(0, len(slots), step)]

    def _begin(self, job: _Job, group: int, keys: list[bytes], chunks: list[list[int | None]]) -> None:
        parent, of = job.pages.parents.get(self._group_numbers[group]), self._groups[group]
        if parent == keys[0]:
            parent = None  # Stored once more.
        start = of.start_load if job.is_load else putter(of.start_store, _name(parent, self._rank) if parent is not None else None)
        job.begin(start, self._store.names([_name(key, self._rank) for key in keys]), chunks, of.page_bytes)
