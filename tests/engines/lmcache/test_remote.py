"""LMCache inside of an engine: the real LMCacheEngine, with KV in tensors of the CPU, over our remote connector and over lm://."""

import contextlib
import pathlib
import subprocess
import sys
import time

from processes import engine, program

HERE = pathlib.Path(__file__).resolve().parent
CHUNK, TOKENS = 64, 300
WHOLE = TOKENS // CHUNK * CHUNK


def settings(**more):
    return {"chunk_size": CHUNK, "local_cpu": False, "max_local_cpu_size": 0.5, "pre_caching_hash_algorithm": "sha256_cbor", **more}


def plugin(node, model_id="m", **more):
    where = "remote_storage_plugin.hicache"
    return settings(remote_storage_plugins=["hicache"], extra_config={
        f"{where}.module_path": "hicache.lmcache", f"{where}.class_name": "HicacheConnectorAdapter", f"{where}.socket": node.socket,
        f"{where}.model_id": model_id, f"{where}.base_requests_only": True, f"{where}.timeout": 5}, **more)


@contextlib.contextmanager
def lmcache(folder):
    with engine(folder / "engine.log", sys.executable, HERE / "local_engine.py") as made:
        yield made


@contextlib.contextmanager
def lm_server(folder, node):
    with program(folder / "lm.log", sys.executable, "-m", "hicache", "lm-server", "--socket", node.socket, "--listen", "127.0.0.1:0",
                 stdout=subprocess.PIPE) as process:
        line = process.stdout.readline().split()
        assert line[:2] == ["listening", "on"], (folder / "lm.log").read_text()
        yield line[2], process


def test_engines_get_what_others_stored(node, tmp_path):
    with lm_server(tmp_path, node) as (url, server):
        with lmcache(tmp_path) as first:
            assert first.ask({"settings": plugin(node), "do": ["lookup", "store", "lookup", "retrieve"]}) == [0, None, WHOLE, [WHOLE, True]]
            partial = plugin(node, save_unfull_chunk=True)
            assert first.ask({"settings": partial, "do": ["lookup", "store", "lookup", "retrieve"]}) == [WHOLE, None, TOKENS, [TOKENS, True]]
            lm = settings(remote_url=url)
            assert first.ask({"settings": lm, "do": ["lookup", "store", "lookup", "retrieve"]}) == [0, None, WHOLE, [WHOLE, True]]

        with lmcache(tmp_path) as second:
            assert second.ask({"settings": plugin(node, "other weights"), "do": ["lookup", "retrieve"]}) == [0, [0, True]]
            assert second.ask({"settings": lm, "do": ["lookup", "retrieve"]}) == [WHOLE, [WHOLE, True]]
            server.kill()
            assert second.ask({"settings": None, "do": ["lookup", "retrieve", "store"]}) == [0, [0, True], None]
            assert second.ask({"settings": plugin(node, save_unfull_chunk=True), "do": ["lookup", "retrieve"]}) == [TOKENS, [TOKENS, True]]
            node.kill()
            assert second.ask({"settings": None, "do": ["lookup", "retrieve", "store"]}) == [0, [0, True], None]
            node.start()
            end = time.monotonic() + 60
            while second.ask({"settings": None, "do": ["store", "lookup"]})[1] != TOKENS:
                assert time.monotonic() < end, "the node is back, and nothing is stored"
            assert second.ask({"settings": None, "do": ["retrieve"]}) == [[TOKENS, True]]
    assert "hicache: pages of" in (tmp_path / "engine.log").read_text()
