"""A node whose memory is a file, killed and started again."""

import re
import signal
import subprocess

from harness import BIN, free_port, main
from with_node import WithNode


class MemoryFileTest(WithNode):
    """A node whose memory is a file."""

    def setUp(self):
        super().setUp()
        self.file = self.folder / "memory"

    def start_with_file(self, name, *flags):
        return self.start_node("--memory-file", self.file, *flags, name=name)

    def restart(self, node, name, *flags):
        """Kills it. Returns the next one, when it has looked at all of the file."""
        node.process.send_signal(signal.SIGKILL)
        node.process.wait()
        again, path = self.start_with_file(name, *flags)
        self.wait_until(lambda: self.status(path)["unscanned_bytes"] == 0, again.text())
        return again, path

    def found(self, path):
        client = self.start_client(path, "read", f"read{len(self.programs)}")
        self.assertEqual(client.wait(60), 0, client.text())
        return int(re.search(r"found (\d+)", client.text()).group(1))

    def test_committed_pages_outlive_a_node_that_is_killed(self):
        node, path = self.start_with_file("first")
        self.start_client(path, "reserve").wait_for("reserved")
        node, path = self.restart(node, "second")
        self.assertEqual(self.found(path), 0, "they were reserved and not committed")
        self.store(path)
        port = free_port()
        node, path = self.restart(node, "third", "--metrics-port", port)
        self.assertEqual(self.found(path), 100)
        self.assertEqual(self.metrics(port)["hicache_node_kept_pages_total"], 100)
        self.assertIn("100 pages are offered again", node.text())
        text = subprocess.run([BIN / "hicachectl", "node", "status", "--socket", path], capture_output=True, text=True, timeout=60).stdout
        self.assertIn("memory file: 100 pages of an earlier node", text)
        client = self.start_client(path, "remove")
        self.assertEqual(client.wait(60), 0, client.text())
        node, path = self.restart(node, "fourth")
        self.assertEqual(self.found(path), 90, "ten were removed")
        self.store(path)
        node.terminate()
        self.assertEqual(node.wait(20), 0, node.text())
        node, path = self.start_with_file("fifth")
        self.wait_until(lambda: self.status(path)["unscanned_bytes"] == 0, node.text())
        self.assertEqual(self.found(path), 100)

    def test_a_page_that_was_damaged_meanwhile_is_a_miss(self):
        node, path = self.start_with_file("first")
        self.store(path)
        node.kill()
        with open(self.file, "r+b") as file:
            for offset in (128 + 1000, 2 * 4224 + 40):  # In the first page's bytes, and in the third one's header.
                file.seek(offset)
                byte = file.read(1)[0]
                file.seek(offset)
                file.write(bytes([byte ^ 4]))
        node, path = self.start_with_file("second")
        self.wait_until(lambda: self.status(path)["unscanned_bytes"] == 0, node.text())
        self.assertEqual(self.found(path), 98)
        self.assertEqual(self.status(path)["pages_dropped"], 2)
        self.store(path)
        self.assertEqual(self.found(path), 100)

    def test_killed_while_clients_write_it_has_whole_pages_only(self):
        node, path = self.start_with_file("first")
        for i in range(4):
            client = self.start_client(path, "store", f"writer{i}")
            self.wait_until(lambda: self.status(path)["pages"] > 20 * i, "nothing was stored")
            node, path = self.restart(node, f"again{i}")
            client.wait(60)
            self.assertGreater(self.found(path), 20 * i)
            self.assertEqual(self.status(path)["pages_dropped"], 0)

    def test_an_engine_that_runs_on_finds_its_pages_again(self):
        node, path = self.start_with_file("first")
        self.store(path)
        crowd = self.start_client(path, "crowd")  # Maps the memory, and outlives the node.
        crowd.wait_for("all are served", seconds=120)
        node, path = self.restart(node, "second")
        self.assertEqual(self.found(path), 100)
        crowd.kill()

    def test_files_that_are_not_its_own_are_refused_in_one_sentence(self):
        path = self.folder / "other"
        node, _ = self.start_with_file("first")
        flags = ["--socket", path, "--memory-file", self.file]
        self.refuse(["--memory", "64MiB", *flags], "--memory-file", "another node uses")
        node.terminate()
        self.assertEqual(node.wait(20), 0, node.text())
        self.refuse(["--memory", "32MiB", *flags], "--memory-file", "64.0 MiB", "32.0 MiB")
        self.refuse(["--memory", "4KiB", *flags], "--memory", "holds no page")
        self.file.write_text("a letter")
        self.refuse(["--memory", "64MiB", *flags], "--memory-file", "was not written by a node")
        self.assertEqual(self.file.read_text(), "a letter")
        self.refuse(["--memory", "64MiB", "--socket", path, "--memory-file", self.folder], "--memory-file", str(self.folder))
        self.assertFalse(path.exists())


if __name__ == "__main__":
    main()
