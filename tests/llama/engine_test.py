"""The engine of examples/llama on hicache: what it answers with cached KV is what the model answers without any cache, token by token.

Tokens without a cache come from llama-logits, which has no actors, no scheduler and no hicache.
"""

import concurrent.futures
import http.client
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import unittest
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "examples/llama"), str(ROOT / "tests/system")]
import make_model
from harness import BIN, MPIRUN, Program

LOGITS = os.environ["HICACHE_LLAMA_LOGITS"]
STEPS = 10
#: Pages of the device pool that hold about two of the prompts, so that prefixes go to L2 and come back.
FEW_PAGES = ["--device-pages", "40", "--hicache-ratio", "16"]


def prompts(count, seed=11):
    """Conversations with shared beginnings: four long prefixes, each with turns that go on in different ways."""
    chosen = random.Random(seed)
    beginnings = [[chosen.randrange(272) for _ in range(150)] for _ in range(4)]
    return [chosen.choice(beginnings)[:chosen.randrange(40, 150)] + [chosen.randrange(272) for _ in range(chosen.randrange(1, 60))]
            for _ in range(count)]


class EngineTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory(prefix="hicache-llama-")
        cls.addClassCleanup(temporary.cleanup)
        cls.shared = pathlib.Path(temporary.name)
        cls.model = cls.shared / "tiny"
        make_model.write_model(make_model.parse([str(cls.model), "--kv-heads", "2"]))
        cls.prompts = prompts(40)
        job = cls.shared / "job.json"
        job.write_text(json.dumps({"prompts": cls.prompts, "chunk": 64, "dtype": "fp32", "page_size": 16, "steps": STEPS}))
        done = subprocess.run([LOGITS, cls.model, job], capture_output=True, text=True, timeout=120, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})
        assert done.returncode == 0, done.stderr
        cls.expected = [each["tokens"] for each in json.loads(done.stdout)]

    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="hicache-llama-")
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.programs = []
        self.addCleanup(lambda: [each.kill() for each in self.programs])

    # -- programs -----------------------------------------------------------------

    def start(self, *flags, ranks=1):
        command = [BIN / "hicache-llama", self.model, "--listen", "127.0.0.1:0", "--page-size", "16", *flags]
        if ranks > 1:
            command[:0] = [MPIRUN, ranks]
        engine = Program(command, self.folder, f"engine{len(self.programs)}", {"OPENBLAS_NUM_THREADS": "1"})
        self.programs.append(engine)
        engine.ranks = ranks
        engine.address = engine.wait_for(r"listening on (\S+)").group(1)
        return engine

    def stop(self, engine):
        engine.process.send_signal(signal.SIGTERM)
        code = engine.wait(60)
        if engine.ranks == 1:  # mpirun has a code of its own.
            self.assertEqual(code, 0, engine.text())
        self.assertIn("stopped after", engine.text())

    def post(self, engine, body):
        """@returns the status and the answer"""
        connection = http.client.HTTPConnection(engine.address, timeout=120)
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        with connection.getresponse() as response:
            answer = response.status, json.loads(response.read())
        connection.close()
        return answer

    def complete(self, engine, prompt, **more):
        status, answer = self.post(engine, {"prompt": prompt, "max_tokens": STEPS, **more})
        self.assertEqual(status, 200, answer)
        self.assertEqual(answer["usage"]["prompt_tokens"], len(prompt))
        return answer["choices"][0]["token_ids"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    def complete_all(self, engine, side_by_side=1):
        """Completes all prompts and compares their tokens. @returns the cached tokens of each"""
        with concurrent.futures.ThreadPoolExecutor(side_by_side) as pool:
            answers = list(pool.map(lambda prompt: self.complete(engine, prompt), self.prompts))
        for number, ((tokens, _), expected) in enumerate(zip(answers, self.expected, strict=True)):
            self.assertEqual(tokens, expected, f"prompt {number}\n{engine.text()}")
        return [cached for _, cached in answers]

    # -- tests --------------------------------------------------------------------

    def test_cached_prompts_give_the_same_tokens(self):
        engine = self.start()
        self.complete_all(engine)
        for prompt, cached in zip(self.prompts, self.complete_all(engine), strict=True):
            self.assertEqual(cached, (len(prompt) - 1) // 16 * 16)
        self.stop(engine)

    def test_many_at_once_give_the_same_tokens(self):
        engine = self.start("--pass-tokens", "48")
        self.complete_all(engine, side_by_side=8)
        self.assertGreater(sum(self.complete_all(engine, side_by_side=8)), 2000)
        self.stop(engine)

    def test_what_left_the_device_pool_comes_back_from_l2(self):
        for flags in ([], ["--hicache-write-policy", "write_back"], ["--hicache-mem-layout", "layer_first", "--hicache-io-backend", "direct"]):
            with self.subTest(flags=flags):
                engine = self.start(*FEW_PAGES, *flags)
                self.complete_all(engine, side_by_side=4)
                self.assertGreater(sum(self.complete_all(engine, side_by_side=4)), 2000)
                self.stop(engine)

    def test_a_second_instance_finds_in_l3_what_the_first_computed(self):
        store = ["--hicache-storage-backend", "file", "--hicache-storage-backend-extra-config",
                 json.dumps({"path": str(self.folder / "store"), "prefetch_threshold": 16})]
        for ranks in (1, 2):
            engine = self.start(*store, ranks=ranks)
            cached = sum(self.complete_all(engine, side_by_side=4))
            if ranks == 2:
                self.assertGreater(cached, 2000, "the first instance had one rank")
            self.stop(engine)

    def test_instances_of_other_ranks_share_a_cluster(self):
        index = Program([BIN / "hicache-index", "--listen", "127.0.0.1:0"], self.folder, "index")
        self.programs.append(index)
        address = index.wait_for(r"listening on (\S+)").group(1)

        def start(ranks, **more):
            return self.start("--hicache-storage-backend", "cluster", "--index", address, "--segment-size", "64MiB",
                              "--hicache-storage-backend-extra-config", json.dumps({"prefetch_threshold": 16, **more}), ranks=ranks)

        first = start(2)
        self.complete_all(first, side_by_side=4)
        for ranks, more in ((1, {}), (1, {"force_remote_reads": True}), (2, {"force_remote_reads": True})):
            with self.subTest(ranks=ranks, **more):
                engine = start(ranks, **more)
                self.assertGreater(sum(self.complete_all(engine, side_by_side=4)), 3000)
                self.stop(engine)
        self.stop(first)

    def test_damaged_pages_in_l3_change_no_token(self):
        folder = self.folder / "store"
        store = ["--hicache-storage-backend", "file", "--hicache-storage-backend-extra-config", json.dumps({"path": str(folder), "prefetch_threshold": 16})]
        engine = self.start(*store)
        before = sum(self.complete_all(engine))
        self.stop(engine)
        files = sorted(folder.glob("*/*.kv"))
        self.assertGreater(len(files), 100)
        for file in files[::10]:
            damaged = bytearray(file.read_bytes())
            damaged[len(damaged) // 2] ^= 64
            file.write_bytes(damaged)
        engine = self.start(*store)
        self.assertGreater(sum(self.complete_all(engine)), before, "others are served")
        self.stop(engine)

    def test_ranks_give_what_one_gives(self):
        engine = self.start(*FEW_PAGES, ranks=2)
        self.complete_all(engine, side_by_side=4)
        self.assertGreater(sum(self.complete_all(engine, side_by_side=4)), 2000)
        self.stop(engine)

    def test_a_stream_has_the_tokens_one_by_one(self):
        engine = self.start()
        body = {"prompt": self.prompts[0], "max_tokens": STEPS, "stream": True, "stream_options": {"include_usage": True}}
        request = urllib.request.Request(f"http://{engine.address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            events = [line[len("data: "):] for line in response.read().decode().split("\n\n") if line]
        self.assertEqual(events[-1], "[DONE]")
        parts = [json.loads(event) for event in events[:-1]]
        choices = [part["choices"][0] for part in parts if part["choices"]]
        self.assertEqual([token for each in choices for token in each["token_ids"]], self.expected[0])
        self.assertEqual([each["finish_reason"] for each in choices if each["finish_reason"]], ["length"])
        self.assertEqual(parts[-1]["usage"]["completion_tokens"], STEPS)
        with urllib.request.urlopen(f"http://{engine.address}/metrics", timeout=60) as response:
            self.assertIn(f"llama_generated_tokens_total {STEPS}", response.read().decode())
        self.stop(engine)

    def test_bad_requests_are_one_sentence(self):
        engine = self.start("--device-pages", "8")
        for body, expected in (({"prompt": []}, "prompt"), ({"prompt": [272]}, "prompt: expected tokens below 272"), ({"prompt": "a" * 128}, "fewer than 128"),
                               ({"prompt": "a", "max_tokens": 0}, "max_tokens"), ({"prompt": "a", "n": 2}, "n: expected 1"), ([], "a JSON object"),
                               ({"prompt": "a", "temperature": 0.7}, "temperature: expected 0"), ({"prompt": "a", "stop": ["b"]}, "stop: not supported")):
            with self.subTest(body=body):
                status, answer = self.post(engine, body)
                self.assertEqual(status, 400)
                self.assertIn(expected, answer["error"]["message"])
        status, answer = self.post(engine, {"prompt": "a" * 100, "max_tokens": 1000, "ignore_eos": True})
        self.assertEqual((status, answer["usage"]["total_tokens"]), (200, 128), "as long as the pool allows")
        self.stop(engine)

    def test_a_signal_ends_completions_under_way(self):
        engine = self.start(ranks=2)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            long = pool.submit(self.post, engine, {"prompt": "a", "max_tokens": 8000, "ignore_eos": True, "stream": False})
            self.complete(engine, self.prompts[0])  # The other one was given to the engine before.
            self.stop(engine)
            self.assertIn(long.result()[0], (200, 503))

    def test_a_folder_without_a_model_is_one_sentence(self):
        done = subprocess.run([BIN / "hicache-llama", self.folder], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertIn("config.json", done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
