"""ttft.py BUILD_DIRECTORY RESULT.json PLOT.svg [--short] [--only PART,...]

Time to the first token of prompts of growing length: computed, and with their KV in L1, in L2, in the memory of another instance on the same host, in that
of another one by TCP, on a disk, in a slow store, and loaded or computed as the instance chooses; for a model that computes much for each byte of KV, and for
one that computes little. How much of a load layers hide, and from which length on loading beats computing. Then what a prefill instance is worth to one that
decodes (ttft_handoff.py), what the router costs (ttft_router.py), and what each tier is worth under load (ttft_load.py).
"""

import argparse
import contextlib
import json
import math
import os
import pathlib
import statistics
import sys
import tempfile
import time

import ttft_engine as engines
import ttft_handoff
import ttft_load
import ttft_plot
import ttft_router
from step_replay import running_index
from ttft_engine import PAGE, ROOT, Engine, kv_bytes, random_tokens, row, say

#: Tokens that a tier can have; one more is computed.
SHORT = (64, 128, 256)
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
LONGEST_IF_SHORT = 2048
#: Prompts of each length: of short ones several, whose median is taken.
SEVERAL, SEVERAL_BELOW = 3, 8192
ROUNDS = 3
#: Those that choose come behind the tiers that they choose from.
TIERS = ("computed", "L1", "L2", "L3, same host", "L3, TCP", "L3, disk", "L3, slow")
CHOICES = {"chosen, same host": "L3, same host", "chosen, slow": "L3, slow"}
#: Which way bytes go if the tier has them.
WAYS = {"L2": "l2>l1"} | dict.fromkeys(TIERS[3:], "l3>l2")
#: Lengths with a row in the table of run.sh.
ROW_LENGTHS = (2048, 8192, 32768)
#: New tokens behind a prompt of this length in L2, whose computation hides the load.
TAILS, TAIL_BEHIND = (1, 64, 256, 512), 16384
#: Prompts in L3 from which an instance learns how fast that is, and how far apart: what it does not take it reads at most every 5 s, to measure.
LEARN_FROM, LEARN_EVERY_S = (512, 2048), 5.5
#: Prompts of the slow store, asked of an engine that chooses and of one without L3 in turns: several of each length, as the times of two engines vary.
BESIDE_LENGTHS, BESIDE_COPIES = (512, 1024, 2048), 8
#: Each call of the slow store, and what all of them share.
SLOW = {"call_seconds": 0.1, "bytes_per_second": 32 << 20}


def copies_of(length):
    return SEVERAL if length < SEVERAL_BELOW else 1


class Sweep:
    """One shape: an engine computes all prompts once, and keeps them in all tiers."""

    def __init__(self, name, shape, programs, folder, disk, is_short):
        self.name, self.shape, self.programs, self.folder, self.disk = name, shape, programs, folder, disk
        self.rounds = 1 if is_short else ROUNDS
        longest = LONGEST_IF_SHORT if is_short else max(LENGTHS)
        self.lengths = [length for length in (*SHORT, *LENGTHS) if length <= longest]
        self.prompts = {(length, copy): random_tokens(length + 1, f"{length}.{copy}")
                        for length in self.lengths for copy in range(copies_of(length))}
        self.known = [random_tokens(min(length, longest) + 1, f"known{length}") for length in LEARN_FROM]
        self.times = {tier: {length: [] for length in self.lengths} for tier in (*TIERS, *CHOICES)}
        self.loaded = {tier: {length: [] for length in self.lengths} for tier in CHOICES}
        self.beside = {(length, copy): random_tokens(length + 1, f"beside{length}.{copy}") for length in BESIDE_LENGTHS for copy in range(BESIDE_COPIES)}
        self.without_l3 = {length: [] for length in BESIDE_LENGTHS}
        self.estimates = {}
        self.hidden = {}
        self.model = folder / name
        engines.write_model(self.model, shape)
        self.pages = sum(len(prompt) // PAGE + 1 for prompt in (*self.prompts.values(), *self.known, *self.beside.values()))
        # L1 has room for the longest prompt and its tails; L2 for all of them and what comes from L3.
        self.l1_pages = max(self.lengths) // PAGE + 16
        l2_pages = 2 * self.pages + 4 * max(self.lengths) // PAGE + 64
        self.sizes = ["--device-pages", self.l1_pages, "--hicache-ratio", f"{l2_pages / self.l1_pages:.3f}", "--hicache-storage-timeout", "120s"]

    def page_bytes(self):
        return kv_bytes(self.shape) * PAGE

    def store_flags(self, **config):
        return ["--hicache-storage-backend", config.pop("backend"), "--hicache-storage-backend-extra-config",
                json.dumps({"prefetch_threshold": PAGE, **config})]

    def disk_config(self):
        return {"path": str(self.disk / self.name), "max_bytes": 2 * self.pages * self.page_bytes() + (64 << 20)}

    def slow_config(self, store, **more):
        """Of a store of bench/slow_store.py."""
        path = self.disk / f"{self.name}-slow"
        path.mkdir(exist_ok=True)
        paths = ":".join(str(ROOT / each) for each in ("bench", "clients/python", "tests/backends/external"))
        python = os.environ.get("HICACHE_STORE_PYTHON", sys.executable)
        command = f"exec env PYTHONPATH={paths} PYTHONDONTWRITEBYTECODE=1 {python} -m hicache store-host --fd 3 {store}"
        return {"backend": "external", "command": command, "path": str(path), **more}

    def run(self):
        with running_index(self.programs) as index:
            segment = int(1.3 * self.pages * self.page_bytes()) + (64 << 20)
            tiers = [{"backend": "cluster"}, {"backend": "disk", **self.disk_config()}, self.slow_config("folder_store:FolderStore")]
            with Engine(self.programs, self.model, self.folder, *self.sizes, *self.store_flags(backend="tiered", tiers=tiers),
                        "--index", index, "--segment-size", segment) as writer:
                self.compute(writer)
                self.load_from_l2(writer)
                self.hide(writer)
                self.wait_for_writes(writer)
                for tier, config in (("L3, same host", {}), ("L3, TCP", {"force_remote_reads": True})):
                    self.load_from_l3(tier, *self.store_flags(backend="cluster", **config), "--index", index, "--page-transport", "tcp")
                self.choose("chosen, same host", *self.store_flags(backend="cluster"), "--index", index)
        self.load_from_l3("L3, disk", *self.store_flags(backend="disk", **self.disk_config()))
        slow = self.store_flags(**self.slow_config("slow_store:SlowStore", **SLOW))
        self.load_from_l3("L3, slow", *slow, readers=1)
        self.choose("chosen, slow", *slow)
        self.choose_beside("chosen, slow", *slow)

    def compute(self, writer):
        for prompt in (random_tokens(600, "warm"), *self.known):
            writer.ask(prompt)
        for (length, copy), prompt in self.prompts.items():
            if copy == 0:
                say(f"{self.name}: {length} tokens, computed and in L1")
            self.times["computed"][length].append(writer.ask(prompt)[0])
            self.times["L1"][length] += [writer.ask(prompt)[0] for _ in range(self.rounds)]
        for prompt in self.beside.values():
            writer.ask(prompt)

    def measure(self, running, tier, key):
        """Asks for a prompt that the tier has."""
        length, _ = key
        before = running.counters()
        self.times[tier][length].append(running.ask(self.prompts[key])[0])
        moved = running.counters()[WAYS[tier]] - before[WAYS[tier]]
        if moved < 0.98 * length * kv_bytes(self.shape):
            sys.exit(f"ttft.py: {moved:.0f} bytes of a prompt of {length} tokens came from {tier}; expected {length * kv_bytes(self.shape)}")

    def fill_l1(self, writer, except_for):
        """Has L1 lose one prompt to the others, the shortest of which stay in what room there is besides the longest. Twice: what L1 has of the others at
        the beginning is not loaded, and takes no room."""
        for key in 2 * sorted(self.prompts, reverse=True):
            if key != except_for:
                writer.ask(self.prompts[key])

    def load_from_l2(self, writer):
        say(f"{self.name}: L2")
        for _ in range(self.rounds):
            for key in sorted(self.prompts, reverse=True):
                if key[0] == max(self.lengths):
                    self.fill_l1(writer, key)
                self.measure(writer, "L2", key)

    def hide(self, writer):
        """Share of a load's time in which no layer waited for it. The load's time is what a prompt takes longer from L2 than from L1 with one new token,
        behind which nothing is hidden."""
        length = self.tails_behind()
        waits, loads = {tail: [] for tail in TAILS}, []
        for turn in range(self.rounds):
            say(f"{self.name}: new tokens behind {length} in L2")
            for tail in TAILS:
                self.fill_l1(writer, (length, 0))
                before = writer.counters()
                seconds, _ = writer.ask(self.prompts[length, 0][:length] + random_tokens(tail, f"tail{turn}{tail}"))
                after = writer.counters()
                if after["l2>l1"] - before["l2>l1"] < 0.98 * length * kv_bytes(self.shape):
                    sys.exit("ttft.py: a prompt was not loaded from L2")
                waits[tail].append(after["llama_load_wait_seconds_total"] - before["llama_load_wait_seconds_total"])
                if tail == TAILS[0]:
                    loads.append(seconds - writer.ask(self.prompts[length, 0])[0])
        self.load_s = max(statistics.median(loads), statistics.median(waits[TAILS[0]]))
        self.hidden = {tail: 1 - statistics.median(waits[tail]) / self.load_s for tail in TAILS[1:]}

    def tails_behind(self):
        return min(TAIL_BEHIND, max(self.lengths))

    def wait_for_writes(self, writer):
        """Until L3 has taken everything: nothing was written for a second."""
        written = -1
        while written != (now := writer.counters()["l2>l3"]):
            written = now
            time.sleep(1)
        if dropped := writer.counters().get("hicache_dropped_backup_pages_total"):
            sys.exit(f"ttft.py: L3 did not take {dropped:.0f} pages")

    def load_from_l3(self, tier, *flags, readers=2):
        """By instances that have just started, so that they have nothing above L3."""
        say(f"{self.name}: {tier}")
        for _ in range(readers):
            with Engine(self.programs, self.model, self.folder, *self.sizes, *flags) as reader:
                reader.ask(random_tokens(600, "warm"))
                for key in self.prompts:
                    self.measure(reader, tier, key)

    def choose(self, tier, *flags):
        """By an instance that loads what it takes to be faster to load than to compute, after it has measured both."""
        say(f"{self.name}: {tier}")
        log = self.folder / "ops.jsonl"
        with Engine(self.programs, self.model, self.folder, *self.sizes, *flags, "--prefetch-when", "faster", "--record-ops", log) as reader:
            reader.ask(random_tokens(600, "warm"))
            for prompt in self.known:
                reader.ask(prompt)
                time.sleep(LEARN_EVERY_S)
            for (length, _), prompt in self.prompts.items():
                # Not by the bytes from L3: what it reads only to measure is thrown away.
                before = reader.counters()["llama_cached_tokens_total"]
                self.times[tier][length].append(reader.ask(prompt)[0])
                self.loaded[tier][length].append((reader.counters()["llama_cached_tokens_total"] - before) / length)
        self.estimates[tier] = read_estimates(log)

    def choose_beside(self, tier, *flags):
        """The same beside an engine without L3, prompt by prompt."""
        say(f"{self.name}: {tier}, beside an instance without L3")
        without = Engine(self.programs, self.model, self.folder, *self.sizes)
        choosing = Engine(self.programs, self.model, self.folder, *self.sizes, *flags, "--prefetch-when", "faster")
        with without, choosing:
            for engine in (without, choosing):
                engine.ask(random_tokens(600, "warm"))
            for prompt in self.known:
                without.ask(prompt)
                choosing.ask(prompt)
                time.sleep(LEARN_EVERY_S)
            for turn, ((length, _), prompt) in enumerate(self.beside.items()):
                seconds = {engine: engine.ask(prompt)[0] for engine in ((without, choosing) if turn % 2 else (choosing, without))}
                self.without_l3[length].append((seconds[choosing], seconds[without]))

    # -- results ------------------------------------------------------------------

    def median(self, tier, length):
        return statistics.median(self.times[tier][length])

    def points(self):
        return {tier: [(length, self.median(tier, length)) for length in self.lengths] for tier in self.times}

    def cost(self, tier):
        """Fixed seconds of a load, and those of each token, by least squares of relative errors up to the length where computing is no longer even."""
        points = [(length, self.median(tier, length)) for length in self.lengths if length <= 8192]
        weigh = [1 / seconds**2 for _, seconds in points]
        total = sum(weigh)
        mean_x = sum(w * x for w, (x, _) in zip(weigh, points)) / total
        mean_y = sum(w * y for w, (_, y) in zip(weigh, points)) / total
        slope = sum(w * (x - mean_x) * (y - mean_y) for w, (x, y) in zip(weigh, points)) / sum(w * (x - mean_x)**2 for w, (x, _) in zip(weigh, points))
        return mean_y - slope * mean_x, slope

    def fitted_crossing(self, tier):
        """Tokens at which the estimated costs of loading and computing are equal; infinite if loading never gains."""
        (fixed_load, load), (fixed, compute) = self.cost(tier), self.cost("computed")
        return max(0, fixed_load - fixed) / (compute - load) if compute > load else math.inf

    def measured_crossing(self, tier):
        return crossing([(length, self.median(tier, length), self.median("computed", length)) for length in self.lengths])

    def rows(self):
        rows = []
        for length in (length for length in ROW_LENGTHS if length in self.lengths):
            rows += [row(f"first token, {self.name}, {length} tokens: {tier}, beside computed", 1e3 * self.median(tier, length), "ms",
                         1e3 * self.median("computed", length)) for tier in list(self.times)[1:]]
        rows += [ratio_row(f"first token, {self.name}, {length} tokens: chosen, slow, beside without L3", pairs) for length, pairs in self.without_l3.items()]
        rows.append(row(f"load of {self.tails_behind()} tokens, {self.name}: L2 to L1", 1e3 * self.load_s, "ms"))
        return rows + [row(f"the same hidden behind the layers of {tail} new tokens, {self.name}", 100 * share, "%") for tail, share in self.hidden.items()]


def ratio_row(name, pairs):
    """A row by the median of the ratios, of times that were measured in turns: [(seconds, seconds of the baseline)]."""
    ratio = statistics.median(seconds / baseline for seconds, baseline in pairs)
    seconds, baseline = (1e3 * statistics.median(values) for values in zip(*pairs))
    return row(name, seconds, "ms", baseline) | {"ratio": ratio, "target": "ratio <= 1.05", "holds": ratio <= 1.05}


def crossing(points):
    """Where loading begins to gain: between the last length at which computing is faster and the next one; 0 if there is none, infinite if it is the longest.
    @param points [(tokens, seconds to load, seconds to compute)]"""
    gains = [(length, math.log(load / compute)) for length, load, compute in points]
    slower = [i for i, (_, gain) in enumerate(gains) if gain > 0]
    if not slower:
        return 0
    if slower[-1] == len(gains) - 1:
        return math.inf
    (a, high), (b, low) = gains[slower[-1]:slower[-1] + 2]
    return a * (b / a)**(high / (high - low))


def read_estimates(log):
    """What an instance expected of the prompts that L3 had. @returns [(tokens, seconds to load, seconds to compute)], medians of each length"""
    found = {}
    with open(log, encoding="utf-8") as file:
        for line in file:
            for arrived, pages, _, load, compute, *_ in json.loads(line).get("fetches", []):
                if arrived >= 0 and load > 0 and compute > 0:
                    found.setdefault(pages * PAGE, []).append((load / 1e9, compute / 1e9))
    return [(tokens, *map(statistics.median, zip(*found[tokens]))) for tokens in sorted(found)]


def show_tokens(count):
    if count is None:
        return ""
    return "never" if math.isinf(count) else f"< {SHORT[0]}" if count < SHORT[0] else f"{count:.0f}"


def show_ms(seconds):
    return f"{1e3 * seconds:.1f}" if seconds < 0.1 else f"{1e3 * seconds:.0f}"


def show_table(lines):
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    for line in lines:
        print("  ".join([line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:]))]).rstrip())


def show(sweep):
    shape = sweep.shape
    print(f"\n{sweep.name}: {engines.weights(shape) / 1e6:.1f} million weights, {kv_bytes(shape) >> 10} KiB of KV a token; ms to the first token")
    show_table([("tokens", *map(str, sweep.lengths)), *((tier, *(show_ms(sweep.median(tier, length)) for length in sweep.lengths)) for tier in sweep.times),
                *((f"% loaded: {tier}", *(f"{100 * statistics.median(sweep.loaded[tier][length]):.0f}" for length in sweep.lengths)) for tier in CHOICES)])
    print()
    lines = [("loading beats computing from", "measured", "fitted", "estimated", "ms of a load", "us a token")]
    for tier in (*TIERS[2:], "computed"):
        fixed, each = sweep.cost(tier)
        estimates = next((sweep.estimates[choice] for choice, of in CHOICES.items() if of == tier), [])
        begins = [sweep.measured_crossing(tier), sweep.fitted_crossing(tier)] if tier != "computed" else [None, None]
        begins.append(crossing(estimates) if estimates else None)
        lines.append((tier, *map(show_tokens, begins), f"{1e3 * fixed:.1f}", f"{1e6 * each:.1f}"))
    show_table(lines)


PARTS = (*engines.SHAPES, "handoff", "router", "load")


def parts_of(text):
    chosen = text.split(",")
    if unknown := set(chosen) - set(PARTS):
        raise argparse.ArgumentTypeError(f"there is no part '{unknown.pop()}'; expected some of {','.join(PARTS)}")
    return chosen


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("result")
    parser.add_argument("plot", type=pathlib.Path)
    parser.add_argument("--short", action="store_true", help="fewer lengths, rounds and rates; draws nothing")
    parser.add_argument("--only", type=parts_of, default=PARTS, metavar="PART,...", help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--device", default=engines.DEVICE, help="where the engines compute: host, or cuda for the two shapes")
    options = parser.parse_args()
    engines.DEVICE = options.device
    programs = options.build.resolve() / "bin"
    rows, sweeps = [], []
    with contextlib.ExitStack() as folders:
        folder = pathlib.Path(folders.enter_context(tempfile.TemporaryDirectory(prefix="hicache-bench-")))
        # The stores' folder has to be on a disk, not in memory.
        disk = pathlib.Path(folders.enter_context(tempfile.TemporaryDirectory(prefix="hicache-bench-", dir=os.environ.get("HICACHE_BENCH_DISK", ".")))).resolve()
        for name, shape in engines.SHAPES.items():
            if name in options.only:
                sweep = Sweep(name, shape, programs, folder, disk, options.short)
                sweep.run()
                show(sweep)
                sweeps.append(sweep)
                rows += sweep.rows()
        for name, part in (("handoff", ttft_handoff), ("router", ttft_router), ("load", ttft_load)):
            if name in options.only:
                rows += part.measure(programs, folder, options.short)
        say("done")
    if len(sweeps) == len(engines.SHAPES) and not options.short:
        options.plot.write_text(ttft_plot.draw({sweep.name: sweep.points() for sweep in sweeps}), encoding="utf-8")
    pathlib.Path(options.result).write_text(json.dumps({"rows": rows}), encoding="utf-8")


if __name__ == "__main__":
    main()
