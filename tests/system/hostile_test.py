"""Whatever arrives at a port: garbage, sizes that are not meant, silence. The process goes on serving, in bounded memory, and says who
was refused."""

import json
import os
import pathlib
import random
import re
import resource
import socket
import ssl
import struct
import subprocess
import time

from certificates import Authority
from harness import BIN, SMALL_KV, SystemTest, main, write_trace
from surroundings import cpu_seconds

MEMORY_MIB = 200


def frame(*segments, count=None):
    """A message of Cap'n Proto with these segments, each of whole words; or one that says it has other ones."""
    sizes = count or [len(segment) // 8 for segment in segments]
    head = struct.pack(f"<{len(sizes) + 1}I", len(sizes) - 1, *sizes)
    return head + bytes(-len(head) % 8) + b"".join(segments)


class Peer:
    """Says to an index what it likes."""

    def __init__(self, address, tls=None):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=10)
        if tls:
            self.socket = tls.wrap_socket(self.socket)

    def send(self, *parts):
        try:
            for part in parts:
                self.socket.sendall(part)
        except OSError:
            pass  # Closed already.

    def hang_up(self):
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def is_closed(self, seconds=10):
        self.socket.settimeout(seconds)
        try:
            while self.socket.recv(65536):
                pass
            return True
        except TimeoutError:
            return False
        except OSError:
            return True

    def close(self):
        self.socket.close()


class HostileTest(SystemTest):
    def setUp(self):
        super().setUp()
        self.seed = int(os.environ.get("HICACHE_SEED", random.SystemRandom().getrandbits(32)))
        random.seed(self.seed)
        print(f"HICACHE_SEED={self.seed}", flush=True)

    def start_with_tls(self):
        authority = Authority(self.folder, "ca")
        flags = authority.sign("index")
        index, address = self.start_index(*flags)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        tls.check_hostname = False
        tls.load_verify_locations(authority.certificate)
        tls.load_cert_chain(flags[1], flags[3])
        return index, address, tls, flags

    def peak_mib(self, pid):
        return int(re.search(r"VmHWM:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text()).group(1)) // 1024

    def wait_until(self, condition, index, seconds=10):
        deadline = time.monotonic() + seconds
        while not condition():
            self.assertLess(time.monotonic(), deadline, index.text())
            time.sleep(0.02)

    def assert_serves(self, index, address, flags=()):
        self.assertIsNone(index.process.poll(), index.text())
        answer = subprocess.run([BIN / "hicachectl", "status", "--index", address, "--timeout", "5s", "--json", *flags],
                                capture_output=True, text=True)
        self.assertEqual(answer.returncode, 0, answer.stderr + index.text())
        self.assertLess(self.peak_mib(index.process.pid), MEMORY_MIB)
        return json.loads(answer.stdout)

    def refusals(self, index):
        log = index.err.read_text()
        return log.count("refused the connection") + log.count("hung up before")

    def check_refusals(self, index, address, tls=None, flags=()):
        for said in (random.randbytes(4096) + b"\xff" * 8, b"GET / HTTP/1.1\r\nHost: index\r\n\r\n" * 4, b"\xff" * 64,
                     frame(count=[1 << 28]), frame(count=[0xFFFFFFFF]), frame(count=[1] * 600), frame(count=[1 << 17] * 4)):
            with self.subTest(begins=said[:8]):
                before = self.refusals(index)
                peer = Peer(address, tls)
                peer.send(said)
                self.assertTrue(peer.is_closed(), index.text())
                peer.close()
                self.wait_until(lambda: self.refusals(index) > before, index)
        self.assert_serves(index, address, flags)

    def test_index_refuses_what_would_harm_it(self):
        self.check_refusals(*self.start_index())

    def test_index_refuses_what_would_harm_it_from_a_peer_with_a_certificate(self):
        self.check_refusals(*self.start_with_tls())

    def test_damaged_conversations_harm_nobody(self):
        index, address = self.start_index("--log-level", "error")
        for _ in range(400):
            peer = Peer(address)
            words = random.randint(1, 40)
            talk = bytearray(random.choice((0, 0, 0, 1, 2, 3, random.getrandbits(8))) for _ in range(8 * words))
            talk = bytearray(frame(bytes(talk)))
            for _ in range(random.randint(0, 3)):
                talk[random.randrange(len(talk))] = random.getrandbits(8)
            peer.send(bytes(talk[: random.randint(1, len(talk))]))
            peer.hang_up()
            self.assertTrue(peer.is_closed())
            peer.close()
            self.assertIsNone(index.process.poll(), index.text())
        self.assert_serves(index, address)

    def test_index_without_descriptors_says_so_and_waits(self):
        index, address = self.start_index()
        limits = pathlib.Path(f"/proc/{index.process.pid}/limits").read_text()
        raised = re.search(r"Max open files\s+(\d+)\s+(\d+)", limits)
        self.assertEqual(raised.group(1), raised.group(2), "the index takes what it may have")
        held = len(list(pathlib.Path(f"/proc/{index.process.pid}/fd").iterdir()))
        resource.prlimit(index.process.pid, resource.RLIMIT_NOFILE, (held + 20, held + 20))
        peers = [Peer(address) for _ in range(60)]
        self.wait_until(lambda: "cannot accept connections" in index.err.read_text(), index)
        before = cpu_seconds(index.process.pid)
        time.sleep(2)
        self.assertLess(cpu_seconds(index.process.pid) - before, 0.5, "it does not spin")
        self.assertEqual(index.err.read_text().count("cannot accept connections"), 1)
        for peer in peers:
            peer.close()
        self.assert_serves(index, address)

    def test_silent_peers_keep_nobody_out(self):
        index, address = self.start_index()
        host, port = address.rsplit(":", 1)
        descriptors = pathlib.Path(f"/proc/{index.process.pid}/fd")
        before = len(list(descriptors.iterdir()))
        silent = [socket.create_connection((host, int(port)), timeout=10) for _ in range(600)]
        for peer in silent[:100]:
            peer.sendall(b"\0")  # The first byte of a message.
        self.assert_serves(index, address)
        self.assertLess(len(list(descriptors.iterdir())), before + 300, "the oldest are closed")
        self.wait_until(lambda: len(list(descriptors.iterdir())) <= before + 5, index, seconds=20)
        for reason in ("too many connections", "does not say who it is"):
            self.assertIn(reason, index.err.read_text())
        self.assert_serves(index, address)
        for peer in silent:
            peer.close()

    def test_page_server_outlives_garbage_and_half_open_connections(self):
        index, address = self.start_index()
        trace = self.folder / "trace.jsonl"
        write_trace(trace, 60)
        flags = ["--trace", trace, "--verify", "all", *SMALL_KV, "--device-pages", "512", "--hicache-storage-backend", "cluster", "--index",
                 address, "--segment-size", "64MiB", "--hicache-storage-backend-extra-config",
                 '{"prefetch_threshold": 64, "force_remote_reads": true}']
        owner = self.start_replay("owner", 1, *flags, "--linger", "forever")
        owner.wait_for("requests in")
        member = self.assert_serves(index, address)["members"][0]
        host, port = member["page_address"].rsplit(":", 1)
        (rank,) = owner.ranks().values()
        before = self.peak_mib(rank)
        held = []
        for i in range(300):
            peer = socket.create_connection((host, int(port)), timeout=10)
            held.append(peer)
            try:
                if i % 3 == 0:
                    peer.sendall(random.randbytes(4096))
                elif i % 3 == 1:
                    peer.sendall(struct.pack("<Q", 1 << 40) + random.randbytes(100))
                elif i % 2 == 0:
                    peer.sendall(bytes(17))
            except OSError:
                pass  # Closed already.
        reader = self.replay("reader", 1, *flags, seconds=30)
        self.assert_clean(reader)
        self.assertGreater(reader["cached_tokens"]["l3"], 0)
        self.assertIsNone(owner.process.poll(), owner.text())
        self.assertLess(self.peak_mib(rank), before + MEMORY_MIB)
        for peer in held:
            peer.close()


if __name__ == "__main__":
    main()
