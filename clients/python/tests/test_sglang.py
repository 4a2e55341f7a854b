"""The storage of SGLang, called as SGLang 0.5.23 calls it, over a real node. SGLang's base class and torch are stand-ins of a few lines, so this
needs neither; `tests/engines/sglang` has the engine itself."""

import abc
import ctypes
import dataclasses
import importlib
import logging
import random
import sys
import types

import pytest

import hicache
from hicache import Code
from hicache.identity import Identity, Source

PAGE_TOKENS = 4
PIECE = 1 << 16


class Indices(list):
    def tolist(self):
        return list(self)


class Tensor:
    """A flat page."""

    def __init__(self, data=bytes(2 * PIECE)):
        self.memory = ctypes.create_string_buffer(bytes(data), len(data))
        self.device = types.SimpleNamespace(type="cpu")

    def numel(self):
        return len(self.memory) // 2

    def element_size(self):
        return 2

    def data_ptr(self):
        return ctypes.addressof(self.memory)

    def is_contiguous(self):
        return True

    def contiguous(self):
        return self


class Pool:
    """Host memory of an engine: K and V of each page at two places."""

    def __init__(self, pages=8, layout="page_first_direct", page_size=PAGE_TOKENS, dtype="torch.bfloat16", seed=0):
        self.layout, self.page_size, self.dtype = layout, page_size, dtype
        self.memory = ctypes.create_string_buffer(random.Random(seed).randbytes(2 * pages * PIECE), 2 * pages * PIECE)
        self.pages = pages

    def get_page_buffer_meta(self, indices):
        if self.layout == "no addresses":
            raise ValueError("Unsupported layout")
        first, addresses = ctypes.addressof(self.memory), []
        for index in indices.tolist()[::self.page_size]:
            page = index // self.page_size
            addresses += [first + page * PIECE, first + (self.pages + page) * PIECE]
        return addresses, [PIECE] * len(addresses)

    def get_dummy_flat_data_page(self):
        return Tensor()

    def get_data_page(self, index, flat=True):
        return Tensor(self.page(index // self.page_size))

    def set_from_flat_data_page(self, index, data):
        page = index // self.page_size
        self.memory[page * PIECE:(page + 1) * PIECE] = data.memory[:PIECE]
        self.memory[(self.pages + page) * PIECE:(self.pages + page + 1) * PIECE] = data.memory[PIECE:]

    def page(self, i):
        return bytes(self.memory[i * PIECE:(i + 1) * PIECE] + self.memory[(self.pages + i) * PIECE:(self.pages + i + 1) * PIECE])


@dataclasses.dataclass
class Config:
    """HiCacheStorageConfig."""

    extra_config: dict
    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    attn_cp_rank: int = 0
    attn_cp_size: int = 1
    is_mla_model: bool = False
    model_name: str = "tiny"
    dcp_size: int = 1
    dcp_rank: int = 0
    logical_page_size: int | None = None


@dataclasses.dataclass
class Transfer:
    """PoolTransfer."""

    name: str
    host_indices: Indices | None = None
    keys: list | None = None
    hit_policy: str = "all_pages"


class PoolTransferResult:
    def __init__(self, kv_hit_pages, extra_pool_hit_pages, restorable_prefix_pages=None):
        self.kv_hit_pages, self.extra_pool_hit_pages, self.restorable_prefix_pages = kv_hit_pages, extra_pool_hit_pages, restorable_prefix_pages


class HiCacheStorage(abc.ABC):
    def register_mem_host_pool_v2(self, host_pool, host_pool_name):
        self.registered_pools = {**getattr(self, "registered_pools", {}), host_pool_name: host_pool}

    for name in ("get", "batch_get", "set", "batch_set", "exists"):
        locals()[name] = abc.abstractmethod(lambda self: None)


def identify(settings, more, has_draft):
    """Of an engine of which nothing is known but what the operator says."""
    return Identity({**more, "operator": settings.operator}, {"model": Source(called=settings.model_id or "tiny")}, logging.getLogger())


@pytest.fixture
def engine(monkeypatch, shared_node, request):
    """Makes a storage as a rank of an engine does."""
    base = types.ModuleType("sglang.srt.mem_cache.hicache_storage")
    base.HiCacheStorage, base.PoolTransferResult = HiCacheStorage, PoolTransferResult
    torch = types.ModuleType("torch")
    torch.arange = lambda count: Indices(range(count))
    for module in ("sglang", "sglang.srt", "sglang.srt.mem_cache"):
        monkeypatch.setitem(sys.modules, module, types.ModuleType(module))
    monkeypatch.setitem(sys.modules, base.__name__, base)
    monkeypatch.setitem(sys.modules, "torch", torch)
    # What reads the engine's own configuration needs the engine.
    facts = types.ModuleType("hicache.sglang_identity")
    facts.identify = identify
    facts.kv_type = lambda pool: pool.dtype
    facts.changed_seams = list
    monkeypatch.setitem(sys.modules, "hicache.sglang_identity", facts)
    monkeypatch.delitem(sys.modules, "hicache.sglang", raising=False)
    module = importlib.import_module("hicache.sglang")
    opened = []

    def make(pool=None, v1=1, settings=None, **config):
        extra = {"backend_name": "hicache", "interface_v1": v1, "socket": shared_node.socket, "timeout": 60,
                 "namespace": request.node.nodeid, **(settings or {})}
        storage = module.HicacheStorage(Config({name: value for name, value in extra.items() if value is not None}, **config), {})
        opened.append(storage)
        storage.register_mem_pool_host(pool or Pool())
        return storage

    yield make
    for storage in opened:
        storage.close()
    monkeypatch.delitem(sys.modules, "hicache.sglang")


def indices(*pages):
    return Indices(page * PAGE_TOKENS + i for page in pages for i in range(PAGE_TOKENS))


KEYS = [f"{i:064x}" for i in range(8)]


def test_a_second_engine_reads_what_the_first_one_stored(engine):
    source, target = Pool(seed=1), Pool(seed=2)
    first, second = engine(source), engine(target)
    info = types.SimpleNamespace(prefix_keys=KEYS[:2])
    assert first.batch_set_v1(KEYS[:2], indices(0, 1), types.SimpleNamespace(prefix_keys=[])) == [True] * 2
    assert first.batch_set_v1(KEYS[2:6], indices(2, 3, 4, 5), info) == [True] * 4
    assert second.batch_exists(KEYS) == 6 and second.exists(KEYS[5]) and not second.exists(KEYS[6])
    assert second.batch_get_v1(KEYS[4:8], indices(0, 1, 6, 7)) == [True, True, False, False]
    assert target.page(0) == source.page(4) and target.page(1) == source.page(5)


def test_many_pages_go_in_several_batches(engine):
    source, target = Pool(128, seed=1), Pool(128, seed=2)
    keys = [f"many {i}" for i in range(128)]
    with hicache.node("128MiB") as node:
        assert all(engine(source, settings={"socket": node.socket}).batch_set_v1(keys, indices(*range(128))))
        second = engine(target, settings={"socket": node.socket})
        assert second.batch_exists(keys) == 128
        assert all(second.batch_get_v1(keys, indices(*reversed(range(128)))))
    assert all(target.page(127 - i) == source.page(i) for i in range(128))


def test_the_node_may_be_another_machines(engine, remote):
    _, address, files = remote
    where = {"address": address, **{name: str(file) for name, file in files.items()}}
    source, target = Pool(seed=1), Pool(seed=2)
    assert engine(source, settings={"socket": None, **where}).batch_set_v1(KEYS[:2], indices(0, 1)) == [True, True]
    assert engine(target, settings={"socket": None, **where}).batch_get_v1(KEYS[:2], indices(2, 3)) == [True, True]
    assert target.page(2) == source.page(0) and target.page(3) == source.page(1)


@pytest.mark.parametrize("other", [
    {"tp_rank": 1, "tp_size": 2}, {"settings": {"model_id": "another"}}, {"settings": {"numerics": "fast"}}, {"pp_rank": 1, "pp_size": 2}, {"attn_cp_rank": 1, "attn_cp_size": 2},
    {"pool": Pool(layout="page_first")}, {"pool": Pool(dtype="torch.float16")}, {"v1": 0}, {"settings": {"namespace": "another"}},
    {"is_mla_model": True},
])
def test_engines_that_differ_see_nothing_of_each_other(engine, other):
    engine().batch_set_v1(KEYS, indices(*range(8)))
    assert engine().batch_exists(KEYS) == 8
    assert engine(**other).batch_exists(KEYS) == 0


def test_ranks_of_an_mla_model_share_their_pages(engine):
    engine(is_mla_model=True, tp_rank=0, tp_size=2).batch_set_v1(KEYS, indices(*range(8)))
    assert engine(is_mla_model=True, tp_rank=1, tp_size=2).batch_exists(KEYS) == 8
    assert engine(is_mla_model=True, tp_rank=0, tp_size=4).batch_exists(KEYS) == 8
    assert engine(is_mla_model=True, tp_rank=0, tp_size=4, dcp_size=2, logical_page_size=8).batch_exists(KEYS) == 0


def test_whole_pages_are_tensors(engine):
    storage, data = engine(v1=0), [Tensor(random.Random(i).randbytes(2 * PIECE)) for i in range(3)]
    assert storage.batch_set(KEYS[:3], data) and storage.set(KEYS[3], data[0])
    targets = [Tensor() for _ in range(5)]
    assert storage.batch_get(KEYS[:5], targets) == [*targets[:4], None]
    assert [target.memory.raw for target in targets[:3]] == [each.memory.raw for each in data]
    assert storage.get(KEYS[7], Tensor()) is None and storage.get(KEYS[3], targets[4]) is targets[4]


def test_the_interface_that_was_not_agreed_on_is_refused(engine):
    with pytest.raises(hicache.Error, match="interface_v1"):
        engine(v1=0).batch_get_v1(KEYS[:1], indices(0))
    with pytest.raises(hicache.Error, match="interface_v1"):
        engine().batch_get(KEYS[:1], [Tensor()])
    with pytest.raises(hicache.InvalidArgument, match="no addresses"):
        engine(Pool(layout="no addresses"))


@pytest.mark.parametrize("layout", ["page_first", "no addresses"])
def test_other_pools_count_for_what_can_be_restored(engine, layout):
    pools = {"swa": Pool(seed=3, layout=layout), "indexer": Pool(seed=4, layout=layout)}
    storage = engine()
    for name, pool in pools.items():
        storage.register_mem_host_pool_v2(pool, name)
    storage.batch_set_v1(KEYS[:6], indices(*range(6)))
    stored = storage.batch_set_v2([Transfer("swa", indices(2, 3, 5), [KEYS[2], KEYS[3], KEYS[5]]), Transfer("indexer", indices(*range(5)), KEYS[:5])])
    assert stored == {"swa": [True] * 3, "indexer": [True] * 5}
    wanted = [Transfer("swa", keys=["", ""], hit_policy="trailing_pages"), Transfer("indexer")]
    result = storage.batch_exists_v2(KEYS, wanted)
    assert (result.kv_hit_pages, result.extra_pool_hit_pages, result.restorable_prefix_pages) == (4, {"kv": 6, "swa": 4, "indexer": 5}, [4])
    second, into = engine(), Pool(seed=5, layout=layout)
    second.register_mem_host_pool_v2(into, "swa")
    assert second.batch_get_v2([Transfer("swa", indices(0, 1), [KEYS[3], KEYS[4]])]) == {"swa": [True, False]}
    assert into.page(0) == pools["swa"].page(3)
    assert second.batch_get_v2([Transfer("swa", indices(0), [KEYS[3], KEYS[4]])]) == {"swa": [False, False]}


def test_a_state_of_a_rank_is_not_shared_where_the_kv_is(engine):
    ranks = [engine(is_mla_model=True, tp_rank=rank, tp_size=2) for rank in range(2)]
    for storage in ranks:
        storage.register_mem_host_pool_v2(Pool(), "mamba")
    ranks[0].batch_set_v1(KEYS[:1], indices(0))
    ranks[0].batch_set_v2([Transfer("mamba", indices(0), KEYS[:1])])
    assert [storage.batch_exists_v2(KEYS[:1], [Transfer("mamba")]).kv_hit_pages for storage in ranks] == [1, 0]


def test_without_a_node_everything_is_a_miss_and_said_once(engine, tmp_path, caplog):
    storage = engine(settings={"socket": str(tmp_path / "node")})
    assert storage.batch_exists(KEYS) == 0
    assert storage.batch_set_v1(KEYS, indices(*range(8))) == [False] * 8
    assert storage.batch_get_v1(KEYS, indices(*range(8))) == [False] * 8
    assert len([each for each in caplog.messages if "such pages are misses" in each]) == 1


def test_a_page_of_another_length_is_a_miss(engine):
    storage = engine()
    storage._space.store.put(storage._texts("kv", KEYS[:1]), [b"short"]).check()
    assert storage.batch_get_v1(KEYS[:1], indices(0)) == [False]


@pytest.mark.parametrize("settings, sentence", [
    ({"socket": None}, '"socket"'), ({"socket": 7}, '"socket"'), ({"timeout": "long"}, '"timeout"'), ({"threads": True}, '"threads"'),
    ({"socket": "x" * 200}, "107 bytes"), ({"address": "127.0.0.1:1"}, '"address"'),
    ({"tenat": "t"}, 'did you mean "tenant"'), ({"name_space": "n"}, 'did you mean "namespace"'), ({"interface_v2": 1}, 'did you mean "interface_v1"'),
])
def test_a_wrong_setting_fails_the_attach_with_a_sentence(engine, settings, sentence):
    with pytest.raises(hicache.InvalidArgument, match=sentence):
        engine(settings=settings)


def test_clearing_is_refused_rather_than_half_done(engine):
    with pytest.raises(hicache.Error, match="namespace") as trouble:
        engine().clear()
    assert trouble.value.code == Code.UNSUPPORTED


@pytest.mark.parametrize("version, is_unknown", [("0.5.23", False), ("0.5.23.post1", False), ("0.5.9", False), ("0.5.24", True), ("1.0rc1", True)])
def test_a_release_that_nobody_has_tried_is_warned_of_and_used(engine, caplog, version, is_unknown):
    sys.modules["sglang"].__version__ = version
    assert engine().batch_set_v1(KEYS[:1], indices(0)) == [True]
    assert ("newer than" in caplog.text) == is_unknown
