"""Two instances, one index, real processes: sharing, death, signals."""

import json
import os
import signal
import subprocess
import time

from harness import BIN, MPIRUN, REPLAYED_MODEL, SMALL_KV, SystemTest, cached, main, reusable_tokens, write_trace

PAGE = 64


def token_of(block, i):
    """Token i of a trace's block, as hicache-replay makes it."""
    def spread(x):
        x = (x + 0x9e3779b97f4a7c15) % 2**64
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9 % 2**64
        x = (x ^ (x >> 27)) * 0x94d049bb133111eb % 2**64
        return x ^ (x >> 31)
    return spread((spread(block) + i) % 2**64) % 128000


class ClusterTest(SystemTest):
    def setUp(self):
        super().setUp()
        self.trace = self.folder / "trace.jsonl"
        self.rows = write_trace(self.trace, 300)

    def flags(self, address, *more, config='"prefetch_threshold": 64', segment="64MiB", trace=None):
        return ["--trace", trace or self.trace, "--verify", "all", *SMALL_KV, "--device-pages", "512", "--hicache-storage-backend", "cluster",
                "--index", address, "--segment-size", segment, "--hicache-storage-backend-extra-config", f"{{{config}}}", *more]

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
        survivor = self.start_replay("survivor", 2, *self.flags(address, "--prefill-tokens-per-second", "400000", "--linger", "forever",
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
        survivor.wait_for("requests in")
        report = self.read_report(survivor)
        self.assert_clean(report)
        self.assertGreater(report["cached_tokens"]["l3"], 0)
        self.assertNotEqual(doomed.wait(30), 0)
        survivor.terminate()
        survivor.wait(30)
        for program in (doomed, survivor):
            self.assert_all_gone(program)
        index.terminate()
        self.assertEqual(index.wait(10), 0)

    def test_a_signal_ends_everything_with_a_report(self):
        index, address = self.start_index()
        for number in (signal.SIGTERM, signal.SIGINT):
            # What an earlier run left must not pass for this one's report.
            (self.folder / f"stopped{number}.json").write_text("{}")
            program = self.start_replay(f"stopped{number}", 2,
                                        *self.flags(address, "--prefill-tokens-per-second", "20000"))
            deadline = time.monotonic() + 30
            while self.status(address)["keys"] == 0 and time.monotonic() < deadline:
                time.sleep(0.02)
            self.assertFalse(program.report.exists(), "a report appears when it is complete")
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

    def lend_l2(self, segment):
        """Two instances share L2s through which their pages pass some dozen times; later ones find what is left."""
        _, address = self.start_index()
        def flags(*more, trace=None, config=""):
            return self.flags(address, "--hicache-mem-layout", "page_head", "--hicache-ratio", "4", *more, segment=segment,
                              trace=trace, config='"prefetch_threshold": 64, "zero_copy": true' + config)
        sharing = [self.start_replay(name, 2, *flags("--linger", "forever")) for name in ("first", "second")]
        reports = []
        for program in sharing:
            program.wait_for("requests in", 300)
            reports.append(self.read_report(program))
        # The last ones reuse what the instances used last.
        late = self.folder / "late.jsonl"
        late.write_text("".join(self.trace.read_text().splitlines(keepends=True)[-30:]))
        guests = [self.replay("near", 2, *flags(trace=late)),
                  self.replay("far", 2, *flags(trace=late, config=', "force_remote_reads": true'))]
        for report in [*reports, *guests]:
            self.assert_clean(report)
            self.assertGreater(report["verify"]["pages_checked"], 0)
        self.assertGreater(sum(report["cached_tokens"]["l3"] for report in reports), 0, "pages that are overwritten all the time")
        for guest in guests:
            self.assertGreater(cached(guest), reusable_tokens(self.rows[-30:], PAGE), "more than it had itself")
        for report in reports:
            self.assertGreater(report["evicted_pages"]["l2"], 2 * 512)
        members = self.status(address)["members"]
        # What one offers the other need not, also when it has it for longer. A page is an object for each of four heads.
        self.assertGreater(sum(member["pages"] for member in members), 0.5 * 4 * 4 * 512, "most of an L2")
        for member in members:
            self.assertLessEqual(member["bytes"], member["capacity_bytes"])
            self.assertEqual(member["corrupt"], 0)

    def test_pages_of_l2_are_lent_where_they_lie(self):
        self.lend_l2("64MiB")

    def test_pages_of_l2_are_lent_without_a_segment(self):
        self.lend_l2("0")

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

    def test_an_index_process_that_dies_under_load_costs_no_hit(self):
        first, address = self.start_index("--member-ttl", "2s")
        second, other = self.start_index("--shard", "1", "--join", address, "--member-ttl", "2s")
        both = f"{address},{other}"
        owner = self.start_replay("owner", 2, *self.flags(both, "--linger", "forever"))
        owner.wait_for("requests in")
        self.assert_clean(self.read_report(owner))
        before = self.status(both)
        shards = before["shards"]
        self.assertEqual([shard["second_keys"] for shard in shards], [shard["keys"] for shard in reversed(shards)])
        self.assertEqual(before["keys"], sum(shard["keys"] for shard in shards), "each key counts once")
        self.assertEqual(before["keys"], sum(member["pages"] for member in before["members"]))
        self.assertEqual(before["keys"], before["replicas"])
        for victim, survivor, rest in ((second, address, 1), (first, other, 0)):
            reader = self.start_replay(f"reader{rest}", 1, *self.flags(both, "--prefill-tokens-per-second", "400000"))
            asked = self.status(survivor)["keys_found"]
            self.wait_until("the reader reads", lambda: self.status(survivor)["keys_found"] > asked)
            self.assertIsNone(reader.process.poll(), "the load goes on when the process dies")
            victim.kill()
            self.assertEqual(reader.wait(), 0, reader.text())
            report = self.read_report(reader)
            self.assert_clean(report)
            self.assertEqual(report["computed_tokens"], self.least_computed(), "no hit is lost")
            # It begins anew, still under load, and knows all again.
            _, back = self.start_index("--shard", str(rest), "--join", survivor, "--member-ttl", "2s", listen=other if rest else address)
            again = self.replay(f"again{rest}", 1, *self.flags(back))
            self.assert_clean(again)
            self.assertEqual(again["computed_tokens"], self.least_computed(), "nor while it learns what there is")
            self.wait_until("the shard knows all", lambda: self.status(survivor)["keys"] == before["keys"])

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
        reader = self.replay("reader", 1, *self.flags(other))
        self.assert_clean(reader)
        self.assertEqual(reader["computed_tokens"], self.least_computed())
        # Each rank of the owner tells when it looks at the index: by now both have.
        after = self.offered(address)
        self.assertEqual(sum(after.values()), sum(before.values()))
        self.assertGreater(after[2], 0.2 * sum(before.values()))
        for shard in (0, 1):
            self.assertLess(after[shard], before[shard])
        # A process that is killed costs nothing: the other one knows its keys, too.
        second_index.kill()
        self.wait_until("the shard is missed", lambda: self.offered(address)[2] is None)
        without = self.replay("without", 1, *self.flags(address))
        self.assert_clean(without)
        self.assertEqual(without["computed_tokens"], self.least_computed())
        _, other = self.start_index("--shard", "2", "--join", address, "--member-ttl", "2s", listen=other)
        self.wait_until(f"the owner tells the shard again: {after}, {self.offered(address)}", lambda: self.offered(address)[2] == after[2])
        again = self.replay("again", 1, *self.flags(f"{other},{address}"))
        self.assert_clean(again)
        self.assertEqual(again["computed_tokens"], self.least_computed())
        # A shard is taken away: the others get its keys.
        self.assertEqual(self.control(address, "retire", "--shard", "1"), {"retired": 1})
        self.wait_until("the owner tells the others", lambda: 1 not in self.offered(address)
                        and sum(self.offered(address).values()) == sum(before.values()))
        rest = self.offered(address)
        for shard in (0, 2):
            self.assertGreater(rest[shard], after[shard])
        self.assertIn("there is no shard 1", self.control(address, "retire", "--shard", "1", code=2))
        self.control(address, "retire", "--shard", "2")
        self.wait_until("one shard is left", lambda: self.offered(address) == {0: sum(before.values())})
        last = self.replay("last", 1, *self.flags(address))
        self.assert_clean(last)
        self.assertEqual(last["computed_tokens"], self.least_computed())
        self.assertIn("is the only one", self.control(address, "retire", "--shard", "0", code=2))
        for program in (owner, first_index):
            program.terminate()
            program.wait(20)

    def control(self, address, command, *flags, code=0):
        """Runs hicachectl; returns its answer."""
        answer = subprocess.run([str(x) for x in (BIN / "hicachectl", command, "--index", address, "--json", *flags)],
                                capture_output=True, text=True)
        self.assertEqual(answer.returncode, code, answer.stderr)
        return json.loads(answer.stdout) if answer.stdout else answer.stderr

    def start_keeper(self, address, host):
        """A member without an engine, on what counts as another machine."""
        keeper = self.start([MPIRUN, 1, BIN / "hicache-rank", *SMALL_KV, *REPLAYED_MODEL, "--hicache-storage-backend", "cluster",
                             "--index", address, "--segment-size", "64MiB", "--hicache-storage-backend-extra-config", json.dumps({"host": host})], host)
        keeper.wait_for("ranks ready")
        return keeper

    def test_people_look_up_pin_clear_and_drain(self):
        _, address = self.start_index()
        owner = self.start_replay("owner", 2, *self.flags(address, "--linger", "forever"))
        owner.wait_for("requests in")
        prompt = self.folder / "prompt.json"
        row = next(row for row in self.rows if row["input_length"] >= 4 * PAGE)
        prompt.write_text(json.dumps([token_of(row["hash_ids"][i // 512], i % 512) for i in range(4 * PAGE + 3)]))
        settings = ["--tokens", prompt, "--ranks", "2", *SMALL_KV, *REPLAYED_MODEL]
        self.control(address, "lookup", *settings, "--numerics", "other", code=1)
        self.assertIn("--model-id is missing", self.control(address, "lookup", "--tokens", prompt, *SMALL_KV, code=2))
        found = self.control(address, "lookup", *settings)["pages"]
        heads = len(found) // 4
        self.assertEqual(len(found), 4 * heads, "whole pages, an object for each head")
        self.assertTrue(all(len(page["replicas"]) == 1 for page in found))
        names = [page["page"] for page in found]
        self.assertEqual(self.control(address, "lookup", *names[:2])["pages"], found[:2])
        pinned = self.control(address, "pin", *settings, "--hard")
        self.assertEqual(pinned["pages"], len(found))
        self.wait_until("the index hears of the pins", lambda: sum(m["pinned_bytes"] for m in self.status(address)["members"])
                        == pinned["bytes"])
        absent = "0" * 64
        left_out = subprocess.run([BIN / "hicachectl", "pin", "--index", address, names[0], absent], capture_output=True, text=True, timeout=60)
        self.assertEqual(left_out.returncode, 1, left_out.stderr)
        self.assertIn("1 of 2 pages are not stored", left_out.stderr)
        self.control(address, "pin", names[0], "--hard")
        self.assertEqual(self.control(address, "unpin", *names[1:])["pages"], len(found) - 1)
        self.wait_until("and of their end", lambda: sum(m["pinned_bytes"] for m in self.status(address)["members"])
                        == pinned["bytes"] // len(found))
        # What is pinned goes to the member that stays; while there is none, it stays itself.
        self.control(address, "pin", *settings, "--ttl", "1h")
        lonely = self.status(address)["members"]
        refused = [subprocess.run([BIN / "hicachectl", "drain", "--index", address, "--member", member["member"]], capture_output=True,
                                  text=True, timeout=60) for member in lonely]
        self.assertEqual([drained.returncode for drained in refused][-1], 1, "nobody is left who takes pages")
        self.assertIn("pinned pages could not be copied", refused[-1].stderr)
        for member in lonely:
            self.assertTrue(self.control(address, "drain", "--member", member["member"], "--undo")["was_closed"])
            self.assertFalse(self.control(address, "drain", "--member", member["member"], "--undo")["was_closed"])
        self.start_keeper(address, "elsewhere")
        members = self.status(address)["members"]
        self.assertEqual(len(members), 3)
        for member in members:
            if member["host"] != "elsewhere":
                report = self.control(address, "drain", "--member", member["member"])
                self.assertEqual(report["withdrawn"], member["pages"])
        after = self.control(address, "lookup", *settings)["pages"]
        self.assertEqual({copy["host"] for page in after for copy in page["replicas"]}, {"elsewhere"})
        self.assertEqual([len(page["replicas"]) for page in after], [1] * len(found))
        owner.terminate()
        owner.wait(20)
        # A reader finds them where they are now.
        reader = self.replay("reader", 2, *self.flags(address), "--limit", self.rows.index(row) + 1)
        self.assert_clean(reader)
        self.assertGreater(reader["cached_tokens"]["l3"], 0)
        # Another namespace's pages stay.
        self.assertEqual(self.control(address, "clear", "--fingerprint", "1")["pages"], 0)
        mine = next(member["fingerprint"] for member in members)
        self.assertGreater(self.control(address, "clear", "--fingerprint", mine)["pages"], 0)
        self.assertEqual(self.status(address)["keys"], 0)
        self.control(address, "lookup", *names, code=1)
        for command, flags, sentence in (("drain", ["--member", "7"], "there is no member"), ("pin", [], "expected either PAGES"),
                                         ("lookup", ["abc"], "is no page"), ("clear", ["--fingerprint", "x"], "is not known")):
            self.assertIn(sentence, self.control(address, command, *flags, code=2))

    def test_copies_on_another_host_survive_their_writer(self):
        _, address = self.start_index("--member-ttl", "2s")
        self.start_keeper(address, "elsewhere")
        owner = self.start_replay("owner", 2, *self.flags(address, "--linger", "forever",
                                                          config='"prefetch_threshold": 64, "replicas": 2, "force_remote_reads": true'))
        owner.wait_for("requests in")
        self.assert_clean(self.read_report(owner))
        status = self.status(address)
        self.assertEqual(status["replicas"], 2 * status["keys"])
        for rank in owner.children():
            os.kill(rank, signal.SIGKILL)
        self.wait_until("the owner is forgotten", lambda: len(self.status(address)["members"]) == 1)
        self.assertEqual(self.status(address)["keys"], status["keys"])
        reader = self.replay("reader", 2, *self.flags(address))
        self.assert_clean(reader)
        self.assertEqual(reader["computed_tokens"], self.least_computed())

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

    def test_bench_puts_replicas(self):
        _, address = self.start_index()
        put = [BIN / "hicache-bench", "store", "--op", "put", "--index", address, "--value-size", "64KiB",
               "--segment-size", "64MiB", "--linger", "forever", "--json"]
        holder = self.start([*put, "--host", "b", "--batch", "1", "--keys", "1", "--seconds", "0.001"], "holder")
        holder.wait_for(r"\}")
        putter = self.start([*put, "--host", "a", "--replicas", "2", "--keys", "256", "--seconds", "0.1"], "putter")
        putter.wait_for(r"\}")
        status = self.status(address)
        self.assertEqual({member["host"] for member in status["members"]}, {"a", "b"})
        # All of the last 256, but for the few that the holder put itself.
        self.assertGreater(status["replicas"] - status["keys"], 128)


if __name__ == "__main__":
    main()
