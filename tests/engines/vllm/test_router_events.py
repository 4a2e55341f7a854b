"""Events of hicache's ranks, read by vLLM's classes, which Dynamo's and llm-d's routers have too."""

import kv_events
from vllm.distributed.kv_events import KVEventBatch


def test_a_router_for_vllm_knows_what_ranks_of_hicache_have(tmp_path):
    kv_events.check(tmp_path, "vllm", KVEventBatch, "CPU")
