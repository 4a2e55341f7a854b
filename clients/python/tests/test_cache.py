"""A rank in this process: hicache.Cache."""

import array
import gc
import json
import os
import subprocess
import sys
import threading

import pytest

import hicache
from hicache import ops

numpy = pytest.importorskip("numpy")

PAGE = 16
SETTINGS = {"device": "host", "model": "tiny", "page-size": PAGE, "device-pages": 32}


@pytest.fixture
def cache():
    with hicache.Cache(SETTINGS) as opened:
        yield opened


def prompt_of(number, pages=4):
    return numpy.arange(PAGE * pages, dtype="uint32") + 1000 * number


def settle(cache):
    while cache.step(0.05).in_flight:
        pass


def serve(cache, request, prompt, byte=7):
    """Serves a prompt as an engine does."""
    answers = cache.apply([ops.Match(request, prompt), ops.Prefetch(request), ops.Schedule(request)]).check()
    while not answers[2].is_ready and request not in [ready.request for ready in cache.step(0.05).ready]:
        pass
    loaded, room = cache.apply([ops.Load(request), ops.Allocate(request, len(prompt))]).check()
    cached = loaded.device_tokens // PAGE
    for layer in range(cache.info.layers):
        if loaded.progress:
            loaded.progress.wait(layer)
        for part in range(cache.info.parts):
            rows = numpy.asarray(cache.view(part, layer))
            pages = numpy.asarray(room.pages)
            assert (rows[pages[:cached]] == byte).all()
            rows[pages[cached:]] = byte
            del rows
    released = cache.apply([ops.Insert(request, prompt), ops.Release(request)]).check()[1]
    settle(cache)
    return released


def test_a_prompt_is_cached_the_second_time(cache):
    prompt = prompt_of(1)
    first = serve(cache, 1, prompt)
    assert (first.l1_tokens, first.computed_tokens) == (0, 64)
    second = serve(cache, 2, prompt)
    assert (second.l1_tokens, second.computed_tokens, second.give_up) == (48, 16, "none")


def test_a_release_tells_the_tiers_of_l3(tmp_path):
    tiers = [{"backend": "memory", "write": "never"}, {"backend": "file", "path": str(tmp_path / "l3")}]
    l3 = {"model-id": "m", "hicache-storage-backend": "tiered",
          "hicache-storage-backend-extra-config": json.dumps({"prefetch_threshold": PAGE, "tiers": tiers})}
    with hicache.Cache({**SETTINGS, **l3}) as cache:
        prompt = prompt_of(1)
        first = serve(cache, 1, prompt)
        assert (first.l3_tiers, first.load_estimate_ns) == ((), 0)
        cache.do(ops.Clear())
        second = serve(cache, 2, prompt)
        assert (second.l3_tokens, second.l3_backend) == (48, "tiered")
        assert second.l3_tiers == (("memory", 0), ("file", 48))
        assert second.compute_estimate_ns > 0


def test_what_l2_has_is_loaded_by_layers(cache):
    prompt = prompt_of(1)
    serve(cache, 1, prompt)
    assert cache.do(ops.Evict(64)).freed_tokens == 64
    matched, _ = cache.apply([ops.Match(2, prompt), ops.Schedule(2)])
    assert (matched.device_tokens, matched.host_tokens) == (0, 48)
    loaded = cache.do(ops.Load(2))
    assert (loaded.loading_tokens, len(loaded.pages)) == (48, 3)
    gc.collect()  # The progress keeps what it needs.
    cache.wait_for_layer(loaded.progress, 0)
    loaded.progress.wait(1)
    assert loaded.progress.done == 2
    with pytest.raises(hicache.InvalidArgument):
        loaded.progress.wait(2)
    cache.do(ops.Release(2))


def test_operations_without_a_request(cache):
    prompt = prompt_of(1)
    serve(cache, 1, prompt)
    assert cache.do(ops.Pin(prompt, ttl=60)).pinned_tokens == 64
    assert cache.do(ops.Unpin(prompt)).pinned_tokens == 0
    node = cache.do(ops.Match(2, prompt, limit=64)).node
    cache.do(ops.Release(2))
    assert cache.do(ops.Lock(node)).protected_tokens == 64
    assert cache.do(ops.Unlock(node)).evictable_tokens == 64
    assert cache.do(ops.Backup(node)).written_tokens == 0
    cache.do(ops.Evict(64))
    assert cache.do(ops.LoadNode(node)).loading_tokens == 64
    settle(cache)
    generation = cache.do(ops.OpenSession(5, streaming=True)).generation
    cache.do(ops.CloseSession(5, generation))
    assert cache.do(ops.Clear()) == ops.Cleared()
    assert cache.do(ops.Match(3, prompt)).device_tokens == 0
    assert cache.stats()["bytes_l2_to_l1"] == 64 * 2 * 2 * 64


@pytest.mark.parametrize("kind", [list, tuple, lambda x: array.array("I", x), lambda x: x.astype("int32"), lambda x: x.astype("int64"),
                                  lambda x: numpy.repeat(x, 2)[::2], memoryview])
def test_tokens_may_be_many_things(cache, kind):
    serve(cache, 1, prompt_of(1))
    assert cache.do(ops.Match(2, kind(prompt_of(1)))).device_tokens == 48


def test_namespaces_are_apart(cache):
    serve(cache, 1, prompt_of(1))
    assert cache.do(ops.Match(2, prompt_of(1), salt=b"tenant")).device_tokens == 0
    assert cache.do(ops.Match(3, prompt_of(1), extra_key=b"lora\0")).device_tokens == 0


def test_an_operation_that_fails_does_not_stop_the_next(cache):
    answers = cache.apply([ops.Release(9), ops.Match(1, prompt_of(1))])
    assert answers[0].code == hicache.Code.UNKNOWN_ID
    assert answers[1].device_tokens == 0
    with pytest.raises(hicache.Error, match="unknown_id"):
        answers.check()


@pytest.mark.parametrize("operation, sentence", [
    (7, "int; expected one of hicache.ops"),
    (ops.Match(1, b"tokens"), "tokens: expected numbers"),
    (ops.Match(1, [-1]), "can't convert negative value"),
    (ops.Match(1, ["a"]), "integer"),
    (ops.Match(1, [1], salt="text"), "bytes"),
    (ops.Match(-1, [1]), "request: -1; expected a number from 0"),
    (ops.Insert(1, [1], priority=2**31), "priority: 2147483648; expected a number from -2147483648"),
    (ops.Insert(1, [1], ttl=-1), "ttl: -1; expected seconds"),
    (ops.Pin([1], ttl=1e30), "ttl_ms: 18446744073709551615; expected a hundred years"),
    (ops.Evict(1, tier="L3"), "tier: 'L3'; expected 'L1' or 'L2'"),
])
def test_a_wrong_operation_is_one_sentence(cache, operation, sentence):
    with pytest.raises(hicache.InvalidArgument) as raised:
        cache.apply([ops.Match(1, prompt_of(1)), operation])
    assert raised.value.sentence.startswith("operation 1: ")
    assert sentence in raised.value.sentence
    with pytest.raises(hicache.Error):
        cache.do(ops.Release(1))  # Nothing was sent.


@pytest.mark.parametrize("settings, sentence", [
    ({"pages": 1}, '"pages" is not known'),
    ({"page_size": 24, "device": "host"}, "--page-size"),
    ({"device": "toaster"}, "--device"),
    ({"rendezvous": "unix:/tmp/x", "rank": 2, "ranks": 2}, "there is no rank 2 of 2"),
])
def test_a_wrong_setting_is_one_sentence(settings, sentence):
    with pytest.raises(hicache.InvalidArgument) as raised:
        hicache.Cache(**settings)
    assert sentence in raised.value.sentence


def test_an_engine_may_bring_its_own_l1():
    memory = numpy.zeros((4, 33, PAGE, 64), dtype="uint8")
    base, page, row = memory.ctypes.data, PAGE * 64, 64
    layers = [(base + i * 33 * page, page, row) for i in range(4)]
    with hicache.Cache(SETTINGS, layers=layers, l1_pages=33) as cache:
        assert cache.layer(1, 1) == layers[3]
        serve(cache, 1, prompt_of(1))
        assert (memory == 7).sum() == 4 * 64 * 64
    with pytest.raises(hicache.InvalidArgument, match="33 pages, padding included"):
        hicache.Cache(SETTINGS, layers=layers, l1_pages=32)


def test_events_say_what_can_be_served():
    with hicache.Cache(SETTINGS, events=True) as cache:
        prompt = prompt_of(1)
        serve(cache, 1, prompt)
        cache.do(ops.Evict(64))
        settle(cache)
        news = []
        while not any(each.kind == "removed" for each in news):
            news += cache.poll(60)
        assert cache.poll() == []
        stored = [each for each in news if each.kind == "stored" and each.tier == "L1"]
        assert [each.kind for each in news if each.kind != "step"][0] == "cleared"
        assert stored[0].parent is None and len(stored[0].keys) == 4
        assert (numpy.asarray(stored[0].tokens) == prompt).all()
        removed = [each for each in news if each.kind == "removed"]
        assert {bytes(key) for each in removed for key in each.keys} == {bytes(key) for key in stored[0].keys}
        assert {each.tier for each in removed} == {"L1"}


def test_a_view_keeps_the_cache_open():
    cache = hicache.Cache(SETTINGS)
    view = cache.view(0, 0)
    assert view.shape == (33, PAGE, 64)
    with pytest.raises(BufferError):
        cache.close()
    del view
    cache.close()
    cache.close()
    with pytest.raises(hicache.Error, match="stopping"):
        cache.step()


def test_who_polls_is_told_of_the_end():
    cache = hicache.Cache(SETTINGS)
    raised = []

    def poll():
        try:
            cache.poll(60)
        except hicache.Error as trouble:
            raised.append(trouble.code)

    thread = threading.Thread(target=poll)
    thread.start()
    cache.close()
    thread.join()
    assert raised == [hicache.Code.STOPPING]


def test_a_forked_child_gets_errors(cache):
    child = os.fork()
    if child == 0:
        try:
            cache.step()
        except hicache.Error as trouble:
            os._exit(0 if trouble.code == hicache.Code.FORKED else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    cache.step()


RANK = """
import json, sys
sys.path[:0] = json.loads(sys.argv[1])
import hicache, test_cache
with hicache.Cache(json.loads(sys.argv[2])) as cache:
    test_cache.serve(cache, 1, test_cache.prompt_of(1), cache.info.rank)
    print(cache.info.ranks, test_cache.serve(cache, 2, test_cache.prompt_of(1), cache.info.rank).l1_tokens)
"""


def test_two_processes_are_two_ranks(tmp_path):
    path = json.dumps([os.path.dirname(os.path.abspath(__file__)), *(each for each in sys.path if each)])
    ranks = [subprocess.Popen([sys.executable, "-c", RANK, path, json.dumps(
        {**SETTINGS, "rendezvous": f"unix:{tmp_path}/meet", "rank": rank, "ranks": 2})], stdout=subprocess.PIPE, text=True)
        for rank in range(2)]
    assert [rank.communicate(timeout=100)[0] for rank in ranks] == ["2 48\n", "2 48\n"]


def test_without_the_library_a_store_works_all_the_same(monkeypatch, store):
    monkeypatch.setattr("hicache._tree_abi._library", None)
    monkeypatch.setenv("HICACHE_TREE_LIBRARY", "/nowhere/libhicache_tree.so")
    with pytest.raises(OSError):
        hicache.Cache(SETTINGS)
    store.put(["a"], [b"1" * 64]).check()
