"""Nodes with disks and other stores below their memory, and an index that knows what these hold: killed and started again."""

import json
import re
import shutil
import signal
import subprocess

from harness import BIN, free_port, main
from with_node import WithNode

#: What a client stores, and bytes of memory for 24 of them.
PAGES = 100
SMALL = str(24 * (4096 + 128))


class ClusterDisk(WithNode):
    def start_member(self, name, address, memory, *flags):
        """A node that reads what others have and shares what it has."""
        path = self.folder / f"socket-{name}"
        node = self.start([BIN / "hicache-node", "--memory", memory, "--socket", path, "--index", address, *flags],
                          f"{name}-{len(self.programs)}")
        node.wait_for(r"listening on unix:(\S+)")
        return node, path

    def start_with_disk(self, name, address, *flags):
        return self.start_member(name, address, SMALL, "--disk", self.folder / f"disk-{name}", "--disk-bytes", "64MiB", *flags)

    def kill(self, program):
        program.process.send_signal(signal.SIGKILL)
        program.process.wait()

    def found(self, path, *flags):
        client = self.start_client(path, "read", f"read{len(self.programs)}", *flags)
        self.assertEqual(client.wait(120), 0, client.text())
        return int(re.search(r"found (\d+)", client.text()).group(1))

    def index(self, address):
        answer = subprocess.run([BIN / "hicachectl", "status", "--index", address, "--json"], capture_output=True, text=True, timeout=60)
        return json.loads(answer.stdout) if answer.returncode == 0 else {}

    def wait_until_offered(self, address, pages, in_memory=None):
        """Until the index knows as many pages of one member, and maybe so many in memory."""
        def is_so():
            members = self.index(address).get("members", [])
            return any(member["pages"] + member["disk_pages"] == pages and in_memory in (None, member["pages"]) for member in members)
        self.wait_until(is_so, f"{pages} pages are not offered")

    def wait_until_written(self, path, pages=PAGES):
        self.wait_until(lambda: self.status(path)["disk_pages_written"] == pages, "not all pages were written")

    def read_elsewhere(self, address, *flags):
        """How many pages a node finds that has none of its own, and how many come to its memory."""
        guest, path = self.start_member("guest", address, "64MiB")
        found = self.found(path, *flags)
        self.assertEqual(self.status(path)["pages"], found)
        self.kill(guest)
        return found


class ClusterDiskTest(ClusterDisk):
    def test_all_pages_are_read_elsewhere_though_memory_has_room_for_few(self):
        _, address = self.start_index()
        _, path = self.start_with_disk("first", address)
        self.store(path)
        self.wait_until_written(path)
        self.wait_until_offered(address, PAGES)
        status = self.index(address)
        self.assertLessEqual(status["replicas"], 24)
        self.assertEqual(status["replicas"] + status["disk_replicas"], PAGES)
        text = subprocess.run([BIN / "hicachectl", "status", "--index", address], capture_output=True, text=True, timeout=60).stdout
        self.assertRegex(text, r"100 pages, \d+ replicas, .*; \d+ more on disk, .*;")
        self.assertEqual(self.read_elsewhere(address), PAGES)

    def test_after_all_are_killed_hits_come_from_disk(self):
        port = free_port()
        index, address = self.start_index(listen=f"127.0.0.1:{port}")
        nodes = [self.start_with_disk(name, address) for name in ("first", "second")]
        self.store(nodes[0][1])
        self.wait_until_written(nodes[0][1])
        self.wait_until_offered(address, PAGES)
        for node, _ in nodes:
            self.kill(node)
        nodes = [self.start_with_disk(name, address) for name in ("first", "second")]
        self.wait_until_offered(address, PAGES, in_memory=0)
        self.assertEqual(self.found(nodes[1][1]), PAGES, "the second node has them brought to its memory")
        self.assertGreaterEqual(self.status(nodes[0][1])["disk_pages_read"], PAGES)
        self.kill(index)
        _, address = self.start_index(listen=f"127.0.0.1:{port}")
        self.wait_until_offered(address, PAGES)
        self.assertEqual(self.read_elsewhere(address), PAGES)

    def test_a_drained_node_offers_nothing_on_disk_until_draining_is_undone(self):
        _, address = self.start_index()
        _, path = self.start_with_disk("first", address)
        self.store(path)
        self.wait_until_written(path)
        self.wait_until_offered(address, PAGES)
        member = self.index(address)["members"][0]["member"]
        for more, pages in (["--json"], 0), (["--undo"], PAGES):
            done = subprocess.run([BIN / "hicachectl", "drain", "--index", address, "--member", member, *more],
                                  capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.wait_until_offered(address, pages)
            if not pages:
                self.assertEqual(json.loads(done.stdout)["withdrawn"], PAGES)
                self.assertEqual(self.read_elsewhere(address), 0)


class RedisBelowTest(ClusterDisk):
    """Nodes with a real server below their memory, or below their disks."""

    #: More than a disk of the least size holds, stored in parts that memory holds until they are written.
    PAGES, PART = 2000, 500
    MEMORY = str(600 * (4096 + 128))

    def setUp(self):
        super().setUp()
        if shutil.which("redis-server") is None:
            self.skipTest("there is no redis-server")
        self.port = free_port()
        self.start(["redis-server", "--port", self.port, "--bind", "127.0.0.1", "--save", "", "--dir", self.folder],
                   "redis").wait_for("Ready to accept connections")

    def redis(self, *command):
        return subprocess.run(["redis-cli", "-p", str(self.port), *command], capture_output=True, text=True, timeout=60).stdout.strip()

    def start_with_tiers(self, name, address, *more):
        tiers = [*more, {"backend": "redis", "servers": f"127.0.0.1:{self.port}"}]
        return self.start_member(name, address, self.MEMORY, "--storage-backend-extra-config", json.dumps({"tiers": tiers}))

    def test_what_neither_memory_nor_disk_holds_is_read_elsewhere_from_redis(self):
        _, address = self.start_index()
        disk = {"backend": "disk", "path": str(self.folder / "disk"), "max_bytes": "16MiB"}
        node, path = self.start_with_tiers("first", address, disk)
        for first in range(0, self.PAGES, self.PART):
            self.store(path, "--first", first, "--pages", self.PART)
            self.wait_until_written(path, first + self.PART)
        self.assertEqual(self.redis("DBSIZE"), str(self.PAGES))
        self.assertEqual(self.status(path)["disk_stores"], "disk, redis")
        self.wait_until_offered(address, self.PAGES)
        wanted = ["--first", 0, "--pages", self.PAGES]
        self.assertEqual(self.read_elsewhere(address, *wanted), self.PAGES)
        self.kill(node)
        self.start_with_tiers("first", address, disk)
        self.wait_until_offered(address, self.PAGES, in_memory=0)
        self.assertEqual(self.read_elsewhere(address, *wanted), self.PAGES)
        self.redis("FLUSHALL")
        left = self.read_elsewhere(address, *wanted)
        self.assertLess(left, self.PAGES, "the disk never held them all")
        self.assertGreater(left, 0)

    def test_a_node_with_the_same_server_has_what_a_dead_one_stored(self):
        _, address = self.start_index()
        first, path = self.start_with_tiers("first", address)
        self.store(path)
        self.wait_until_written(path)
        self.kill(first)
        _, path = self.start_with_tiers("second", address)
        self.wait_until_offered(address, PAGES, in_memory=0)
        self.assertEqual(self.found(path), PAGES)

    def test_stores_that_do_not_fit_are_refused(self):
        flags = ["--memory", self.MEMORY, "--socket", self.folder / "socket"]
        tiers = lambda *list: ["--storage-backend-extra-config", json.dumps({"tiers": list})]
        self.refuse([*flags, *tiers({"backend": "memory"}), "--disk", self.folder], "--storage-backend-extra-config", "short form")
        self.refuse([*flags, *tiers({"backend": "memory"}, {"backend": "file", "path": str(self.folder / "files")})],
                    "tier 2 (file): it cannot list objects with the namespace of each")
        self.refuse([*flags, *tiers({"backend": "memory", "codecs": "lz4"})], "tier 1 (memory)", "without codecs")
        self.refuse([*flags, *tiers({"backend": "cluster"})], "tier 1: store 'cluster' needs the actors of a rank")
        self.refuse([*flags, *tiers({"backend": "redis"})], "tier 1: store 'redis' needs a server")
        self.refuse([*flags, "--storage-backend-extra-config", "{}"], "expected key 'tiers'")


if __name__ == "__main__":
    main()
