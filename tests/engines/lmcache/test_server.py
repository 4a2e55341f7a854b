"""`lmcache server` with our native plug-in, under vLLM: real ones, in processes of their own."""

import contextlib
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

HERE = pathlib.Path(__file__).resolve().parent
CHUNK = 64
PROMPTS = (1000, 1500, 333, 2000)
# Whole chunks of each prompt.
CHUNKS = [length // CHUNK for length in PROMPTS]
PATIENCE_S = 300


def free_port():
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return made.getsockname()[1]


@contextlib.contextmanager
def program(log, *command, **options):
    """A process, and all that it starts: they end with the `with`."""
    with open(log, "a") as said:
        process = subprocess.Popen([str(word) for word in command], stderr=said, start_new_session=True, text=True, **options)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream:
                stream.close()


class Engine:
    """vLLM, round by round."""

    def __init__(self, process, log):
        self.process, self.log = process, log
        assert self._answer() == "ready"

    def round(self):
        self.begin()
        return self.end()

    def begin(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self):
        return self._answer()

    def _answer(self):
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE_S)
        line = self.process.stdout.readline() if ready else ""
        assert line, f"vLLM did not answer: {self.log.read_text()[-3000:]}"
        return json.loads(line)


@contextlib.contextmanager
def vllm(folder, *arguments):
    log = folder / "vllm.log"
    with program(log, sys.executable, HERE / "vllm_engine.py", *arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield Engine(process, log)


@contextlib.contextmanager
def lmcache_server(folder, node, namespace="bfloat16"):
    """A server with the node below it; yields its port."""
    port, http = free_port(), free_port()
    adapter = {"type": "native_plugin", "module_path": "hicache.lmcache", "class_name": "NativeClient",
               "adapter_params": {"socket": node.socket, "namespace": namespace}}
    log = folder / "server.log"
    with program(log, sys.executable, "-m", "lmcache.cli.main", "server", "--host", "localhost", "--port", port, "--http-port", http,
                 "--chunk-size", CHUNK, "--l1-size-gb", "0.5", "--eviction-policy", "LRU", "--supported-transfer-mode", "auto",
                 "--disable-observability", "--l2-adapter", json.dumps(adapter), stdout=subprocess.DEVNULL,
                 env={**os.environ, "LMCACHE_TRACK_USAGE": "false"}) as process:
        end = time.monotonic() + PATIENCE_S
        while True:
            assert process.poll() is None and time.monotonic() < end, f"the server did not start: {log.read_text()[-3000:]}"
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{http}/healthcheck", timeout=5):
                break
            time.sleep(0.2)
        yield port


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The tokens of an engine without any cache."""
    with vllm(tmp_path_factory.mktemp("oracle")) as engine:
        return engine.round()["tokens"]


def test_fresh_processes_go_on_with_what_others_left(node, expected, tmp_path):
    with node.store("the test") as store:
        with lmcache_server(tmp_path, node) as port, vllm(tmp_path, port) as engine:
            cold = engine.round()
            assert cold["tokens"] == expected and cold["cached"] == [0] * 4
            end = time.monotonic() + 60
            while store.node_status()["pages_written"] < sum(CHUNKS):  # The server writes behind.
                assert time.monotonic() < end, store.node_status()
                time.sleep(0.1)
        found = store.node_status()["pages_found"]

        with lmcache_server(tmp_path, node) as port, vllm(tmp_path, port) as engine:
            warm = engine.round()
            assert warm["tokens"] == expected
            # The last token of a prompt is always computed.
            assert warm["cached"] == [chunks * CHUNK for chunks in CHUNKS]
            assert store.node_status()["pages_found"] - found >= sum(CHUNKS)

        with lmcache_server(tmp_path, node, namespace="float16") as port, vllm(tmp_path, port) as engine:
            other = engine.round()
            assert other["tokens"] == expected and other["cached"] == [0] * 4

            engine.begin()
            node.kill()
            during = engine.end()
            node.start()
            after = engine.round()
            assert during["tokens"] == expected and after["tokens"] == expected
