"""L3 is attached and detached while an instance serves: nothing fails, nothing wrong is served, nobody waits."""

import json
import re
import subprocess
import time

from harness import BIN, MPIRUN, SMALL_KV, SystemTest, main, write_trace


class StorageAdminTest(SystemTest):
    def setUp(self):
        super().setUp()
        self.trace = self.folder / "trace.jsonl"
        write_trace(self.trace, 150)

    def start_instance(self, ranks, *flags):
        replay = self.start_replay("instance", ranks, "--trace", self.trace, "--verify", "all", "--page-size", "16",
                                   "--device-pages", "1024", "--hicache-ratio", "2", "--admin-listen", f"unix:{self.folder}/admin",
                                   "--prefill-tokens-per-second", "40000", *flags)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            found = re.search(r"administered at (\S+)", replay.err.read_text())
            if found:
                return replay, found.group(1)
            self.assertIsNone(replay.process.poll(), replay.text())
            time.sleep(0.02)
        self.fail(replay.text())

    def storage(self, admin, *arguments, code=0):
        ran = subprocess.run([str(a) for a in (BIN / "hicachectl", "storage", *arguments, "--admin", admin)],
                             capture_output=True, text=True, timeout=60)
        self.assertEqual(ran.returncode, code, ran.stdout + ran.stderr)
        return ran.stdout + ran.stderr

    def shown(self, admin):
        return json.loads(self.storage(admin, "show", "--json"))["hicache_storage_backend"]

    def extra(self, name):
        return json.dumps({"path": str(self.folder / name), "prefetch_threshold": 16})

    def objects(self, name):
        return sum(1 for path in (self.folder / name).rglob("*") if path.is_file())

    def test_backends_change_under_a_replay(self):
        replay, admin = self.start_instance(2, "--hicache-storage-backend", "file", "--hicache-storage-backend-extra-config",
                                            self.extra("first"))
        changes = 0
        others = (("file", self.extra("second")), ("memory", '{"max_bytes": "64MiB", "prefetch_threshold": 16}'),
                  ("file", self.extra("first")))
        attached = "file"
        while replay.process.poll() is None and changes < 6:
            self.assertEqual(self.shown(admin), attached)
            self.storage(admin, "detach")
            self.assertIsNone(self.shown(admin))
            attached, config = others[changes % len(others)]
            self.storage(admin, "attach", "--backend", attached, "--extra-config", config)
            changes += 1
        self.assertGreater(changes, 2)
        self.assertEqual(replay.wait(120), 0, replay.text())
        report = self.read_report(replay)
        self.assert_clean(report)
        self.assertEqual(report["storage_failures"], 0)
        # Each computes at its own pace of 40000 tokens a second; nothing else takes long.
        self.assertLess(report["ttft_ms"]["p99"], 3000)
        for name in ("first", "second"):
            self.assertGreater(self.objects(name), 0)

    def test_what_cannot_be_attached_changes_nothing(self):
        replay, admin = self.start_instance(2)
        self.assertIsNone(self.shown(admin))
        self.storage(admin, "detach")
        said = self.storage(admin, "attach", "--backend", "file", "--extra-config", '{"pathh": "x"}', code=1)
        self.assertIn("pathh", said)
        said = self.storage(admin, "attach", "--backend", "floppy", code=1)
        self.assertIn("floppy", said)
        self.assertIsNone(self.shown(admin))
        self.storage(admin, "attach", "--backend", "file", "--extra-config", self.extra("only"), "--prefetch-policy", "timeout")
        said = self.storage(admin, "attach", "--backend", "file", "--extra-config", self.extra("other"), code=1)
        self.assertIn("detached first", said)
        self.assertEqual(replay.wait(120), 0, replay.text())
        self.assert_clean(self.read_report(replay))
        self.assertGreater(self.objects("only"), 0)

    def tiers(self, admin):
        return [tier["backend"] for tier in json.loads(self.storage(admin, "show", "--json"))["hicache_storage_tiers"]]

    def figures(self, admin, number):
        return json.loads(self.storage(admin, "show", "--json"))["hicache_storage_tiers"][number - 1]

    def test_tiers_change_under_a_replay(self):
        memory = {"prefetch_threshold": 16, "tiers": [{"backend": "memory", "max_bytes": "64KiB"}]}
        (self.folder / "l3.json").write_text(json.dumps(memory))
        replay, admin = self.start_instance(2, "--hicache-storage-backend", "tiered", "--hicache-storage-backend-extra-config",
                                            f"@{self.folder}/l3.json")
        files = json.dumps({"path": str(self.folder / "tier"), "write": "evict"})
        said = self.storage(admin, "attach", "--tier", "file", "--extra-config", files, "--at", "1", code=1)
        self.assertIn("tier 1 takes what the tier above evicts", said)
        said = self.storage(admin, "attach", "--tier", "disk", "--extra-config", '{"path": "/dev/null/kv", "max_bytes": "1GiB"}', code=1)
        self.assertIn("tier 2 (disk)", said)
        said = self.storage(admin, "detach", "--tier", "memory", code=1)
        self.assertIn("L3 has no other tier", said)
        self.assertEqual(self.tiers(admin), ["memory"])
        rounds = hits = 0
        while replay.process.poll() is None and rounds < 3:
            self.storage(admin, "attach", "--tier", "file", "--extra-config", files)
            self.assertEqual(self.tiers(admin), ["memory", "file"])
            config = json.loads(self.storage(admin, "show", "--json"))["hicache_storage_backend_extra_config"]
            self.assertEqual([tier["backend"] for tier in config["tiers"]], ["memory", "file"])
            end = time.monotonic() + 30
            while self.figures(admin, 2)["hits"] == 0 and replay.process.poll() is None and time.monotonic() < end:
                time.sleep(0.02)
            if replay.process.poll() is None:
                hits += self.figures(admin, 2)["hits"]
                self.storage(admin, "detach", "--tier", "2")
                self.assertEqual(self.tiers(admin), ["memory"])
                rounds += 1
        self.assertGreater(rounds, 0)
        self.assertGreater(hits, 0)
        self.assertEqual(replay.wait(120), 0, replay.text())
        report = self.read_report(replay)
        self.assert_clean(report)
        self.assertEqual(report["storage_failures"], 0)
        self.assertGreater(self.objects("tier"), 0)

    def test_a_tier_that_one_rank_cannot_open_is_added_on_none(self):
        replay, admin = self.start_instance(2, "--hicache-storage-backend", "tiered", "--hicache-storage-backend-extra-config",
                                            '{"tiers": [{"backend": "memory"}]}')
        disk = json.dumps({"path": str(self.folder / "disk"), "max_bytes": "256MiB"})
        (self.folder / "disk").mkdir()
        (self.folder / "disk" / "rank-1").write_text("no folder")
        said = self.storage(admin, "attach", "--tier", "disk", "--extra-config", disk, code=1)
        self.assertIn("rank 1: tier 2 (disk)", said)
        self.assertEqual(self.tiers(admin), ["memory"])
        (self.folder / "disk" / "rank-1").unlink()
        self.storage(admin, "attach", "--tier", "disk", "--extra-config", disk)
        self.assertEqual(self.tiers(admin), ["memory", "disk"])
        replay.terminate()
        replay.wait(60)

    def test_one_store_has_no_tiers_to_change(self):
        replay, admin = self.start_instance(1, "--hicache-storage-backend", "memory")
        for command in (("attach", "--tier", "memory"), ("detach", "--tier", "1")):
            self.assertIn("L3 has no tiers; expected it to be attached as tiered", self.storage(admin, *command, code=1))
        replay.terminate()
        replay.wait(60)

    def test_an_engine_that_does_not_say_whose_kv_it_has_attaches_no_shared_store(self):
        rank = self.start([MPIRUN, 1, BIN / "hicache-rank", *SMALL_KV, "--admin-listen", f"unix:{self.folder}/admin"], "rank")
        admin = rank.wait_for(r"administered at (\S+)").group(1)
        said = self.storage(admin, "attach", "--backend", "file", "--extra-config", self.extra("shared"), code=1)
        self.assertIn("--model-id is missing", said)
        self.assertFalse((self.folder / "shared").exists())
        self.storage(admin, "attach", "--backend", "memory")
        rank.terminate()
        rank.wait(60)

    def test_a_store_that_lends_l2_comes_and_goes(self):
        _, address = self.start_index()
        flags = "--hicache-mem-layout", "page_head", "--index", address, "--hicache-storage-backend-extra-config"
        lending = '{"zero_copy": true, "prefetch_threshold": 16}'
        private, admin = self.start_instance(1, *flags, "{}")
        said = self.storage(admin, "attach", "--backend", "cluster", "--extra-config", lending, code=1)
        self.assertIn("expected zero_copy in --hicache-storage-backend-extra-config when it starts", said)
        private.terminate()
        private.wait(60)
        replay, admin = self.start_instance(2, *flags, lending)
        changes = 0
        while replay.process.poll() is None and changes < 4:
            self.storage(admin, "attach", "--backend", "cluster", "--extra-config", lending)
            end = time.monotonic() + 30
            while self.offered(address) == 0 and replay.process.poll() is None and time.monotonic() < end:
                time.sleep(0.02)
            self.storage(admin, "detach")
            self.assertEqual(self.offered(address), 0)
            changes += 1
        self.assertGreater(changes, 1)
        self.assertEqual(replay.wait(120), 0, replay.text())
        report = self.read_report(replay)
        self.assert_clean(report)
        self.assertGreater(report["bytes"]["l2_to_l3"], 0)

    def offered(self, address):
        ran = subprocess.run([BIN / "hicachectl", "status", "--index", address, "--json"], capture_output=True, text=True, check=True)
        return json.loads(ran.stdout)["replicas"]


if __name__ == "__main__":
    main()
