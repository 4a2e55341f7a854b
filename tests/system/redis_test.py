"""Redis as L3: instances share the objects of a real server, and a server that goes costs time and nothing else."""

import shutil
import subprocess
import time

from harness import BIN, SMALL_KV, SharedPagesTest, free_port, main

PAGE = SharedPagesTest.PAGE


class RedisTest(SharedPagesTest):
    def setUp(self):
        super().setUp()
        if shutil.which("redis-server") is None:
            self.skipTest("there is no redis-server")
        self.port = free_port()

    def start_redis(self, name="redis"):
        server = self.start(["redis-server", "--port", self.port, "--bind", "127.0.0.1", "--save", "", "--dir", self.folder], name)
        server.wait_for("Ready to accept connections")
        return server

    def ask(self, *command):
        return subprocess.run(["redis-cli", "-p", str(self.port), *command], capture_output=True, text=True, timeout=60).stdout.strip()

    def flags(self, backend, config, *more):
        return ["--trace", self.trace, "--verify", "all", *SMALL_KV, "--page-size", PAGE, "--device-pages", 512, "--hicache-ratio", 4,
                "--hicache-storage-backend", backend, "--hicache-storage-backend-extra-config",
                f'{{"prefetch_threshold": {PAGE}, {config}}}', *more]

    def redis(self, more=""):
        return f'"servers": "127.0.0.1:{self.port}"{more}'

    def test_instances_share_a_server(self):
        self.start_redis()
        for number, more in enumerate(("", ', "codecs": "lz4"', ', "chunk_bytes": "4KiB", "key_prefix": "small:"')):
            flags = self.flags("redis", self.redis(more))
            self.assert_clean(self.replay(f"first{number}", 2, *flags))
            self.assertGreater(int(self.ask("DBSIZE")), 0)
            self.assert_all_found(self.replay(f"second{number}", 1, *flags))
            self.ask("FLUSHALL")
        report = self.replay("flushed", 1, *flags)
        self.assert_clean(report)
        self.assertEqual(report["cached_tokens"]["l3"], 0)

    def test_after_everything_was_killed_the_folder_below_has_it_all(self):
        tiers = f'"tiers": [{{"backend": "redis", {self.redis()}}}, {{"backend": "file", "path": "{self.folder}/stored"}}]'
        flags = self.flags("tiered", tiers)
        server = self.start_redis()
        first = self.start_replay("first", 2, *flags, "--linger", "forever")
        first.wait_for("requests in")
        self.assert_clean(self.read_report(first))
        for program in (first, server):
            program.kill()
        for left in self.shared_memory.iterdir():
            left.unlink()  # MPI's, which cannot remove it any more.
        self.start_redis("emptied")
        self.assert_all_found(self.replay("second", 2, *flags))
        self.assert_all_found(self.replay("third", 1, *flags))

    def test_a_server_killed_under_load_costs_no_request(self):
        server = self.start_redis()
        running = self.start_replay("running", 2, *self.flags("redis", self.redis(), "--rounds", "4"))
        end = time.monotonic() + 60
        while self.ask("DBSIZE") in ("0", "") and time.monotonic() < end:
            time.sleep(0.01)
        server.kill()
        self.assertEqual(running.wait(120), 0, running.text())
        self.assert_clean(self.read_report(running))

    def test_hicachectl_works_on_its_objects(self):
        self.start_redis()
        self.assert_commands_work("redis", {"servers": f"127.0.0.1:{self.port}"})

    def test_a_server_that_is_not_there_is_named(self):
        refused = self.start([BIN / "hicache-replay", *self.flags("redis", self.redis())], "refused")
        self.assertEqual(refused.wait(60), 2, refused.text())
        self.assertIn(f"redis at 127.0.0.1:{self.port}: Connection refused", refused.err.read_text())


if __name__ == "__main__":
    main()
