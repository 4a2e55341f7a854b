"""tiny_model.py FOLDER [--sliding-window]

Writes a language model of 3.4 million random weights with its tokenizer: real enough for every engine, small enough for a test, and
downloaded from nowhere. With --sliding-window four of its six layers see 128 tokens only, so that engines keep its KV in two groups.
"""

import pathlib
import shutil
import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

logging.disable_progress_bar()
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}


def tokenizer():
    """One token for each byte."""
    vocabulary = {letter: number for number, letter in enumerate([*sorted(pre_tokenizers.ByteLevel.alphabet()), *SPECIAL.values()])}
    bytewise = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=bytewise, **SPECIAL)


def model(has_window, tokens):
    special = {f"{name}_id": tokens.convert_tokens_to_ids(token) for name, token in SPECIAL.items()}
    sizes = {"vocab_size": 512, "hidden_size": 256, "intermediate_size": 768, "num_attention_heads": 4, "num_key_value_heads": 2,
             "head_dim": 64, "max_position_embeddings": 8192, **special}
    if has_window:
        kinds = 2 * ["sliding_attention", "sliding_attention", "full_attention"]
        return Gemma3ForCausalLM(Gemma3TextConfig(**sizes, num_hidden_layers=len(kinds), layer_types=kinds, sliding_window=128, query_pre_attn_scalar=64))
    return LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=4, tie_word_embeddings=False))


def main(folder, has_window):
    torch.manual_seed(0)
    tokens = tokenizer()
    made = model(has_window, tokens).to(torch.bfloat16)
    if not has_window:
        # Attention with peaks: one wrong byte of KV changes the next token.
        with torch.no_grad():
            for weights in made.parameters():
                if weights.dim() == 2:
                    weights.mul_(6)
    made.save_pretrained(folder)
    tokens.save_pretrained(folder)


def write_adapter(folder, seed, scale=16):
    """A LoRA adapter of rank 8 for the model without windows, strong enough to change its answers."""
    import json

    from safetensors.torch import save_file

    made = torch.Generator().manual_seed(seed)
    sizes = {"q_proj": (256, 256), "v_proj": (256, 128)}
    tensors = {}
    for layer in range(4):
        for name, (width, height) in sizes.items():
            where = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{where}.lora_A.weight"] = torch.randn(8, width, generator=made)
            tensors[f"{where}.lora_B.weight"] = torch.randn(height, 8, generator=made)
    folder = pathlib.Path(folder)
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": scale, "target_modules": sorted(sizes), "bias": "none", "task_type": "CAUSAL_LM",
              "base_model_name_or_path": str(folder)}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return str(folder)


def replace_a_tensor(folder, name="model.safetensors"):
    """Another model with files of the same names, sizes and times."""
    import os

    file = pathlib.Path(folder) / name
    times = file.stat()
    with open(file, "r+b") as weights:
        weights.seek(-(1 << 16), os.SEEK_END)
        bytes_ = bytearray(weights.read())
        weights.seek(-(1 << 16), os.SEEK_END)
        # The signs of a tensor's end.
        bytes_[1::2] = bytes(byte ^ 0x80 for byte in bytes_[1::2])
        weights.write(bytes_)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


#: A model's positions that are counted otherwise beyond 2048.
LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 32, "long_factor": [4.0] * 32, "original_max_position_embeddings": 2048}


def changed(model, folder, file="config.json", **values):
    """A copy of a model with other values in one of its files."""
    import json

    path = pathlib.Path(shutil.copytree(model, folder)) / file
    path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **values}))
    return str(folder)


def hub_at(folder, model, monkeypatch):
    """A hub's cache with two commits of `some/model`, of which the first has a model's weights: each with its folder, while the branch is there."""
    own = folder / "models--some--model"
    snapshots = {letter * 40: own / "snapshots" / (letter * 40) for letter in "ab"}
    for snapshot in snapshots.values():
        shutil.copytree(model, snapshot)
    replace_a_tensor(snapshots["b" * 40])
    (own / "refs").mkdir()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for commit, snapshot in snapshots.items():
        (own / "refs" / "main").write_text(commit)
        yield commit, str(snapshot)


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    if not pathlib.Path(sys.argv[1], "config.json").exists():
        main(sys.argv[1], "--sliding-window" in sys.argv[2:])
