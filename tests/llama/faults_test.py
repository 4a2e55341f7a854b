"""What dies, hangs or lies around the engine while it completes prompts: an index, another instance, a node, the store, a rank of its own. Every text is
what the model answers without a cache, or the request fails with a sentence; and afterwards there are hits again.

    HICACHE_FAULT_ROUNDS=40 HICACHE_CHAOS_SEED=1 python3 tests/llama/faults_test.py
"""

import concurrent.futures
import http.client
import os
import pathlib
import random
import re
import signal
import sys
import threading
import time
import unittest
import urllib.request

from engine_case import BIN, STEPS, EngineCase
from harness import SystemTest, free_ports
from segments import OBJECT_OFFSET, StoppedOwner

#: Of each scenario; in each round every fault of it happens once.
ROUNDS = int(os.environ.get("HICACHE_FAULT_ROUNDS", 1))
SEED = int(os.environ.get("HICACHE_CHAOS_SEED", random.randrange(10**6)))
#: Tiers above L3 that hold two or three of the prompts, so that the engine goes to L3 all the time.
SMALL_TIERS = ["--device-pages", "32", "--hicache-ratio", "1.5"]
CLIENTS = 3
TTL_S = 2
SLACK_S = 30


def say(text):
    print(text, file=sys.stderr, flush=True)


class Clients:
    """Complete prompts, one after the other, until they are told to end."""

    def __init__(self, case, engine, seed):
        self.case, self.engine = case, engine
        self.changed = threading.Condition()
        self.right, self.refused, self.wrong, self.is_over = 0, [], [], False
        self.threads = [threading.Thread(target=self.run, args=(random.Random(f"{seed}.{number}"),)) for number in range(CLIENTS)]
        for each in self.threads:
            each.start()

    def run(self, chosen):
        while not self.is_over:
            number = chosen.randrange(len(self.case.prompts))
            try:
                status, answer = self.case.post(self.engine, {"prompt": self.case.prompts[number], "max_tokens": STEPS})
            except (OSError, http.client.HTTPException) as error:
                with self.changed:
                    self.wrong.append(f"prompt {number} was not answered: {error!r}")
                    self.changed.notify_all()
                return
            with self.changed:
                if status != 200:
                    self.refused.append((status, answer["error"]["message"]))
                elif answer["choices"][0]["token_ids"] == self.case.expected[number]:
                    self.right += 1
                else:
                    self.wrong.append(f"prompt {number}: {answer}")
                self.changed.notify_all()

    def wait_for(self, answers):
        """Waits for so many more right answers."""
        with self.changed:
            wanted = self.right + answers
            self.changed.wait_for(lambda: self.right >= wanted or self.wrong, SLACK_S)
            self.case.assertEqual(self.wrong, [], self.engine.text())
            self.case.assertGreaterEqual(self.right, wanted, f"{self.refused}\n{self.engine.text()}")

    def end(self):
        self.is_over = True
        for each in self.threads:
            each.join()


class FaultsTest(EngineCase):
    PROMPTS = 16

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        say(f"HICACHE_CHAOS_SEED={SEED} HICACHE_FAULT_ROUNDS={ROUNDS}")

    def setUp(self):
        super().setUp()
        self.chosen = random.Random(SEED)

    def start_measured(self, *flags, ranks=1):
        port = free_ports(ranks)
        engine = self.start(*SMALL_TIERS, "--metrics-port", port, "--hicache-storage-timeout", "1s", "--shutdown-grace", "500ms", *flags, ranks=ranks)
        engine.metrics_port = port
        return engine

    def from_l3(self, engine):
        """Bytes that came from L3."""
        with urllib.request.urlopen(f"http://127.0.0.1:{engine.metrics_port}/metrics", timeout=60) as response:
            return float(re.search(r'^hicache_moved_bytes_total{.*from="l3",to="l2"} (\S+)$', response.read().decode(), re.MULTILINE).group(1))

    def wait_for_hits(self, engine, clients):
        before, end = self.from_l3(engine), time.monotonic() + SLACK_S
        while self.from_l3(engine) <= before:
            self.assertLess(time.monotonic(), end, f"nothing comes from L3 any more\n{engine.text()}")
            clients.wait_for(1)

    def play(self, engine, *faults):
        """Has each fault happen while prompts are completed, none of which fails."""
        clients = Clients(self, engine, self.chosen.random())
        self.addCleanup(clients.end)
        self.wait_for_hits(engine, clients)
        for _ in range(ROUNDS):
            for fault in self.chosen.sample(faults, len(faults)):
                say(fault.__name__)
                fault(clients)
                clients.wait_for(CLIENTS)
                self.wait_for_hits(engine, clients)
        clients.end()
        self.assertEqual((clients.wrong, clients.refused), ([], []), engine.text())
        say(f"{clients.right} right answers")
        self.stop(engine)

    # -- the cluster ----------------------------------------------------------------

    def test_the_cluster(self):
        self.index = self.start_index("--member-ttl", f"{TTL_S}s")
        self.start_holder()
        for ranks, remote in ((1, True), (2, False)) if ROUNDS > 1 else ((2, True),):
            engine = self.start_measured(*self.cluster(self.index, "0", force_remote_reads=remote, breaker_pause_min="0.1s", breaker_pause_max="0.5s"),
                                         ranks=ranks)
            self.play(engine, self.kill_index, self.kill_holder, self.pause_holder, self.damage_holder)

    def start_holder(self):
        """Another instance, whose memory has the KV of all prompts."""
        self.holder = self.start(*self.cluster(self.index))
        self.complete_all(self.holder, side_by_side=4)

    def kill_index(self, clients):
        self.index.kill()
        clients.wait_for(CLIENTS)
        self.index = self.start_index("--member-ttl", f"{TTL_S}s", listen=self.index.address)

    def kill_holder(self, clients):
        self.holder.kill()
        clients.wait_for(CLIENTS)
        self.start_holder()

    def pause_holder(self, clients):
        pid = self.holder.process.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            clients.wait_for(CLIENTS)
        finally:
            os.kill(pid, signal.SIGCONT)

    def damage_holder(self, clients):
        with StoppedOwner(self.holder.process.pid) as memory:
            objects = memory.objects()
            self.assertGreater(len(objects), 20)
            for stored in self.chosen.sample(objects, len(objects) // 4):
                memory.flip(stored.slot + OBJECT_OFFSET + self.chosen.randrange(stored.length), self.chosen.randrange(8))

    # -- a node -----------------------------------------------------------------------

    def test_a_node(self):
        self.start_node()
        engine = self.start_measured(*self.store("node", breaker_pause_min="0.1s", breaker_pause_max="0.5s"), "--node", self.folder / "node")
        self.complete_all(engine)
        self.play(engine, self.kill_node)

    def start_node(self):
        self.node = self.run_program([BIN / "hicache-node", "--memory", "64MiB", "--socket", self.folder / "node"], "node")
        self.node.wait_for(r"listening on")

    def kill_node(self, clients):
        self.node.kill()
        clients.wait_for(CLIENTS)
        self.start_node()

    # -- a store that lies and hangs ----------------------------------------------------

    def test_a_store(self):
        self.pages = self.folder / "store"
        flags = self.store("file", path=str(self.pages), breaker_pause_min="0.1s", breaker_pause_max="0.5s")
        for ranks in (1, 2) if ROUNDS > 1 else (1,):
            engine = self.start_measured(*flags, ranks=ranks)
            self.complete_all(engine)
            self.play(engine, self.damage_store, self.hang_store)

    def files(self):
        return sorted(self.pages.glob("*/*.kv"))

    def damage_store(self, clients):
        """A bit of one, a part of another, all of a third."""
        def flip(path):
            damaged = bytearray(path.read_bytes())
            damaged[self.chosen.randrange(len(damaged))] ^= 1 << self.chosen.randrange(8)
            path.write_bytes(damaged)

        def cut(path):
            os.truncate(path, self.chosen.randrange(path.stat().st_size))

        for path in self.chosen.sample(self.files(), len(self.files()) // 2):
            try:
                self.chosen.choice((flip, cut, pathlib.Path.unlink))(path)
            except FileNotFoundError:
                continue  # The engine has removed it: it was damaged before.

    def hang_store(self, clients):
        """Named pipes stand for pages of a server that is gone: whoever opens one waits for ever."""
        pipes = self.files()
        for path in pipes:
            path.unlink(missing_ok=True)  # The engine removes those that were damaged before.
            os.mkfifo(path)
        clients.wait_for(CLIENTS)
        # Opening the other end lets those who wait go on: they read nothing.
        for path in pipes:
            os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
            path.unlink()

    # -- its own ranks --------------------------------------------------------------------

    def test_a_rank_of_its_own(self):
        store = self.store("file", path=str(self.folder / "store"))
        for _ in range(ROUNDS):
            engine = self.start(*store, ranks=2)
            clients = Clients(self, engine, self.chosen.random())
            self.addCleanup(clients.end)
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                long = pool.submit(self.post, engine, {"prompt": "a", "max_tokens": 8000, "ignore_eos": True})
                clients.wait_for(4 * CLIENTS)
                clients.is_over = True
                os.kill(engine.ranks()[1], signal.SIGKILL)
                status, answer = long.result()
            clients.end()
            engine.wait(60)
            self.assertEqual((status, answer["error"]["message"]), (503, "the server is stopping"))
            # Those that it had accepted got an answer.
            self.assertEqual(clients.wrong, [], engine.text())
            for refused in clients.refused:
                self.assertEqual(refused, (503, "the server is stopping"))
            SystemTest.assert_all_gone(self, engine)
            say(f"{clients.right} right answers, {len(clients.refused)} refused")
        engine = self.start(*store, ranks=2)
        self.assertGreater(sum(self.complete_all(engine)), 500, "what was stored before")
        self.stop(engine)

    def test_the_rank_that_serves(self):
        engine = self.start(ranks=2)
        self.complete_all(engine)
        os.kill(engine.ranks()[0], signal.SIGKILL)
        engine.wait(60)
        SystemTest.assert_all_gone(self, engine)


if __name__ == "__main__":
    unittest.main(verbosity=2)
