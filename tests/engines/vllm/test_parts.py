"""The parts of the plug-ins with vLLM's own classes and a real node, but no engine: what is rare there, and what is refused."""

import types

import numpy
import pytest
import torch
from conftest import until
from vllm.config import (AttentionConfig, CacheConfig, LoadConfig, LoRAConfig, ModelConfig, MultiModalConfig, SpeculativeConfig,
                         VllmConfig)
from vllm.v1.kv_offload.base import (CanonicalKVCacheRef, CanonicalKVCaches, CanonicalKVCacheTensor, GPULoadStoreSpec, LookupResult, ReqContext,
                                     get_offload_block_hash, make_offload_key)
from vllm.v1.kv_offload.config import OffloadingCacheConfig, OffloadingConfig, OffloadingGroupConfig, OffloadingModelConfig, OffloadingParallelConfig
from vllm.v1.kv_offload.factory import OffloadingSpecFactory

import hicache.vllm
from hicache import vllm_identity
from hicache._plugin import changed_calls
from hicache.identity import names_of
from hicache.vllm import HicacheConnector, HicacheOffloadingSpec, Manager, Pages, Worker, _Group
from hicache.vllm_tier import HicacheTier

BLOCKS, BLOCKS_PER_CHUNK, PIECE = 16, 2, 4096
TOLD = {"groups": [], "prefix_groups": [0], "has_state": False}


def key(chunk, group=0):
    return make_offload_key(chunk.to_bytes(32, "big"), group)


def config(extra):
    parallel = OffloadingParallelConfig(rank=0, world_size=1, tp_size=1, pp_size=1, pcp_size=1, dcp_size=1, data_parallel_index=0,
                                        data_parallel_size=1, data_parallel_rank_local=None, is_parallelism_agnostic=False)
    return OffloadingConfig(groups=(OffloadingGroupConfig(32, ("layer",), 0),), worker_kv_bytes_per_block=PIECE, enable_kv_cache_events=False,
                            extra_config={"spec_name": "HicacheOffloadingSpec", "spec_module_path": "hicache.vllm", **extra}, engine_id="engine",
                            model=OffloadingModelConfig("model", "bfloat16"), cache=OffloadingCacheConfig(32, BLOCKS_PER_CHUNK), parallel=parallel)


class Blocks:
    """Memory of an engine: two layers in the first group, one of them also in the second."""

    def __init__(self, seed, device="cpu"):
        made = torch.Generator().manual_seed(seed)
        self.layers = [torch.randint(-128, 128, (BLOCKS, PIECE), dtype=torch.int8, generator=made).to(device) for _ in range(2)]
        refs = [CanonicalKVCacheRef(i, PIECE) for i in range(2)]
        self.caches = CanonicalKVCaches([CanonicalKVCacheTensor(layer, PIECE) for layer in self.layers], [refs, refs[1:]])

    def copy(self):
        return [layer.clone() for layer in self.layers]


class One:
    """Stores that are one, whose name is known."""

    def __init__(self, store):
        self.store, self.poll, self.close = store, store.poll, store.close

    def of(self, namespace):
        assert namespace == self.store.namespace
        return self.store


def worker(store, blocks, rank=0):
    return Worker(One(store), blocks.caches, [0, 1], BLOCKS_PER_CHUNK, rank)


def finish(job, of):
    of.wait({job})
    [result] = of.get_finished()
    assert result.job_id == job and result.success
    return result.transfer_size


def pages(store, *keys, request="request"):
    return Pages(request, keys, store.namespace if store is not None else None, {})


@pytest.fixture
def store(node, request):
    with node.store(request.node.nodeid, timeout=60) as store:
        yield store


def test_blocks_of_two_groups_come_back(store):
    blocks = Blocks(1)
    before, mine = blocks.copy(), worker(store, blocks)
    where = GPULoadStoreSpec([3, 1, 4, 15, 9, 2], [4, 2], [2, 6])
    what = pages(store, key(0), key(1), key(0, 1))
    mine.submit_store(1, where, what)
    assert finish(1, mine) == 4 * 2 * PIECE + 2 * PIECE
    for layer in blocks.layers:
        layer.zero_()
    mine.submit_load(2, what, where)
    assert finish(2, mine) == 10 * PIECE and not mine.take_failed()
    for block in (3, 1, 4, 15):
        assert all(torch.equal(now[block], then[block]) for now, then in zip(blocks.layers, before))
    for block in (9, 2):
        assert not blocks.layers[0][block].any() and torch.equal(blocks.layers[1][block], before[1][block])


def test_a_load_begins_and_ends_within_a_chunk(store):
    blocks = Blocks(2)
    before, mine = blocks.copy(), worker(store, blocks)
    mine.submit_store(1, GPULoadStoreSpec([0, 1, 2, 3, 4, 5], [6, 0], [0, 0]), pages(store, key(0), key(1), key(2)))
    finish(1, mine)
    for layer in blocks.layers:
        layer.zero_()
    mine.submit_load(2, pages(store, key(0), key(1), key(2)), GPULoadStoreSpec([11, 12, 13, 14], [4, 0], [1, 0]))
    finish(2, mine)
    assert not mine.take_failed()
    for layer, then in zip(blocks.layers, before):
        assert torch.equal(layer[11:15], then[1:5]) and not layer[:11].any() and not layer[15].any()


@pytest.mark.parametrize("where", [GPULoadStoreSpec([1, 2, 3], [3, 0], [1, 0]), GPULoadStoreSpec([1, 2, 3], [3, 0], [0, 0])])
def test_chunks_that_lack_a_block_are_not_stored(store, where):
    mine = worker(store, Blocks(3))
    mine.submit_store(1, where, pages(store, key(0), key(1)))
    assert finish(1, mine) is None
    mine.submit_load(2, pages(store, key(0)), GPULoadStoreSpec([1, 2], [2, 0], [0, 0]))
    finish(2, mine)
    assert mine.take_failed() == {"request"} and not mine.take_failed()


def test_a_chunk_that_is_stored_once_more_is_not_its_own_parent(store):
    mine = worker(store, Blocks(8))
    mine.submit_store(1, GPULoadStoreSpec([0, 1], [2, 0], [0, 0]), Pages("request", [key(0)], store.namespace, {0: key(0)}))
    assert finish(1, mine) == 2 * 2 * PIECE


def test_ranks_do_not_mix_and_pages_without_a_name_are_not_copied(store):
    mine = worker(store, Blocks(4))
    mine.submit_store(1, GPULoadStoreSpec([1, 2], [2, 0], [0, 0]), pages(store, key(0)))
    finish(1, mine)
    mine.submit_load(2, pages(None, key(0)), GPULoadStoreSpec([1, 2], [2, 0], [0, 0]))
    finish(2, mine)
    assert mine.take_failed() == {"request"}
    other = worker(store, Blocks(5), rank=1)
    other.submit_load(3, pages(store, key(0)), GPULoadStoreSpec([1, 2], [2, 0], [0, 0]))
    finish(3, other)
    assert other.take_failed() == {"request"}


class Asked:
    """A request, as the scheduler has it."""

    def __init__(self, chunks):
        self.request_id = "request"
        self.block_hashes = [get_offload_block_hash(key(chunk)) for chunk in range(chunks) for _ in range(BLOCKS_PER_CHUNK)]
        self.num_tokens = 32 * len(self.block_hashes)


def looked_up(manager, request, first_token=0):
    """What the scheduler is told, once the search has ended."""
    context = ReqContext(request.request_id)
    manager.on_new_request(context)
    while not manager.search(request, first_token):
        pass
    return context, [manager.lookup(key(chunk), context) is LookupResult.HIT for chunk in range(request.num_tokens // 64)]


def test_a_hit_is_a_chunk_that_all_ranks_have_and_that_is_pinned(node, store):
    manager = Manager(One(node.store(store.namespace)), [_Group(0, 64, 32, True)], 2, True)
    for rank, chunks in ((0, (0, 1, 2)), (1, (0, 1))):
        other = worker(store, Blocks(6), rank)
        other.submit_store(1, GPULoadStoreSpec(list(range(2 * len(chunks))), [2 * len(chunks), 0], [0, 0]), pages(store, *map(key, chunks)))
        finish(1, other)
    context, hits = looked_up(manager, Asked(4))
    assert hits == [True, True, False, False]
    assert store.node_status()["leases"] == 1
    assert manager.prepare_load([key(0), key(1)], context).keys == [key(0), key(1)]
    manager.on_request_finished(context)
    assert store.node_status()["leases"] == 1
    manager.complete_load([key(0), key(1)], context)
    until(lambda: store.node_status()["leases"] == 0, "the end of the lease")
    # What was lost once is not promised again, and what is computed needs no lease.
    context, hits = looked_up(manager, Asked(4), first_token=64)
    assert hits == [False, True, False, False] and store.node_status()["leases"] == 1
    manager.release("request")
    until(lambda: store.node_status()["leases"] == 0, "the end of the lease")
    manager.give_up("request")
    assert manager.search(Asked(4), 0) and manager.lookup(key(1), context) is LookupResult.MISS
    # Routers hear only of what is there.
    manager.complete_store([key(1), key(2)], context)
    while not (events := list(manager.take_events())):
        assert manager.has_pending_work()
    assert [event.keys for event in events] == [[key(1)]] and not manager.has_pending_work()
    manager.shutdown()


def test_prompts_that_are_shorter_than_a_chunk_are_told_of_once(store, monkeypatch):
    said = []
    monkeypatch.setattr(hicache.vllm.logger, "warning", lambda text, *values: said.append(text % values))
    manager = Manager(One(store), [_Group(0, 64, 32, True), _Group(1, 128, 32, False)], 1, False)
    looked_up(manager, Asked(2))
    assert not said
    for _ in range(2):
        assert looked_up(manager, Asked(1))[1] == [False]
    assert said == ["hicache: a prompt of 64 tokens is shorter than a chunk of 128: nothing of it is kept, nor of others as short"]
    manager.shutdown()


def test_without_a_node_there_are_no_hits_and_no_events(tmp_path):
    manager = Manager(One(hicache.Store(tmp_path / "nobody", "namespace")), [_Group(0, 64, 32, True)], 1, True)
    context, hits = looked_up(manager, Asked(2))
    assert hits == [False, False]
    manager.complete_store([key(0)], context)
    while manager.has_pending_work():
        assert not list(manager.take_events())
    manager.shutdown()


def test_what_would_give_wrong_pages_or_end_the_engine_is_refused(store, tmp_path):
    with pytest.raises(hicache.InvalidArgument, match='expected "kv_connector": "HicacheConnector"'):
        OffloadingSpecFactory.create_spec(config({"socket": "/nobody"}))
    with pytest.raises(hicache.InvalidArgument, match='"socket": expected the path'):
        HicacheOffloadingSpec(config({"hicache": TOLD}))
    for key_, near in (("tenat", "tenant"), ("name_space", "namespace"), ("blocks_per_chunks", "blocks_per_chunk")):
        with pytest.raises(hicache.InvalidArgument, match=f'"{key_}" is not known; did you mean "{near}"'):
            HicacheOffloadingSpec(config({"hicache": TOLD, "socket": "/nobody", key_: "x"}))
    loads_in_a_step = types.SimpleNamespace(kv_transfer_config=types.SimpleNamespace(kv_connector_extra_config={"sync_load_budget_bytes": 1}))
    with pytest.raises(hicache.InvalidArgument, match='"sync_load_budget_bytes": vLLM takes no failure of such a load'):
        HicacheConnector(loads_in_a_step, None, None)
    with pytest.raises(hicache.InvalidArgument, match=f'"blocks_per_chunk": {BLOCKS_PER_CHUNK}: vLLM has the recurrent state'):
        HicacheOffloadingSpec(config({"hicache": {**TOLD, "has_state": True}, "socket": "/nobody"}))
    with pytest.raises(hicache.Error, match="the engine's blocks are on meta, and HicacheConnector copies blocks in host memory alone"):
        worker(store, Blocks(1, "meta"))
    spec = types.SimpleNamespace(config=config({}), kv_events_config=types.SimpleNamespace(enable_kv_cache_events=False))
    with pytest.raises(hicache.InvalidArgument, match='"sokcet" is not known; did you mean "socket"'):
        HicacheTier(spec, memoryview(numpy.zeros((4, PIECE), dtype=numpy.int8)), "HicacheTier", socket="/nobody", sokcet="x")


@pytest.mark.parametrize("fields, settings", [(vllm_identity.MODEL, ModelConfig), (vllm_identity.CACHE, CacheConfig), (vllm_identity.INPUTS, MultiModalConfig),
                                              (vllm_identity.LOADING, LoadConfig), (vllm_identity.ATTENTION, AttentionConfig),
                                              (vllm_identity.DRAFT, SpeculativeConfig), (vllm_identity.LORA, LoRAConfig)],
                         ids=lambda each: getattr(each, "__name__", ""))
def test_each_field_of_vllms_configuration_is_a_fact_or_known_to_be_none(fields, settings):
    """A release that brings another one fails here: decide whether it changes a page."""
    assert fields.unknown(names_of(settings)) == []


def test_parts_of_vllms_configuration_that_are_not_looked_at_are_named():
    looked_at = {"model_config", "cache_config", "parallel_config", "load_config", "attention_config", "lora_config", "speculative_config"}
    others = {"scheduler_config", "device_config", "offload_config", "aux_output_config", "engram_config", "mamba_config", "kernel_config", "watermark_config",
              "diffusion_config", "structured_outputs_config", "observability_config", "logging_config", "quant_config", "compilation_config", "profiler_config",
              "kv_transfer_config", "kv_events_config", "ec_transfer_config", "ec_manager_config", "reasoning_config", "additional_config", "instance_id",
              "optimization_level", "performance_mode", "weight_transfer_config", "shutdown_timeout", "watchdog_config"}
    assert not set(names_of(VllmConfig)) - looked_at - others and not looked_at - set(names_of(VllmConfig))


def test_the_seams_are_those_that_were_tried():
    assert vllm_identity.changed_seams() == []


@pytest.mark.parametrize("part", [Manager, Worker, HicacheConnector, HicacheOffloadingSpec, HicacheTier], ids=lambda part: part.__name__)
def test_what_vllm_calls_takes_what_vllm_gives(part):
    assert changed_calls(part) == []
