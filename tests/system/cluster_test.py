"""Two instances, one index, real processes: sharing, death, signals."""

import json
import os
import signal
import subprocess
import time

from harness import BIN, SMALL_KV, SystemTest, cached, main, reusable_tokens, write_trace

PAGE = 64


class ClusterTest(SystemTest):
    def setUp(self):
        super().setUp()
        self.trace = self.folder / "trace.jsonl"
        self.rows = write_trace(self.trace, 300)

    def flags(self, address, *more, config='"prefetch_threshold": 64'):
        return ["--trace", self.trace, "--verify", "all", *SMALL_KV, "--device-pages", "512", "--hicache-storage-backend", "cluster",
                "--index", address, "--segment-size", "64MiB", "--hicache-storage-backend-extra-config", f"{{{config}}}", *more]

    def status(self, address):
        answer = subprocess.run([BIN / "hicachectl", "status", "--index", address, "--json"], capture_output=True,
                                text=True, check=True)
        return json.loads(answer.stdout)

    def least_computed(self):
        return sum(row["input_length"] - (row["input_length"] - 1) // PAGE * PAGE for row in self.rows)

    def share(self, ranks, config):
        _, address = self.start_index()
        first = self.start_replay("first", ranks, *self.flags(address, "--linger", "forever"))
        first.wait_for("requests in")
        report = self.read_report(first)
        self.assert_clean(report)
        self.assertEqual(cached(report), reusable_tokens(self.rows, PAGE))
        second = self.replay("second", ranks, *self.flags(address, config=config))
        self.assert_clean(second)
        self.assertEqual(second["computed_tokens"], self.least_computed())
        self.assertGreater(second["cached_tokens"]["l3"], 0)
        return second

    def test_second_instance_reads_what_the_first_stored(self):
        self.share(2, '"prefetch_threshold": 64')

    def test_second_instance_reads_over_ucx_too(self):
        self.share(1, '"prefetch_threshold": 64, "force_remote_reads": true')

    def test_best_effort_never_waits_and_never_lies(self):
        _, address = self.start_index()
        report = self.replay("only", 2, *self.flags(address, "--hicache-storage-prefetch-policy", "best_effort"))
        self.assert_clean(report)

    def test_instances_of_other_namespaces_share_nothing(self):
        _, address = self.start_index()
        first = self.start_replay("first", 1, *self.flags(address, "--linger", "forever"))
        first.wait_for("requests in")
        other = self.replay("other", 1, *self.flags(address, "--namespace", "other"))
        self.assert_clean(other)
        self.assertEqual(cached(other), reusable_tokens(self.rows, PAGE))

    def test_the_others_go_on_when_every_rank_of_an_instance_is_killed(self):
        index, address = self.start_index("--member-ttl", "2s")
        doomed = self.start_replay("doomed", 2, *self.flags(address, "--linger", "forever"))
        doomed.wait_for("requests in")
        self.assertEqual(len(self.status(address)["members"]), 2)
        survivor = self.start_replay("survivor", 2, *self.flags(address, "--prefill-tokens-per-second", "400000",
                                                               config='"prefetch_threshold": 64, "force_remote_reads": true'))
        deadline = time.monotonic() + 30
        while len(self.status(address)["members"]) < 4 and time.monotonic() < deadline:
            time.sleep(0.02)
        asked = self.status(address)["keys_found"]
        while self.status(address)["keys_found"] <= asked and time.monotonic() < deadline:
            time.sleep(0.02)  # The survivor reads from the doomed instance now.
        ranks = doomed.children()
        self.assertEqual(len(ranks), 2, doomed.text())
        killed = time.monotonic()
        for rank in ranks:
            os.kill(rank, signal.SIGKILL)
        while time.monotonic() < killed + 10 and len(self.status(address)["members"]) > 2:
            time.sleep(0.02)
        self.assertLess(time.monotonic() - killed, 2.5, "the index forgets dead members within the ttl")
        self.assertEqual(len(self.status(address)["members"]), 2)
        self.assertEqual(survivor.wait(), 0, survivor.text())
        report = self.read_report(survivor)
        self.assert_clean(report)
        self.assertGreater(report["cached_tokens"]["l3"], 0)
        self.assertNotEqual(doomed.wait(30), 0)
        self.assert_all_gone(doomed)
        index.terminate()
        self.assertEqual(index.wait(10), 0)

    def test_a_signal_ends_everything_with_a_report(self):
        index, address = self.start_index()
        for number in (signal.SIGTERM, signal.SIGINT):
            program = self.start_replay(f"stopped{number}", 2,
                                        *self.flags(address, "--prefill-tokens-per-second", "20000"))
            deadline = time.monotonic() + 30
            while self.status(address)["keys"] == 0 and time.monotonic() < deadline:
                time.sleep(0.02)
            program.process.send_signal(number)
            program.wait(20)
            report = self.read_report(program)
            self.assert_clean(report)
            self.assertTrue(report["interrupted"], program.text())
            self.assertGreater(report["requests"], 0)
            self.assertLess(report["requests"], len(self.rows))
            self.assert_all_gone(program)
        index.process.send_signal(signal.SIGINT)
        self.assertEqual(index.wait(10), 0)
        self.assert_all_gone(index)

    def test_an_index_that_dies_costs_recomputation_only(self):
        index, address = self.start_index()
        program = self.start_replay("only", 2, *self.flags(address, "--prefill-tokens-per-second", "400000"))
        deadline = time.monotonic() + 30
        while self.status(address)["keys"] == 0 and time.monotonic() < deadline:
            time.sleep(0.02)
        index.kill()
        self.assertEqual(program.wait(), 0, program.text())
        report = self.read_report(program)
        self.assert_clean(report)
        self.assertEqual(report["requests"], len(self.rows))

    def offered(self, address):
        """Pages that the shards offer, by shard."""
        return {shard["shard"]: shard["keys"] if shard["reached"] else None for shard in self.status(address)["shards"]}

    def wait_until(self, what, condition, seconds=20):
        deadline = time.monotonic() + seconds
        while not condition():
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.02)

    def test_shards_in_several_processes_come_and_go_while_in_use(self):
        first_index, address = self.start_index("--shards", "2", "--member-ttl", "2s")
        owner = self.start_replay("owner", 2, *self.flags(address, "--linger", "forever"))
        owner.wait_for("requests in")
        self.assert_clean(self.read_report(owner))
        before = self.offered(address)
        self.assertEqual(sorted(before), [0, 1])
        self.assertGreater(min(before.values()), 0.3 * sum(before.values()), "both have their share")
        # A third shard joins: it gets its share, and the keys of the others stay where they are.
        second_index, other = self.start_index("--shard", "2", "--join", address, "--member-ttl", "2s")
        self.wait_until("the owner tells the shard that came", lambda: sum(self.offered(address).values()) == sum(before.values())
                        and self.offered(address).get(2, 0) > 0)
        after = self.offered(address)
        self.assertGreater(after[2], 0.2 * sum(before.values()))
        for shard in (0, 1):
            self.assertLess(after[shard], before[shard])
        reader = self.replay("reader", 1, *self.flags(other))
        self.assert_clean(reader)
        self.assertEqual(reader["computed_tokens"], self.least_computed())
        # A shard that is killed costs its keys, until it is back and has heard of them.
        second_index.kill()
        self.wait_until("the shard is missed", lambda: self.offered(address)[2] is None)
        without = self.replay("without", 1, *self.flags(address))
        self.assert_clean(without)
        self.assertGreater(without["computed_tokens"], self.least_computed())
        _, other = self.start_index("--shard", "2", "--join", address, "--member-ttl", "2s", listen=other)
        self.wait_until("the owner tells the shard again", lambda: self.offered(address)[2] == after[2])
        again = self.replay("again", 1, *self.flags(f"{other},{address}"))
        self.assert_clean(again)
        self.assertEqual(again["computed_tokens"], self.least_computed())
        for program in (owner, first_index):
            program.terminate()
            program.wait(20)

    def test_bench_measures_separate_processes(self):
        _, address = self.start_index()
        common = ["--index", address, "--value-size", "64KiB", "--batch", "8", "--keys", "64", "--seconds", "0.3"]
        putter = self.start([BIN / "hicache-bench", "store", "--op", "put", "--segment-size", "64MiB", "--linger", "forever",
                             "--json", *common], "putter")
        putter.wait_for(r"\}")
        for op in ("get", "exists"):
            answer = subprocess.run([BIN / "hicache-bench", "store", "--op", op, "--json", *common], capture_output=True,
                                    text=True, check=True)
            figures = json.loads(answer.stdout)
            self.assertEqual(figures["errors"], 0)
            self.assertGreater(figures["keys_per_s"], 0)
        putter.terminate()
        self.assertEqual(putter.wait(10), 0, putter.text())


if __name__ == "__main__":
    main()
