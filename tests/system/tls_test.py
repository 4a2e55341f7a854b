"""Connections with certificates: who has one of the cluster's authority takes part, and nobody else."""

import contextlib
import json
import pathlib
import re
import shutil
import socket
import ssl
import struct
import subprocess
import time

from certificates import Authority
from harness import BIN, SMALL_KV, SystemTest, cached, main, reusable_tokens, write_trace


class TlsTest(SystemTest):
    def setUp(self):
        super().setUp()
        self.authority = Authority(self.folder, "ca")
        self.index_flags = self.authority.sign("index")
        self.flags = self.authority.sign("member")
        self.index, self.address = self.start_index(*self.index_flags)

    def status(self, *flags, address=None):
        return subprocess.run([BIN / "hicachectl", "status", "--index", address or self.address, "--timeout", "1s", "--json",
                               *map(str, flags)], capture_output=True, text=True)

    def assert_refused(self, answer):
        self.assertEqual(answer.returncode, 2, answer.stderr)
        self.assertEqual(len(answer.stderr.splitlines()), 1, answer.stderr)
        self.assertIn("--tls-cert", answer.stderr)

    def assert_serves(self):
        answer = self.status(*self.flags)
        self.assertEqual(answer.returncode, 0, answer.stderr + self.index.text())
        return json.loads(answer.stdout)

    def logged(self, pattern):
        return len(re.findall(pattern, self.index.err.read_text()))

    def wait_for_log(self, pattern, count=1):
        deadline = time.monotonic() + 10
        while self.logged(pattern) < count:
            self.assertLess(time.monotonic(), deadline, self.index.text())
            time.sleep(0.02)

    def test_instances_share_their_caches(self):
        trace = self.folder / "trace.jsonl"
        rows = write_trace(trace, 100)
        flags = ["--trace", trace, "--verify", "all", *SMALL_KV, "--device-pages", "512", "--hicache-storage-backend", "cluster", "--index",
                 self.address, "--segment-size", "64MiB", "--hicache-storage-backend-extra-config", '{"prefetch_threshold": 64}',
                 *self.flags]
        # Part of the flags may come from a file as well.
        settings = self.folder / "tls.toml"
        settings.write_text("".join(f'{name[2:]} = "{path}"\n' for name, path in zip(self.flags[::2], self.flags[1::2])))
        first = self.start_replay("first", 2, *flags, "--linger", "forever")
        first.wait_for("requests in")
        report = self.read_report(first)
        self.assert_clean(report)
        self.assertEqual(cached(report), reusable_tokens(rows, 64))
        second = self.replay("second", 2, *flags[:-6], "--config", settings)
        self.assert_clean(second)
        self.assertGreater(second["cached_tokens"]["l3"], 0)
        # As from another machine.
        far_settings = flags.index("--hicache-storage-backend-extra-config") + 1
        far = self.replay("far", 2, *flags[:far_settings], '{"prefetch_threshold": 64, "force_remote_reads": true}',
                          *flags[far_settings + 1:])
        self.assert_clean(far)
        self.assertGreater(far["cached_tokens"]["l3"], 0)
        self.assert_pages_are_for_members_only()
        self.assertEqual(len(self.assert_serves()["members"]), 2)

    def assert_pages_are_for_members_only(self):
        """Asks for a greeting at a page port as a reader would, without a certificate, and with one."""
        greeting = struct.pack("<IIQ", 1, 16, 0) + b"5PCH" + bytes(12)
        host, port = self.assert_serves()["members"][0]["page_address"].rsplit(":", 1)
        for certified in (False, True):
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            tls.check_hostname = False
            tls.load_verify_locations(self.flags[5])
            if certified:
                tls.load_cert_chain(self.flags[1], self.flags[3])
            got = b""
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=10) as plain, \
                    tls.wrap_socket(plain) as peer:
                peer.sendall(greeting)
                got = peer.recv(1)
            self.assertEqual(len(got), int(certified), f"with a certificate: {certified}")

    def test_index_processes_find_each_other(self):
        other, address = self.start_index("--shard", "1", "--join", self.address, *self.authority.sign("other"))
        for _ in range(100):
            shards = json.loads(self.status(*self.flags, address=address).stdout)["shards"]
            if len(shards) == 2 and all(shard["reached"] for shard in shards):
                return
        self.fail(self.index.text() + other.text())

    def control(self, command, *flags):
        return subprocess.run([str(x) for x in (BIN / "hicachectl", command, "--index", self.address, "--timeout", "20s", *flags)],
                              capture_output=True, text=True, timeout=60)

    def test_roles_say_who_may_read_keep_and_command(self):
        keep, read, command = (self.authority.sign(role, role=role) for role in ("member", "reader", "operator"))
        # Of two processes, which tell each other of their shards; and so would those who connect to both.
        other, address = self.start_index("--shard", "1", "--join", self.address, *self.authority.sign("other", role="member"))
        self.address = f"{self.address},{address}"
        trace = self.folder / "trace.jsonl"
        write_trace(trace, 60)

        def flags(tls, segment="0", **extra):
            return ["--trace", trace, "--verify", "all", *SMALL_KV, "--device-pages", "512", "--hicache-storage-backend", "cluster",
                    "--index", self.address, "--segment-size", segment, "--hicache-storage-backend-extra-config",
                    json.dumps({"prefetch_threshold": 64, **extra}), *tls]

        owner = self.start([BIN / "hicache-replay", *flags(keep, "64MiB"), "--linger", "forever"], "owner")
        owner.wait_for("requests in")
        for name, extra in (("near", {}), ("far", {"force_remote_reads": True})):
            report = self.replay(name, 1, *flags(read, **extra))
            self.assert_clean(report)
            self.assertGreater(report["cached_tokens"]["l3"], 0, name)
        # Ranks that meet without mpirun.
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            meeting = ["--rendezvous", f"127.0.0.1:{probe.getsockname()[1]}", "--ranks", "2"]
        pair = [self.start([BIN / "hicache-replay", *flags(read), *meeting, "--rank", rank], f"rank{rank}") for rank in range(2)]
        for rank in pair:
            self.assertEqual(rank.wait(60), 0, rank.text())

        status = self.control("status", "--json", *read)
        self.assertEqual(status.returncode, 0, status.stderr)
        [member] = json.loads(status.stdout)["members"]
        page = "0" * 64
        commands = (("drain", "--member", member["member"]), ("drain", "--undo", "--member", member["member"]),
                    ("clear", "--fingerprint", member["fingerprint"]))
        for tls, role in ((read, "reader"), (keep, "member")):
            for wanted in commands:
                with self.subTest(role=role, command=wanted):
                    answer = self.control(*wanted, *tls)
                    self.assertNotEqual(answer.returncode, 0, answer.stdout)
                    self.assertIn(f"CN={role}, OU=hicache:{role} may not", answer.stderr)
                    self.assertIn("takes the role operator", answer.stderr)
        retired = self.control("retire", "--shard", "1", *read)
        self.assertNotEqual(retired.returncode, 0, retired.stdout)
        self.assertIn("may not give up shards", retired.stderr)
        self.assertEqual(json.loads(self.control("status", "--json", *read).stdout)["members"][0]["pages"], member["pages"])
        for wanted in commands:
            answer = self.control(*wanted, *command)
            self.assertEqual(answer.returncode, 0, answer.stderr)
        self.assertEqual(self.control("lookup", page, *command).returncode, 1)

        refused = self.start_replay("refused", 1, *flags(read, "64MiB"))
        self.assertEqual(refused.wait(60), 2, refused.text())
        self.assertIn("is reader, and exporting memory takes that of a member", refused.text())
        for tls, role in ((read, "reader"), (command, "operator")):
            self.refuse(["hicache-index", "--listen", "127.0.0.1:0", *tls], "--tls-cert", f"is {role}", "serving an index")
        odd = self.authority.sign("odd", role="admin")
        self.refuse(["hicachectl", "status", "--index", self.address, *odd], "--tls-cert", "hicache:reader")

        # Who poses as the index with the certificate of a reader is not asked anything.
        for target, source in zip(self.index_flags[1:4:2], read[1:4:2]):
            shutil.copy(source, target)
        answer = self.status(*command, address=self.address.split(",")[0])
        self.assertEqual(answer.returncode, 2, answer.stderr)
        self.assertIn("the role in its certificate is not that of a member", answer.stderr)
        self.assertIsNone(other.process.poll(), other.text())

    def test_peers_without_the_right_certificate_are_refused(self):
        stranger = Authority(self.folder, "stranger")
        others = stranger.sign("other")
        # Trusts the index, but has a certificate of somebody else; and the other way around.
        for case, flags in (("plain", []), ("other authority", others[:4] + self.flags[4:]), ("other index", self.flags[:4] + others[4:]),
                            ("expired", self.authority.sign("expired", days=-1))):
            with self.subTest(case=case):
                reason = r"TLS: |hung up"
                before = self.logged(reason)
                self.assert_refused(self.status(*flags))
                self.wait_for_log(reason, before + 1)
        self.assert_serves()

    def test_a_client_that_shows_no_certificate_is_refused(self):
        host, port = self.address.rsplit(":", 1)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        tls.check_hostname = False
        tls.load_verify_locations(self.authority.certificate)
        with self.assertRaises(OSError), tls.wrap_socket(socket.create_connection((host, int(port)), timeout=10)) as peer:
            self.assertEqual(peer.recv(1), b"", "nothing is said to a stranger")
            raise ConnectionError("closed")
        self.wait_for_log("peer did not return a certificate")
        self.assert_serves()

    def test_a_client_with_tls_refuses_an_index_without(self):
        _, plain = self.start_index()
        self.assert_refused(self.status(*self.flags, address=plain))
        self.assertEqual(self.status(address=plain).returncode, 0)

    def test_strangers_do_not_disturb_those_who_are_connected(self):
        watcher = self.start([BIN / "hicache-bench", "store", "--op", "put", "--index", self.address, "--value-size", "64KiB", "--batch",
                              "4", "--keys", "16", "--seconds", "2", "--segment-size", "32MiB", "--json", *self.flags], "watcher")
        host, port = self.address.rsplit(":", 1)
        while watcher.process.poll() is None:
            with socket.create_connection((host, int(port)), timeout=10) as peer, contextlib.suppress(OSError):
                peer.sendall(b"\x16\x03\x01\x02\x00\x01" + bytes(64))
                while peer.recv(4096):
                    pass  # One after the other: it is about their errors, not about their number.
        self.assertEqual(watcher.wait(20), 0, watcher.text())
        self.assertEqual(json.loads(watcher.out.read_text())["errors"], 0)
        self.assertNotIn("lost the index", watcher.err.read_text())
        self.assert_serves()

    def test_certificates_are_replaced_while_the_index_runs_and_broken_files_end_nothing(self):
        certificate, key = map(pathlib.Path, (self.index_flags[1], self.index_flags[3]))
        good = certificate.read_bytes(), key.read_bytes()
        certificate.write_text("no certificate")
        self.assert_serves()
        self.wait_for_log("connections go on with what was there before")
        key.unlink()
        self.assert_serves()
        # One of another authority, which members do not trust: they see that it is used.
        others = list(map(pathlib.Path, Authority(self.folder, "other-ca").sign("other")))
        for target, source in ((certificate, others[1]), (key, others[3])):
            shutil.copy(source, target)
        self.assert_refused(self.status(*self.flags))
        certificate.write_bytes(good[0])
        key.write_bytes(good[1])
        self.assert_serves()
        self.assertIsNone(self.index.process.poll(), self.index.text())

    def test_what_cannot_be_read_is_one_sentence(self):
        cert, key, ca = (self.flags[i] for i in (1, 3, 5))
        garbage = self.folder / "garbage"
        garbage.write_text("no certificate")
        locked = self.folder / "locked.key"
        self.authority.openssl("ec", "-in", key, "-out", locked, "-aes128", "-passout", "pass:secret")
        for flags, *expected in (
            (["--tls-cert", cert], "all three or none"),
            (["--tls-cert", cert, "--tls-key", key], "--tls-ca", "all three or none"),
            (["--tls-cert", "/no/such/file", "--tls-key", key, "--tls-ca", ca], "--tls-cert", "/no/such/file"),
            (["--tls-cert", garbage, "--tls-key", key, "--tls-ca", ca], "--tls-cert", "PEM"),
            (["--tls-cert", cert, "--tls-key", self.index_flags[3], "--tls-ca", ca], "--tls-key", "mismatch"),
            (["--tls-cert", cert, "--tls-key", locked, "--tls-ca", ca], "--tls-key", "passphrase"),
            (["--tls-cert", cert, "--tls-key", key, "--tls-ca", garbage], "--tls-ca", "PEM"),
        ):
            with self.subTest(flags=flags):
                self.refuse(["hicachectl", "status", *flags], *expected)
        for program in (["hicache-index", "--listen", "127.0.0.1:0"], ["hicache-bench", "store"],
                        ["hicache-replay", "--workload", "multi-turn"]):
            with self.subTest(program=program):
                self.refuse([*program, "--tls-cert", cert], "all three or none")

    def refuse(self, command, *expected):
        done = subprocess.run([BIN / command[0], *map(str, command[1:])], capture_output=True, text=True, timeout=30)
        self.assertEqual(done.returncode, 2, done.stderr + done.stdout)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        for text in expected:
            self.assertIn(text, done.stderr)

    def test_listening_beyond_this_machine_needs_tls_or_a_flag(self):
        replay = ["hicache-replay", "--workload", "multi-turn", "--clients", "1", "--rounds", "1"]
        for command, flag in ((["hicache-index", "--listen", "0.0.0.0:0"], "--listen"),
                              ([*replay, "--hicache-storage-backend", "cluster", "--index", self.address, "--listen-host", "0.0.0.0"],
                               "--listen-host")):
            self.refuse(command, flag, "0.0.0.0", "--tls-cert", "--insecure")
        for flags in (["--insecure"], self.index_flags):
            index, address = self.start_index(*flags, listen="0.0.0.0:0")
            reached = self.status(*(flags if flags != ["--insecure"] else []), address=f"127.0.0.1:{address.rsplit(':', 1)[1]}")
            self.assertEqual(reached.returncode, 0, reached.stderr + index.text())
            index.terminate()
            self.assertEqual(index.wait(10), 0)


if __name__ == "__main__":
    if shutil.which("openssl") is None:
        raise SystemExit(77)
    main()
