"""The published conversation trace through every kind of L3: right bytes, and exactly the hits that the trace allows."""

import json
import sys

from harness import SMALL_KV, TRACE, SystemTest, cached, main, reusable_tokens

LIMIT = 1000
# With a folder as L3: each page of the trace is a file for each rank.
FILE_LIMIT = 250
PAGE = 64
ALL = ["--order", "closed", "--verify", "all", *SMALL_KV]
# Pages enough for all that the trace computes.
LARGE = ["--device-pages", "180000", "--hicache-ratio", "1.4"]
THRESHOLD = f'"prefetch_threshold": {PAGE}'


class TraceTest(SystemTest):
    @classmethod
    def setUpClass(cls):
        with open(TRACE) as file:
            cls.rows = [json.loads(next(file)) for _ in range(LIMIT)]

    def check(self, report, limit=LIMIT):
        self.assert_clean(report)
        rows = self.rows[:limit]
        self.assertEqual(report["requests"], limit)
        self.assertEqual(report["prompt_tokens"], sum(row["input_length"] for row in rows))
        self.assertEqual(cached(report), reusable_tokens(rows, PAGE))

    def run_trace(self, name, *flags, limit=LIMIT):
        return self.replay(name, 2, "--trace", TRACE, "--limit", limit, *ALL, *flags)

    def test_holds_everything_in_l1_twice_in_a_row(self):
        first = self.run_trace("first", *LARGE)
        self.check(first)
        again = self.run_trace("again", *LARGE)
        self.check(again)
        self.assertEqual(first["cached_tokens"], again["cached_tokens"])

    def test_default_sizes_serve_only_right_bytes(self):
        report = self.run_trace("default")
        self.assert_clean(report)
        self.assertGreater(report["cached_tokens"]["l2"], 0)

    def file_flags(self):
        # Two ranks, two objects of a page: one for each KV head would be twice as many files.
        config = f'{{"path": "{self.folder}/pages", "tp_lcm_size": 2, {THRESHOLD}}}'
        return ["--hicache-storage-backend", "file", "--hicache-storage-backend-extra-config", config]

    def test_file_holds_what_l1_and_l2_cannot(self):
        small = self.run_trace("small", *self.file_flags(), limit=FILE_LIMIT)
        self.check(small, FILE_LIMIT)
        self.assertGreater(small["cached_tokens"]["l3"], 0)
        large = self.run_trace("large", *LARGE, "--namespace", "another", *self.file_flags(), limit=FILE_LIMIT)
        self.check(large, FILE_LIMIT)
        self.assertNotEqual(small["cached_tokens"], large["cached_tokens"])

    def test_cluster_holds_what_l1_and_l2_cannot(self):
        _, address = self.start_index()
        cluster = ["--hicache-storage-backend", "cluster", "--index", address, "--segment-size", "1GiB",
                   "--hicache-storage-backend-extra-config", f"{{{THRESHOLD}}}"]
        first = self.start_replay("first", 2, "--trace", TRACE, "--limit", LIMIT, *ALL, *cluster, "--linger", "forever")
        first.wait_for(r"requests in", 120)
        report = self.read_report(first)
        self.check(report)
        self.assertGreater(report["cached_tokens"]["l3"], 0)
        # A second instance, while the first lingers, computes only what the first could not have stored: partial last pages, or
        # the last page of a prompt that ends with it.
        second = self.run_trace("second", *cluster)
        self.assert_clean(second)
        self.assertEqual(second["computed_tokens"],
                         sum(row["input_length"] - (row["input_length"] - 1) // PAGE * PAGE for row in self.rows))
        first.terminate()
        first.wait(30)
        self.assert_all_gone(first)
        large = self.run_trace("large", *LARGE, *cluster)
        self.check(large)


if __name__ == "__main__":
    if not TRACE.exists():
        print("skipped: the conversation trace is not here")
        sys.exit(77)
    main()
