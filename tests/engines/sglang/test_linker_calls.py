"""The external linker's calls with SGLang's own pools and counters over a real node, without an engine around them."""

import logging
import sys
import time
import types

import pytest
import torch
from engines import HERE, until

import hicache

sys.path.insert(0, str(HERE / "cpu_shim"))
import hicache_cpu_shim  # noqa: E402

hicache_cpu_shim.activate()

from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer  # noqa: E402
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool  # noqa: E402

import hicache.sglang_linker  # noqa: E402
from hicache.identity import Identity, Source  # noqa: E402

PAGE, LAYERS, SLOTS = 8, 6, 256
KEYS = [f"{i:064x}" for i in range(12)]


def mha(dtype=torch.bfloat16, seed=0, heads=4):
    pool = MHATokenToKVPool(size=SLOTS, page_size=PAGE, dtype=dtype, head_num=heads, head_dim=64, layer_num=LAYERS, device="cpu",
                            enable_memory_saver=False)
    return filled(pool, [*pool.k_buffer, *pool.v_buffer], seed)


def mla(seed=0):
    pool = MLATokenToKVPool(size=SLOTS, page_size=PAGE, dtype=torch.bfloat16, kv_lora_rank=512, qk_rope_head_dim=64, layer_num=LAYERS, device="cpu",
                            enable_memory_saver=False)
    return filled(pool, pool.kv_buffer, seed)


def filled(pool, buffers, seed):
    numbers = torch.Generator().manual_seed(seed)
    for buffer in buffers:
        buffer.copy_(torch.randn(buffer.shape, generator=numbers))
    pool.all_buffers = buffers
    return pool


@pytest.fixture
def linker(node, monkeypatch):
    """Makes a linker as a rank of an engine does."""
    opened = []

    def make(pool, rank=0, size=1, components=("FULL",), path="tiny", page=PAGE, **settings):
        monkeypatch.setattr(hicache.sglang_linker, "identify", lambda settings, more: Identity({**more, "operator": settings.operator}, {"model": Source(called=path)}, logging.getLogger()))
        monkeypatch.setattr(hicache.sglang_linker, "get_parallel", lambda: types.SimpleNamespace(dcp_size=1))
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda _: rank)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda _: size)
        params = types.SimpleNamespace(token_to_kv_pool_allocator=types.SimpleNamespace(get_kvcache=lambda: pool), page_size=page, pp_rank=0, pp_size=1,
                                       attn_cp_rank=0, attn_cp_size=1, attn_tp_cache_group=None, tp_cache_group="group")
        opened.append(hicache.sglang_linker.HicacheLinker(None, params, components=set(components),
                                                          extra_config={"socket": node.socket, **settings}))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def slots(*pages):
    return torch.tensor([page * PAGE + i for page in pages for i in range(PAGE)])


def transfer(keys, *pages):
    return [PoolTransfer(name=PoolName.KV, keys=list(keys), device_indices=slots(*pages) if pages else None)]


def store(linker, keys, *pages):
    before = linker.num_completed_offloads()
    assert linker.offload(transfer(keys, *pages), session_id="x")
    until(lambda: linker.num_completed_offloads() == before + 1, "the offload's end")
    return linker.pop_completed_offload()


def load(linker, rid, keys, *pages):
    assert linker.load(rid, transfer(keys, *pages))
    index = linker.start_layer_wise_loading()
    linker.layer_done_counter.set_consumer(index)
    for layer in range(LAYERS):
        linker.layer_done_counter.wait_until(layer)
    return linker.finish_layer_wise_loading(index)


def same(source, source_pages, target, target_pages):
    return all(torch.equal(a[slots(*source_pages)], b[slots(*target_pages)]) for a, b in zip(source.all_buffers, target.all_buffers, strict=True))


@pytest.mark.parametrize("pool", [mha, mla])
def test_pages_come_back_at_other_slots_of_another_engine(linker, pool):
    source, target = pool(seed=1), pool(seed=2)
    first, second = linker(source), linker(target)
    assert len(first._parts) > 1
    assert first.lookup("a", transfer(KEYS)) == []
    assert store(first, KEYS[:6], 3, 4, 5, 9, 8, 7) and store(first, KEYS[:8], 3, 4, 5, 9, 8, 7, 20, 21)
    assert second.lookup("b", transfer(KEYS)) == list(range(1, 9))
    assert load(second, "b", KEYS[:7], 11, 10, 12, 13, 14, 15, 1)
    assert same(source, (3, 4, 5, 9, 8, 7, 20), target, (11, 10, 12, 13, 14, 15, 1))
    assert not same(source, (21,), target, (2,))


def test_several_requests_are_loaded_together(linker):
    source, target = mha(seed=1), mha(seed=2)
    first, second = linker(source), linker(target)
    assert store(first, KEYS[:4], 0, 1, 2, 3) and store(first, KEYS[6:], 4, 5, 6, 7, 8, 9)
    assert second.lookup("a", transfer(KEYS[:4])) == [1, 2, 3, 4] and len(second.lookup("b", transfer(KEYS[6:]))) == 6
    assert second.load("a", transfer(KEYS[:3], 20, 21, 22))
    assert load(second, "b", KEYS[6:], 1, 2, 3, 4, 5, 6)
    assert same(source, (0, 1, 2, 4, 5, 6, 7, 8, 9), target, (20, 21, 22, 1, 2, 3, 4, 5, 6))
    assert second.start_layer_wise_loading() == -1


def test_what_was_looked_up_is_loaded_even_if_the_node_has_gone(linker, node):
    source, target = mha(seed=1), mha(seed=2)
    first, second = linker(source), linker(target)
    assert store(first, KEYS[:4], 0, 1, 2, 3)
    assert second.lookup("a", transfer(KEYS[:4])) == [1, 2, 3, 4]
    node.kill()
    assert load(second, "a", KEYS[:4], 4, 5, 6, 7) and same(source, (0, 1, 2, 3), target, (4, 5, 6, 7))
    assert second.lookup("b", transfer(KEYS[:4])) == [] and not store(first, KEYS[4:6], 1, 2)
    node.start()
    until(lambda: store(first, KEYS[:4], 0, 1, 2, 3), "the node")
    until(lambda: second.lookup("c", transfer(KEYS[:4])) == [1, 2, 3, 4], "the pages")


def test_a_damaged_page_fails_one_load_and_no_other(linker, damage):
    source, target = mha(seed=1), mha(seed=2)
    first, second = linker(source), linker(target)
    assert store(first, KEYS[:4], 0, 1, 2, 3)
    assert second.lookup("a", transfer(KEYS[:4])) == [1, 2, 3, 4]
    damage()
    assert not load(second, "a", KEYS[:4], 4, 5, 6, 7)
    until(lambda: second._space.store.stats()["open_calls"] == 0, "the end of all calls")
    assert second.lookup("b", transfer(KEYS[:4])) == []
    assert store(first, KEYS[:4], 0, 1, 2, 3)
    assert second.lookup("c", transfer(KEYS[:4])) == [1, 2, 3, 4]
    assert load(second, "c", KEYS[:4], 4, 5, 6, 7) and same(source, (0, 1, 2, 3), target, (4, 5, 6, 7))


def test_a_load_that_nothing_is_pinned_for_is_a_failure_of_its_batch(linker):
    first = linker(mha())
    assert store(first, KEYS[:4], 0, 1, 2, 3)
    assert not load(first, "a", KEYS[:4], 4, 5, 6, 7)
    first.lookup("b", transfer(KEYS[:2]))
    assert not load(first, "b", KEYS[:4], 4, 5, 6, 7)


def test_leases_end_with_the_load_and_without_one(linker, state):
    first = linker(mha())
    assert store(first, KEYS[:4], 0, 1, 2, 3)
    first.lookup("a", transfer(KEYS[:4]))
    first.lookup("a", transfer(KEYS[:4]))
    assert state().leases == 1
    assert load(first, "a", KEYS[:4], 4, 5, 6, 7)
    until(lambda: state().leases == 0, "the end of the lease")
    first.lookup("b", transfer(KEYS[:4]))
    first.load("b", transfer(KEYS[:4], 4, 5, 6, 7))
    assert first.cancel_queued_load("b") and not first.cancel_queued_load("b") and first.start_layer_wise_loading() == -1
    until(lambda: state().leases == 0, "the end of the lease")
    first.lookup("c", transfer(KEYS[:4]))
    first.reset()
    until(lambda: state().leases == 0, "the end of the lease")


@pytest.mark.parametrize("other", [{"rank": 1, "size": 2}, {"size": 2}, {"path": "another"}, {"namespace": "other weights"}, {"page": 2 * PAGE}])
def test_engines_that_differ_see_nothing_of_each_other(linker, other):
    assert store(linker(mha()), KEYS[:4], 0, 1, 2, 3)
    assert linker(mha()).lookup("a", transfer(KEYS)) == [1, 2, 3, 4]
    assert linker(mha(), **other).lookup("a", transfer(KEYS)) == []


@pytest.mark.parametrize("pool", [mha(dtype=torch.float16), mha(heads=2)])
def test_other_types_and_sizes_see_nothing_of_each_other(linker, pool):
    assert store(linker(mha()), KEYS[:4], 0, 1, 2, 3)
    assert linker(pool).lookup("a", transfer(KEYS)) == []


def test_ranks_of_an_mla_model_share_what_one_of_them_stores(linker):
    source, target = mla(seed=1), mla(seed=2)
    ranks = [linker(source, rank=0, size=2), linker(target, rank=1, size=2)]
    assert store(ranks[1], KEYS[:4], 0, 1, 2, 3) and ranks[1].lookup("a", transfer(KEYS)) == []
    assert store(ranks[0], KEYS[:4], 0, 1, 2, 3) and ranks[1].lookup("b", transfer(KEYS)) == [1, 2, 3, 4]
    assert load(ranks[1], "b", KEYS[:4], 4, 5, 6, 7) and same(source, (0, 1, 2, 3), target, (4, 5, 6, 7))


@pytest.mark.parametrize("what, sentence", [
    ({"components": ("FULL", "SWA")}, "SWA"), ({"socket": 7}, '"socket"'), ({"timeout": "soon"}, '"timeout"'),
])
def test_what_would_give_wrong_bytes_is_refused_with_a_sentence(linker, what, sentence):
    with pytest.raises(hicache.Error, match=sentence):
        linker(mha(), **what)


def test_a_pool_of_another_kind_is_refused(linker):
    class Quantized(MHATokenToKVPool):
        pass

    pool = mha()
    pool.__class__ = Quantized
    with pytest.raises(hicache.Error, match="Quantized"):
        linker(pool)


def test_a_node_that_hangs_holds_up_the_scheduler_once_and_shortly(linker, node):
    first = linker(mha())
    assert store(first, KEYS[:4], 0, 1, 2, 3)
    with node.paused():
        start = time.monotonic()
        assert first.lookup("a", transfer(KEYS[:4])) == []
        middle = time.monotonic()
        assert [first.lookup(f"b{i}", transfer(KEYS[:4])) for i in range(100)] == [[]] * 100
        assert time.monotonic() - middle < middle - start < 10


def test_pins_of_an_engine_that_has_nothing_to_do_end(linker, state, monkeypatch):
    monkeypatch.setattr(hicache.sglang_linker, "_IDLE_S", 0.2)
    first, second = linker(mha(seed=1)), linker(mha(seed=2))
    assert store(first, KEYS[:2], 0, 1)
    assert second.lookup("a", transfer(KEYS[:2])) == [1, 2] and state().leases == 1
    until(lambda: state().leases == 0, "the end of the pins, without another look-up", 10)
    assert second.lookup("a", transfer(KEYS[:2])) == [1, 2]


@pytest.mark.parametrize("one, other", [(torch.float8_e4m3fn, torch.float8_e5m2), (torch.float8_e4m3fn, torch.bfloat16)])
def test_types_that_are_stored_alike_are_kept_apart(linker, one, other):
    first, second, third = linker(mha(one)), linker(mha(other)), linker(mha(one))
    assert store(first, KEYS[:2], 0, 1)
    assert second.lookup("a", transfer(KEYS[:2])) == [] and third.lookup("a", transfer(KEYS[:2])) == [1, 2]


def test_a_setting_that_nobody_knows_is_refused_with_the_nearest(linker):
    with pytest.raises(hicache.InvalidArgument, match='"tenat" is not known; did you mean "tenant"'):
        linker(mha(), tenat="t")
