"""golden.py: writes golden.json, what transformers computes of the models of golden_cases.py.

For people, when a case is added: needs torch, transformers and safetensors, on the CPU. The tests need none of them:

    python3 -m venv /tmp/golden && /tmp/golden/bin/pip install torch transformers safetensors
    /tmp/golden/bin/python tests/llama/golden.py
"""

import json
import pathlib
import sys
import tempfile

import torch
import transformers

from golden_cases import MODELS, STEPS, prompts

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "examples/llama"))
import make_model


def complete(model, prompt):
    """The scores after the prompt, and the likeliest tokens one after the other."""
    tokens, scores = list(prompt), None
    for _ in range(STEPS):
        with torch.no_grad():
            last = model(torch.tensor([tokens])).logits[0, -1]
        scores = last if scores is None else scores
        tokens.append(int(last.argmax()))
    return {"scores": [float(f"{score:.6g}") for score in scores.tolist()], "tokens": tokens[len(prompt):]}


def main():
    torch.set_num_threads(1)
    found = {"transformers": transformers.__version__, "torch": torch.__version__, "models": {}}
    for name, arguments in MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            make_model.write_model(make_model.parse([folder, *arguments]))
            model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
            found["models"][name] = [complete(model, prompt) for prompt in prompts()]
            print(name, [each["tokens"] for each in found["models"][name]])
    text = json.dumps(found, separators=(",", ":")).replace('{"scores"', '\n{"scores"')
    (HERE / "golden.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
