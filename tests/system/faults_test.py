"""What goes wrong around an instance: a store that is slow, fails, lies and loses bytes, a rank that is paused, a rank that is killed.
No wrong byte is served, every error is named, and the engines of the ranks that are left are told in time."""

import collections
import json
import os
import pathlib
import re
import signal
import subprocess
import time

from harness import BIN, MPIRUN, SMALL_KV, SystemTest, cached, main, whole_pages, write_trace

FAULTY = pathlib.Path(os.environ.get("HICACHE_FAULTY_REPLAY", BIN.parent / "tests/faults/faulty-replay"))
SEEDS = (1, 2, 3, 4)
# Each cold on what the one before has stored. Best effort reads little, and writes.
POLICIES = ("best_effort", "wait_complete", "timeout")
# Shares of the pages; a page is lost if one of four ranks loses its part.
FAULTS = {"delay": 0.02, "delay_ms_max": 20, "fail": 0.02, "cut": 0.02, "flip": 0.02, "lose": 0.01, "lie": 0.01}
RANKS = 4
# On top of what a rank may take: a busy machine.
SLACK_S = 20


class FaultsTest(SystemTest):
    def flags(self, trace, pages, **extra):
        return ["--trace", trace, "--verify", "all", *SMALL_KV, "--kv-heads", RANKS, "--device-pages", "256", "--hicache-ratio", "1.5",
                "--hicache-storage-backend", "file", "--hicache-storage-backend-extra-config",
                json.dumps({"path": str(pages), "prefetch_threshold": 64, **extra})]

    def trace(self, requests, seed=7):
        path = self.folder / "trace.jsonl"
        return path, write_trace(path, requests, seed)


class StoreFaultsTest(FaultsTest):
    def run_on(self, name, program, flags, plan):
        """Replays to the end on a store with this plan; returns the report and what was done to the store."""
        report = self.folder / f"{name}.json"
        run = self.start([MPIRUN, RANKS, program, "--report", report, *flags], name, {"HICACHE_FAULTS": json.dumps(plan)})
        self.assertEqual(run.wait(), 0, run.text())
        done = collections.Counter()
        for rank in re.findall(r"^faults of rank \d: (.*)$", run.err.read_text(), re.MULTILINE):
            done.update(json.loads(rank))
        return json.loads(report.read_text()), done

    def test_a_store_that_fails_in_every_way_costs_hits_and_nothing_else(self):
        done, lost, totals = collections.Counter(), collections.Counter(), collections.Counter()
        for seed in SEEDS:
            trace, rows = self.trace(60, seed)
            pages = self.folder / f"pages{seed}"
            flags = [*self.flags(trace, pages, prefetch_timeout_base="50ms"), "--order", "timed",
                     "--prefill-tokens-per-second", "100000"]
            plan = {"seed": seed, "folder": str(pages), **FAULTS}
            for policy in (*POLICIES, "undisturbed"):
                with self.subTest(seed=seed, policy=policy):
                    if policy == "undisturbed":
                        report, faults = self.run_on(f"{seed}{policy}", BIN / "hicache-replay", flags, plan)
                        self.assertEqual(faults, {})
                        self.assertGreater(report["cached_tokens"]["l3"], 0)
                    else:
                        report, faults = self.run_on(f"{seed}{policy}", FAULTY,
                                                     [*flags, "--hicache-storage-prefetch-policy", policy], plan)
                        for kind in ("delays", "failures", "lies"):
                            self.assertGreater(faults[kind], 0, f"{kind} with seed {seed}")
                    self.assert_clean(report)
                    self.assertEqual(report["requests"], len(rows))
                    self.assertGreater(report["verify"]["pages_checked"], 0)
                    done.update(faults)
                    lost.update(report["given_up_tokens"])
                    totals.update({"l3": report["cached_tokens"]["l3"], "failures": report["storage_failures"],
                                   "retries": report["backups"]["retries"]})
        seen = f"{done} {lost} {totals} with seeds {SEEDS}"
        for kind in ("delays", "failures", "cuts", "flips", "losses", "lies"):
            self.assertGreater(done[kind], 0, seen)
        # Each of them was noticed.
        for reason in ("corrupt", "failed"):
            self.assertGreater(lost[reason], 0, seen)
        for what in ("l3", "failures", "retries"):
            self.assertGreater(totals[what], 0, seen)
        # A worse reason hides that a page is gone, so pages get lost once more where nothing else happens.
        report, faults = self.run_on("losses", FAULTY, [*flags, "--hicache-storage-prefetch-policy", "wait_complete"],
                                     {"seed": 1, "folder": str(pages), "lose": 0.2})
        self.assert_clean(report)
        self.assertGreater(faults["losses"], 0)
        self.assertGreater(report["given_up_tokens"]["gone"], 0, report["given_up_tokens"])


class StuckStoreTest(FaultsTest):
    """Pages that are named pipes stand for those of a server that is gone: whoever opens one waits for ever."""

    def replace_by_pipes(self, pages):
        files = list(pages.rglob("*.kv"))
        self.assertGreater(len(files), 0)
        for path in files:
            path.unlink()
            os.mkfifo(path)

    def wait_for_report(self, program, requests):
        end = time.monotonic() + 60 + SLACK_S
        while time.monotonic() < end and program.process.poll() is None:
            text = program.report.read_text() if program.report.exists() else ""
            if text.endswith("}\n") and json.loads(text)["requests"] == requests:
                return json.loads(text)
            time.sleep(0.05)
        self.fail(program.text())

    def test_a_store_that_hangs_costs_its_hits_and_lets_the_process_end(self):
        trace, rows = self.trace(40)
        for ranks, policy in ((1, "wait_complete"), (2, "timeout")):
            with self.subTest(ranks=ranks, policy=policy):
                pages = self.folder / f"pages{ranks}"
                flags = [*self.flags(trace, pages), "--hicache-storage-prefetch-policy", policy,
                         "--hicache-storage-timeout", "400ms", "--shutdown-grace", "500ms"]
                self.replay(f"warm{ranks}", ranks, *flags)
                self.replace_by_pipes(pages)
                stuck = self.start_replay(f"stuck{ranks}", ranks, *flags, "--linger", "forever",
                                          "--admin-listen", f"unix:{self.folder}/admin{ranks}")
                report = self.wait_for_report(stuck, len(rows))
                self.assert_clean(report)
                self.assertEqual(report["cached_tokens"]["l3"], 0)
                self.assertGreater(report["given_up_tokens"]["late"], 0)
                self.assertGreater(report["storage_failures"], 0)
                told = re.findall("reads of L3 .* are left out", stuck.err.read_text())
                self.assertGreaterEqual(len(told), ranks, stuck.text())
                admin = re.search(r"administered at (\S+)", stuck.err.read_text()).group(1)
                shown = subprocess.run([BIN / "hicachectl", "storage", "show", "--json", "--admin", admin], capture_output=True,
                                       text=True, timeout=60, check=True)
                status = json.loads(shown.stdout)["hicache_storage_status"]
                self.assertFalse(status["up"])
                self.assertEqual(status["reads"]["cause"], "late")
                self.assertGreater(status["stuck_calls"], 0)
                self.assertGreater(status["quarantined_pages"], 0)
                stuck.terminate()
                stuck.wait(5 + SLACK_S) # mpirun itself ends with 1 after a signal.
                self.assertIn("have not returned and are left behind", stuck.err.read_text())
                self.assert_all_gone(stuck)

    def test_calls_that_never_return_cost_pages_and_nothing_else(self):
        # Reads and writes of four ranks stick, so pages of backups are in quarantine on some ranks and not on others.
        trace, rows = self.trace(60)
        pages = self.folder / "pages"
        flags = [*self.flags(trace, pages), "--hicache-storage-timeout", "300ms", "--shutdown-grace", "300ms"]
        for seed in SEEDS[:2]:
            with self.subTest(seed=seed):
                report = self.folder / f"{seed}.json"
                run = self.start([MPIRUN, RANKS, FAULTY, "--report", report, *flags], f"sticking{seed}",
                                 {"HICACHE_FAULTS": json.dumps({"seed": seed, "folder": str(pages), "stick": 0.002})})
                self.assertEqual(run.wait(), 0, run.text())
                found = json.loads(report.read_text())
                self.assert_clean(found)
                self.assertEqual(found["requests"], len(rows))
                self.assertIn("have not returned and are left behind", run.err.read_text())
                self.assertGreater(found["backups"]["dropped_pages"] + found["given_up_tokens"]["late"], 0)
                self.assert_all_gone(run)


class RankFaultsTest(FaultsTest):
    def start_instance(self, requests, *flags, **environment):
        """Starts an instance; returns it when it has stored its first request, its ranks' processes, and its trace."""
        pages = self.folder / f"pages{len(self.programs)}"
        trace, rows = self.trace(requests)
        report = pages.with_suffix(".json")
        instance = self.start([MPIRUN, RANKS, BIN / "hicache-replay", "--report", report, *self.flags(trace, pages),
                               "--prefill-tokens-per-second", "50000", *flags], pages.name, environment)
        instance.report = report
        first = whole_pages(rows[:1], 64) * RANKS
        self.wait_until(lambda: sum(1 for _ in pages.rglob("*.kv")) >= first or instance.process.poll() is not None)
        self.assertIsNone(instance.process.poll(), instance.text())
        ranks = instance.ranks()
        self.assertEqual(sorted(ranks), list(range(RANKS)), instance.text())
        return instance, ranks, rows

    def wait_until(self, happened, seconds=60):
        end = time.monotonic() + seconds
        while not happened():
            self.assertLess(time.monotonic(), end, "\n".join(program.text() for program in self.programs))
            time.sleep(0.02)

    def state_of(self, pid):
        """The letter of proc(5); nothing if the process is gone."""
        try:
            return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return ""

    def stop(self, pid):
        os.kill(pid, signal.SIGSTOP)
        self.wait_until(lambda: self.state_of(pid) == "T")

    def assert_told(self, instance, ranks, lost, state, step_timeout_s):
        """The engine of every other rank is told in time. The first of them says which rank is lost and ends the instance; to the
        others that one may be gone as well by then."""
        def told():
            return dict(re.findall(r" rank (\d) error rank_unresponsive: (.*)", instance.err.read_text()))

        others = {str(rank) for rank in ranks} - {str(lost)}
        self.wait_until(lambda: others <= set(told()) or instance.process.poll() is not None, step_timeout_s + SLACK_S)
        self.assertLessEqual(others, set(told()), instance.text())
        self.assertTrue(any(f"rank {lost} (process {ranks[lost]}) is {state}" in told()[rank] for rank in others), instance.text())

    def test_the_others_are_told_of_a_rank_that_stopped(self):
        # While the engines compute and step, and while they wait for the next request, which comes after 20 seconds.
        for order in (["--order", "closed"], ["--order", "timed", "--speedup", "0.0005"]):
            with self.subTest(order=order):
                instance, ranks, _ = self.start_instance(1000, "--step-timeout", "3s", *order)
                self.stop(ranks[2])
                self.assert_told(instance, ranks, 2, "stopped", 3)
                self.assertEqual(instance.wait(60), 1, instance.text())
                self.assert_all_gone(instance)
                report = self.read_report(instance)
                self.assertGreater(report["errors"], 0)
                self.assertEqual(report["verify"]["mismatches"], 0)

    def test_a_pause_that_is_shorter_than_the_step_timeout_harms_nothing(self):
        instance, ranks, rows = self.start_instance(120, "--step-timeout", "60s")
        for rank in (0, 3):
            self.stop(ranks[rank])
            time.sleep(1)  # The pause, not a wait for anything.
            self.assertIsNone(instance.process.poll(), instance.text())
            os.kill(ranks[rank], signal.SIGCONT)
        self.assertEqual(instance.wait(), 0, instance.text())
        report = self.read_report(instance)
        self.assert_clean(report)
        self.assertEqual(report["requests"], len(rows))
        self.assertGreater(cached(report), 0)

    def test_the_others_are_told_of_a_rank_that_was_killed(self):
        # mpirun ends the whole job when it sees a rank die, unless it is told to let the others recover.
        instance, ranks, _ = self.start_instance(1000, "--step-timeout", "3s", OMPI_MCA_orte_enable_recovery="1")
        os.kill(ranks[1], signal.SIGKILL)
        self.assert_told(instance, ranks, 1, "gone", 3)
        instance.wait(60)
        self.assert_all_gone(instance)
        self.assertEqual(self.read_report(instance)["verify"]["mismatches"], 0)

    def test_an_instance_ends_with_a_rank_that_was_killed(self):
        instance, ranks, _ = self.start_instance(1000)
        os.kill(ranks[1], signal.SIGKILL)
        self.assertNotEqual(instance.wait(60), 0, instance.text())
        self.assert_all_gone(instance)


if __name__ == "__main__":
    main()
