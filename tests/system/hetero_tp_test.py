"""Instances with different numbers of ranks share one namespace of L3; ranks with the same bytes write them once."""

from harness import SMALL_KV, SharedPagesTest, main, whole_pages

PAGE = SharedPagesTest.PAGE
LAYOUTS = ("page_first", "page_head")


class HeteroTpTest(SharedPagesTest):
    def flags(self, layout, *more, config, device_pages=512, ratio=4):
        # L2 has room for all that waits for a slow disk: of what is too much, the oldest would not be stored.
        return ["--trace", self.trace, "--verify", "all", *SMALL_KV, "--page-size", PAGE, "--device-pages", device_pages,
                "--hicache-ratio", ratio, "--hicache-mem-layout", layout, "--hicache-storage-backend-extra-config",
                f'{{"prefetch_threshold": {PAGE}, {config}}}', *more]

    def test_instances_of_any_size_share_a_folder(self):
        for layout in LAYOUTS:
            for sizes in ((2, 4, 1), (4, 2), (1, 4)):
                with self.subTest(layout=layout, sizes=sizes):
                    name = f"{layout}-{'-'.join(map(str, sizes))}"
                    flags = self.flags(layout, "--hicache-storage-backend", "file", config=f'"path": "{self.folder}/{name}"')
                    first = self.replay(f"{name}-first", sizes[0], *flags)
                    self.assert_clean(first)
                    stored = len(list((self.folder / name).glob("*/*.kv")))
                    self.assertEqual(stored, 4 * whole_pages(self.rows, PAGE), "one object for each of the four KV heads")
                    for ranks in sizes[1:]:
                        self.assert_all_found(self.replay(f"{name}-{ranks}", ranks, *flags))
                    self.assertEqual(len(list((self.folder / name).glob("*/*.kv"))), stored, "what is there is not stored again")

    def test_a_common_multiple_makes_fewer_objects(self):
        config = f'"path": "{self.folder}/common", "tp_lcm_size": 2'
        flags = self.flags("page_first", "--hicache-storage-backend", "file", config=config)
        self.assert_clean(self.replay("common-2", 2, *flags))
        self.assertEqual(len(list((self.folder / "common").glob("*/*.kv"))), 2 * whole_pages(self.rows, PAGE))
        self.assert_all_found(self.replay("common-1", 1, *flags))

    def test_instances_of_any_size_share_a_cluster(self):
        for layout in LAYOUTS:
            for first, others, paths in ((2, (4, 1), "false"), (4, (2,), "true")):
                with self.subTest(layout=layout, first=first, remote=paths):
                    index, address = self.start_index()
                    flags = self.flags(layout, "--hicache-storage-backend", "cluster", "--index", address, "--segment-size", "64MiB",
                                       config=f'"force_remote_reads": {paths}')
                    name = f"{layout}-cluster-{first}"
                    owner = self.start_replay(f"{name}-first", first, *flags, "--linger", "forever")
                    owner.wait_for("requests in")
                    self.assert_clean(self.read_report(owner))
                    for ranks in others:
                        self.assert_all_found(self.replay(f"{name}-{ranks}", ranks, *flags))
                    for program in (owner, index):
                        program.terminate()
                        program.wait(20)

    def test_ranks_that_outnumber_the_heads_share_a_folder(self):
        """Grouped-query heads that several ranks hold: one of them writes each, and instances of every size read it, and back."""
        for layout in LAYOUTS:
            for sizes in ((4, 1, 2), (1, 4), (2, 4)):
                with self.subTest(layout=layout, sizes=sizes):
                    name = f"{layout}-gqa-{'-'.join(map(str, sizes))}"
                    flags = self.flags(layout, "--kv-heads", 2, "--hicache-storage-backend", "file",
                                       config=f'"path": "{self.folder}/{name}", "tp_lcm_size": 4')
                    first = self.replay(f"{name}-first", sizes[0], *flags)
                    self.assert_clean(first)
                    files = list((self.folder / name).glob("*/*.kv"))
                    self.assertEqual(len(files), 2 * whole_pages(self.rows, PAGE), "one object for each of the two KV heads")
                    head_bytes = PAGE * 2 * 4 * 2
                    self.assertEqual(first["bytes"]["l2_to_l3"], len(files) * head_bytes, "each of them written once")
                    for ranks in sizes[1:]:
                        self.assert_all_found(self.replay(f"{name}-{ranks}", ranks, *flags))
                    self.assertEqual(len(list((self.folder / name).glob("*/*.kv"))), len(files), "what is there is not stored again")

    def test_ranks_that_outnumber_the_heads_share_a_cluster(self):
        for first, others, remote, zero_copy in ((4, (1, 2), "false", "false"), (1, (4,), "true", "false"), (4, (2,), "true", "true")):
            with self.subTest(first=first, remote=remote, zero_copy=zero_copy):
                index, address = self.start_index()
                flags = self.flags("page_head", "--kv-heads", 2, "--hicache-storage-backend", "cluster", "--index", address,
                                   "--segment-size", "64MiB",
                                   config=f'"force_remote_reads": {remote}, "zero_copy": {zero_copy}')
                owner = self.start_replay(f"gqa-{first}-{zero_copy}", first, *flags, "--linger", "forever")
                owner.wait_for("requests in")
                self.assert_clean(self.read_report(owner))
                for ranks in others:
                    self.assert_all_found(self.replay(f"gqa-{first}-{zero_copy}-{ranks}", ranks, *flags))
                for program in (owner, index):
                    program.terminate()
                    program.wait(20)

    def test_models_of_one_shape_share_a_folder_and_no_page(self):
        def flags(*more):
            return self.flags("page_first", "--hicache-storage-backend", "file", *more, config=f'"path": "{self.folder}/models"')

        base = self.replay("base", 2, *flags("--model-id", "base"))
        self.assert_clean(base)
        stored = 4 * whole_pages(self.rows, PAGE)
        others = (["--model-id", "tuned"], ["--model-id", "base", "--kv-quantisation", "fp8_e4m3"],
                  ["--model-id", "base", "--kv-scales", "sha256:1"], ["--model-id", "base", "--rope", '{"rope_theta": 1e6}'],
                  ["--model-id", "base", "--first-layer", "1"], ["--model-id", "base", "--numerics", "fast"])
        for i, other in enumerate(others):
            with self.subTest(other=other):
                report = self.replay(f"other-{i}", 1, *flags(*other))
                self.assert_clean(report)
                self.assertEqual(report["cached_tokens"]["l3"], 0)
                self.assertEqual(len(list((self.folder / "models").glob("*/*.kv"))), stored * (i + 2))
        self.assert_all_found(self.replay("base-again", 1, *flags("--model-id", "base")))

    def test_ranks_with_the_same_latents_write_each_page_once(self):
        for attention, shape in (("mla", []), ("nsa", ["--index-key-bytes", "12"])):
            with self.subTest(attention=attention):
                flags = self.flags("page_first", "--attention", attention, *shape, "--hicache-storage-backend", "file",
                                   config=f'"path": "{self.folder}/{attention}"')
                first = self.replay(f"{attention}-first", 2, *flags)
                self.assert_clean(first)
                files = list((self.folder / attention).glob("*/*.kv"))
                self.assertEqual(len(files), whole_pages(self.rows, PAGE))
                page_bytes = PAGE * (4 * 2 + (12 if shape else 0))
                self.assertEqual({file.stat().st_size for file in files}, {page_bytes + 88}, "header and page")
                self.assertEqual(first["bytes"]["l2_to_l3"], len(files) * page_bytes)
                self.assert_all_found(self.replay(f"{attention}-second", 4, *flags))

    def test_ranks_with_stores_of_their_own_write_every_page(self):
        report = self.replay("memory", 2, *self.flags("page_first", "--attention", "mla", "--hicache-storage-backend", "memory",
                                                      config='"threads": 1', device_pages=256, ratio=1))
        self.assert_clean(report)
        self.assertGreater(report["cached_tokens"]["l3"], 0)


if __name__ == "__main__":
    main()
