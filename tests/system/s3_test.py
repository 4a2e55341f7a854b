"""S3 as L3: instances share the bucket of a real server, and a server that goes costs time and nothing else."""

import os
import shutil
import time
import urllib.request

from harness import BIN, SMALL_KV, SharedPagesTest, free_port, main

# Few objects: moto takes milliseconds for each request.
PAGE = 256
MOTO = os.environ.get("HICACHE_MOTO_SERVER", "moto_server")
# moto takes any signature.
SIGNED = {"Authorization": "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"}


class S3Test(SharedPagesTest):
    PAGE = PAGE

    def setUp(self):
        super().setUp()
        if shutil.which(MOTO) is None:
            self.skipTest("there is no moto_server")
        os.environ.update(AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test", no_proxy="127.0.0.1")
        self.port = free_port()

    def ask(self, method, name=""):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/pages{name}", method=method, headers=SIGNED)
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.read().decode()

    def start_s3(self, name="s3"):
        server = self.start(["sh", "-c", f"exec {MOTO} -H 127.0.0.1 -p {self.port} 2>&1"], name)
        server.wait_for("Running on")
        self.ask("PUT")
        return server

    def flags(self, backend, config, *more):
        return ["--trace", self.trace, "--verify", "all", *SMALL_KV, "--page-size", PAGE, "--device-pages", 128, "--hicache-ratio", 4,
                "--hicache-storage-backend", backend, "--hicache-storage-backend-extra-config",
                f'{{"prefetch_threshold": {PAGE}, "tp_lcm_size": 2, {config}}}', *more]

    def s3(self, more=""):
        return f'"bucket": "pages", "endpoint": "http://127.0.0.1:{self.port}"{more}'

    def test_instances_share_a_bucket(self):
        self.start_s3()
        for number, more in enumerate(("", ', "codecs": "lz4", "key_prefix": "packed/"')):
            flags = self.flags("s3", self.s3(more))
            self.assert_clean(self.replay(f"first{number}", 2, *flags))
            self.assert_all_found(self.replay(f"second{number}", 1, *flags))
        for prefix in ("hicache/", "packed/"):
            self.assertIn(f"<Key>{prefix}", self.ask("GET", f"?prefix={prefix}"))

    def test_a_bucket_below_memory_outlives_the_instances(self):
        self.start_s3()
        tiers = f'"tiers": [{{"backend": "memory", "max_bytes": "1MiB"}}, {{"backend": "s3", {self.s3()}}}]'
        flags = self.flags("tiered", tiers)
        self.assert_clean(self.replay("first", 2, *flags))
        self.assert_all_found(self.replay("second", 2, *flags))

    def test_a_server_killed_under_load_costs_no_request(self):
        server = self.start_s3()
        running = self.start_replay("running", 2, *self.flags("s3", self.s3(), "--rounds", "4"))
        end = time.monotonic() + 60
        while "<Key>" not in self.ask("GET") and time.monotonic() < end:
            time.sleep(0.01)
        server.kill()
        self.assertEqual(running.wait(120), 0, running.text())
        self.assert_clean(self.read_report(running))

    def test_hicachectl_works_on_its_objects(self):
        self.start_s3()
        self.assert_commands_work("s3", {"bucket": "pages", "endpoint": f"http://127.0.0.1:{self.port}"})

    def test_a_bucket_that_cannot_be_used_is_named(self):
        config = self.s3().replace("pages", "absent")
        self.start_s3()
        refused = self.start([BIN / "hicache-replay", *self.flags("s3", config)], "refused")
        self.assertEqual(refused.wait(60), 2, refused.text())
        self.assertIn(f"S3, bucket absent at http://127.0.0.1:{self.port}: there is no such bucket", refused.err.read_text())


if __name__ == "__main__":
    main()
