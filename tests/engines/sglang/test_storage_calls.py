"""The storage's calls with SGLang's own host pools, configuration and transfers over a real node, without an engine around them: the
layouts whose copies to the device need a GPU, and the calls for several pools, which no model small enough for these tests makes."""

import logging
import sys

import pytest
import torch
from engines import HERE

import hicache

sys.path.insert(0, str(HERE / "cpu_shim"))
import hicache_cpu_shim  # noqa: E402

hicache_cpu_shim.activate()

from sglang.srt.mem_cache import hicache_storage  # noqa: E402
from sglang.srt.mem_cache.hicache_storage import (  # noqa: E402
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
)
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool  # noqa: E402
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost  # noqa: E402
from sglang.srt.server_args import ServerArgs  # noqa: E402

import hicache.sglang  # noqa: E402
from hicache import sglang_identity  # noqa: E402
from hicache._plugin import changed_calls  # noqa: E402
from hicache.identity import Identity, Source, names_of  # noqa: E402

PAGE, LAYERS = 8, 3
LAYOUTS = ["layer_first", "page_first", "page_first_direct", "page_head"]
KEYS = [f"{i:064x}" for i in range(8)]


def host_pool(layout, seed, dtype=torch.bfloat16):
    device = MHATokenToKVPool(size=64, page_size=PAGE, dtype=dtype, head_num=2, head_dim=64, layer_num=LAYERS, device="cpu",
                              enable_memory_saver=False)
    if hasattr(device, "get_device_pool_infos"):
        [info] = device.get_device_pool_infos()
        pool = MHATokenToKVPoolHost(info.buffer_info, 2.0, 0, PAGE, layout, device_capacity_tokens=64, start_layer=0, end_layer=LAYERS)
    else:  # Before SGLang 0.5.23.
        pool = MHATokenToKVPoolHost(device, 2.0, 0, PAGE, layout)
    pool.kv_buffer.copy_(torch.randn(pool.kv_buffer.shape, generator=torch.Generator().manual_seed(seed)))
    return pool


@pytest.fixture
def storage(node, monkeypatch):
    """Makes a storage as a rank of an engine does."""
    monkeypatch.setattr(hicache.sglang, "identify", lambda settings, more, has_draft: Identity(more, {"model": Source(called="tiny")}, logging.getLogger()))
    opened = []

    def make(pool, interface=1, tp_rank=0, tp_size=1, is_mla=False):
        config = HiCacheStorageConfig(tp_rank=tp_rank, tp_size=tp_size, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1, is_mla_model=is_mla,
                                      enable_storage_metrics=False, is_page_first_layout=pool.layout != "layer_first", model_name="tiny",
                                      extra_config={"socket": node.socket, "interface_v1": interface, "timeout": 60})
        opened.append(hicache.sglang.HicacheStorage(config, {}))
        opened[-1].register_mem_pool_host(pool)
        opened[-1].register_mem_host_pool_v2(pool, PoolName.KV)
        if hasattr(opened[-1], "on_host_pools_registered"):  # From SGLang 0.5.23 on.
            opened[-1].on_host_pools_registered()
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def at(*pages):
    return torch.tensor([page * PAGE + i for page in pages for i in range(PAGE)])


def same(source, source_pages, target, target_pages):
    return all(torch.equal(source.get_data_page(a * PAGE, flat=True), target.get_data_page(b * PAGE, flat=True))
               for a, b in zip(source_pages, target_pages, strict=True))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pieces_of_every_layout_come_back(storage, layout):
    source, target = host_pool(layout, 1), host_pool(layout, 2)
    info = HiCacheStorageExtraInfo(prefix_keys=[])
    assert storage(source).batch_set_v1(KEYS[:4], at(0, 5, 2, 3), info) == [True] * 4
    second = storage(target)
    assert second.batch_exists(KEYS, HiCacheStorageExtraInfo(prefix_keys=None)) == 4
    assert second.batch_get_v1(KEYS[1:5], at(7, 6, 4, 1), info) == [True, True, True, False]
    assert same(source, (5, 2, 3), target, (7, 6, 4)) and not same(source, (0,), target, (0,))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_whole_pages_of_every_layout_come_back(storage, layout):
    source, target = host_pool(layout, 1), host_pool(layout, 2)
    assert storage(source, 0).batch_set(KEYS[:3], [source.get_data_page(page * PAGE, flat=True) for page in (0, 5, 2)])
    into = [target.get_dummy_flat_data_page() for _ in range(4)]
    read = storage(target, 0).batch_get(KEYS[:4], into)
    assert read[3] is None
    for page, data in zip((7, 6, 4), read[:3], strict=True):
        target.set_from_flat_data_page(page * PAGE, data)
    assert same(source, (0, 5, 2), target, (7, 6, 4))


@pytest.mark.parametrize("other", [layout for layout in LAYOUTS if layout != "page_first"])
def test_layouts_and_ranks_see_nothing_of_each_other(storage, other):
    first = storage(host_pool("page_first", 1))
    assert first.batch_set_v1(KEYS, at(*range(8))) == [True] * 8 and first.batch_exists(KEYS) == 8
    assert storage(host_pool(other, 1)).batch_exists(KEYS) == 0
    assert storage(host_pool("page_first", 1), tp_rank=0, tp_size=2).batch_exists(KEYS) == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_several_pools_are_restored_together(storage, layout):
    pools, targets = [{PoolName.SWA: host_pool(layout, seed), PoolName.INDEXER: host_pool(layout, seed + 1)} for seed in (3, 5)]
    first, second = storage(host_pool(layout, 1)), storage(host_pool(layout, 2))
    for each, of in ((first, pools), (second, targets)):
        for name, pool in of.items():
            each.register_mem_host_pool_v2(pool, name)
    assert first.batch_set_v1(KEYS[:6], at(*range(6))) == [True] * 6
    stored = first.batch_set_v2([PoolTransfer(PoolName.SWA, host_indices=at(2, 3, 5), keys=[KEYS[2], KEYS[3], KEYS[5]]),
                                 PoolTransfer(PoolName.INDEXER, host_indices=at(*range(5)), keys=KEYS[:5])])
    assert stored == {PoolName.SWA: [True] * 3, PoolName.INDEXER: [True] * 5}
    wanted = [PoolTransfer(PoolName.SWA, keys=KEYS[:2], hit_policy=PoolHitPolicy.TRAILING_PAGES), PoolTransfer(PoolName.INDEXER)]
    found = second.batch_exists_v2(KEYS, wanted)
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (4, [4])
    read = second.batch_get_v2([PoolTransfer(PoolName.SWA, host_indices=at(0, 1), keys=KEYS[2:4]),
                                PoolTransfer(PoolName.INDEXER, host_indices=at(0, 6), keys=[KEYS[4], KEYS[5]])])
    assert read == {PoolName.SWA: [True, True], PoolName.INDEXER: [True, False]}
    assert same(pools[PoolName.SWA], (2, 3), targets[PoolName.SWA], (0, 1))
    assert same(pools[PoolName.INDEXER], (4,), targets[PoolName.INDEXER], (0,))


@pytest.mark.skipif(not hasattr(hicache_storage, "HiCacheStorageFailureInjector"), reason="SGLang has it from 0.5.23 on")
def test_the_engines_own_fault_injector_takes_our_answers(storage):
    source, target = host_pool("page_first_direct", 1), host_pool("page_first_direct", 2)
    faulty = hicache_storage.HiCacheStorageFailureInjector(storage(source), 0.0, 0.5)
    while not all(faulty.batch_set_v1(KEYS[:4], at(0, 1, 2, 3))):
        pass
    reader = hicache_storage.HiCacheStorageFailureInjector(storage(target), 0.0, 0.5)
    while reader.batch_exists(KEYS) != 4 or not all(reader.batch_get_v1(KEYS[:4], at(4, 5, 6, 7))):
        pass
    assert same(source, (0, 1, 2, 3), target, (4, 5, 6, 7))


def test_heads_of_a_draft_beside_an_mla_model_are_those_of_a_rank(storage):
    pools = [host_pool("page_first", seed) for seed in range(2)]
    ranks = [storage(pool, tp_rank=rank, tp_size=2, is_mla=True) for rank, pool in enumerate(pools)]
    for rank, pool in zip(ranks, pools, strict=True):
        rank.register_mem_host_pool_v2(pool, PoolName.DRAFT)
    draft = [PoolTransfer(name=PoolName.DRAFT, keys=KEYS[:2], host_indices=at(0, 1))]
    assert ranks[0].batch_set_v2(draft) == {PoolName.DRAFT: [True, True]}
    assert ranks[1].batch_get_v2(draft) == {PoolName.DRAFT: [False, False]}
    assert ranks[0].batch_get_v2(draft) == {PoolName.DRAFT: [True, True]}


def test_each_of_sglangs_settings_is_a_fact_or_known_to_be_none():
    """A release that brings another one fails here: decide whether it changes a page."""
    assert sglang_identity.SETTINGS.unknown(names_of(ServerArgs)) == []


def test_the_seams_are_those_that_were_tried():
    assert sglang_identity.changed_seams() == []
    assert changed_calls(hicache.sglang.HicacheStorage) == []
