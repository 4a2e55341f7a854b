"""hicache as the storage of SGLang's hierarchical cache (`--hicache-storage-backend dynamic`)."""

import json

from engines import HAS_LINKERS, PAGE, PROMPT_PAGES, PROMPTS, HttpServer, from_storage, tokens, until

NOTHING = [0] * len(PROMPTS)
HITS = [count * PAGE for count in PROMPT_PAGES]


def settings(node, interface, **more):
    return json.dumps({"backend_name": "hicache", "module_path": "hicache.sglang", "class_name": "HicacheStorage", "interface_v1": interface,
                       "hicache_storage_pass_prefix_keys": True, "prefetch_threshold": PAGE, "socket": node.socket, **more})


def storage(node, layout="page_first_direct", interface=1, **more):
    """Arguments of an engine whose storage is the node."""
    return {"enable_hierarchical_cache": True, "hicache_ratio": 2.0, "hicache_size": 0, "hicache_write_policy": "write_through",
            "hicache_io_backend": "direct", "hicache_mem_layout": layout, "hicache_storage_prefetch_policy": "wait_complete",
            "hicache_storage_backend": "dynamic", "hicache_storage_backend_extra_config": settings(node, interface), **more}


def test_pages_in_pieces_outlive_the_engine_and_are_missed_if_damaged_or_without_the_node(engine, node, state, damage, oracle):
    first = engine(**storage(node))
    outputs = first.generate()
    assert tokens(outputs) == oracle and from_storage(outputs) == NOTHING
    until(lambda: state().pages >= sum(PROMPT_PAGES), "the pages of all prompts")
    first.flush()
    outputs = first.generate()
    assert tokens(outputs) == oracle and from_storage(outputs) == HITS
    assert state().pages_found >= sum(PROMPT_PAGES)

    damage()
    first.flush()
    outputs = first.generate()
    assert tokens(outputs) == oracle and from_storage(outputs) == NOTHING
    first.flush()
    assert tokens(first.generate()) == oracle

    first.flush()
    first.begin()
    outputs = first.answer()
    node.kill()
    outputs += first.answer() + first.answer()
    assert tokens(outputs) == oracle and from_storage(outputs)[0] == HITS[0]
    first.flush()
    outputs = first.generate()
    assert tokens(outputs) == oracle and from_storage(outputs) == NOTHING
    node.start()

    def has_stored_again():
        first.flush()
        assert tokens(first.generate()) == oracle
        return state().pages >= sum(PROMPT_PAGES)

    until(has_stored_again, "the pages of all prompts, once more")

    first.begin()
    first.kill()
    until(lambda: state().clients == 1, "the end of the engine's connection")
    second = engine(**storage(node))
    outputs = second.generate()
    assert tokens(outputs) == oracle and from_storage(outputs) == HITS
    assert "are kept by the node" in second.log


def test_two_ranks_have_their_own_pages_which_an_engine_of_one_never_sees(engine, node, state, oracle):
    two = engine(**storage(node, tp_size=2))
    computed = two.generate()
    assert from_storage(computed) == NOTHING
    until(lambda: state().pages >= 2 * sum(PROMPT_PAGES), "the pages of both ranks")
    two.flush()
    outputs = two.generate()
    assert tokens(outputs) == tokens(computed) and from_storage(outputs) == HITS
    two.kill()

    faults = {"SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE": "0.3", "SGLANG_TEST_HICACHE_BACKEND_RANDOM_DELAY": "0.05"}
    one = engine(more=faults, **storage(node))
    outputs = one.generate()
    assert tokens(outputs) == oracle and from_storage(outputs) == NOTHING
    hits = 0
    for _ in range(4):
        one.flush()
        outputs = one.generate()
        assert tokens(outputs) == oracle
        hits += sum(from_storage(outputs))
    assert 0 < hits and (hits < 4 * sum(HITS) and "test injector enabled" in one.log) == HAS_LINKERS


def test_whole_pages_and_attaching_while_the_server_runs(tmp_path, node, state, oracle):
    flags = ["--enable-hierarchical-cache", "--hicache-ratio", "2", "--hicache-io-backend", "direct", "--hicache-mem-layout", "layer_first",
             "--hicache-write-policy", "write_through", "--enable-cache-report"]
    with HttpServer(tmp_path / "server.log", *flags) as server:

        def attach(**more):
            body = {"hicache_storage_backend": "dynamic", "hicache_storage_backend_extra_config_json": settings(node, 0, **more),
                    "hicache_storage_prefetch_policy": "wait_complete", "hicache_write_policy": "write_through"}
            return server.ask("PUT", "/hicache/storage-backend", body)

        assert attach(timeout="soon")[0] == 400 and '"timeout"' in server.log
        assert attach()[0] == 200
        assert tokens(server.generate()) == oracle
        until(lambda: state().pages >= sum(PROMPT_PAGES), "the pages of all prompts")
        server.flush()
        outputs = server.generate()
        assert tokens(outputs) == oracle and from_storage(outputs) == HITS
        server.ask("POST", "/hicache/storage-backend/clear")
        assert state().pages >= sum(PROMPT_PAGES) and "not cleared by an engine" in server.log

        assert server.ask("DELETE", "/hicache/storage-backend")[0] == 200
        until(lambda: state().clients == 1, "the end of the storage's connection")
        assert attach(namespace="other weights")[0] == 200
        server.flush()
        outputs = server.generate()
        assert tokens(outputs) == oracle and from_storage(outputs) == NOTHING
