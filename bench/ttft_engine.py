"""An engine of examples/llama for a measurement: starts it, asks it for tokens, reads its counters."""

import http.client
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import time
import urllib.request

import store

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = 64
VOCABULARY = 272
PATIENCE_S = 1800
#: Of a start, with L1 and L2 to be taken from the system.
START_S = 120
#: Where engines compute.
DEVICE = "host"

#: Two shapes, by arguments of make_model.py: how much is computed for a token beside how much KV it leaves.
SHAPES = {
    "compute-bound": {"hidden": 512, "intermediate": 1408, "layers": 4, "heads": 2, "kv-heads": 1, "head-dim": 64},
    "memory-bound": {"hidden": 128, "intermediate": 128, "layers": 4, "heads": 2, "kv-heads": 2, "head-dim": 128},
}


def kv_bytes(shape):
    """Of a token: K and V of all layers as floats."""
    return 2 * shape["layers"] * shape["kv-heads"] * shape["head-dim"] * 4


def weights(shape):
    """Numbers that each token is multiplied with."""
    width = shape["head-dim"]
    attention = shape["hidden"] * width * (2 * shape["heads"] + 2 * shape["kv-heads"])
    return shape["layers"] * (attention + 3 * shape["hidden"] * shape["intermediate"]) + VOCABULARY * shape["hidden"]


def write_model(folder, shape):
    flags = [word for name, value in shape.items() for word in (f"--{name}", str(value))]
    subprocess.run([sys.executable, ROOT / "examples/llama/make_model.py", folder, "--positions", "65536", *flags], check=True)


def random_tokens(count, seed):
    return random.Random(seed).choices(range(VOCABULARY), k=count)


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def row(name, value, unit, baseline=None):
    """For table.py."""
    return {"name": name, "value": value, "unit": unit, "baseline": baseline, "ratio": value / baseline if baseline else None, "target": None, "holds": None}


BEGIN = time.perf_counter()


def say(text):
    print(f"Measuring: ttft, after {time.perf_counter() - BEGIN:4.0f} s: {text}", file=sys.stderr, flush=True)


def body_of(tokens, max_tokens, **more):
    return json.dumps({"prompt": tokens, "max_tokens": max_tokens, "stream": True, "ignore_eos": True, **more})


def stream(address, body, give_up):
    """Yields each event of a completion as it arrives. Leaving early ends the completion."""
    connection = http.client.HTTPConnection(address, timeout=PATIENCE_S)
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    try:
        response = connection.getresponse()
        for line in response:
            if b"token_ids" in line:
                yield line
            elif line.strip() not in (b"", b"data: [DONE]"):
                give_up(f"answered {response.status} {line}")
    finally:
        connection.close()


class Engine:
    """A running hicache-llama on one core, beside which hicache has the other one."""

    def __init__(self, programs, model, folder, *flags, page=PAGE):
        self.metrics_port = store.free_port()
        self.errors = open(folder / f"engine{self.metrics_port}.err", "w+", encoding="utf-8")
        command = [programs / "hicache-llama", model, "--listen", "127.0.0.1:0", "--page-size", page, "--device", DEVICE,
                   "--metrics-port", self.metrics_port, "--log-level", "warn", *flags]
        self.process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=self.errors, text=True,
                                        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})
        line = self.process.stdout.readline()
        if not line.startswith("listening on "):
            self.give_up("did not start")
        self.address = line.split()[2]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(START_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.errors.close()

    def give_up(self, what):
        self.errors.seek(0)
        self.process.kill()
        sys.exit(f"ttft.py: hicache-llama {what}\n{self.errors.read()}")

    def ask(self, tokens, max_tokens=1, since=None, **more):
        """Completes a prompt. @returns seconds until its first token, and until its last, from `since` or from now"""
        body = body_of(tokens, max_tokens, **more)
        begin = since or time.perf_counter()
        times = [time.perf_counter() for _ in stream(self.address, body, self.give_up)]
        return times[0] - begin, times[-1] - begin

    def counters(self):
        """Bytes between tiers as {"l2>l1": bytes}, and counters by name."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=60) as response:
            text = response.read().decode()
        found = {f"{source}>{target}": float(value) for source, target, value
                 in re.findall(r'^hicache_moved_bytes_total\{.*from="(\w+)",to="(\w+)"\} (\S+)$', text, re.MULTILINE)}
        return found | {name: float(value) for name, value in re.findall(r'^(\w+_total)(?:\{rank="0"\})? (\S+)$', text, re.MULTILINE)}
