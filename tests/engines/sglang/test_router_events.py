"""Events of hicache's ranks, read by SGLang's classes."""

import kv_events
from sglang.srt.disaggregation.kv_events import KVEventBatch


def test_a_router_for_sglang_knows_what_ranks_of_hicache_have(tmp_path):
    kv_events.check(tmp_path, "sglang", KVEventBatch, "CPU_PINNED")
