"""A node and clients on other machines, as far as it can tell."""

import json
import socket
import subprocess

from certificates import Authority
from harness import BIN, main
from with_node import CLIENT, WithNode


class RemoteTest(WithNode):
    """Clients that reach the node over TLS, as those of other machines do."""

    def setUp(self):
        super().setUp()
        self.authority = Authority(self.folder, "ca")

    def start_remote(self, listen="127.0.0.1:0", name="node"):
        node, path = self.start_node("--listen", listen, *self.authority.sign(name), name=name)
        return node, path, node.wait_for(r"listening on (127\.\S+)").group(1)

    def start_remote_client(self, address, mode, flags=None, name=None):
        name = name or f"{mode}{len(self.programs)}"
        return self.start([CLIENT, "--address", address, *(flags or self.authority.sign(name)), mode], name)

    def store_at(self, address):
        client = self.start_remote_client(address, "store")
        self.assertEqual(client.wait(60), 0, client.text())

    def test_clients_of_both_kinds_share_their_pages(self):
        node, path, address = self.start_remote()
        self.store_at(address)
        self.store(path)
        self.assertEqual(self.status(path)["pages_written"], 100, "the second one found those of the first")
        shown = [BIN / "hicachectl", "node", "status", "--json", "--address", address]
        done = subprocess.run([*shown, *map(str, self.authority.sign("people"))], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["pages"], 100)
        self.assertEqual(subprocess.run(shown, capture_output=True, timeout=60).returncode, 2)
        both = subprocess.run([*shown, "--socket", path], capture_output=True, text=True, timeout=60)
        self.assertNotEqual(both.returncode, 0)
        node.terminate()
        self.assertEqual(node.wait(20), 0, node.text())
        self.assert_all_gone(node)

    def test_certificates_of_another_authority_are_refused(self):
        node, path, address = self.start_remote()
        stranger = self.start_remote_client(address, "store", Authority(self.folder, "other").sign("stranger"))
        self.assertNotEqual(stranger.wait(60), 0)
        self.assertIn("certificates of one authority", stranger.text())
        self.assertIn("refused the connection", node.text())
        self.assertEqual(self.status(path)["pages"], 0)
        self.store_at(address)

    def test_what_a_killed_client_was_writing_is_free_again(self):
        _, path, address = self.start_remote()
        client = self.start_remote_client(address, "reserve")
        client.wait_for("reserved")
        self.assertGreater(self.status(path)["reserved_bytes"], 0)
        client.kill()
        self.wait_until(lambda: self.status(path)["reserved_bytes"] == 0, "the node still keeps what it reserved")
        self.store_at(address)

    def test_clients_that_flood_do_not_keep_others_out(self):
        node, path, address = self.start_remote()
        floods = [self.start_remote_client(address, "flood") for _ in range(2)]
        for flood in floods:
            flood.wait_for("flooding")
        self.store_at(address)
        self.store(path)
        for flood in floods:
            flood.terminate()
            self.assertEqual(flood.wait(30), 0, flood.text())
        self.assertIsNone(node.process.poll(), node.text())

    def test_a_node_that_is_killed_is_found_again(self):
        node, _, address = self.start_remote()
        self.store_at(address)
        node.kill()
        missing = self.start_remote_client(address, "store")
        self.assertNotEqual(missing.wait(60), 0)
        self.start_remote(address, "again")
        self.store_at(address)

    def test_bad_places_are_one_sentence(self):
        flags = ["--memory", "1MiB", "--socket", self.folder / "socket", "--listen"]
        self.refuse([*flags, "0.0.0.0:0"], "--listen", "--insecure")
        self.refuse([*flags, "nowhere"], "--listen", "nowhere")
        self.refuse([*flags, "unix:/tmp/x"], "--listen")
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            self.refuse([*flags, f"127.0.0.1:{other.getsockname()[1]}"], "--listen: cannot listen on")
        self.assertFalse((self.folder / "socket").exists())


if __name__ == "__main__":
    main()
