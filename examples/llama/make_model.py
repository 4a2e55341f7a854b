#!/usr/bin/env python3
"""Writes a language model of random weights, small enough for a test: config.json and safetensors as transformers writes them.

Nothing is downloaded and nothing but Python's library is needed. Equal arguments write equal bytes, on every machine. Attention is peaky:
each token looks at few others, so that one wrong number in the KV of one of them changes what the model says.
"""

import argparse
import array
import json
import math
import pathlib
import random
import struct
import sys

FAMILIES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def pack(values, dtype):
    """The numbers as the little-endian bytes of a tensor."""
    if dtype == "F16":
        return struct.pack(f"<{len(values)}e", *values)
    floats = array.array("f", values)
    if sys.byteorder == "big":
        floats.byteswap()
    if dtype == "F32":
        return floats.tobytes()
    # BF16 is the upper half, rounded to the nearest, to the even one of two.
    words = array.array("I", floats.tobytes())
    return array.array("H", [(word + 0x7FFF + ((word >> 16) & 1)) >> 16 for word in words]).tobytes()


class Tensors:
    def __init__(self, seed, dtype):
        self.random = random.Random(seed)
        self.dtype = dtype
        self.made = {}

    def add(self, name, shape, deviation, mean=0.0):
        """Numbers of a uniform distribution: no function of the C library is in them, so they are the same everywhere."""
        count = math.prod(shape)
        whole = array.array("i")
        whole.frombytes(self.random.randbytes(4 * count))
        scale = deviation * math.sqrt(3) / 2**31
        self.made[name] = (shape, pack([mean + number * scale for number in whole], self.dtype))

    def linear(self, name, outputs, inputs, gain, bias=False):
        self.add(name + ".weight", (outputs, inputs), gain / math.sqrt(inputs))
        if bias:
            self.add(name + ".bias", (outputs,), 0.5 * gain)

    def norm(self, name, length):
        self.add(name + ".weight", (length,), 0.2, mean=1.0)

    def write(self, path, names):
        header, offset = {}, 0
        for name in names:
            shape, data = self.made[name]
            header[name] = {"dtype": self.dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
            offset += len(data)
        text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
        text += b" " * (-len(text) % 8)
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for name in names:
                file.write(self.made[name][1])


def config_of(options):
    config = {
        "architectures": [FAMILIES[options.family]], "model_type": options.family, "vocab_size": options.vocabulary,
        "hidden_size": options.hidden, "intermediate_size": options.intermediate, "num_hidden_layers": options.layers,
        "num_attention_heads": options.heads, "num_key_value_heads": options.kv_heads, "head_dim": options.head_dim,
        "max_position_embeddings": options.positions, "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": options.tied,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, **json.loads(options.rope)},
        "torch_dtype": {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}[options.dtype], "bos_token_id": None, "eos_token_id": None,
    }
    if options.bias:
        config["attention_bias"] = True
    return config


def make_tensors(options):
    tensors = Tensors(options.seed, options.dtype)
    hidden, width = options.hidden, options.head_dim
    qkv_bias = options.bias or options.family == "qwen2"
    tensors.add("model.embed_tokens.weight", (options.vocabulary, hidden), 1.0)
    for layer in range(options.layers):
        prefix = f"model.layers.{layer}."
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        tensors.norm(prefix + "input_layernorm", hidden)
        tensors.linear(attention + "q_proj", options.heads * width, hidden, options.sharpness, qkv_bias)
        tensors.linear(attention + "k_proj", options.kv_heads * width, hidden, options.sharpness, qkv_bias)
        tensors.linear(attention + "v_proj", options.kv_heads * width, hidden, 1.0, qkv_bias)
        tensors.linear(attention + "o_proj", hidden, options.heads * width, 2.0, options.bias and options.family != "qwen2")
        if options.family == "qwen3":
            tensors.norm(attention + "q_norm", width)
            tensors.norm(attention + "k_norm", width)
        tensors.norm(prefix + "post_attention_layernorm", hidden)
        tensors.linear(mlp + "gate_proj", options.intermediate, hidden, 1.0)
        tensors.linear(mlp + "up_proj", options.intermediate, hidden, 1.0)
        tensors.linear(mlp + "down_proj", hidden, options.intermediate, 1.0)
    tensors.norm("model.norm", hidden)
    if not options.tied:
        tensors.linear("lm_head", options.vocabulary, hidden, 1.0)
    return tensors


def write_model(options):
    folder = pathlib.Path(options.folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = make_tensors(options)
    names = list(tensors.made)
    if options.shards == 1:
        tensors.write(folder / "model.safetensors", names)
    else:
        files = [f"model-{shard + 1:05}-of-{options.shards:05}.safetensors" for shard in range(options.shards)]
        for shard, file in enumerate(files):
            tensors.write(folder / file, names[shard::options.shards])
        total = sum(len(data) for _, data in tensors.made.values())
        weight_map = {name: files[number % options.shards] for number, name in enumerate(names)}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps(config_of(options), indent=2) + "\n")


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--family", choices=FAMILIES, default="llama")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dtype", choices=("F32", "BF16", "F16"), default="F32")
    for name, default, help_text in (("vocabulary", 272, "tokens; those below 256 are bytes"), ("hidden", 64, ""), ("intermediate", 96, ""),
                                     ("layers", 3, ""), ("heads", 4, ""), ("kv-heads", 4, ""), ("head-dim", 16, ""), ("positions", 8192, "longest sequence"),
                                     ("shards", 1, "files for the weights")):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{help_text} (default {default})".strip())
    parser.add_argument("--rope", default="{}", help="JSON: rope_type, rope_theta, factor and so on")
    parser.add_argument("--sharpness", type=float, default=2.5, help="how peaky attention is (default 2.5)")
    parser.add_argument("--tied", action="store_true", help="the output layer uses the embedding")
    parser.add_argument("--bias", action="store_true", help="attention_bias")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    write_model(parse())
