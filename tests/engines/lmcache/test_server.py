"""`lmcache server` with our native plug-in, under vLLM: real ones, in processes of their own."""

import pathlib
import sys
import time

import pytest
from processes import CHUNK, engine, lmcache_server

HERE = pathlib.Path(__file__).resolve().parent
PROMPTS = (1000, 1500, 333, 2000)
# Whole chunks of each prompt.
CHUNKS = [length // CHUNK for length in PROMPTS]


def vllm(folder, ranks, *port):
    return engine(folder / "vllm.log", sys.executable, HERE / "vllm_engine.py", ranks, *port)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The tokens of an engine without any cache."""
    with vllm(tmp_path_factory.mktemp("oracle"), 1) as running:
        return running.ask()["tokens"]

# Pages that say whose chunks the others are.
FACTS = 2


def until_written(store, pages):
    """The server writes behind."""
    end = time.monotonic() + 60
    while store.node_status()["pages_written"] < pages:
        assert time.monotonic() < end, store.node_status()
        time.sleep(0.1)


def test_fresh_processes_go_on_with_what_others_left(node, damage, expected, tmp_path):
    with node.store("the test") as store:
        with lmcache_server(tmp_path, node) as port, vllm(tmp_path, 1, port) as running:
            cold = running.ask()
            assert cold["tokens"] == expected and cold["cached"] == [0] * 4
            until_written(store, sum(CHUNKS) + FACTS)
            running.begin()  # Both are killed while they are at it.

        found = store.node_status()["pages_found"]
        with lmcache_server(tmp_path, node, model_id="float16") as port, vllm(tmp_path, 1, port) as running:
            other = running.ask()
            assert other["tokens"] == expected and other["cached"] == [0] * 4
        assert store.node_status()["pages_found"] == found

        with lmcache_server(tmp_path, node) as port, vllm(tmp_path, 1, port) as running:
            warm = running.ask()
            assert warm["tokens"] == expected
            # The last token of a prompt is always computed.
            assert warm["cached"] == [chunks * CHUNK for chunks in CHUNKS]
            assert store.node_status()["pages_found"] - found >= sum(CHUNKS)
            damage()
            assert running.ask()["tokens"] == expected
            assert "corrupt_page" in (tmp_path / "server.log").read_text()
            running.begin()
            node.kill()
            assert running.answer()["tokens"] == expected
            node.start()
            assert running.ask()["tokens"] == expected


def test_two_ranks_go_on_alone_with_what_two_ranks_left(node, expected, tmp_path):
    with node.store("the test") as store:
        with lmcache_server(tmp_path, node) as port, vllm(tmp_path, 2, port) as running:
            cold = running.ask()
            assert cold["cached"] == [0] * 4
            until_written(store, 2 * sum(CHUNKS) + FACTS)

        with lmcache_server(tmp_path, node) as port, vllm(tmp_path, 2, port) as running:
            warm = running.ask()
            assert warm["tokens"] == cold["tokens"] and warm["cached"] == [chunks * CHUNK for chunks in CHUNKS]

        with lmcache_server(tmp_path, node) as port, vllm(tmp_path, 1, port) as running:
            other = running.ask()
            assert other["tokens"] == expected and other["cached"] == [0] * 4
