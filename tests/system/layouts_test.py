"""Every layout of L2, kind of attention and way to copy serves the right bytes, through L2 and through L3."""

import json

from harness import BIN, SystemTest, cached, main, reusable_tokens, write_trace

LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")
SHAPES = {
    "mha": ["--attention", "mha", "--layers", "3", "--head-dim", "4", "--v-head-dim", "6"],
    "mla": ["--attention", "mla", "--layers", "3", "--head-dim", "24"],
    "nsa": ["--attention", "nsa", "--layers", "3", "--head-dim", "24", "--dtype", "fp8", "--index-key-bytes", "12"],
}


class LayoutsTest(SystemTest):
    def setUp(self):
        super().setUp()
        self.trace = self.folder / "trace.jsonl"
        self.rows = write_trace(self.trace, 60)

    def test_every_layout_attention_and_io_backend_through_l2(self):
        # L1 holds a part of the trace only, L2 all of it.
        served = set()
        for attention, shape in SHAPES.items():
            for layout in LAYOUTS:
                for io in ("direct", "kernel"):
                    with self.subTest(attention=attention, layout=layout, io=io):
                        report = self.replay(f"{attention}-{layout}-{io}", 1, "--trace", self.trace, "--verify", "all", *shape,
                                             "--page-size", "16", "--device-pages", "1024", "--hicache-ratio", "8",
                                             "--hicache-mem-layout", layout, "--hicache-io-backend", io,
                                             "--hicache-io-threads", "2")
                        self.assert_clean(report)
                        self.assertGreater(report["cached_tokens"]["l2"], 0)
                        served.add(cached(report))
        self.assertEqual(len(served), 1, "what is cached does not depend on how it is kept or copied")

    def test_latents_of_two_ranks_share_their_pages_in_l3(self):
        for attention in ("mla", "nsa"):
            config = f'{{"path": "{self.folder}/{attention}", "prefetch_threshold": 16}}'
            flags = ["--trace", self.trace, "--verify", "all", *SHAPES[attention], "--page-size", "16", "--device-pages", "1024",
                     "--hicache-mem-layout", "page_head", "--hicache-storage-backend", "file",
                     "--hicache-storage-backend-extra-config", config]
            first = self.replay(f"{attention}-store", 2, *flags)
            self.assert_clean(first)
            self.assertEqual(cached(first), reusable_tokens(self.rows, 16))
            # An instance of another size finds what the first one stored.
            second = self.replay(f"{attention}-find", 1, *flags)
            self.assert_clean(second)
            self.assertGreater(second["cached_tokens"]["l3"], first["cached_tokens"]["l3"])

    def test_transfer_is_measured_beside_its_baseline(self):
        for layout in LAYOUTS:
            program = self.start([BIN / "hicache-bench", "transfer", "--device", "host", "--layout", layout, "--io-backend", "kernel",
                                  "--pages", "4", "--layers", "2", "--seconds", "0.1", "--fragmented", "--json"], layout)
            self.assertEqual(program.wait(60), 0, program.text())
            figures = json.loads(program.out.read_text())
            self.assertEqual((figures["op"], figures["layout"], figures["errors"]), ("transfer", layout, 0))
            for direction in ("store", "load"):
                self.assertGreater(figures[direction]["gib_per_s"], 0)
                self.assertGreater(figures[direction]["ratio"], 0)


if __name__ == "__main__":
    main()
