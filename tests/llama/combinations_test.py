"""All that an operator can choose, and instances of every size for each other: two hundred prompts have the tokens that the model gives without a cache.
For `ctest --preset long`; engine_test.py has less of it, in less time."""

import itertools
import json
import unittest

from engine_case import FEW_PAGES, EngineCase

LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")
WRITE_POLICIES = ("write_through", "write_through_selective", "write_back")
IO_BACKENDS = ("direct", "kernel")
EVICTION_POLICIES = ("lru", "lfu", "fifo", "mru", "filo", "priority", "slru")
RANKS = (1, 2, 4)
SIDE_BY_SIDE = 4


class Combinations(EngineCase):
    PROMPTS = 200

    def complete_twice(self, *flags, ranks=1):
        """Cold, and with what the first pass left in L1 and L2. @returns the cached tokens of the second pass"""
        engine = self.start(*flags, ranks=ranks)
        self.complete_all(engine, SIDE_BY_SIDE)
        cached = sum(self.complete_all(engine, SIDE_BY_SIDE))
        self.stop(engine)
        return cached

    def complete_cold(self, *flags, ranks):
        """@returns the cached tokens of an instance that has just started"""
        engine = self.start(*flags, ranks=ranks)
        cached = sum(self.complete_all(engine, SIDE_BY_SIDE))
        self.stop(engine)
        return cached

    def whole_pages(self):
        return sum((len(prompt) - 1) // 16 * 16 for prompt in self.prompts)

    def share_files(self, layouts):
        for layout, first in itertools.product(layouts, RANKS):
            with self.subTest(layout=layout, first=first):
                flags = [*self.store("file", path=str(self.folder / f"{layout}{first}"), tp_lcm_size=4), "--hicache-mem-layout", layout]
                self.complete_cold(*flags, ranks=first)
                for ranks in RANKS:
                    self.assertEqual(self.complete_cold(*flags, ranks=ranks), self.whole_pages(), f"{ranks} ranks")

    def share_cluster(self, configs):
        for first, config in itertools.product(RANKS, configs):
            with self.subTest(first=first, **config):
                index = self.start_index()
                keeper = self.start(*self.cluster(index, **config), ranks=first)
                self.complete_all(keeper, SIDE_BY_SIDE)
                for ranks in RANKS:
                    self.assertEqual(self.complete_cold(*self.cluster(index, "0", **config), ranks=ranks), self.whole_pages(), f"{ranks} ranks")
                self.stop(keeper)
                index.kill()


class FourHeadsTest(Combinations):
    MODEL = ("--kv-heads", "4")

    def test_every_layout_write_policy_and_io_backend(self):
        for layout, policy, io in itertools.product(LAYOUTS, WRITE_POLICIES, IO_BACKENDS):
            with self.subTest(layout=layout, policy=policy, io=io):
                cached = self.complete_twice(*FEW_PAGES, "--hicache-mem-layout", layout, "--hicache-write-policy", policy, "--hicache-io-backend", io)
                self.assertGreater(cached, self.whole_pages() // 4)

    def test_every_number_of_ranks(self):
        for ranks, layout, policy in itertools.product(RANKS[1:], LAYOUTS, WRITE_POLICIES):
            with self.subTest(ranks=ranks, layout=layout, policy=policy):
                cached = self.complete_twice(*FEW_PAGES, "--hicache-mem-layout", layout, "--hicache-write-policy", policy, ranks=ranks)
                self.assertGreater(cached, self.whole_pages() // 4)

    def test_every_eviction_policy(self):
        for policy in EVICTION_POLICIES:
            with self.subTest(policy=policy):
                # L2 is short, too.
                self.complete_twice("--device-pages", "40", "--hicache-ratio", "2", "--radix-eviction-policy", policy)

    def test_every_write_policy_fills_l3(self):
        for policy in WRITE_POLICIES:
            with self.subTest(policy=policy):
                flags = [*FEW_PAGES, "--hicache-write-policy", policy, *self.store("file", path=str(self.folder / policy))]
                self.complete_twice(*flags)
                self.assertGreater(self.complete_cold(*flags, ranks=1), self.whole_pages() // 2)

    def test_instances_of_every_size_share_files(self):
        self.share_files(("page_head", "layer_first"))

    def test_instances_of_every_size_share_a_cluster(self):
        self.share_cluster(({}, {"force_remote_reads": True}, {"force_remote_reads": True, "zero_copy": True}))

    def test_disks_and_tiers_survive_an_instance(self):
        disk = {"backend": "disk", "path": str(self.folder / "disk"), "max_bytes": "256MiB"}
        memory = {"backend": "memory", "max_bytes": "1MiB"}
        for name, config in (("disk", {key: disk[key] for key in ("path", "max_bytes")}),
                             ("memory over file", {"tiers": [memory, {"backend": "file", "path": str(self.folder / "file")}]}),
                             ("memory over disk", {"tiers": [memory, {**disk, "path": str(self.folder / "below")}]}),
                             ("compressed", {"tiers": [memory, {"backend": "file", "path": str(self.folder / "compressed"), "codecs": "zstd"}]})):
            for ranks in RANKS[:2]:
                with self.subTest(name, ranks=ranks):
                    flags = json.loads(json.dumps(config).replace(str(self.folder), f"{self.folder}/{ranks}"))
                    store = self.store("tiered" if "tiers" in config else "disk", **flags)
                    self.complete_cold(*store, ranks=ranks)
                    self.assertEqual(self.complete_cold(*store, ranks=ranks), self.whole_pages())


class TwoHeadsTest(Combinations):
    """Of four ranks two each have the same KV head."""
    MODEL = ("--kv-heads", "2")

    def test_every_number_of_ranks(self):
        for ranks in RANKS:
            with self.subTest(ranks=ranks):
                self.assertGreater(self.complete_twice(*FEW_PAGES, ranks=ranks), self.whole_pages() // 4)

    def test_instances_of_every_size_share_files(self):
        self.share_files(("page_head",))

    def test_instances_of_every_size_share_a_cluster(self):
        self.share_cluster(({}, {"force_remote_reads": True}))


if __name__ == "__main__":
    unittest.main(verbosity=2)
