"""The engine on doubles of the CUDA runtime and of cuBLAS: its tokens are those of the model, and nothing races from hicache's copies to its kernels.

The program ends with an error if something did.
"""

import os
import unittest

from engine_case import FEW_PAGES, EngineCase


class CudaTest(EngineCase):
    PROGRAM = os.environ["HICACHE_LLAMA_ON_FAKE_CUDA"]
    DEVICE = "cuda"
    PROMPTS = 12

    def test_kv_from_l1_and_l2_gives_the_same_tokens(self):
        for flags in (["--hicache-io-backend", "direct"], ["--hicache-io-backend", "kernel", "--pass-tokens", "48"]):
            with self.subTest(flags=flags):
                engine = self.start(*FEW_PAGES, *flags)
                self.complete_all(engine, side_by_side=4)
                self.assertGreater(sum(self.complete_all(engine, side_by_side=4)), 500)
                self.assertGreater(self.metric(engine, "llama_load_wait_seconds_total"), 0)
                self.stop(engine)

    def test_handoffs_are_refused(self):
        engine = self.run_program([self.PROGRAM, self.model, "--listen", "127.0.0.1:0", "--device", "cuda", "--role", "prefill"], "prefill")
        self.assertEqual(engine.wait(60), 2)
        self.assertIn("L1", engine.text())


if __name__ == "__main__":
    unittest.main(verbosity=2)
