"""Ranks of one instance stay identical, with 1, 2 and 4 of them; a damaged one is found out."""

import json
import os
import pathlib
import signal
import socket
import time
import unittest

from certificates import Authority
from harness import BIN, MPIRUN, SMALL_KV, SystemTest, cached, main, reusable_tokens, write_trace

FAULTY = pathlib.Path(os.environ.get("HICACHE_FAULTY_REPLAY", BIN.parent / "tests/faults/faulty-replay"))


def listeners(pid):
    """Addresses of the TCP sockets on which a process listens, as /proc writes them."""
    listening = "0A"
    own = {os.readlink(link) for link in pathlib.Path(f"/proc/{pid}/fd").iterdir()}
    rows = [row.split() for table in ("tcp", "tcp6") for row in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]]
    return sorted(row[1] for row in rows if row[3] == listening and f"socket:[{row[9]}]" in own)


class RanksTest(SystemTest):
    def setUp(self):
        super().setUp()
        self.trace = self.folder / "trace.jsonl"
        self.rows = write_trace(self.trace, 200)

    def flags(self, name, page=16):
        config = f'{{"path": "{self.folder}/{name}", "prefetch_threshold": 16}}'
        return ["--trace", self.trace, "--verify", "all", *SMALL_KV, "--page-size", page, "--device-pages", 16384 // page,
                "--hicache-storage-backend", "file", "--hicache-storage-backend-extra-config", config]

    def test_digests_agree_with_1_2_and_4_ranks(self):
        reports = {}
        for ranks in (1, 2, 4):
            for layout in ("layer_first", "page_first", "page_first_direct"):
                # Larger pages: nine stores of small ones are more files than some disks delete within the test's time.
                report = self.replay(f"ranks{ranks}{layout}", ranks, *self.flags(f"pages{ranks}{layout}", page=64),
                                     "--hicache-mem-layout", layout)
                self.assert_clean(report)
                self.assertGreater(report["reductions"], 0)
                self.assertEqual(cached(report), reusable_tokens(self.rows, 64))
                reports[ranks, layout] = cached(report)
        self.assertEqual(len(set(reports.values())), 1,
                         "what is cached does not depend on the number of ranks")

    def test_without_mpirun_it_is_one_rank(self):
        report = self.folder / "alone.json"
        alone = self.start([BIN / "hicache-replay", *self.flags("alone"), "--report", report], "alone")
        alone.report = report
        self.assertEqual(alone.wait(), 0, alone.text())
        report = self.read_report(alone)
        self.assert_clean(report)
        self.assertEqual(report["config"]["ranks"], "1")

    def test_ranks_on_one_machine_listen_nowhere(self):
        instance = self.start_replay("quiet", 2, *self.flags("quiet", page=64), "--limit", 20, "--linger", "forever")
        instance.wait_for("requests in")
        ranks = instance.ranks()
        self.assertEqual(len(ranks), 2)
        self.assertEqual({rank: listeners(pid) for rank, pid in ranks.items()}, {0: [], 1: []})

    def test_ranks_of_a_cluster_listen_where_they_were_told_to(self):
        _, address = self.start_index()
        instance = self.start_replay("local", 2, "--trace", self.trace, *SMALL_KV, "--page-size", 64, "--device-pages", 256,
                                     "--limit", 20, "--linger", "forever", "--hicache-storage-backend", "cluster",
                                     "--index", address, "--segment-size", "4MiB")
        instance.wait_for("requests in")
        loopback = "0100007F:"
        for pid in instance.ranks().values():
            found = listeners(pid)
            self.assertGreater(len(found), 0)
            self.assertEqual([port for port in found if not port.startswith(loopback)], [])
        self.assertNotIn("no setting asks for it", instance.err.read_text())

    def test_four_ranks_agree_under_every_eviction_policy(self):
        # Tiers that hold a part of the trace only, so that what is evicted decides.
        tight = ["--trace", self.trace, "--verify", "all", *SMALL_KV, "--page-size", "16", "--device-pages", "700",
                 "--hicache-ratio", "1.5", "--cache-output"]
        served = {}
        for policy in ("lru", "lfu", "fifo", "mru", "filo", "priority", "slru"):
            report = self.replay(policy, 4, *tight, "--radix-eviction-policy", policy)
            self.assert_clean(report)
            self.assertGreater(report["evicted_pages"]["l1"], 0)
            served[policy] = cached(report)
        self.assertGreater(len(set(served.values())), 3, f"the policies differ in what they keep: {served}")

    def test_four_ranks_agree_under_every_write_policy(self):
        tight = ["--trace", self.trace, "--verify", "all", *SMALL_KV, "--page-size", "16", "--device-pages", "700"]
        for policy in ("write_through", "write_through_selective", "write_back"):
            report = self.replay(policy, 4, *tight, "--hicache-write-policy", policy)
            self.assert_clean(report)
            self.assertGreater(report["bytes"]["l1_to_l2"], 0)
            self.assertGreater(report["cached_tokens"]["l2"], 0)

    def test_four_ranks_agree_on_sessions(self):
        turns = ["--workload", "multi-turn", "--clients", "6", "--rounds", "5", "--turn-tokens", "500", "--verify", "all",
                 *SMALL_KV, "--page-size", "16", "--device-pages", "1024"]
        computed = {}
        for mode in ("off", "refer", "stream"):
            report = self.replay(mode, 4, *turns, "--sessions", mode)
            self.assert_clean(report)
            self.assertEqual(report["requests"], 30)
            computed[mode] = report["computed_tokens"]
        self.assertEqual(computed["stream"], 30 * 500, "each turn goes on after the last token of the one before")
        self.assertEqual(computed["off"], computed["refer"])
        self.assertGreater(computed["off"], computed["stream"])

    def test_without_shared_prefixes_everything_is_computed(self):
        report = self.replay("chunks", 2, "--workload", "multi-turn", "--clients", "3", "--rounds", "3", *SMALL_KV,
                             "--disable-radix-cache")
        self.assert_clean(report)
        self.assertEqual(report["computed_tokens"], report["prompt_tokens"])

    def test_timed_order_and_cached_output(self):
        report = self.replay("timed", 2, *self.flags("timed"), "--order", "timed", "--speedup", "4", "--cache-output")
        self.assert_clean(report)
        self.assertEqual(report["requests"], len(self.rows))

    def test_requests_that_take_each_other_the_room_are_served_all_the_same(self):
        # Many at once, in a device pool that holds little more than the largest of them.
        rows = write_trace(self.trace, 150, seed=1)
        largest = max((row["input_length"] + 63) // 64 for row in rows)
        for policy in ("write_through", "write_back"):
            report = self.replay(policy, 2, "--trace", self.trace, "--verify", "all", *SMALL_KV, "--kv-heads", "4", "--device-pages",
                                 largest + 10, "--hicache-ratio", "8", "--hicache-write-policy", policy, "--order", "timed",
                                 "--speedup", "10", "--prefill-tokens-per-second", "1000000", seconds=60)
            self.assert_clean(report)
            self.assertEqual(report["requests"], len(rows))

    def test_a_damaged_rank_is_reported_and_no_hit_is_served_any_more(self):
        path = self.folder / "damaged.json"
        program = self.start([MPIRUN, 2, FAULTY, "--report", path, *self.flags("damaged")], "damaged",
                             {"HICACHE_FAULTS": json.dumps({"damaged_rank": 1, "damaged_after": 100})})
        self.assertEqual(program.wait(), 1, program.text())
        self.assertIn("ranks_diverged", program.err.read_text())
        report = json.loads(path.read_text())
        self.assertEqual(report["divergences"], 1)
        self.assertEqual(report["verify"]["mismatches"], 0)
        self.assertEqual(report["requests"], len(self.rows), "requests are served all the same, without hits")
        self.assertGreater(cached(report), 0)
        self.assertLess(cached(report), reusable_tokens(self.rows, 16))

    def test_ranks_with_different_settings_are_named_field_by_field(self):
        # mpirun's way to start ranks of one job with different arguments.
        common = ["--trace", self.trace, "--head-dim", "4"]
        program = self.start([MPIRUN, 1, BIN / "hicache-replay", *common, ":",
                              "-n", "1", BIN / "hicache-replay", *common, "--layers", "1", "--namespace", "other"], "differ")
        self.assertEqual(program.wait(60), 2, program.text())
        said = [line for line in program.err.read_text().splitlines() if line.startswith("hicache-replay: ")]
        self.assertEqual(len(said), 1, program.text())
        self.assertIn("different values of --layers, --namespace;", said[0])
        self.assert_all_gone(program)

    def test_bad_input_of_one_rank_alone_is_said_once(self):
        program = self.start([MPIRUN, 1, BIN / "hicache-replay", "--trace", self.trace, ":",
                              "-n", "1", BIN / "hicache-replay", "--trace", self.trace, "--page-size", "tall"], "one")
        self.assertEqual(program.wait(60), 2, program.text())
        said = [line for line in program.err.read_text().splitlines() if line.startswith("hicache-replay: ")]
        self.assertEqual(len(said), 1, program.text())
        self.assertIn("tall", said[0])
        self.assert_all_gone(program)


class RendezvousTest(SystemTest):
    """Ranks that are started one by one and meet at an address, as torchrun, Ray and multiprocessing start them."""

    def setUp(self):
        super().setUp()
        self.trace = self.folder / "trace.jsonl"
        self.rows = write_trace(self.trace, 120)
        self.meeting = f"unix:{self.folder}/ranks"

    def flags(self, pages):
        config = f'{{"path": "{self.folder}/{pages}", "prefetch_threshold": 16}}'
        return ["--trace", self.trace, "--verify", "all", *SMALL_KV, "--page-size", 64, "--device-pages", 256,
                "--hicache-storage-backend", "file", "--hicache-storage-backend-extra-config", config]

    def start_rank(self, rank, ranks, *flags, environment=None):
        numbers = [] if environment else ["--rank", rank, "--ranks", ranks]
        program = self.start([BIN / "hicache-replay", *numbers, "--report", self.folder / f"rank{rank}.json", *flags],
                             f"{len(self.programs)}-rank{rank}", environment)
        program.report = self.folder / "rank0.json"
        return program

    def start_ranks(self, ranks, *flags):
        return [self.start_rank(rank, ranks, "--rendezvous", self.meeting, *flags) for rank in range(ranks)]

    def replay_without_mpi(self, ranks):
        for program in ranks:
            self.assertEqual(program.wait(), 0, program.text())
        return self.read_report(ranks[0])

    def test_they_replay_as_under_mpirun_and_never_start_mpi(self):
        expected = self.replay("mpi", 4, *self.flags("mpi"))
        # A rank that started MPI would find it of no use, and say so.
        funneled = {"LD_PRELOAD": os.environ.get("HICACHE_MPI_FUNNELED", "")}
        ranks = [self.start_rank(rank, 4, "--rendezvous", self.meeting, *self.flags("own"),
                                 environment={**funneled, "RANK": str(rank), "WORLD_SIZE": "4"}) for rank in range(4)]
        report = self.replay_without_mpi(ranks)
        for found in (report, expected):
            self.assert_clean(found)
            self.assertGreater(found["reductions"], 0)
            # With L3, which tier had a token depends on when L3 took its page.
            for key in ("bytes", "latency", "seconds"):
                found.pop(key, None)
        self.assertEqual(cached(report), cached(expected))
        self.assertEqual(cached(report), reusable_tokens(self.rows, 64))
        for key in ("requests", "prompt_tokens", "computed_tokens"):
            self.assertEqual(report[key], expected[key])
        self.assertEqual(report["config"]["ranks"], "4")

    def start_until_stored(self, name, *flags):
        """Starts four ranks and waits until one has stored a page."""
        ranks = self.start_ranks(4, *self.flags(name), "--order", "timed", "--speedup", "0.01", *flags)
        end = time.monotonic() + 60
        while not any((self.folder / name).rglob("*.kv")):
            self.assertLess(time.monotonic(), end, ranks[0].text())
            time.sleep(0.02)
        return ranks, [ranks[0], ranks[1], ranks[3]]

    def assert_they_end(self, ranks, lost, state):
        for program in ranks:
            self.assertEqual(program.wait(60), 1, program.text())
            self.assertIn("error rank_unresponsive: ", program.err.read_text())
        self.assertEqual(self.read_report(ranks[0])["verify"]["mismatches"], 0)
        sentence = f"rank 2 (process {lost.process.pid}) is {state}"
        return [sentence in program.err.read_text() for program in ranks]

    def test_the_others_end_with_a_rank_that_was_killed(self):
        ranks, others = self.start_until_stored("killed")
        os.kill(ranks[2].process.pid, signal.SIGKILL)
        self.assertEqual(self.assert_they_end(others, ranks[2], "gone"), [True] * 3)

    def test_the_others_end_when_one_is_stopped_for_longer_than_a_step_may_take(self):
        ranks, others = self.start_until_stored("stopped", "--step-timeout", "3s")
        os.kill(ranks[2].process.pid, signal.SIGSTOP)
        # To those that wait longer, the first that gave up is gone as well.
        self.assertIn(True, self.assert_they_end(others, ranks[2], "stopped"))
        ranks[2].kill()

    def test_what_is_wrong_with_one_rank_is_said_once_for_all(self):
        for flag, value, expected in (("--model", "none", "--model: 'none' is not a preset"),
                                      ("--namespace", "other", "different values of --namespace;")):
            with self.subTest(flag=flag):
                ranks = [self.start_rank(rank, 2, "--rendezvous", self.meeting, "--job", "ours", *self.flags("bad"), *more)
                         for rank, more in ((0, []), (1, [flag, value]))]
                for program in ranks:
                    self.assertEqual(program.wait(60), 2, program.text())
                said = [line for program in ranks for line in program.err.read_text().splitlines()
                        if line.startswith("hicache-replay: ")]
                self.assertEqual(len(said), 1, said)
                self.assertIn(expected, said[0])

    def test_with_tls_a_rank_without_the_authoritys_certificate_is_refused(self):
        ours, others = (Authority(self.folder, name) for name in ("ours", "others"))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.meeting = f"127.0.0.1:{probe.getsockname()[1]}"
        first = self.start_rank(0, 2, "--rendezvous", self.meeting, *self.flags("tls"), *ours.sign("first"))
        stranger = self.start_rank(1, 2, "--rendezvous", self.meeting, *self.flags("tls"), *others.sign("stranger"))
        self.assertEqual(stranger.wait(60), 2, stranger.text())
        self.assertIn("certificate verify failed", stranger.err.read_text())
        second = self.start_rank(1, 2, "--rendezvous", self.meeting, *self.flags("tls"), *ours.sign("second"))
        self.assert_clean(self.replay_without_mpi([first, second]))

    def test_flags_that_cannot_be_are_refused_with_a_sentence(self):
        for flags, expected in (
                (["--rank", "0", "--ranks", "2", "--rendezvous", "0.0.0.0:7000"], "--rendezvous: other machines reach '0.0.0.0'"),
                (["--rank", "2", "--ranks", "2", "--rendezvous", self.meeting], "--rank: there is no rank 2 of 2"),
                (["--rendezvous", self.meeting], "expected --rank and --ranks, or RANK and WORLD_SIZE in the environment"),
                (["--rank", "0", "--ranks", "2", "--rendezvous", "127.0.0.1:0"], "all ranks need the same port"),
                (["--rank", "0", "--ranks", "2"], "--rendezvous")):
            with self.subTest(flags=flags):
                program = self.start([BIN / "hicache-replay", *flags, *self.flags("bad")], f"bad{len(self.programs)}")
                self.assertEqual(program.wait(60), 2, program.text())
                self.assertIn(expected, program.err.read_text())


if __name__ == "__main__":
    main()
