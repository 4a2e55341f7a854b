"""The model of examples/llama against transformers': scores within 1e-4 of the largest, and equal tokens.

The golden values are those of tests/llama/golden.py, which says how to make them again.
"""

import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "examples/llama"), str(HERE)]
import golden_cases
import make_model

LOGITS = os.environ["HICACHE_LLAMA_LOGITS"]


class LogitsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.folder = pathlib.Path(cls.temporary.name)
        cls.golden = json.loads((HERE / "golden.json").read_text())["models"]
        for name, arguments in golden_cases.MODELS.items():
            make_model.write_model(make_model.parse([str(cls.folder / name), *arguments]))

    def compute(self, model, ranks=1, chunk=512, dtype="fp32", page_size=16, **more):
        job = self.folder / "job.json"
        job.write_text(json.dumps({"prompts": golden_cases.prompts(), "chunk": chunk, "dtype": dtype, "page_size": page_size,
                                   "steps": golden_cases.STEPS, **more}))
        command = [LOGITS, self.folder / model, job]
        if ranks > 1:
            command[:0] = [ROOT / "launch/mpirun.sh", str(ranks)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def assert_close(self, computed, expected, tolerance=1e-4):
        for mine, golden in zip(computed, expected, strict=True):
            largest = max(abs(score) for score in golden["scores"])
            worst = max(abs(a - b) for a, b in zip(mine["scores"], golden["scores"], strict=True))
            self.assertLess(worst / largest, tolerance)

    def assert_equal(self, computed, expected):
        self.assert_close(computed, expected)
        self.assertEqual([each["tokens"] for each in computed], [each["tokens"] for each in expected])

    def test_every_family_computes_what_transformers_computes(self):
        self.assertEqual(set(self.golden), set(golden_cases.MODELS))
        for model, expected in self.golden.items():
            with self.subTest(model=model):
                self.assert_equal(self.compute(model), expected)

    def test_parts_of_a_prompt_give_what_the_whole_gives(self):
        for chunk, page_size in ((1, 1), (7, 4), (32, 16)):
            with self.subTest(chunk=chunk):
                self.assert_equal(self.compute("llama", chunk=chunk, page_size=page_size), self.golden["llama"])

    def test_ranks_give_what_one_gives(self):
        for model, ranks in (("llama", 2), ("qwen2", 2), ("qwen3", 2), ("llama", 4), ("llama-bias-tied", 4)):
            with self.subTest(model=model, ranks=ranks):
                self.assert_equal(self.compute(model, ranks=ranks), self.golden[model])

    def test_narrow_kv_is_close(self):
        for dtype, tolerance in (("fp16", 0.05), ("bf16", 0.3)):
            with self.subTest(dtype=dtype):
                self.assert_close(self.compute("qwen3", dtype=dtype), self.golden["qwen3"], tolerance)

    def test_a_flipped_bit_in_a_used_page_changes_the_answer(self):
        """So comparing tokens shows whether cached pages are right."""
        chosen = random.Random(5)
        changed = 0
        for _ in range(20):
            # A page of the third prompt, and the exponent of a number: its bytes are the last of four.
            flip = [chosen.randrange(3), chosen.randrange(2), chosen.randrange(6, 10), 4 * chosen.randrange(16 * 2 * 16) + 3]
            computed = self.compute("llama", flip=flip)
            self.assertEqual([each["tokens"] for each in computed[:2]], [each["tokens"] for each in self.golden["llama"][:2]])
            changed += computed[2]["tokens"] != self.golden["llama"][2]["tokens"]
        self.assertGreaterEqual(changed, 15)


if __name__ == "__main__":
    unittest.main(verbosity=2)
