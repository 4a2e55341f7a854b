"""What each tier is worth under load: the conversation trace, smaller, arrives at several rates whether or not the engine keeps up; without a cache, with L1,
with L2 below it, and with an L3 that another instance has filled."""

import concurrent.futures
import contextlib
import itertools
import json
import random
import statistics
import time

import ttft_engine as engines
from step_replay import running_index
from ttft_engine import ROOT, VOCABULARY, Engine, percentile, row, say

TRACE = ROOT.parent / "shared/traces/conversation_trace.jsonl"
#: A block of 512 tokens of the trace is one of so many, and answers are shorter likewise.
BLOCK, SHRINK = 16, 32
SECONDS, SHORT_SECONDS = 15, 5
#: Requests in a second.
RATES, SHORT_RATES = (2, 4, 8), (4,)
#: As many as the engine's API serves side by side.
CLIENTS = 64
PAGE = 16
#: There is no engine without L2: a page of it is the least.
TIERS = {
    "no cache": ["--device-pages", "512", "--disable-radix-cache"],
    "L1": ["--device-pages", "512", "--hicache-ratio", "0.002"],
    "L1 and L2": ["--device-pages", "512", "--hicache-ratio", "2"],
    "L1, L2 and L3": ["--device-pages", "512", "--hicache-ratio", "2"],
}


def read_requests(count):
    """@returns [(seconds, tokens, max_tokens)] of the trace's first requests"""
    requests = []
    with open(TRACE, encoding="utf-8") as file:
        for row in map(json.loads, itertools.islice(file, count)):
            tokens = [token for block in row["hash_ids"] for token in random.Random(block).choices(range(VOCABULARY), k=BLOCK)]
            requests.append((row["timestamp"] / 1e3, tokens[:max(2, row["input_length"] // SHRINK)], max(1, row["output_length"] // SHRINK)))
    return requests


def play(running, rate, seconds):
    """Has requests arrive as in the trace, so many in a second. @returns times to the first token, and tokens in a second"""
    requests = read_requests(rate * seconds)
    speed = requests[-1][0] / seconds if requests[-1][0] > 0 else 1
    begin = time.perf_counter() + 0.1

    def send(request):
        at, tokens, most = request
        arrival = begin + at / speed
        time.sleep(max(0, arrival - time.perf_counter()))
        # A request that finds no free client has waited as well.
        return running.ask(tokens, most, since=arrival)

    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        times = list(pool.map(send, requests))
    end = max(at / speed + total for (at, _, _), (_, total) in zip(requests, times))
    return [first for first, _ in times], sum(len(tokens) + most for _, tokens, most in requests) / end


def measure(programs, folder, is_short):
    """@returns rows"""
    if not TRACE.exists():
        say(f"no {TRACE.name}, so no load")
        return []
    model = folder / "load"
    engines.write_model(model, engines.SHAPES["compute-bound"])
    rates, seconds = (SHORT_RATES, SHORT_SECONDS) if is_short else (RATES, SECONDS)
    measured = {}
    with contextlib.ExitStack() as running:
        index = running.enter_context(running_index(programs))
        cluster = ["--hicache-storage-backend", "cluster", "--index", index, "--hicache-storage-backend-extra-config", json.dumps({"prefetch_threshold": PAGE})]
        say("load: filling L3")
        keeper = running.enter_context(Engine(programs, model, folder, "--device-pages", "4096", *cluster, "--segment-size", "512MiB", page=PAGE))
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda request: keeper.ask(request[1], request[2]), read_requests(max(rates) * seconds)))
        # What is compared is measured one after the other, in an instance that has just started.
        for rate, (tiers, flags) in itertools.product(rates, TIERS.items()):
            say(f"load: {rate} requests a second, {tiers}")
            with Engine(programs, model, folder, *flags, *(cluster if tiers.endswith("L3") else []), page=PAGE) as engine:
                measured[tiers, rate] = play(engine, rate, seconds)
    rows = []
    for rate, tiers in itertools.product(rates, TIERS):
        (times, speed), (without, slow) = measured[tiers, rate], measured["no cache", rate]
        has_baseline = tiers != "no cache"
        for what, value, baseline, unit in (("throughput", speed, slow, "tok/s"),
                                            ("first token, median", 1e3 * statistics.median(times), 1e3 * statistics.median(without), "ms"),
                                            ("first token, p99", 1e3 * percentile(times, 0.99), 1e3 * percentile(without, 0.99), "ms")):
            rows.append(row(f"conversation trace, {rate} requests/s, {tiers}: {what}", value, unit, baseline if has_baseline else None))
    return rows
