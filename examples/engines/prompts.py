"""What the examples for engines share: prompts, and a report of how an engine served them."""

import json
import pathlib
import time

# Token numbers that any tokenizer has, of conversations that begin alike.
SYSTEM = [(i * 7) % 250 for i in range(1024)]
PROMPTS = [SYSTEM + [(i * 11 + k * 13) % 250 for i in range(500 + 256 * k)] for k in range(4)]


def serve(generate, report):
    """Has an engine answer all prompts, one after the other.

    generate: called with the tokens of a prompt and the number of tokens to answer; returns (tokens, how many of the prompt were cached)
    report: the file for the figures
    """
    generate([9] * 600, 16)  # What is compiled at the first use is no prefill.
    rows = []
    for prompt in PROMPTS:
        start = time.monotonic()
        tokens, cached = generate(prompt, 8)
        rows.append({"prompt": len(prompt), "cached": cached, "seconds": time.monotonic() - start, "tokens": tokens})
        print(f"prompt of {len(prompt)} tokens: {cached} cached, answered in {rows[-1]['seconds'] * 1000:.0f} ms", flush=True)
    # What was computed last is stored while the engine goes on.
    generate([8] * 600, 32)
    pathlib.Path(report).write_text(json.dumps(rows))
