"""Prometheus' view of a running index and of running ranks, compared with what the other tools say."""

import collections
import json
import re
import subprocess
import urllib.error
import urllib.request

from harness import BIN, SMALL_KV, SystemTest, cached, free_ports, main, write_trace

SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z_]+="[^"]*",?)*)\})? (\S+)')


class MetricsTest(SystemTest):
    def setUp(self):
        super().setUp()
        self.trace = self.folder / "trace.jsonl"
        write_trace(self.trace, 120)

    def get(self, port, path="/metrics"):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            self.assertEqual(answer.headers["Content-Type"], "text/plain; version=0.0.4; charset=utf-8")
            return answer.read().decode()

    def scrape(self, port):
        """Checks the text format; returns value by name and labels."""
        values, types, helped, current = {}, {}, set(), None
        for line in self.get(port).splitlines():
            if line.startswith("# HELP "):
                current = line.split(" ", 3)[2]
                self.assertNotIn(current, helped, "a family comes once")
                helped.add(current)
                self.assertTrue(line.endswith("."), line)
            elif line.startswith("# TYPE "):
                name, kind = line.split(" ")[2:]
                self.assertEqual(name, current, "TYPE follows HELP")
                types[name] = kind
            else:
                found = SAMPLE.fullmatch(line)
                self.assertTrue(found, line)
                name, labels, value = found.groups()
                family = re.sub(r"_(bucket|sum|count)$", "", name) if types[current] == "histogram" else name
                self.assertEqual(family, current, "samples follow their family")
                self.assertTrue(family.startswith("hicache_"), line)
                self.assertEqual(types[family] == "counter", family.endswith("_total"), line)
                key = (name, frozenset(re.findall(r'([a-z_]+)="([^"]*)"', labels or "")))
                self.assertNotIn(key, values, "a sample comes once")
                values[key] = float(value)
        self.assertEqual(set(types), helped)
        return values

    def value(self, values, name, **labels):
        """The sum over what has this name and these labels."""
        found = [value for (key, others), value in values.items() if key == name and set(labels.items()) <= others]
        self.assertTrue(found, f"{name} {labels} is missing")
        return sum(found)

    def status(self, address):
        answer = subprocess.run([BIN / "hicachectl", "status", "--index", address, "--json"], capture_output=True, text=True,
                                check=True)
        return json.loads(answer.stdout)

    def compare(self, report, ranks):
        """A report holds rank 0's requests, and sums over the ranks of what is each rank's own."""
        first, everything = ranks[0], collections.Counter()
        for values in ranks:
            everything.update(values)
        for name in ("requests", "prompt_tokens", "computed_tokens"):
            self.assertEqual(self.value(everything, f"hicache_{name}_total"), report[name], name)
        for tier, tokens in report["cached_tokens"].items():
            self.assertEqual(self.value(everything, "hicache_cached_tokens_total", tier=tier), tokens, tier)
        for reason, tokens in report["given_up_tokens"].items():
            self.assertEqual(self.value(everything, "hicache_unserved_tokens_total", reason=reason), tokens, reason)
        for way, moved in report["bytes"].items():
            start, end = way.split("_to_")
            self.assertEqual(self.value(everything, "hicache_moved_bytes_total", **{"from": start, "to": end}), moved, way)
        for tier, pages in report["evicted_pages"].items():
            self.assertEqual(self.value(everything, "hicache_evicted_pages_total", tier=tier), pages, tier)
        for name in ("steps", "reductions", "divergences"):
            self.assertEqual(self.value(first, f"hicache_{name}_total"), report[name], name)
        for name, expected in (("checked_pages", report["verify"]["pages_checked"]),
                               ("mismatched_pages", report["verify"]["mismatches"]),
                               ("storage_failures", report["storage_failures"]),
                               ("backup_retries", report["backups"]["retries"]),
                               ("dropped_backup_pages", report["backups"]["dropped_pages"])):
            self.assertEqual(self.value(everything, f"hicache_{name}_total"), expected, name)
        self.assertEqual(self.value(everything, "hicache_errors_total") + self.value(everything, "hicache_engine_errors_total"),
                         report["errors"])
        self.assertEqual(self.value(everything, "hicache_ttft_seconds_count"), report["requests"])
        self.assertLessEqual(self.value(first, "hicache_step_seconds_count"), report["reductions"])

    def test_metrics_agree_with_the_report_and_the_status(self):
        index_port, port = free_ports(1), free_ports(2)
        _, address = self.start_index("--shards", "2", "--metrics-port", index_port)
        replay = self.start_replay("replay", 2, "--trace", self.trace, "--verify", "all", *SMALL_KV, "--device-pages", "256",
                                   "--hicache-storage-backend", "cluster", "--index", address, "--segment-size", "4MiB",
                                   "--hicache-storage-backend-extra-config", '{"prefetch_threshold": 64}',
                                   "--metrics-port", port, "--linger", "forever")
        replay.wait_for("requests in")
        report = self.read_report(replay)
        self.assert_clean(report)
        self.assertGreater(min(report["bytes"].values()), 0, "the run has to use every tier")
        self.assertGreater(report["evicted_pages"]["l1"], 0)
        ranks = [self.scrape(port + rank) for rank in (0, 1)]
        self.compare(report, ranks)
        for rank, values in enumerate(ranks):
            labels = {"rank": str(rank)}
            self.assertEqual({dict(key[1])["rank"] for key in values}, {str(rank)})
            self.assertEqual(self.value(values, "hicache_up", **labels), 1)
            self.assertEqual(self.value(values, "hicache_storage_up", backend="cluster", **labels), 1)
            self.assertGreater(self.value(values, "hicache_storage_hits_total", backend="cluster", **labels), 0)
            self.assertEqual(self.value(values, "hicache_capacity_pages", tier="l1", **labels), 256)
            self.assertEqual(self.value(values, "hicache_capacity_pages", tier="l2", **labels), 512)
            # More was computed than L1 holds, and all of it is in L2; nobody evicts before there is need.
            self.assertGreater(self.value(values, "hicache_used_pages", tier="l1", **labels), 128)
            self.assertLessEqual(self.value(values, "hicache_used_pages", tier="l1", **labels), 256)
            self.assertGreater(self.value(values, "hicache_used_pages", tier="l2", **labels), 256)
            self.assertLessEqual(self.value(values, "hicache_used_pages", tier="l2", **labels), 512)
        shards, status = self.scrape(index_port), self.status(address)
        for name in ("keys", "replicas", "bytes"):
            self.assertEqual(self.value(shards, f"hicache_index_{name}"), status[name], name)
        for name in ("lookups", "keys_asked", "keys_found"):
            self.assertEqual(self.value(shards, f"hicache_index_{name}_total"), status[name], name)
        for shard in status["shards"]:
            labels = {"shard": str(shard["shard"])}
            self.assertEqual(self.value(shards, "hicache_up", **labels), 1)
            self.assertEqual(self.value(shards, "hicache_index_keys", **labels), shard["keys"])
            self.assertEqual(self.value(shards, "hicache_index_members", **labels), 2)
            self.assertEqual(self.value(shards, "hicache_index_members_lost_total", **labels), 0)
            self.assertLess(self.value(shards, "hicache_index_uptime_seconds", **labels), shard["uptime_ms"] / 1000 + 1)
        self.assertEqual(sum(self.value(values, "hicache_exported_bytes") for values in ranks),
                         sum(member["capacity_bytes"] for member in status["members"]))
        with self.assertRaises(urllib.error.HTTPError):
            self.get(port, "/")

    def test_scrapes_of_a_running_replay_change_nothing(self):
        # L2 has room for all pages, so that what is cached does not depend on when copies are done.
        flags = ["--trace", self.trace, *SMALL_KV, "--device-pages", "256", "--hicache-ratio", "32"]
        quiet = self.replay("quiet", 2, *flags)
        port = free_ports(2)
        watched = self.start_replay("watched", 2, *flags, "--metrics-port", port, "--prefill-tokens-per-second", "200000",
                                    "--linger", "forever")
        seen, last = 0, collections.Counter()
        while seen < quiet["requests"]:
            self.assertIsNone(watched.process.poll(), watched.text())
            try:
                values = self.scrape(port)
            except (urllib.error.URLError, ConnectionError):
                continue  # It has not started yet.
            if ("hicache_requests_total", frozenset({("rank", "0")})) not in values:
                continue
            for key, before in last.items():
                if key[0].endswith("_total"):
                    self.assertGreaterEqual(values[key], before, f"{key} only grows")
            seen, last = self.value(values, "hicache_requests_total"), values
            self.assertEqual(self.value(values, "hicache_up"), 1)
        watched.wait_for("requests in")
        report = self.read_report(watched)
        # Which tier had a page depends on when copies are done.
        self.assertEqual(cached(report), cached(quiet))
        for key in ("requests", "computed_tokens", "errors"):
            self.assertEqual(report[key], quiet[key], key)


if __name__ == "__main__":
    main()
