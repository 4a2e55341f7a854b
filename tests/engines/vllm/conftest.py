"""Real engines of vLLM on the CPU, each in a process of its own, with a real node."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
from leftovers import Leftovers

import hicache

HERE = pathlib.Path(__file__).parent
MODEL = os.environ.get("HICACHE_ENGINE_MODEL", "")
MODEL_OF_TWO_GROUPS = os.environ.get("HICACHE_ENGINE_MODEL_OF_TWO_GROUPS", "")
#: Tokens of a chunk.
CHUNK = 64
#: Prompts that end within the first of the two blocks of a chunk: then vLLM's own cache has as much of them as the node.
PROMPTS = [[(i * 7 + k * 13) % 250 for i in range(length)] for k, length in enumerate((980, 1500, 333))]
#: Tokens of each that a cache can have.
CACHED = [len(prompt) // CHUNK * CHUNK for prompt in PROMPTS]
#: Chunks of all.
CHUNKS = sum(CACHED) // CHUNK
#: What a node has beside them: the facts of the engine that they belong to, under two names.
FACTS = 2
# For an engine to start, and for each answer: half a minute alone on two cores.
PATIENCE = 400


def until(is_so, what, patience=60):
    """Waits for something that this process cannot be told of."""
    end = time.monotonic() + patience
    while not is_so():
        assert time.monotonic() < end, f"{what} never came"
        time.sleep(0.02)


def transfer(node, policy="recompute", **more):
    """vLLM's configuration for a node as its host tier."""
    return {"kv_connector": "HicacheConnector", "kv_connector_module_path": "hicache.vllm", "kv_role": "kv_both", "kv_load_failure_policy": policy,
            "kv_connector_extra_config": {"socket": node.socket, "block_size": CHUNK, **more}}


class Engine:
    """A process of vLLM, which is killed with all of its own at the end."""

    def __init__(self, log, **options):
        self._log = log
        self._leftovers = Leftovers()
        gently = ["nice", "-n", "19"] if shutil.which("nice") else []
        with open(log, "w") as out:
            self._process = subprocess.Popen([*gently, sys.executable, str(HERE / "engine.py"), json.dumps({"model": MODEL, **options})], text=True,
                                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=out, start_new_session=True)
        try:
            assert self.answer() == {"is": "up"}
        except BaseException:
            self.kill()
            raise

    @property
    def log(self):
        return self._log.read_text(errors="replace")

    def ask(self, do, **what):
        """Begins something; answer() says what became of it."""
        self._process.stdin.write(json.dumps({"do": do, **what}) + "\n")
        self._process.stdin.flush()

    def answer(self):
        patience = threading.Timer(PATIENCE, self.kill)
        patience.start()
        try:
            line = self._process.stdout.readline()
        finally:
            patience.cancel()
        assert line, f"the engine ended, or hung for {PATIENCE} s:\n{self.log[-8000:]}"
        return json.loads(line)

    def do(self, do, **what):
        self.ask(do, **what)
        return self.answer()

    def generate(self, prompts=PROMPTS, tokens=12, **more):
        """Computes one prompt after the other, so that each is computed as it is in other runs."""
        return [self.do("generate", prompts=[prompt], tokens=tokens, **more)[0] for prompt in prompts]

    def kill(self):
        """Ends the engine as a crash of all its processes does, and removes what it leaves behind in memory."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        self._leftovers.remove()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self._process.stdin.close()
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                pass
        self.kill()


def same(outputs, expected):
    """Equal tokens, and log-probabilities as near as sums in another order leave them; or equal ones, if vLLM's own
    cache once gave the same part of the prompt."""
    assert [output["tokens"] for output in outputs] == [output["tokens"] for output in expected]
    for output, oracle in zip(outputs, expected, strict=True):
        warm = oracle.get("warm")
        nearest, most = (warm, 1e-5) if warm and output["cached"] == warm["cached"] else (oracle, 0.01)
        assert max(abs(a - b) for a, b in zip(output["logprobs"], nearest["logprobs"], strict=True)) < most
    return True


def cached(outputs):
    return [output["cached"] for output in outputs]


@pytest.fixture(scope="session")
def expected(tmp_path_factory):
    """What an engine says that has no cache but its own: the first time, and "warm"."""
    with Engine(tmp_path_factory.mktemp("oracle") / "log", together=True) as engine:
        cold, warm = engine.generate(), engine.generate()
    assert cached(warm) == CACHED and same(warm, cold)
    return [{**first, "warm": second} for first, second in zip(cold, warm, strict=True)]


@pytest.fixture(scope="module")
def node():
    with hicache.node("256MiB") as node:
        yield node


@pytest.fixture(scope="module")
def status(node):
    """How the node is, whichever process it is meanwhile."""

    def look():
        with node.store("looks") as store:
            return store.node_status()

    return look
