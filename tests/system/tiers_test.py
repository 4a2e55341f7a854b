"""L3 as an order of stores: what memory has lost comes from the folder below it, also after kill -9."""

import json

from harness import BIN, SMALL_KV, SharedPagesTest, cached, main

PAGE = SharedPagesTest.PAGE


class TiersTest(SharedPagesTest):
    def setUp(self):
        super().setUp()
        self.stored = self.folder / "stored"

    def flags(self, tiers, *more):
        # L2 has room for all that waits for a slow disk: of what is too much, the oldest would not be stored.
        return ["--trace", self.trace, "--verify", "all", *SMALL_KV, "--page-size", PAGE, "--device-pages", 512, "--hicache-ratio", 4,
                "--hicache-storage-backend", "tiered", "--hicache-storage-backend-extra-config",
                f'{{"prefetch_threshold": {PAGE}, "tiers": [{tiers}]}}', *more]

    def file_tier(self, more=""):
        return f'{{"backend": "file", "path": "{self.stored}"{more}}}'

    def assert_tiers(self, report, lower):
        """All that was in L3 was in the lower tier at first."""
        by_tier = report["cached_tokens_l3"]
        self.assertEqual(set(by_tier), {"memory", lower})
        self.assertEqual(sum(by_tier.values()), report["cached_tokens"]["l3"])
        self.assertGreater(by_tier[lower], 0)

    def test_the_folder_below_memory_survives_the_instance(self):
        tiers = '{"backend": "memory", "max_bytes": "1MiB"}, ' + self.file_tier(', "codecs": "lz4"')
        first = self.start_replay("first", 2, *self.flags(tiers), "--linger", "forever")
        first.wait_for("requests in")
        self.assert_clean(self.read_report(first))
        first.kill()
        for left in self.shared_memory.iterdir():
            left.unlink()  # MPI's, which cannot remove it any more.
        second = self.replay("second", 2, *self.flags(tiers))
        self.assert_all_found(second)
        self.assert_tiers(second, "file")
        self.assert_all_found(self.replay("third", 1, *self.flags(tiers)))

    def test_the_disk_below_memory_survives_the_instance(self):
        tiers = f'{{"backend": "memory", "max_bytes": "1MiB"}}, {{"backend": "disk", "path": "{self.stored}", "max_bytes": "64MiB"}}'
        first = self.start_replay("first", 2, *self.flags(tiers), "--linger", "forever")
        first.wait_for("requests in")
        self.assert_clean(self.read_report(first))
        refused = self.start([BIN / "hicache-replay", *self.flags(tiers)], "refused")
        self.assertEqual(refused.wait(60), 2, refused.text())
        self.assertIn(f"tier 2 (disk): another process uses the folder {self.stored}/rank-0", refused.err.read_text())
        first.kill()
        self.assert_all_gone(first)
        for left in self.shared_memory.iterdir():
            left.unlink()  # MPI's, which cannot remove it any more.
        log = self.folder / "ops"
        second = self.replay("second", 2, *self.flags(tiers), "--record-ops", log)
        self.assert_all_found(second)
        self.assert_tiers(second, "disk")
        replayed = self.start([BIN / "hicachectl", "oplog", "replay", f"{log}.0"], "replayed")
        self.assertEqual(replayed.wait(60), 0, replayed.text())

    def test_a_store_on_3fs_survives_the_instance(self):
        """With a double of 3FS's library, for which a folder is a 3FS."""
        (self.folder / "3fs-virt/iovs").mkdir(parents=True)
        double = BIN.parent / "tests/backends/disk/libhf3fs_double.so"
        flags = ["--trace", self.trace, "--verify", "all", *SMALL_KV, "--page-size", PAGE, "--device-pages", 512, "--hicache-ratio", 4,
                 "--hicache-storage-backend", "hf3fs", "--hicache-storage-backend-extra-config",
                 json.dumps({"prefetch_threshold": PAGE, "path": str(self.stored), "max_bytes": "64MiB", "library": str(double)})]
        self.assert_clean(self.replay("first", 2, *flags))
        self.assert_all_found(self.replay("second", 2, *flags))
        refused = self.start([BIN / "hicache-replay", *flags[:-1], json.dumps({"path": str(self.stored), "max_bytes": "64MiB", "library": "libabsent.so"})],
                             "refused")
        self.assertEqual(refused.wait(60), 2, refused.text())
        self.assertIn("key 'library': 3FS's library cannot be loaded: libabsent.so", refused.err.read_text())

    def test_hicachectl_works_on_the_objects_of_folders(self):
        self.assert_commands_work("file", {"path": str(self.folder / "files")})
        self.assert_commands_work("disk", {"path": str(self.folder / "disk"), "max_bytes": "64MiB"})

    def test_the_disk_takes_what_memory_evicts(self):
        tiers = ('{"backend": "memory", "max_bytes": "1MiB"}, '
                 f'{{"backend": "disk", "path": "{self.stored}", "max_bytes": "64MiB", "write": "evict"}}')
        admin = self.folder / "admin"
        first = self.start_replay("first", 1, *self.flags(tiers), "--linger", "forever", "--admin-listen", f"unix:{admin}")
        first.wait_for("requests in")
        self.assert_clean(self.read_report(first))
        def show():
            shown = self.start([BIN / "hicachectl", "storage", "show", "--admin", f"unix:{admin}", "--json"], "shown")
            self.assertEqual(shown.wait(60), 0, shown.text())
            return json.loads(shown.out.read_text())["hicache_storage_tiers"]

        # What memory has evicted goes to the disk in the background.
        before = []
        while before != (before := show()):
            pass
        memory, disk = before
        self.assertGreater(memory["evicted"], 0)
        self.assertGreater(disk["objects"], 0)
        self.assertLessEqual(disk["objects"], memory["evicted"], "only what memory evicted")
        first.terminate()
        first.wait(20)
        counted = self.start([BIN / "hicachectl", "store", "verify", "--backend", "disk", "--extra-config",
                              f'{{"path": "{self.stored}", "max_bytes": "64MiB"}}', "--json"], "counted")
        self.assertEqual(counted.wait(60), 0, counted.text())
        self.assertEqual(json.loads(counted.out.read_text())[0]["objects"], disk["objects"])

    def test_a_hot_prefix_stays_in_a_disk_that_is_too_small_for_the_rest(self):
        tiers = f'{{"backend": "memory", "max_bytes": "1MiB"}}, {{"backend": "disk", "path": "{self.stored}", "max_bytes": "32MiB"}}'
        hot = {"timestamp": 0, "input_length": 4 * 512, "output_length": 1, "hash_ids": [1, 2, 3, 4]}
        rows = []
        for i in range(80):
            cold = [5 + 8 * i + k for k in range(8)]
            rows += [{"timestamp": 0, "input_length": 8 * 512, "output_length": 1, "hash_ids": cold}] + ([hot] if i % 4 == 3 else [])
        self.write(rows)
        admin = self.folder / "admin"
        first = self.start_replay("first", 2, *self.flags(tiers), "--linger", "forever", "--admin-listen", f"unix:{admin}")
        first.wait_for("requests in", 300)
        report = self.read_report(first)
        self.assert_clean(report)
        self.assertEqual(cached(report), 19 * (4 * 512 - PAGE))
        self.assertEqual(report["cached_tokens"]["l3"], 0, "the hot prefix was never read in L3")
        shown = self.start([BIN / "hicachectl", "storage", "show", "--admin", f"unix:{admin}", "--json"], "shown")
        self.assertEqual(shown.wait(60), 0, shown.text())
        disk = json.loads(shown.out.read_text())["hicache_storage_tiers"][1]
        self.assertGreater(disk["evicted"], disk["objects"], "all that was written at first has left the disk")
        first.terminate()
        first.wait(20)
        self.write([hot])
        second = self.replay("second", 2, *self.flags(tiers))
        self.assert_clean(second)
        self.assertEqual(second["cached_tokens"], {"l1": 0, "l2": 0, "l3": 4 * 512 - PAGE})

    def write(self, rows):
        self.trace.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def test_a_cluster_above_a_folder(self):
        index, address = self.start_index()
        tiers = '{"backend": "cluster"}, ' + self.file_tier()
        more = ("--index", address, "--segment-size", "128KiB")
        owner = self.start_replay("owner", 2, *self.flags(tiers), *more, "--linger", "forever")
        owner.wait_for("requests in")
        self.assert_clean(self.read_report(owner))
        stored = sum(path.stat().st_size for path in self.stored.glob("*/*.kv"))
        self.assertGreater(stored, 2 * 2 * (128 << 10), "the segments hold less than half of it")
        self.assert_all_found(self.replay("reader", 1, *self.flags(tiers), *more))
        for program in (owner, index):
            program.terminate()
            program.wait(20)

    def test_a_tier_that_cannot_be_opened_is_named(self):
        self.stored.write_text("no folder")
        refused = self.start([BIN / "hicache-replay", *self.flags('{"backend": "memory"}, ' + self.file_tier())], "refused")
        self.assertEqual(refused.wait(60), 2, refused.text())
        self.assertIn("tier 2 (file): ", refused.err.read_text())


if __name__ == "__main__":
    main()
