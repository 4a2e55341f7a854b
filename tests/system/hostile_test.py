"""Whatever arrives at a port: garbage, sizes that are not meant, silence. The process goes on serving, in bounded memory, and says who
was refused."""

import json
import os
import pathlib
import random
import re
import socket
import ssl
import struct
import subprocess
import time

from certificates import Authority
from harness import BIN, SMALL_KV, SystemTest, main, write_trace

# What CAF's protocol calls its messages.
SERVER_HANDSHAKE, CLIENT_HANDSHAKE, DIRECT_MESSAGE, HEARTBEAT = 0, 1, 2, 6
HEADER_BYTES = 32
NODE_BYTES = 32
MEMORY_MIB = 200


def header(kind, length=0, data=0, source=0, target=0):
    return struct.pack(">BBBBIQQQ", kind, 0, 0, 0, length, data, source, target)


def typed(names, data):
    """A message whose parts claim to be of these types."""
    text = ("@<>+" + "+".join(names)).encode()
    return b"\0\0\0" + bytes([len(text)]) + text + data


class Peer:
    """Speaks with an index as a process of the cluster does, as far as it wants to."""

    def __init__(self, address, tls=None):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=10)
        if tls:
            self.socket = tls.wrap_socket(self.socket)
        greeting = self.read(HEADER_BYTES)
        content = self.read(struct.unpack(">I", greeting[4:8])[0])
        self.node = content[:NODE_BYTES]
        # Behind the node comes one name of a protocol, and then the actor that is published.
        self.actor = struct.unpack(">Q", content[NODE_BYTES + 2 + content[NODE_BYTES + 1]:][:8])[0]

    def read(self, count):
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            if not more:
                raise ConnectionError("closed before the greeting")
            data += more
        return data

    def handshake(self):
        """A good one, of a process that does not exist."""
        return header(CLIENT_HANDSHAKE, NODE_BYTES) + self.node[:8] + struct.pack(">I", random.getrandbits(31)) + bytes(20)

    def message(self, content):
        return header(DIRECT_MESSAGE, len(content), (1 << 63) | 5, 7, self.actor) + content

    def send(self, *parts):
        try:
            for part in parts:
                self.socket.sendall(part)
        except OSError:
            pass  # Closed already.

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

    def refused(self, peer):
        """What may not be said, and the reason that the log gives."""
        random_bytes = random.randbytes(4096)
        hello = peer.handshake()
        return (
            ([b"\xff" + random_bytes], "no handshake"),
            ([b"GET / HTTP/1.1\r\nHost: index\r\n\r\n" * 4], "no handshake"),
            ([header(SERVER_HANDSHAKE, 0, 3)], "no handshake"),
            ([header(HEARTBEAT)], "no handshake"),
            ([peer.message(b"0123456789")], "no handshake"),
            ([header(CLIENT_HANDSHAKE)], "handshake is empty"),
            ([header(CLIENT_HANDSHAKE, 0xFFFFFFFF)], "4294967295 bytes"),
            ([header(CLIENT_HANDSHAKE, 64), b"\xff" * 64], "does not understand"),
            ([hello, header(CLIENT_HANDSHAKE)], "handshake is empty"),
            ([hello, header(SERVER_HANDSHAKE, NODE_BYTES, 3)], "nobody began"),
            ([hello, header(77, 5)], "does not understand"),
            ([hello, header(DIRECT_MESSAGE, 0xFFFFFFFF, 0, 7, peer.actor)], "4294967295 bytes"),
            ([hello, peer.message(typed(["@charbuf"], b"\xff\xff\xff\xff\x0f"))], "type charbuf"),
            ([hello, peer.message(typed(["@exit"], bytes(16)))], "type exit"),
            ([hello, peer.message(typed(["@atom", "@error"], b"\0\0\x0a@<>+@error" * 20000))], "messages inside"),
        )

    def check_refusals(self, index, address, tls=None, flags=()):
        probe = Peer(address, tls)
        cases = self.refused(probe)
        for parts, reason in cases:
            with self.subTest(reason=reason, begins=parts[0][:8]):
                before = index.err.read_text().count(reason)
                peer = Peer(address, tls)
                peer.send(*parts)
                self.assertTrue(peer.is_closed(), index.text())
                peer.close()
                self.wait_until(lambda: index.err.read_text().count(reason) > before, index)
        probe.close()
        self.assert_serves(index, address, flags)

    def test_index_refuses_what_would_harm_it(self):
        self.check_refusals(*self.start_index())

    def test_index_refuses_what_would_harm_it_from_a_peer_with_a_certificate(self):
        self.check_refusals(*self.start_with_tls())

    def test_garbage_in_messages_harms_nobody(self):
        index, address = self.start_index()
        names = ["@atom", "hicache::shard_map"]
        for content in (random.randbytes(5000), typed(names, random.randbytes(8)), typed(names, random.randbytes(900)),
                        typed(names, random.randbytes(8) + struct.pack(">Q", 100) + random.randbytes(800)),
                        typed(names, random.randbytes(8) + struct.pack(">Q", 1 << 60)), typed(["no::such_type"], b""),
                        typed(["@atom", "@strvec"], random.randbytes(8) + b"\xff\xff\xff\xff\x0f")):
            peer = Peer(address)
            peer.send(peer.handshake(), peer.message(content))
            self.assertFalse(peer.is_closed(0.05))
            peer.close()
        self.assert_serves(index, address)

    def test_damaged_conversations_harm_nobody(self):
        index, address = self.start_index("--log-level", "error")
        for _ in range(400):
            peer = Peer(address)
            talk = bytearray(peer.handshake() + peer.message(typed(["@atom", "hicache::shard_map"], bytes(64))))
            for _ in range(random.randint(1, 6)):
                talk[random.randrange(len(talk))] = random.getrandbits(8)
            peer.send(bytes(talk[: random.randint(1, len(talk))]))
            peer.close()
            self.assertIsNone(index.process.poll(), index.text())
        self.assert_serves(index, address)

    def test_silent_peers_keep_nobody_out(self):
        index, address = self.start_index()
        host, port = address.rsplit(":", 1)
        descriptors = pathlib.Path(f"/proc/{index.process.pid}/fd")
        before = len(list(descriptors.iterdir()))
        silent = [socket.create_connection((host, int(port)), timeout=10) for _ in range(600)]
        for peer in silent[:100]:
            peer.sendall(b"\1")  # The first byte of a handshake.
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
