"""LMCache's engine in this process, with KV in tensors of the CPU. Each line of standard input is {"settings": LMCache's or null for the engine
that is there, "do": [actions]}; the answer is a list of what came of the actions."""

import json
import os
import sys

os.environ["LMCACHE_TRACK_USAGE"] = "false"

import torch  # noqa: E402
from lmcache.v1.cache_engine import LMCacheEngineBuilder  # noqa: E402
from lmcache.v1.config import LMCacheEngineConfig  # noqa: E402
from lmcache.v1.gpu_connector.gpu_connectors import GPUConnectorInterface  # noqa: E402
from lmcache.v1.metadata import LMCacheMetadata  # noqa: E402

LAYERS, HEADS, WIDTH, CHUNK, SLOTS, TOKENS = 4, 2, 64, 64, 4096, 300


class CpuConnector(GPUConnectorInterface):
    """Copies between slots of an engine's KV, (2, slots, heads * width) for each layer, and LMCache's chunks, (2, layers, tokens, heads * width)."""

    def to_gpu(self, memory_obj, start, end, **of):
        slots = of["slot_mapping"][start:end]
        for layer, kv in enumerate(of["kvcaches"]):
            kv[:, slots] = memory_obj.tensor[:, layer, :end - start]

    def from_gpu(self, memory_obj, start, end, **of):
        slots = of["slot_mapping"][start:end]
        for layer, kv in enumerate(of["kvcaches"]):
            memory_obj.tensor[:, layer, :end - start] = kv[:, slots]

    def batched_to_gpu(self, memory_objs, starts, ends, **of):
        for each in zip(memory_objs, starts, ends):
            self.to_gpu(*each, **of)

    def batched_from_gpu(self, memory_objs, starts, ends, **of):
        for each in zip(memory_objs, starts, ends):
            self.from_gpu(*each, **of)

    def get_shape(self, num_tokens):
        return torch.Size([2, LAYERS, num_tokens, HEADS * WIDTH])

    def initialize_kvcaches_ptr(self, **of):
        pass


class Engine:
    def __init__(self, name, settings):
        self.name = name
        config = LMCacheEngineConfig.from_dict(settings)
        metadata = LMCacheMetadata(model_name="tiny", world_size=1, local_world_size=1, worker_id=0, local_worker_id=0, kv_dtype=torch.bfloat16,
                                   kv_shape=(LAYERS, 2, CHUNK, HEADS, WIDTH), chunk_size=CHUNK)
        self.real = LMCacheEngineBuilder.get_or_create(name, config, metadata, CpuConnector(), lambda tensor, _: tensor, lambda each, _: each)
        self.real.post_init(async_lookup_server=None)
        torch.manual_seed(1)
        self.kv = [torch.randn(2, SLOTS, HEADS * WIDTH).bfloat16() for _ in range(LAYERS)]
        self.slots = torch.randperm(SLOTS)[:TOKENS]

    def lookup(self):
        return self.real.lookup(list(range(TOKENS)))

    def store(self):
        self.real.store(torch.arange(TOKENS), kvcaches=self.kv, slot_mapping=self.slots)
        for backend in self.real.storage_manager.storage_backends.values():
            while getattr(backend, "put_tasks", None):
                pass

    def retrieve(self):
        """How many tokens came, and whether they are what was stored."""
        into = [torch.zeros_like(each) for each in self.kv]
        slots = torch.randperm(SLOTS)[:TOKENS]
        count = int(self.real.retrieve(torch.arange(TOKENS), kvcaches=into, slot_mapping=slots).sum())
        return [count, all(torch.equal(a[:, self.slots[:count]], b[:, slots[:count]]) for a, b in zip(self.kv, into))]

    def close(self):
        LMCacheEngineBuilder.destroy(self.name)


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # What libraries print is no answer.
    print(json.dumps("ready"), file=answers, flush=True)
    engine = None
    for number, line in enumerate(sys.stdin):
        asked = json.loads(line)
        if asked["settings"] is not None:
            if engine is not None:
                engine.close()
            engine = Engine(f"engine {number}", asked["settings"])
        print(json.dumps([getattr(engine, action)() for action in asked["do"]]), file=answers, flush=True)
    if engine is not None:
        engine.close()


if __name__ == "__main__":
    main()
