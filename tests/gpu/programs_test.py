"""The programs of a build and the Python package on a real GPU: `tests/gpu/run.sh --programs BUILD` runs this, ctest does not.

HICACHE_BIN, HICACHE_LLAMA_LOGITS and HICACHE_LIBRARY, HICACHE_TREE_LIBRARY say what is tested. Those of torch need a torch that sees the GPU, and are skipped by name
without.
"""

import contextlib
import itertools
import json
import os
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / each) for each in ("tests/llama", "tests/system", "clients/python")]
import hicache
from engine_case import FEW_PAGES, EngineCase
from harness import BIN, MPIRUN, Program
from hicache import ops

with contextlib.suppress(ImportError):
    import torch

LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")
IO_BACKENDS = ("direct", "kernel")


class EngineTest(EngineCase):
    """examples/llama computes on the GPU; its tokens are those of the model on the CPU without any cache."""
    DEVICE = "cuda"
    PROMPTS = 60

    def test_kv_from_l1_and_l2_gives_the_same_tokens(self):
        for layout, io in itertools.product(LAYOUTS, IO_BACKENDS):
            with self.subTest(layout=layout, io=io):
                engine = self.start(*FEW_PAGES, "--hicache-mem-layout", layout, "--hicache-io-backend", io, "--pass-tokens", "48")
                self.complete_all(engine, side_by_side=4)
                self.assertGreater(sum(self.complete_all(engine, side_by_side=4)), 2000)
                self.stop(engine)

    def test_ranks_share_a_gpu(self):
        engine = self.start(*FEW_PAGES, ranks=2)
        self.complete_all(engine, side_by_side=4)
        self.complete_all(engine, side_by_side=4)
        self.stop(engine)

    def whole_pages(self):
        return sum((len(prompt) - 1) // 16 * 16 for prompt in self.prompts)

    def test_kv_of_a_gpu_goes_to_files_and_comes_back_to_a_gpu_and_to_a_cpu(self):
        store = self.store("file", path=str(self.folder / "l3"))
        first = self.start(*store)
        self.complete_all(first, side_by_side=4)
        self.stop(first)
        for device in ("cuda", "host"):
            with self.subTest(device):
                self.DEVICE = device
                second = self.start(*store)
                self.assertEqual(sum(self.complete_all(second, side_by_side=4)), self.whole_pages())
                self.stop(second)

    def test_another_instance_takes_kv_from_the_cluster(self):
        for config in ({}, {"force_remote_reads": True}):
            with self.subTest(**config):
                index = self.start_index()
                keeper = self.start(*self.cluster(index, **config))
                self.complete_all(keeper, side_by_side=4)
                reader = self.start(*self.cluster(index, "0", **config))
                self.assertEqual(sum(self.complete_all(reader, side_by_side=4)), self.whole_pages())
                self.stop(reader)
                self.stop(keeper)
                index.kill()


class ReplayTest(unittest.TestCase):
    """hicache-replay makes up KV of real shapes in the GPU's memory, and compares all that comes back."""

    def replay(self, ranks, *flags):
        with tempfile.TemporaryDirectory(prefix="hicache-gpu-") as folder:
            report = pathlib.Path(folder, "report.json")
            program = Program([MPIRUN, ranks, BIN / "hicache-replay", "--workload", "multi-turn", "--device", "cuda", "--verify", "all", "--report", report,
                               *flags], pathlib.Path(folder), "replay")
            try:
                self.assertEqual(program.wait(120), 0, program.text())
            finally:
                program.kill()
            found = json.loads(report.read_text())
        self.assertEqual((found["verify"]["mismatches"], found["errors"], found["divergences"]), (0, 0, 0))
        self.assertGreater(found["cached_tokens"]["l2"], 0)
        self.assertGreater(found["verify"]["pages_checked"], 0)
        moved = {way: f"{found['bytes'][way] / 2**30:.2f} GiB" for way in ("l1_to_l2", "l2_to_l1")}
        print(" ".join(map(str, flags)), f"{ranks} ranks:", moved, f"{found['wall_s']:.2f} s", f"first tokens {found['ttft_ms']['p50']:.1f} ms", flush=True)

    def test_shapes(self):
        for model, io in itertools.product(("llama-3.1-8b", "deepseek-v3", "deepseek-v3.2"), IO_BACKENDS):
            with self.subTest(model=model, io=io):
                self.replay(1, "--model", model, "--clients", "4", "--rounds", "4", "--device-pages", "100", "--hicache-ratio", "4", "--hicache-io-backend", io)

    def test_ranks_share_a_gpu(self):
        self.replay(2, "--model", "tiny", "--device-pages", "256")


def needs_torch(test):
    return unittest.skipUnless("torch" in globals() and torch.cuda.is_available(), "no torch that sees the GPU")(test)


@needs_torch
class TorchTest(unittest.TestCase):
    """The Python package with tensors of torch in the GPU's memory."""

    BLOCKS, PER_PAGE, LAYERS = 64, 2, 4

    def setUp(self):
        self.stream = torch.cuda.Stream()
        self.node = hicache.node("256MiB")
        self.addCleanup(self.node.stop)

    def layers(self, fill):
        with torch.cuda.stream(self.stream):
            return [fill((self.BLOCKS, 16, 8, 128)) for _ in range(self.LAYERS)]

    def random(self, shape):
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16)

    def zeros(self, shape):
        return torch.zeros(shape, device="cuda", dtype=torch.bfloat16)

    def test_blocks_go_to_the_node_and_come_back_layer_by_layer(self):
        count = self.BLOCKS // self.PER_PAGE
        keys = [f"page {i}" for i in range(count)]
        written, read = self.layers(self.random), self.layers(self.zeros)
        event = torch.cuda.Event()
        event.record(self.stream)  # The random numbers may still be under way.
        where = [[self.PER_PAGE * i, self.PER_PAGE * i + 1] for i in range(count)]
        back = [[block for block in reversed(blocks)] for blocks in reversed(where)]
        with self.node.store("torch", timeout=60) as store, hicache.Offload(store, written, self.PER_PAGE) as source:
            self.assertEqual(source.store(keys, where, event=event.cuda_event).check().pages, count)
            with hicache.Offload(store, read, self.PER_PAGE) as target:
                self.stream.synchronize()
                call = target.start_load(keys, back)
                with torch.cuda.stream(self.stream):
                    for layer in range(self.LAYERS):
                        call.stream_wait(layer, self.stream.cuda_stream)
                        # On the stream, so that only its wait orders this behind the copies.
                        read[layer] = read[layer].flip(0).clone()
                self.stream.synchronize()
                self.assertEqual(call.result().check().pages, count)
        for layer in range(self.LAYERS):
            self.assertTrue(torch.equal(read[layer], written[layer]), f"layer {layer}")

    def test_a_rank_in_this_process_has_torch_tensors_as_l1(self):
        pages, tokens, row = 33, 16, 64
        settings = {"device": "cuda", "model": "tiny", "page-size": tokens, "device-pages": pages - 1}
        tensors = [torch.zeros((pages, tokens, row), device="cuda", dtype=torch.uint8) for _ in range(4)]
        places = [(tensor.data_ptr(), tokens * row, row) for tensor in tensors]
        prompt = list(range(1000, 1000 + 8 * tokens))
        stream = self.stream
        with hicache.Cache(settings, layers=places, l1_pages=pages) as cache:
            self.assertEqual((cache.info.layers, cache.info.parts), (2, 2))
            cache.apply([ops.Match(1, prompt), ops.Schedule(1)]).check()
            room = cache.apply([ops.Load(1), ops.Allocate(1, len(prompt))]).check()[1]
            event = torch.cuda.Event()
            with torch.cuda.stream(stream):
                for number, tensor in enumerate(tensors):
                    for place, page in enumerate(room.pages):
                        tensor[page] = 16 * number + place
                event.record(stream)
            cache.apply([ops.Insert(1, prompt, after=event.cuda_event), ops.Release(1, after=event.cuda_event)]).check()
            while cache.step(0.05).in_flight:
                pass
            self.assertEqual(cache.do(ops.Evict(len(prompt))).freed_tokens, len(prompt))
            for tensor in tensors:
                tensor.zero_()
            torch.cuda.synchronize()
            cache.apply([ops.Match(2, prompt), ops.Schedule(2)]).check()
            loaded = cache.do(ops.Load(2))
            self.assertEqual(loaded.loading_tokens, 7 * tokens)
            seen = []
            with torch.cuda.stream(stream):
                for layer in range(2):
                    cache.wait_for_layer(loaded.progress, layer, stream.cuda_stream)
                    for part in range(2):
                        seen.append((part * 2 + layer, tensors[part * 2 + layer][list(loaded.pages)].clone()))
            stream.synchronize()
            for number, found in seen:
                for place in range(7):
                    self.assertTrue((found[place] == 16 * number + place).all(), f"tensor {number}, page {place}")
            cache.apply([ops.Release(2)]).check()
            while cache.step(0.05).in_flight:
                pass


if __name__ == "__main__":
    unittest.main(verbosity=2)
