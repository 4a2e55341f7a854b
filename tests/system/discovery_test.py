"""Programs that find the index by etcd and by DNS, with real servers of both."""

import base64
import getpass
import json
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request

from certificates import Authority
from harness import BIN, SMALL_KV, SystemTest, cached, free_port, main, write_trace

# Debian installs dnsmasq where not everybody looks.
DNSMASQ = shutil.which("dnsmasq") or "/usr/sbin/dnsmasq"

SERVICE = "_hicache._tcp.hicache.test"


class DiscoveryTest(SystemTest):
    def setUp(self):
        super().setUp()
        self.trace = self.folder / "trace.jsonl"
        write_trace(self.trace, 100)

    def flags(self, place, *more):
        return ["--trace", self.trace, "--verify", "all", *SMALL_KV, "--device-pages", "512", "--hicache-storage-backend", "cluster",
                "--index", place, "--segment-size", "32MiB", "--hicache-storage-backend-extra-config", '{"prefetch_threshold": 64}', *more]

    def start_owner(self, place, *more):
        owner = self.start_replay("owner", 1, *self.flags(place, "--linger", "forever", *more))
        owner.wait_for("requests in")
        self.assert_clean(self.read_report(owner))
        return owner

    def start_replay(self, name, ranks, *flags):
        """One rank, without mpirun, which would take seconds to end."""
        report = self.folder / f"{name}.json"
        program = self.start([BIN / "hicache-replay", "--report", report, *flags], name)
        program.report = report
        return program

    def ask_status(self, place, *more, timeout="2s"):
        return subprocess.run([BIN / "hicachectl", "status", "--index", place, "--timeout", timeout, "--json", *map(str, more)],
                              capture_output=True, text=True)

    def status(self, place, *more):
        answer = self.ask_status(place, *more)
        self.assertEqual(answer.returncode, 0, answer.stderr)
        return json.loads(answer.stdout)

    def wait_until(self, what, condition, seconds=20):
        deadline = time.monotonic() + seconds
        while not condition():
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.05)

    def wait_for_pages(self, place, pages):
        """Waits until each shard of the index knows some of the owner's pages, and together they know all."""
        def knows_all():
            answer = self.ask_status(place)
            if answer.returncode != 0:
                return False
            shards = json.loads(answer.stdout)["shards"]
            return all(shard["reached"] and shard["keys"] > 0 for shard in shards) and sum(shard["keys"] for shard in shards) == pages
        self.wait_until("the owner's pages are known", knows_all)

    def assert_reader_finds_pages(self, place, name):
        report = self.replay(name, 1, *self.flags(place))
        self.assert_clean(report)
        self.assertGreater(report["cached_tokens"]["l3"], 0)

    def assert_one_sentence(self, answer, *parts):
        self.assertEqual(answer.returncode, 2, answer.stderr)
        self.assertEqual(len(answer.stderr.splitlines()), 1, answer.stderr)
        for part in parts:
            self.assertIn(part, answer.stderr)
        self.assertEqual(answer.stdout, "")


class EtcdTest(DiscoveryTest):
    def setUp(self):
        super().setUp()
        self.port = free_port()
        self.place = f"etcd://127.0.0.1:{self.port}/hicache/test"
        self.runs = 0

    def start_etcd(self, *flags, scheme="http"):
        """Starts an etcd without data."""
        self.runs += 1
        peers, client = f"http://127.0.0.1:{free_port()}", f"{scheme}://127.0.0.1:{self.port}"
        etcd = self.start(["etcd", "--data-dir", self.folder / f"etcd{self.runs}", "--listen-client-urls", client, "--advertise-client-urls",
                           client, "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster",
                           f"default={peers}", *flags], f"etcd{self.runs}")
        if scheme == "http":
            self.wait_until("etcd serves", lambda: self.keys() is not None)
        return etcd

    def keys(self):
        """Keys below the prefix and their values; None while etcd does not serve."""
        def encoded(text):
            return base64.b64encode(text.encode()).decode()
        body = json.dumps({"key": encoded("hicache/test/"), "range_end": encoded("hicache/test0")}).encode()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v3/kv/range", body, timeout=2) as answer:
                pairs = json.load(answer).get("kvs", [])
        except (urllib.error.URLError, OSError):
            return None
        return {base64.b64decode(pair["key"]).decode(): base64.b64decode(pair["value"]).decode() for pair in pairs}

    def start_registered(self, shard=0, shards=1):
        index, address = self.start_index("--shard", shard, "--shards", shards, "--join", self.place, "--member-ttl", "2s")
        self.wait_until("it is in etcd", lambda: (self.keys() or {}).get(f"hicache/test/{address}") == address)
        return index, address

    def test_everyone_finds_the_processes_that_register(self):
        self.start_etcd()
        _, first = self.start_registered()
        second, other = self.start_registered(shard=1)
        self.assertEqual(set(self.keys().values()), {first, other})
        self.start_owner(self.place)
        self.assert_reader_finds_pages(self.place, "reader")
        status = self.status(self.place)
        self.assertEqual([(shard["address"], shard["reached"]) for shard in status["shards"]], [(first, True), (other, True)])
        bench = [BIN / "hicache-bench", "store", "--index", self.place, "--value-size", "64KiB", "--keys", "16", "--seconds", "0.1", "--json"]
        putter = self.start([*bench, "--op", "put", "--segment-size", "16MiB", "--linger", "forever"], "putter")
        putter.wait_for(r"\{")
        got = subprocess.run([*map(str, bench), "--op", "get"], capture_output=True, text=True)
        self.assertEqual((got.returncode, json.loads(got.stdout)["errors"]), (0, 0), got.stderr)
        second.terminate()
        self.assertEqual(second.wait(10), 0)
        self.assertEqual(set(self.keys().values()), {first}, "who ends takes its address with it")

    def test_who_dies_is_forgotten_and_who_comes_elsewhere_is_found(self):
        self.start_etcd()
        first, address = self.start_registered()
        second, other = self.start_registered(shard=1)
        self.start_owner(self.place)
        pages = self.status(self.place)["keys"]
        second.kill()
        killed = time.monotonic()
        self.wait_until("the lease ends", lambda: set(self.keys().values()) == {address})
        self.assertLess(time.monotonic() - killed, 12)
        # The other process tells the owner of this one.
        third, _ = self.start_registered(shard=1)
        self.wait_for_pages(self.place, pages)
        # Nobody does of this one, but etcd.
        first.kill()
        third.kill()
        self.start_registered(shards=2)
        self.wait_for_pages(self.place, pages)
        self.assert_reader_finds_pages(self.place, "reader")

    def test_etcd_may_die_and_come_back_without_its_data(self):
        etcd = self.start_etcd()
        _, first = self.start_registered()
        index, other = self.start_registered(shard=1)
        self.start_owner(self.place)
        busy = self.start_replay("busy", 1, *self.flags(self.place, "--prefill-tokens-per-second", "100000"))
        self.wait_until("both instances take part", lambda: len(self.status(self.place)["members"]) == 2)
        etcd.kill()
        self.assertEqual(busy.wait(), 0, busy.text())
        self.assert_clean(self.read_report(busy))
        self.assertGreater(self.read_report(busy)["cached_tokens"]["l3"], 0)
        self.assertEqual(len(self.status(first)["members"]), 1, "the index serves")
        self.assert_one_sentence(self.ask_status(self.place, timeout="500ms"), f"etcd at 127.0.0.1:{self.port}", "correct --index")
        self.wait_until("the log says so", lambda: self.place in index.err.read_text())
        self.start_etcd()
        self.wait_until("both register again", lambda: set((self.keys() or {}).values()) == {first, other})
        self.wait_until("the log says so", lambda: "of use again" in index.err.read_text())
        self.assertEqual(index.err.read_text().count(self.place), 2, "once each")
        self.assert_reader_finds_pages(self.place, "reader")

    def test_by_tls_both_sides_prove_who_they_are(self):
        authority = Authority(self.folder, "ca")
        # An HTTP client looks for the host in the certificate.
        server, ours = authority.sign("127.0.0.1"), authority.sign("member")
        self.start_etcd("--cert-file", server[1], "--key-file", server[3], "--trusted-ca-file", server[5], "--client-cert-auth", scheme="https")
        place = self.place.replace("etcd:", "etcds:")
        _, address = self.start_index("--join", place, *ours)
        self.wait_until("it registers", lambda: self.ask_status(place, *ours, timeout="500ms").returncode == 0)
        self.assertEqual([shard["address"] for shard in self.status(place, *ours)["shards"]], [address])
        self.assert_one_sentence(self.ask_status(place), "--tls-cert")
        others = Authority(self.folder, "stranger").sign("other")
        self.assert_one_sentence(self.ask_status(place, *others, timeout="500ms"), f"etcd at 127.0.0.1:{self.port}")


class DnsTest(DiscoveryTest):
    def setUp(self):
        super().setUp()
        self.port = free_port()
        self.place = f"srv://{SERVICE}?server=127.0.0.1:{self.port}"

    def start_dns(self, *addresses):
        """Starts a DNS server whose record leads to these; it is asked whether it knows it."""
        records = [f"--srv-host={SERVICE},node.hicache.test,{address.rsplit(':', 1)[1]}" for address in addresses]
        return self.start([DNSMASQ, "--keep-in-foreground", "--conf-file=/dev/null", "--pid-file=", f"--user={getpass.getuser()}",
                           "--no-resolv", "--no-hosts", f"--port={self.port}", "--listen-address=127.0.0.1", "--bind-interfaces",
                           "--local=/hicache.test/", "--host-record=node.hicache.test,127.0.0.1", *records], f"dns{len(self.programs)}")

    def test_everyone_finds_the_targets_and_follows_when_they_move(self):
        first, address = self.start_index()
        _, other = self.start_index("--shard", "1", "--join", address)
        dns = self.start_dns(address, other)
        self.start_owner(self.place)
        pages = self.status(self.place)["keys"]
        self.assert_reader_finds_pages(self.place, "reader")
        self.assertEqual([shard["address"] for shard in self.status(self.place)["shards"]], [address, other])
        got = subprocess.run([BIN / "hicache-bench", "store", "--op", "put", "--index", self.place, "--value-size", "64KiB", "--keys", "16",
                              "--segment-size", "16MiB", "--seconds", "0.1", "--json"], capture_output=True, text=True)
        self.assertEqual((got.returncode, json.loads(got.stdout)["errors"]), (0, 0), got.stderr)
        # A DNS server that is away costs those who run nothing.
        dns.kill()
        self.assert_reader_finds_pages(f"{address},{other}", "late")
        first.kill()
        self.programs[1].kill()
        _, elsewhere = self.start_index("--shards", "2", "--join", self.place)
        self.start_dns(elsewhere)
        self.wait_for_pages(self.place, pages)

    def test_a_name_without_a_record_and_a_dead_server_are_one_sentence(self):
        self.assert_one_sentence(self.ask_status(self.place, timeout="500ms"), self.place, "no DNS server answers", "correct --index")
        self.assert_one_sentence(self.ask_status("srv://two words"), "--index", "'srv://two words'")
        self.start_dns()
        self.wait_until("it serves", lambda: "no SRV record" in self.ask_status(self.place, timeout="500ms").stderr)
        self.assert_one_sentence(self.ask_status(self.place, timeout="500ms"), self.place, "the DNS knows no SRV record of that name")


if __name__ == "__main__":
    missing = [program for program in ("etcd", DNSMASQ) if not shutil.which(program)]
    if missing:
        print("skipped: there is no " + ", no ".join(missing))
        sys.exit(77)
    main()
