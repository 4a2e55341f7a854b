"""LMCache's own `lm://` server below hicache's ranks: `--hicache-storage-backend lmcache`."""

import contextlib
import os
import pathlib
import socket
import subprocess
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "system"))

from harness import SMALL_KV, SharedPagesTest  # noqa: E402

from hicache.lmcache_store import LmcacheStore  # noqa: E402
from hicache.store_host import Slot  # noqa: E402

KEYS = [f"{number:064x}" for number in range(1, 5)]


@contextlib.contextmanager
def lm_server(log):
    """The URL of a server."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with open(log, "w") as out, subprocess.Popen([sys.executable, "-m", "lmcache.v1.server", "127.0.0.1", str(port)], stdout=out, stderr=out) as server:
        try:
            end = time.monotonic() + 120
            while "Server started" not in log.read_text():
                assert server.poll() is None and time.monotonic() < end, log.read_text()
                time.sleep(0.1)
            yield f"lm://127.0.0.1:{port}"
        finally:
            server.kill()


@pytest.fixture(name="store")
def _store(tmp_path):
    with lm_server(tmp_path / "server.log") as url, contextlib.closing(LmcacheStore({"remote_url": url})) as store:
        yield store


def slots(*contents):
    """Slots with these bytes, for the first keys."""
    return [Slot(key, "0" * 64, memoryview(bytearray(bytes_)), 0) for key, bytes_ in zip(KEYS, contents, strict=False)]


def test_objects_come_back(store):
    assert store.lookup(KEYS, 5) == [False] * 4
    assert [outcome.status for outcome in store.write(slots(b"one", b"two" * 100000), 5)] == ["done", "done"]
    assert store.lookup(KEYS, 5) == [True, True, False, False]
    room = slots(bytes(10), bytes(300000), bytes(5))
    outcomes = store.read(room, 5)
    assert [(outcome.status, outcome.bytes) for outcome in outcomes] == [("done", 3), ("done", 300000), ("absent", 0)]
    assert bytes(room[0].memory[:3]) == b"one" and bytes(room[1].memory) == b"two" * 100000
    assert [outcome.status for outcome in store.write(slots(b"ONE"), 5)] == ["present"]


def test_an_object_that_is_too_long_leaves_the_connection_in_order(store):
    store.write(slots(b"long" * 1000, b"short"), 5)
    room = slots(bytes(10), bytes(5))
    assert [outcome.status for outcome in store.read(room, 5)] == ["misfit", "done"]
    assert bytes(room[1].memory) == b"short"


def test_a_damaged_object_is_overwritten(store):
    store.write(slots(b"wrong"), 5)
    assert [outcome.status for outcome in store.remove(KEYS[:1], 5)] == ["unsupported"]
    assert store.lookup(KEYS[:1], 5) == [False]
    assert store.read(slots(bytes(5)), 5)[0].status == "absent"
    store.write(slots(b"right"), 5)
    room = slots(bytes(5))
    assert store.read(room, 5)[0].status == "done" and bytes(room[0].memory) == b"right"


def test_a_server_that_is_gone_is_named(tmp_path):
    with lm_server(tmp_path / "server.log") as url, contextlib.closing(LmcacheStore({"remote_url": url})) as store:
        store.lookup(KEYS, 5)
        gone = store
    with pytest.raises(OSError):
        gone.lookup(KEYS, 5)
    with pytest.raises(ValueError, match="lm://HOST:PORT"):
        LmcacheStore({"remote_url": "http://127.0.0.1:1"})


class LmcacheStoreTest(SharedPagesTest):
    def test_instances_share_what_the_server_keeps(self):
        os.environ["LMCACHE_TRACK_USAGE"] = "false"
        with lm_server(self.folder / "server.log") as url:
            flags = ["--trace", self.trace, "--verify", "all", *SMALL_KV, "--page-size", self.PAGE, "--device-pages", 512, "--hicache-ratio", 4,
                     "--hicache-storage-backend", "lmcache", "--hicache-storage-backend-extra-config",
                     f'{{"prefetch_threshold": {self.PAGE}, "remote_url": "{url}", "python": "{sys.executable}", "prefetch_timeout_base": 60}}']
            self.assert_clean(self.replay("first", 2, *flags))
            self.assert_all_found(self.replay("second", 2, *flags))
            self.assert_all_found(self.replay("third", 1, *flags))
