"""What golden.json holds: models of make_model.py, by their arguments, and the prompts that each of them completes."""

import random

MODELS = {
    "llama": ["--kv-heads", "2"],
    "llama-bias-tied": ["--bias", "--tied", "--heads", "8", "--kv-heads", "2", "--head-dim", "8"],
    "llama-f16": ["--dtype", "F16", "--shards", "3"],
    "llama-linear": ["--rope", '{"rope_type": "linear", "factor": 4.0}'],
    "llama-llama3": ["--rope", '{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,'
                     ' "original_max_position_embeddings": 64, "rope_theta": 500000.0}'],
    "llama-yarn": ["--rope", '{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}', "--positions", "128"],
    "qwen2": ["--family", "qwen2", "--kv-heads", "2"],
    "qwen2-bf16-tied": ["--family", "qwen2", "--dtype", "BF16", "--tied", "--shards", "2"],
    "qwen3": ["--family", "qwen3", "--kv-heads", "2", "--head-dim", "32"],
    "qwen3-bias": ["--family", "qwen3", "--bias"],
}
STEPS = 12


def prompts():
    chosen = random.Random(7)
    return [[chosen.randrange(272) for _ in range(length)] for length in (5, 33, 70)]
