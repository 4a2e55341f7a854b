"""A node as vLLM's host tier: HicacheConnector in real engines."""

import pytest
import zmq
from conftest import CACHED, CHUNK, CHUNKS, FACTS, MODEL_OF_TWO_GROUPS, PROMPTS, Engine, cached, same, transfer, until
from msgspec.msgpack import Decoder
from vllm.distributed.kv_events import BlockStored, KVEventBatch

NONE = [0] * len(PROMPTS)


class Subscriber:
    """What a router hears from an engine, decoded by vLLM's own classes."""

    def __init__(self, endpoint):
        self._socket = zmq.Context.instance().socket(zmq.SUB)
        self._socket.connect(endpoint)
        self._socket.subscribe("")
        self._decoder = Decoder(type=KVEventBatch)
        self.stored = []

    def hear(self):
        while self._socket.poll(100):
            self.stored += [event for event in self._decoder.decode(self._socket.recv_multipart()[-1]).events
                            if isinstance(event, BlockStored) and event.medium == "CPU"]
        return self.stored

    def close(self):
        self._socket.close(0)


@pytest.fixture(scope="module")
def router(tmp_path_factory):
    router = Subscriber(f"ipc://{tmp_path_factory.mktemp('events')}/kv")
    yield router
    router.close()


@pytest.fixture(scope="module")
def first(node, router, tmp_path_factory):
    """An engine that most tests share."""
    endpoint = router._socket.last_endpoint.decode()
    events = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": endpoint}
    with Engine(tmp_path_factory.mktemp("first") / "log", together=True, events=events, transfer=transfer(node, self_describing_kv_events=True)) as engine:
        yield engine


def settled(status):
    """Nothing is leased or reserved at the node."""
    until(lambda: status()["leases"] == status()["reservations"] == 0, "the end of the leases")


@pytest.mark.short
def test_equal_output_from_the_node(first, node, status, expected):
    outputs = first.generate()
    assert cached(outputs) == NONE and same(outputs, expected)
    until(lambda: status()["pages"] == CHUNKS + FACTS, "the last page")
    assert first.do("reset")
    found = status()["pages_found"]
    outputs = first.generate()
    assert cached(outputs) == CACHED and same(outputs, expected)
    assert status()["pages_found"] >= found + 2 * CHUNKS  # Pinned by the scheduler, and read by the worker.
    settled(status)
    assert "kept by the node at " + node.socket in first.log and "rank 0 of 1 copies chunks" in first.log


def test_a_router_hears_what_the_node_has(first, router):
    chunks = {tuple(prompt[i:i + CHUNK]) for prompt in PROMPTS for i in range(0, len(prompt) - CHUNK + 1, CHUNK)}
    first.do("generate", prompts=[[249, 248, 247]])  # Steps, with which events are sent.
    until(lambda: {tuple(event.token_ids) for event in router.hear()} == chunks, "the last event")
    assert {event.group_idx for event in router.stored} == {0}


@pytest.mark.parametrize("how", ["remove", "damage"])
def test_a_lost_page_is_computed_again(first, expected, status, how):
    first.do("reset")
    first.do("spoil", how=how)
    outputs = first.generate()
    assert cached(outputs) == [0, *CACHED[1:]] and same(outputs, expected)
    settled(status)
    # The next request that computes it stores it again.
    first.do("reset")
    assert cached(first.generate()) == [CACHED[0] - CHUNK, *CACHED[1:]]
    first.do("reset")
    assert cached(first.generate()) == CACHED


def test_the_comparison_would_see_a_wrong_page(first, expected):
    first.do("reset")
    first.do("spoil", how="replace")
    outputs = first.generate(PROMPTS[:1])
    assert cached(outputs) == CACHED[:1] and outputs[0]["tokens"] != expected[0]["tokens"]
    # Out of the node with it.
    first.do("reset")
    first.do("spoil", how="remove")
    assert same(first.generate(PROMPTS[:1]), expected[:1])


@pytest.mark.short
def test_a_second_engine_finds_the_pages_of_the_first(first, node, status, expected, tmp_path):
    first.do("reset")
    first.generate()
    with Engine(tmp_path / "second", together=True, transfer=transfer(node, policy="fail")) as second:
        outputs = second.generate()
        assert cached(outputs) == CACHED and same(outputs, expected)
        assert '"kv_load_failure_policy": "recompute"' in second.log
        # With this policy a request whose page is lost ends as vLLM defines it, and the engine goes on.
        second.do("reset")
        second.do("spoil", how="remove")
        assert second.generate(PROMPTS[:1])[0]["reason"] == "error"
        assert same(second.generate(PROMPTS[1:]), expected[1:])
        # Both at a time, and one of them killed.
        clients = status()["clients"]
        for engine in (first, second):
            engine.do("reset")
            for prompt in 3 * PROMPTS:
                engine.ask("generate", prompts=[prompt])
                engine.ask("reset")
        second.answer()
        second.kill()
        outputs = [answer for _ in 3 * PROMPTS for answer in (first.answer(), first.answer())][::2]
        assert same([output for [output] in outputs], 3 * expected)
        until(lambda: status()["clients"] == clients - 2, "the end of the second engine's clients")
    settled(status)
    first.do("reset")
    outputs = first.generate()
    assert cached(outputs) == CACHED and same(outputs, expected)


def test_a_node_that_is_killed_while_pages_are_loaded(first, node, expected):
    first.do("reset")
    first.do("spoil", how="kill", process=node.pid)
    outputs = first.generate()
    assert cached(outputs) == NONE and same(outputs, expected)
    node.kill()
    node.start()
    # It is found again by itself, and filled.
    until(lambda: first.do("reset") and sum(cached(first.generate())) == sum(CACHED), "a hit", 120)
    assert same(first.generate(), expected)


def test_a_reset_of_all_caches_hides_nothing_of_the_same_weights(first, expected):
    first.do("reset")
    first.generate()
    for _ in range(3):
        assert first.do("reset", connector=True)
        outputs = first.generate()
        assert cached(outputs) == CACHED and same(outputs, expected)


def test_tensor_parallelism_has_pages_of_its_own(first, node, status, tmp_path):
    first.do("reset")
    first.generate()
    pages = status()["pages"]
    with Engine(tmp_path / "log", tensor_parallel_size=2, transfer=transfer(node)) as parallel:
        computed = parallel.generate()
        assert cached(computed) == NONE
        until(lambda: status()["pages"] == pages + 2 * CHUNKS + FACTS, "the last page of both ranks")
        assert parallel.do("reset")
        outputs = parallel.generate()
        assert cached(outputs) == CACHED and same(outputs, computed)
    settled(status)


def test_a_model_with_two_groups_of_layers(node, tmp_path):
    with Engine(tmp_path / "log", model=MODEL_OF_TWO_GROUPS, together=True, transfer=transfer(node)) as engine:
        computed = engine.generate()
        assert cached(computed) == NONE
        assert engine.do("reset")
        outputs = engine.generate()
        assert cached(outputs) == CACHED and same(outputs, computed)
        engine.do("reset")
        engine.do("spoil", how="remove")
        outputs = engine.generate()
        assert cached(outputs) == [0, *CACHED[1:]] and same(outputs, computed)
