"""What a decode instance gains from a prefill instance: it has a prompt's KV handed over, loads what the other one has written to L3, or computes it itself.
Time to the first token, and between the tokens of completions that the instance decodes meanwhile."""

import contextlib
import itertools
import json
import statistics
import threading
import time

import ttft_engine as engines
from step_replay import running_index
from ttft_engine import PAGE, Engine, kv_bytes, percentile, random_tokens, row, say

SHAPE = "compute-bound"
WAYS = ("handed over", "through L3", "computed there")
LENGTHS, SHORT_LENGTHS = (512, 2048, 8192), (512, 2048)
ROUNDS, SHORT_ROUNDS = 5, 2
#: Completions that are decoded meanwhile, the prompts that come in, and seconds without any.
STREAMS, PROMPT, QUIET_S = 4, 4096, 2


class Instances:
    """A prefill and a decode instance without L3, and the same with one."""

    def __init__(self, programs, folder, running, longest):
        model = folder / "handoff"
        engines.write_model(model, engines.SHAPES[SHAPE])
        index = running.enter_context(running_index(programs))
        stored = ["--hicache-storage-backend", "cluster", "--index", index, "--segment-size", "256MiB", "--hicache-storage-backend-extra-config",
                  json.dumps({"prefetch_threshold": PAGE})]
        self.engines = {}
        for tiers, role in itertools.product(("no L3", "L3"), ("prefill", "decode")):
            self.engines[tiers, role] = running.enter_context(
                Engine(programs, model, folder, "--role", role, "--device-pages", 4 * longest // PAGE, "--hicache-ratio", "2", "--handoff-memory", "256MiB",
                       *(stored if tiers == "L3" else [])))

    def decoder(self, way):
        return self.engines["L3" if way == "through L3" else "no L3", "decode"]

    def first_token(self, way, tokens):
        """@returns seconds from the request to the first token, and which share of the prompt the decode instance did not compute"""
        decoder = self.decoder(way)
        prefill = [self.engines["no L3", "prefill"].address] if way == "handed over" else []
        before = decoder.counters()
        begin = time.perf_counter()
        if way == "through L3":
            self.engines["L3", "prefill"].ask(tokens)
        seconds, _ = decoder.ask(tokens, since=begin, prefill=prefill)
        after = decoder.counters()
        handed = after["llama_handed_tokens_total"] - before["llama_handed_tokens_total"]
        loaded = (after["l3>l2"] - before["l3>l2"]) / kv_bytes(engines.SHAPES[SHAPE])
        return seconds, (handed + loaded) / len(tokens)


class Streams:
    """Completions that an instance decodes."""

    def __init__(self, engine, seed):
        self.times = [[] for _ in range(STREAMS)]
        self.is_over = False
        self.have_begun = threading.Barrier(STREAMS + 1, timeout=engines.START_S)
        self.threads = [threading.Thread(target=self.read, args=(engine, random_tokens(PAGE, f"{seed}.{number}"), times))
                        for number, times in enumerate(self.times)]

    def read(self, engine, prompt, times):
        body = engines.body_of(prompt, 1 << 20, prefill=[])
        with contextlib.closing(engines.stream(engine.address, body, engine.give_up)) as parts:
            for _ in parts:
                times.append(time.perf_counter())
                if len(times) == 1:
                    self.have_begun.wait()
                if self.is_over:
                    return

    def __enter__(self):
        for each in self.threads:
            each.start()
        self.have_begun.wait()
        return self

    def __exit__(self, *_):
        self.is_over = True
        for each in self.threads:
            each.join()

    def gaps(self, begin, end):
        """Seconds between tokens, from the last one before `begin` to the first one after `end`."""
        return [b - a for times in self.times for a, b in itertools.pairwise(times) if b > begin and a < end]


def measure_first_tokens(instances, lengths, rounds):
    rows = []
    for length in lengths:
        say(f"handoff: {length} tokens")
        found = {way: [] for way in WAYS}
        for turn, way in itertools.product(range(rounds), WAYS):
            found[way].append(instances.first_token(way, random_tokens(length, f"{way}{length}.{turn}")))
        medians = {way: [statistics.median(values) for values in zip(*found[way])] for way in WAYS}
        computed = 1e3 * medians["computed there"][0]
        rows.append(row(f"decode instance, first token of {length} tokens: computed there", computed, "ms"))
        for way in ("handed over", "through L3"):
            rows += [row(f"decode instance, first token of {length} tokens: {way}, beside computed there", 1e3 * medians[way][0], "ms", computed),
                     row(f"decode instance, what of {length} tokens it did not compute: {way}", 100 * medians[way][1], "%")]
    return rows


def measure_gaps(instances, length, rounds):
    gaps = {way: [] for way in ("no prompts", *WAYS)}
    for turn, way in itertools.product(range(rounds), gaps):
        say(f"handoff: time between tokens, {way}")
        with Streams(instances.decoder(way), f"stream{way}{turn}") as streams:
            begin = time.perf_counter()
            if way == "no prompts":
                time.sleep(QUIET_S)
            else:
                instances.first_token(way, random_tokens(length, f"gap{way}{turn}"))
            end = time.perf_counter()
        gaps[way] += streams.gaps(begin, end)
    rows = []
    for (way, values), (name, share) in itertools.product(gaps.items(), (("median", 0.5), ("p99", 0.99))):
        what = way if way == "no prompts" else f"prompts of {length} tokens {way}, beside no prompts"
        rows.append(row(f"decode instance, between tokens of {STREAMS} completions: {what}, {name}", 1e3 * percentile(values, share), "ms",
                        None if way == "no prompts" else 1e3 * percentile(gaps["no prompts"], share)))
    return rows


def measure(programs, folder, is_short):
    """@returns rows"""
    lengths, rounds = (SHORT_LENGTHS, SHORT_ROUNDS) if is_short else (LENGTHS, ROUNDS)
    say("handoff: two prefill and two decode instances start")
    with contextlib.ExitStack() as running:
        instances = Instances(programs, folder, running, max(lengths))
        for way in WAYS:  # Opens connections, and maps memory.
            instances.first_token(way, random_tokens(600, f"warm{way}"))
        return measure_first_tokens(instances, lengths, rounds) + measure_gaps(instances, min(PROMPT, max(lengths)), rounds)
