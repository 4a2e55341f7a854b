"""A node behind vLLM's own host tier: HicacheTier in real engines."""

import pytest
from conftest import CACHED, CHUNK, CHUNKS, FACTS, PROMPTS, Engine, cached, same, until

NONE = [0] * len(PROMPTS)


def transfer(node, host_memory=16 << 20):
    tier = {"type": "HicacheTier", "module_path": "hicache.vllm_tier", "socket": node.socket}
    return {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"spec_name": "CpuTieringSpec", "spec_module_path": "cpu_tiering", "cpu_bytes_to_use": host_memory,
                                          "block_size": CHUNK, "secondary_tiers": [tier]}}


@pytest.fixture(scope="module")
def first(node, tmp_path_factory):
    # Host memory of vLLM's own for 32 chunks: less than the prompts have.
    with Engine(tmp_path_factory.mktemp("first") / "log", together=True, transfer=transfer(node, 8 << 20)) as engine:
        yield engine


def test_equal_output_through_both_tiers(first, status, expected):
    outputs = first.generate()
    assert cached(outputs) == NONE and same(outputs, expected)
    # What came last stays in vLLM's tier; connector=True empties it, and the node keeps all.
    first.do("reset", connector=True)
    until(lambda: status()["pages"] == CHUNKS + FACTS, "the last page")
    found = status()["pages_found"]
    outputs = first.generate()
    assert cached(outputs) == CACHED and same(outputs, expected)
    assert status()["pages_found"] >= found + CHUNKS
    assert "kept by the node" in first.log


def test_a_second_engine_finds_the_pages_and_survives_the_node(first, node, status, expected, tmp_path):
    with Engine(tmp_path / "second", together=True, transfer=transfer(node)) as second:
        outputs = second.generate()
        assert cached(outputs) == CACHED and same(outputs, expected)
        for prompt in 3 * PROMPTS:
            second.ask("generate", prompts=[prompt])
            second.ask("reset", connector=True)
        outputs = [second.answer()[0]]
        second.answer()
        node.kill()
        for i in range(1, len(3 * PROMPTS)):
            outputs += second.answer()
            second.answer()
            if i == len(PROMPTS):
                node.start()
        assert same(outputs, 3 * expected)
        until(lambda: second.do("reset", connector=True) and sum(cached(second.generate())) == sum(CACHED), "a hit", 120)
        second.kill()
    # The other engine sees with its next request that the node was restarted.
    until(lambda: first.do("reset", connector=True) and cached(first.generate()) == CACHED, "a hit", 120)
    assert same(first.generate(), expected)
    until(lambda: status()["leases"] == status()["reservations"] == 0, "the end of the leases")
