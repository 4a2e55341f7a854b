"""hicache as the storage of SGLang's hierarchical cache."""

import json

from conftest import PAGE, PROMPT_PAGES, PROMPTS, from_storage, tokens, until


def storage(node, layout, interface, **settings):
    """Arguments of an engine whose storage is the node."""
    extra = {"backend_name": "hicache", "module_path": "hicache.sglang", "class_name": "HicacheStorage", "interface_v1": interface,
             "hicache_storage_pass_prefix_keys": True, "prefetch_threshold": PAGE, "socket": node.socket, **settings}
    return {"enable_hierarchical_cache": True, "hicache_ratio": 2.0, "hicache_size": 0, "hicache_write_policy": "write_through",
            "hicache_io_backend": "direct", "hicache_mem_layout": layout, "hicache_storage_prefetch_policy": "wait_complete",
            "hicache_storage_backend": "dynamic", "hicache_storage_backend_extra_config": json.dumps(extra)}


HITS = [count * PAGE for count in PROMPT_PAGES]


def test_pages_in_pieces_come_back_and_outlive_engine_and_node(engine, node, pages, oracle):
    first = engine(**storage(node, "page_first_direct", 1))
    outputs = first.generate()
    assert tokens(outputs) == oracle and from_storage(outputs) == [0] * len(PROMPTS)
    until(lambda: pages() >= sum(PROMPT_PAGES), "the pages of all prompts")
    first.flush()
    outputs = first.generate()
    assert tokens(outputs) == oracle and from_storage(outputs) == HITS
