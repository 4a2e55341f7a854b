"""What the tests of the engine share: a model, prompts, what the model answers without any cache, and engines that have to answer the same.

Tokens without a cache come from llama-logits, which has no actors, no scheduler and no hicache.
"""

import concurrent.futures
import http.client
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time
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
#: Threads would compete for the cores with other ranks, and change the order of sums.
ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1"}


def make_prompts(count, seed=11):
    """Conversations with shared beginnings: four long prefixes, each with turns that go on in different ways."""
    chosen = random.Random(seed)
    beginnings = [[chosen.randrange(272) for _ in range(150)] for _ in range(4)]
    return [chosen.choice(beginnings)[:chosen.randrange(40, 150)] + [chosen.randrange(272) for _ in range(chosen.randrange(1, 60))]
            for _ in range(count)]


class EngineCase(unittest.TestCase):
    PROGRAM = BIN / "hicache-llama"
    DEVICE = "host"
    #: How many prompts there are, and arguments of the model besides its folder.
    PROMPTS = 40
    MODEL = ("--kv-heads", "2")

    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory(prefix="hicache-llama-")
        cls.addClassCleanup(temporary.cleanup)
        cls.shared = pathlib.Path(temporary.name)
        cls.model = cls.shared / "tiny"
        make_model.write_model(make_model.parse([str(cls.model), *cls.MODEL]))
        cls.prompts = make_prompts(cls.PROMPTS)
        cls.expected = cls.answers_without_cache(cls.prompts)

    @classmethod
    def answers_without_cache(cls, prompts):
        job = cls.shared / "job.json"
        job.write_text(json.dumps({"prompts": prompts, "chunk": 64, "dtype": "fp32", "page_size": 16, "steps": STEPS}))
        done = subprocess.run([LOGITS, cls.model, job], capture_output=True, text=True, timeout=300, env={**os.environ, **ENVIRONMENT})
        assert done.returncode == 0, done.stderr
        return [each["tokens"] for each in json.loads(done.stdout)]

    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="hicache-llama-")
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        # MPI's files, which it cannot remove if it is killed.
        shared_memory = tempfile.TemporaryDirectory(prefix="hicache-llama-", dir="/dev/shm")
        self.addCleanup(shared_memory.cleanup)
        self.environment = {**ENVIRONMENT, "OMPI_MCA_btl_vader_backing_directory": shared_memory.name, "UCX_POSIX_DIR": shared_memory.name}
        self.programs = []
        self.addCleanup(lambda: [each.kill() for each in self.programs])

    # -- programs -----------------------------------------------------------------

    def run_program(self, command, name):
        program = Program(command, self.folder, f"{name}{len(self.programs)}", self.environment)
        self.programs.append(program)
        return program

    def start(self, *flags, ranks=1):
        command = [self.PROGRAM, self.model, "--listen", "127.0.0.1:0", "--page-size", "16", "--device", self.DEVICE, *flags]
        if ranks > 1:
            command[:0] = [MPIRUN, ranks]
        engine = self.run_program(command, "engine")
        engine.ranks_started = ranks
        engine.address = engine.wait_for(r"listening on (\S+)").group(1)
        return engine

    def start_index(self, *flags, listen="127.0.0.1:0"):
        index = self.run_program([BIN / "hicache-index", "--listen", listen, *flags], "index")
        index.address = index.wait_for(r"listening on (\S+)").group(1)
        return index

    def stop(self, engine):
        engine.terminate()
        code = engine.wait(60)
        if engine.ranks_started == 1:  # mpirun has a code of its own.
            self.assertEqual(code, 0, engine.text())
        self.assertIn("stopped after", engine.text())

    # -- flags --------------------------------------------------------------------

    def store(self, backend, **config):
        """An L3 that looks for pages of the prompts, however short they are."""
        return ["--hicache-storage-backend", backend, "--hicache-storage-backend-extra-config", json.dumps({"prefetch_threshold": 16, **config})]

    def cluster(self, index, segment="64MiB", **config):
        return [*self.store("cluster", **config), "--index", index.address, "--segment-size", segment]

    # -- requests -----------------------------------------------------------------

    def post(self, engine, body, timeout=120):
        """@returns the status and the answer"""
        connection = http.client.HTTPConnection(engine.address, timeout=timeout)
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

    def wait_until(self, is_true, what, seconds=60):
        end = time.monotonic() + seconds
        while not is_true():
            self.assertLess(time.monotonic(), end, what)
            time.sleep(0.02)

    def metric(self, engine, name):
        """The sum over its labels, at the engine's own address."""
        with urllib.request.urlopen(f"http://{engine.address}/metrics", timeout=60) as response:
            return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", response.read().decode(), re.MULTILINE))
