"""A node with a disk below its memory: killed, stopped and started again, and with a disk that fails."""

import json
import os
import pathlib
import re
import signal
import struct
import subprocess
import unittest

from harness import BIN, free_port, main
from with_node import WithNode

#: Of a page that the client stores, with its header.
PAGE_BYTES = 4096 + 88

BLOCK = 4096
#: How the header of a page begins on disk: the framing of a Cap'n Proto message of ten words.
HEADER_START = struct.pack("<II", 0, 10)


class DiskTest(WithNode):
    def setUp(self):
        super().setUp()
        self.disk = self.folder / "disk"

    def start_with_disk(self, name, *flags, size="1GiB"):
        return self.start_node("--disk", self.disk, "--disk-bytes", size, *flags, name=name)

    def kill(self, node):
        node.process.send_signal(signal.SIGKILL)
        node.process.wait()

    def found(self, path):
        client = self.start_client(path, "read", f"read{len(self.programs)}")
        self.assertEqual(client.wait(60), 0, client.text())
        return int(re.search(r"found (\d+)", client.text()).group(1))

    def wait_until_written(self, path, pages):
        self.wait_until(lambda: self.status(path)["disk_pages_written"] == pages, f"{pages} pages were not written")

    def wait_until_known(self, path, pages):
        self.wait_until(lambda: self.status(path)["disk_pages"] == pages, f"{pages} pages were not found on the disk")

    def test_pages_outlive_a_node_that_is_killed(self):
        node, path = self.start_with_disk("first")
        self.store(path)
        self.wait_until_written(path, 100)
        self.kill(node)
        port = free_port()
        node, path = self.start_with_disk("second", "--metrics-port", port)
        self.wait_until_known(path, 100)
        before = self.status(path)
        self.assertEqual((before["pages"], before["disk_bytes"]), (0, 100 * PAGE_BYTES))
        self.assertEqual(self.found(path), 100)
        self.assertEqual(self.metrics(port)["hicache_node_disk_read_pages_total"], 100)
        text = subprocess.run([BIN / "hicachectl", "node", "status", "--socket", path], capture_output=True, text=True, timeout=60).stdout
        self.assertRegex(text, r"disk: .* of 1\.0 GiB in use, 100 pages; 100 read, 0 written")
        client = self.start_client(path, "remove")
        self.assertEqual(client.wait(60), 0, client.text())
        self.assertEqual(self.status(path)["disk_pages"], 90)
        self.kill(node)
        node, path = self.start_with_disk("third")
        self.assertEqual(self.found(path), 90, "ten were removed")

    def test_a_node_that_is_stopped_writes_what_it_has_first(self):
        node, path = self.start_with_disk("first")
        self.store(path)
        node.terminate()
        self.assertEqual(node.wait(30), 0, node.text())
        verified = self.start([BIN / "hicachectl", "store", "verify", "--backend", "disk", "--extra-config",
                               json.dumps({"path": str(self.disk), "max_bytes": "1GiB"}), "--json"], "verify")
        self.assertEqual(verified.wait(30), 0, verified.text())
        self.assertEqual(json.loads(verified.out.read_text())[0]["objects"], 100, "it is the store of ranks")

    def test_a_page_that_was_damaged_meanwhile_is_a_miss(self):
        node, path = self.start_with_disk("first")
        self.store(path)
        self.wait_until_written(path, 100)
        self.kill(node)
        for file in self.disk.glob("rank-0/segment-*"):
            data = bytearray(file.read_bytes())
            pages = [at for at in range(0, len(data), BLOCK) if data[at:at + 8] == HEADER_START]
            if pages:
                break
        self.assertEqual(len(pages), 100)
        for at in (pages[0] + 88 + 1000, pages[1] + 40):  # In one's bytes, and in another's header.
            data[at] ^= 4
        data[pages[2]:pages[2] + BLOCK] = bytes(BLOCK)
        file.write_bytes(data)
        node, path = self.start_with_disk("second")
        self.assertEqual(self.found(path), 97)
        self.store(path)
        self.assertEqual(self.found(path), 100)

    @unittest.skipIf(os.geteuid() != 0, "mounting a file system takes root")
    def test_a_disk_that_is_full_or_gone_costs_hits_alone(self):
        self.disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", self.disk], check=True)
        try:
            node, path = self.start_with_disk("first")
            self.store(path)
            self.wait_until(lambda: self.status(path)["disk_pages_written"] + self.status(path)["disk_pages_failed"] >= 100, node.text())
            self.assertEqual(self.found(path), 100)
            subprocess.run(["umount", "--lazy", self.disk], check=True)
            client = self.start_client(path, "remove")
            self.assertEqual(client.wait(60), 0, client.text())
            self.store(path)
            self.assertEqual(self.found(path), 100)
            self.assertIn("the disk fails", node.text())
            node.terminate()
            self.assertEqual(node.wait(30), 0, node.text())
        finally:
            subprocess.run(["umount", "--lazy", self.disk], capture_output=True)

    def test_bad_flags_are_one_sentence(self):
        flags = ["--memory", "1MiB", "--socket", self.folder / "socket"]
        self.refuse([*flags, "--disk", self.disk], "--disk-bytes")
        self.refuse([*flags, "--disk-bytes", "1GiB"], "--disk")
        self.refuse([*flags, "--disk", "/proc/pages", "--disk-bytes", "1GiB"], "--disk", "/proc/pages")
        pathlib.Path(self.disk).write_text("a letter")
        self.refuse([*flags, "--disk", self.disk, "--disk-bytes", "1GiB"], "--disk", str(self.disk))
        self.assertFalse((self.folder / "socket").exists())


if __name__ == "__main__":
    main()
