"""A node for a test, and what a test asks of it."""

import json
import os
import re
import subprocess
import time
import urllib.request

from harness import BIN, SystemTest

#: A client that does what a test wants, well or badly.
CLIENT = os.environ["HICACHE_FAULTY_NODE_CLIENT"]


class WithNode(SystemTest):
    def start_node(self, *flags, name="node"):
        path = self.folder / "socket"
        node = self.start([BIN / "hicache-node", "--memory", "64MiB", "--socket", path, *flags], name)
        self.assertEqual(node.wait_for(r"listening on unix:(\S+)").group(1), str(path))
        return node, path

    def start_client(self, path, mode, name=None, *flags):
        return self.start([CLIENT, "--socket", path, mode, *flags], name or mode)

    def store(self, path, *flags):
        """A client as it should be: what it stores it reads."""
        client = self.start_client(path, "store", f"store{len(self.programs)}", *flags)
        self.assertEqual(client.wait(60), 0, client.text())

    def status(self, path):
        shown = subprocess.run([BIN / "hicachectl", "node", "status", "--json", "--timeout", "30s", "--socket", path],
                               capture_output=True, text=True, timeout=60)
        self.assertEqual(shown.returncode, 0, shown.stderr)
        return json.loads(shown.stdout)

    def wait_until(self, is_so, what):
        end = time.monotonic() + 30
        while not is_so():
            self.assertLess(time.monotonic(), end, what)
            time.sleep(0.05)

    def refuse(self, flags, *words):
        done = subprocess.run([BIN / "hicache-node", *map(str, flags)], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)

    def metrics(self, port):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        return {name: float(value) for name, value in re.findall(r"^(hicache_\w+) (\S+)$", text, re.MULTILINE)}
