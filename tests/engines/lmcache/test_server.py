"""`lmcache server` with our native plug-in, under vLLM: real ones, in processes of their own."""

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
from processes import PATIENCE_S, engine, program

HERE = pathlib.Path(__file__).resolve().parent
CHUNK = 64
PROMPTS = (1000, 1500, 333, 2000)
# Whole chunks of each prompt.
CHUNKS = [length // CHUNK for length in PROMPTS]


def free_port():
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return made.getsockname()[1]


def vllm(folder, *arguments):
    return engine(folder / "vllm.log", sys.executable, HERE / "vllm_engine.py", *arguments)


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
    with vllm(tmp_path_factory.mktemp("oracle")) as running:
        return running.ask()["tokens"]


def test_fresh_processes_go_on_with_what_others_left(node, damage, expected, tmp_path):
    with node.store("the test") as store:
        with lmcache_server(tmp_path, node) as port, vllm(tmp_path, port) as running:
            cold = running.ask()
            assert cold["tokens"] == expected and cold["cached"] == [0] * 4
            end = time.monotonic() + 60
            while store.node_status()["pages_written"] < sum(CHUNKS):  # The server writes behind.
                assert time.monotonic() < end, store.node_status()
                time.sleep(0.1)
            running.begin()  # Both are killed while they are at it.

        found = store.node_status()["pages_found"]
        with lmcache_server(tmp_path, node, namespace="float16") as port, vllm(tmp_path, port) as running:
            other = running.ask()
            assert other["tokens"] == expected and other["cached"] == [0] * 4
        assert store.node_status()["pages_found"] == found

        with lmcache_server(tmp_path, node) as port, vllm(tmp_path, port) as running:
            warm = running.ask()
            assert warm["tokens"] == expected
            # The last token of a prompt is always computed.
            assert warm["cached"] == [chunks * CHUNK for chunks in CHUNKS]
            assert store.node_status()["pages_found"] - found >= sum(CHUNKS)
            damage()
            assert running.ask()["tokens"] == expected
            assert "corrupt_page" in (tmp_path / "server.log").read_text()
            running.begin()
            node.kill()
            assert running.answer()["tokens"] == expected
            node.start()
            assert running.ask()["tokens"] == expected
