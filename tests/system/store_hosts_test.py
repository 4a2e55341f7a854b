"""Stores in other processes as L3: Mooncake's, files by NIXL, and classes of a user's own, with real servers."""

import json
import os
import pathlib
import signal
import subprocess
import time

from harness import BIN, SMALL_KV, SharedPagesTest, free_port, main

PAGE = SharedPagesTest.PAGE
PYTHON = os.environ.get("HICACHE_STORE_PYTHON", "python3")
ROOT = pathlib.Path(__file__).resolve().parents[2]


def has_module(name):
    return subprocess.run([PYTHON, "-c", f"import {name}"], capture_output=True).returncode == 0


class StoreHostsTest(SharedPagesTest):
    def setUp(self):
        super().setUp()
        if not has_module("capnp"):
            self.skipTest("there is no Python with pycapnp")
        os.environ["PYTHONPATH"] = f"{ROOT}/clients/python:{ROOT}/tests/backends/external"
        self.pages = self.folder / "pages"
        self.pages.mkdir()

    def flags(self, backend, config, *more):
        return ["--trace", self.trace, "--verify", "all", *SMALL_KV, "--page-size", PAGE, "--device-pages", 512, "--hicache-ratio", 4,
                "--hicache-storage-backend", backend, "--hicache-storage-backend-extra-config", json.dumps({"prefetch_threshold": PAGE, **config}), *more]

    def command(self, store="folder_store:FolderStore"):
        return f"exec {PYTHON} -m hicache store-host --fd 3 {store}"

    def assert_shared(self, backend, config):
        flags = self.flags(backend, config)
        self.assert_clean(self.replay("first", 2, *flags))
        self.assert_all_found(self.replay("second", 1, *flags))

    def test_instances_share_a_store_of_a_users_own(self):
        self.assert_shared("external", {"command": self.command(), "path": str(self.pages)})
        self.assertTrue((self.pages / "closed").exists())

    def test_ranks_share_a_host_at_a_socket(self):
        socket = self.folder / "socket"
        host = self.start([PYTHON, "-m", "hicache", "store-host", "--socket", socket, "folder_store:FolderStore"], "host")
        host.wait_for("listening at")
        self.assert_shared("external", {"socket": str(socket), "path": str(self.pages)})
        os.kill(host.process.pid, signal.SIGTERM)
        self.assertEqual(host.wait(60), 0, host.text())
        self.assertFalse(socket.exists())
        self.assertTrue((self.pages / "closed").exists())

    def test_nixl_keeps_pages_in_files(self):
        if not has_module("nixl"):
            self.skipTest("there is no NIXL")
        self.assert_shared("nixl", {"path": str(self.pages), "python": PYTHON})
        self.assert_commands_work("nixl", {"path": str(self.folder / "commands"), "python": PYTHON})
        # SGLang's configuration: the pages are found, and what means nothing here is named once.
        config = {"path": str(self.pages), "python": PYTHON, "use_direct_io": True, "l3_cleaner_high_watermark": 85.0,
                  "plugin": {"posix": {"active": True, "use_uring": "true"}, "gds": {"batch_limit": 128}}}
        warned = self.start_replay("sglang", 1, *self.flags("nixl", config))
        self.assertEqual(warned.wait(120), 0, warned.text())
        self.assertEqual(warned.text().count("these keys mean nothing here: l3_cleaner_high_watermark, use_direct_io"), 1, warned.text())
        self.assert_all_found(self.read_report(warned))
        refused = self.start([BIN / "hicache-replay", *self.flags("nixl", {**config, "plugin": {"obj": {"active": True}}})], "refused")
        self.assertEqual(refused.wait(60), 2, refused.text())
        self.assertIn("plug-in OBJ keeps objects in S3", refused.err.read_text())

    def test_a_server_of_lmcaches_protocol_keeps_pages(self):
        """hicache's own, over a node; tests/engines/lmcache has the one of LMCache."""
        socket = self.folder / "node"
        node = self.start([BIN / "hicache-node", "--memory", "256MiB", "--socket", socket], "node")
        node.wait_for("listening on")
        os.environ["HICACHE_LIBRARY"] = str(BIN.parent / "c_abi/libhicache.so.1")
        server = self.start([PYTHON, "-m", "hicache", "lm-server", "--socket", socket, "--listen", "127.0.0.1:0"], "server")
        url = server.wait_for(r"listening on (lm://\S+)").group(1)
        self.assert_shared("lmcache", {"remote_url": url, "python": PYTHON})
        self.assert_commands_work("lmcache", {"remote_url": url, "python": PYTHON}, lists=False, removes=False)
        refused = self.start([BIN / "hicache-replay", *self.flags("lmcache", {"remote_url": "http://127.0.0.1:1", "python": PYTHON})], "refused")
        self.assertEqual(refused.wait(60), 2, refused.text())
        self.assertIn("key 'remote_url': expected lm://HOST:PORT", refused.err.read_text())
        for program in (server, node):
            program.terminate()
            program.wait(20)

    def test_mooncake_keeps_pages_in_its_cluster(self):
        if not has_module("mooncake.store"):
            self.skipTest("there is no Mooncake")
        port = free_port()
        bin_folder = pathlib.Path(PYTHON).parent
        master = self.start(["sh", "-c", f"exec {bin_folder}/mooncake_master --rpc_address=127.0.0.1 --rpc_port={port} --metrics_port=0 2>&1"], "master")
        master.wait_for("Master service started")
        # The cluster's memory, which outlives the instances.
        lender = self.start([PYTHON, "-c", "from mooncake.store import MooncakeDistributedStore\n"
                             "store = MooncakeDistributedStore()\n"
                             f"assert store.setup('127.0.0.1', 'P2PHANDSHAKE', 256 << 20, 16 << 20, 'tcp', '', '127.0.0.1:{port}') == 0\n"
                             "print('lends', flush=True)\n"
                             "import signal; signal.pause()"], "lender")
        lender.wait_for("lends")
        config = {"master_server_address": f"127.0.0.1:{port}", "global_segment_size": 0, "python": PYTHON}
        self.assert_shared("mooncake", config)
        # Keys of SGLang's that have no meaning here are no error.
        warned = self.start_replay("warned", 1, *self.flags("mooncake", {**config, "master_metrics_port": 9003, "extra_backend_tag": "apart"}))
        self.assertEqual(warned.wait(120), 0, warned.text())
        self.assertIn("these keys mean nothing here: master_metrics_port", warned.text())
        self.assertEqual(self.read_report(warned)["cached_tokens"]["l3"], 0)
        self.assert_commands_work("mooncake", config, lists=False)
        standalone = {"client_server_address": "127.0.0.1:1", "standalone_storage": True, "python": PYTHON}
        refused = self.start([BIN / "hicache-replay", *self.flags("mooncake", standalone)], "refused")
        self.assertEqual(refused.wait(60), 2, refused.text())
        self.assertIn("key 'client_server_address' names a client of its own", refused.err.read_text())

    def test_a_store_below_memory_outlives_the_instances(self):
        tiers = {"tiers": [{"backend": "memory", "max_bytes": "1MiB"}, {"backend": "external", "command": self.command(), "path": str(self.pages)}]}
        self.assert_shared("tiered", tiers)

    def test_a_process_killed_under_load_costs_no_request(self):
        running = self.start_replay("running", 2, *self.flags("external", {"command": self.command(), "path": str(self.pages)}, "--rounds", "4"))
        end = time.monotonic() + 60
        pid = self.pages / "pid"
        while not (pid.exists() and pid.read_text()) and time.monotonic() < end:
            time.sleep(0.01)
        os.kill(int(pid.read_text()), signal.SIGKILL)
        self.assertEqual(running.wait(120), 0, running.text())
        self.assert_clean(self.read_report(running))

    def test_a_slow_store_makes_no_request_late(self):
        """With --prefetch-when faster: first tokens come as soon as without L3, and sooner from a fast one."""
        prompt, speed = 1024, 2048  # Half a second to compute each.
        self.trace.write_text("".join(json.dumps({"timestamp": 0, "input_length": prompt, "output_length": 1, "hash_ids": [2 * i, 2 * i + 1]}) + "\n"
                                      for i in range(12)))
        compute = ["--prefill-tokens-per-second", speed]

        def stored(store, *more):
            return self.flags("external", {"command": self.command(f"folder_store:{store}"), "path": str(self.pages)}, *more)

        self.assert_clean(self.replay("fill", 1, *stored("FolderStore")))
        without = self.replay("without", 1, *self.flags("external", {})[:-4], *compute)
        slow = self.replay("slow", 1, *stored("SlowStore", *compute, "--prefetch-when", "faster"))
        self.assert_clean(slow)
        self.assertEqual(slow["cached_tokens"]["l3"], 0)
        self.assertLess(slow["ttft_ms"]["p50"], 1.05 * without["ttft_ms"]["p50"])
        self.assertGreater(slow["given_up_tokens"]["faster_to_compute"], 0)
        self.assertEqual(slow["given_up_tokens"]["faster_to_compute"] // PAGE, slow["declined_pages"])
        always = self.replay("always", 1, *stored("SlowStore", *compute, "--limit", 4))
        self.assertEqual(always["cached_tokens"]["l3"], 4 * (prompt - PAGE))
        self.assertGreater(always["ttft_ms"]["p50"], 1.05 * without["ttft_ms"]["p50"], "the test tells nothing")
        fast = self.replay("fast", 1, *stored("FolderStore", *compute, "--prefetch-when", "faster"))
        self.assert_clean(fast)
        self.assertGreater(fast["cached_tokens"]["l3"], 0)
        self.assertLess(fast["ttft_ms"]["p50"], without["ttft_ms"]["p50"])

    def run_store(self, name, *arguments):
        done = self.start([BIN / "hicachectl", "store", *arguments], name)
        return done.wait(60), done

    def test_the_objects_of_a_store_of_a_users_own_are_listed(self):
        commands = self.folder / "commands"
        commands.mkdir()
        self.assert_commands_work("external", {"command": self.command(), "path": str(commands)})
        config = {"command": self.command(), "path": str(self.pages)}
        self.assert_clean(self.replay("first", 1, *self.flags("external", config)))
        names = sorted(file.name for file in self.pages.iterdir() if len(file.name) == 64)
        self.assertGreater(len(names), 7, "several parts of a list")
        where = ["--backend", "external", "--extra-config", json.dumps(config)]
        status, listed = self.run_store("listed", "ls", *where)
        self.assertEqual(status, 0, listed.text())
        self.assertEqual(sorted(line.split()[0] for line in listed.out.read_text().splitlines()), names)
        status, verified = self.run_store("verified", "verify", *where, "--json")
        self.assertEqual(status, 0, verified.text())
        found = json.loads(verified.out.read_text())[0]
        self.assertEqual((found["objects"], found["corrupt"]), (len(names), 0))
        status, refused = self.run_store("refused", "du", "--backend", "external", "--extra-config",
                                         json.dumps({**config, "command": self.command("folder_store:KeepingStore")}))
        self.assertEqual(status, 2, refused.text())
        self.assertIn("external cannot list its objects", refused.err.read_text())

    def test_what_cannot_be_used_is_named(self):
        for backend, config, sentence in (
                ("external", {}, "--hicache-storage-backend external needs a process"),
                ("external", {"socket": "/absent"}, "external: No such file or directory (socket /absent)"),
                ("external", {"command": self.command("folder_store:Absent")}, "the store's process ended with status 2"),
                ("external", {"command": self.command(), "path": "/absent"}, "external: folder: key 'path': there is no /absent"),
                ("dynamic", {"class_name": "X"}, "module_path"),
                ("dynamic", {"class_name": "X", "module_path": "absent", "python": PYTHON}, "dynamic: the store's process ended with status 2"),
                ("mooncake", {"python": "/absent/python"}, "mooncake: the store's process ended with status 127")):
            with self.subTest(sentence):
                refused = self.start([BIN / "hicache-replay", *self.flags(backend, config)], f"refused{sentence[-12:]}".replace("/", ""))
                self.assertEqual(refused.wait(60), 2, refused.text())
                self.assertIn(sentence, refused.err.read_text())


if __name__ == "__main__":
    main()
