"""What a router does that was written for an engine: reads the events of ranks of hicache with the engine's own classes."""

import json
import os
import pathlib
import re
import subprocess
import time

import msgspec
import zmq

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ["HICACHE_BIN"])
END = (-1).to_bytes(8, "big", signed=True)
PATIENCE_MS = 60_000


class Ranks:
    """Two ranks that serve some conversations and publish what they cache, until the with ends."""

    def __init__(self, folder, event_format):
        self._log = folder / "ranks.out"
        self._command = [ROOT / "launch/mpirun.sh", "2", BIN / "hicache-replay", "--workload", "multi-turn", "--clients", "4", "--rounds", "4", "--linger",
                         "forever", "--device-pages", "64", "--layers", "1", "--head-dim", "4", "--report", folder / "report.json",
                         "--kv-events", "tcp://127.0.0.1:*", "--kv-events-replay", "tcp://127.0.0.1:*", "--kv-events-topic", "kv",
                         "--kv-events-format", event_format]

    def __enter__(self):
        with open(self._log, "w") as log:
            self._process = subprocess.Popen([str(word) for word in self._command], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.events, self.replay = self.wait_for(r"events at (\S+), again at (\S+?)(?:[;,\s]|$)").groups()
        return self

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait(60)

    def wait_for(self, pattern):
        end = time.monotonic() + PATIENCE_MS / 1000
        while not (found := re.search(pattern, self._log.read_text(), re.MULTILINE)):
            assert self._process.poll() is None and time.monotonic() < end, self._log.read_text()
            time.sleep(0.05)
        return found


def socket(kind, endpoint):
    made = zmq.Context.instance().socket(kind)
    made.setsockopt(zmq.RCVTIMEO, PATIENCE_MS)
    made.setsockopt(zmq.LINGER, 0)
    if kind == zmq.SUB:
        made.setsockopt(zmq.SUBSCRIBE, b"kv")
    made.connect(endpoint)
    return made


def replayed(endpoint, first):
    """(number, message) of those that were published from a number on."""
    with socket(zmq.DEALER, endpoint) as asker:
        asker.send_multipart([b"", first.to_bytes(8, "big")])
        found = []
        while True:
            empty, topic, number, message = asker.recv_multipart()
            assert empty == b""
            if number == END:
                return found
            assert topic == b"kv"
            found.append((int.from_bytes(number, "big"), message))


class Router:
    """Which pages are where, by the events alone."""

    def __init__(self):
        self.stored = {}
        self.tokens = 0

    def take(self, event):
        kind = type(event).__name__
        if kind == "AllBlocksCleared":
            self.stored = {}
        elif kind == "BlockRemoved":
            for block in event.block_hashes:
                self.stored[event.medium].remove(block)
        else:
            assert kind == "BlockStored"
            assert len(event.token_ids) == len(event.block_hashes) * event.block_size
            known = set().union(*self.stored.values())
            assert event.parent_block_hash is None or event.parent_block_hash in known
            self.stored.setdefault(event.medium, set()).update(event.block_hashes)
            self.tokens += len(event.token_ids)


def check(folder, event_format, batch_class, host_medium):
    """A router that comes late asks for what it missed, and knows all from then on."""
    decoder = msgspec.msgpack.Decoder(batch_class)
    with Ranks(folder, event_format) as ranks, socket(zmq.SUB, ranks.events) as late:
        ranks.wait_for("requests in")
        published = replayed(ranks.replay, 0)
        assert [number for number, _ in published] == list(range(len(published)))
        router = Router()
        for _, message in published:
            batch = decoder.decode(message)
            assert abs(batch.ts - time.time()) < 600
            for event in batch.events:
                router.take(event)
        assert router.tokens > 0
        assert set(router.stored) == {"GPU", host_medium}
        # What it heard itself is the same, and has no gap that it could not close.
        heard = []
        late.setsockopt(zmq.RCVTIMEO, 0)
        try:
            while True:
                _, number, message = late.recv_multipart()
                heard.append((int.from_bytes(number, "big"), message))
        except zmq.Again:
            pass
        assert heard == published[len(published) - len(heard):]
        if heard and heard[0][0] > 0:
            assert replayed(ranks.replay, heard[0][0]) == heard
        assert replayed(ranks.replay, len(published)) == []
    assert json.loads((folder / "report.json").read_text())["errors"] == 0
