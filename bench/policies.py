"""policies.py BUILD_DIRECTORY TRACE RESULTS.jsonl [--limit N]

Effect of each write policy and each stop policy of the prefetch: replays a published trace under every pair of policies, on 1, 2
and 4 ranks, with a folder and with the cluster's memory as L3, and checks every cached byte. Appends a line to RESULTS.jsonl after
each replay and skips those already in it, so that it can be interrupted and resumed; prints the table at the end.
"""

import argparse
import itertools
import json
import pathlib
import subprocess
import sys
import tempfile

from step_replay import ROOT, running_index

WRITE_POLICIES = ("write_through", "write_through_selective", "write_back")
STOP_POLICIES = ("best_effort", "wait_complete", "timeout")
RANKS = (1, 2, 4)
STORES = ("file", "cluster")
# Twenty times the recorded speed, on an engine that is just fast enough for it without a cache.
SPEEDUP = 20
TOKENS_PER_SECOND = 870000
# Much smaller than the trace's working set (310 thousand pages of 64 tokens), so that L3 matters. L3 holds all of it.
TIERS = ("--device-pages", "8192", "--hicache-ratio", "2")
SHAPE = ("--model", "tiny", "--layers", "1", "--head-dim", "4")
STORE_BYTES = 3 << 30
PATIENCE_S = 900

COLUMNS = ("L3", "ranks", "write policy", "stop policy", "L1 %", "L2 %", "L3 %", "computed %", "given up %", "to L3 MB",
           "from L3 MB", "dropped", "checked", "mismatches", "divergences", "errors")


class Trial:
    def __init__(self, programs, trace, limit, folder):
        self.programs = programs
        self.trace = trace
        self.limit = limit
        self.folder = folder

    def run(self, store, ranks, write, stop):
        """Runs one replay on a fresh instance with an empty L3 and returns its report."""
        flags = ["--hicache-write-policy", write, "--hicache-storage-prefetch-policy", stop, "--hicache-storage-backend", store]
        if store == "file":
            with tempfile.TemporaryDirectory(dir=self.folder) as path:
                config = {"path": path, "tp_lcm_size": ranks, "max_bytes": STORE_BYTES}
                return self.replay(ranks, *flags, "--hicache-storage-backend-extra-config", json.dumps(config))
        with running_index(self.programs) as address:
            return self.replay(ranks, *flags, "--hicache-storage-backend-extra-config", json.dumps({"tp_lcm_size": ranks}),
                               "--index", address, "--segment-size", str(STORE_BYTES // ranks))

    def replay(self, ranks, *flags):
        report = self.folder / "report.json"
        command = [ROOT / "launch/mpirun.sh", ranks, self.programs / "hicache-replay", "--trace", self.trace, "--limit", self.limit,
                   "--report", report, "--order", "timed", "--speedup", SPEEDUP, "--prefill-tokens-per-second", TOKENS_PER_SECOND,
                   "--verify", "all", "--device", "host", "--log-level", "error", *SHAPE, *TIERS, *flags]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        if done.returncode != 0:
            sys.exit(f"policies.py: hicache-replay ended with {done.returncode}\n{done.stdout}{done.stderr}")
        return json.loads(report.read_text(encoding="utf-8"))


def cells(row):
    """One line of the table."""
    report = row["report"]
    share = lambda tokens: f"{100 * tokens / report['prompt_tokens']:.1f}"
    given_up = sum(report["given_up_tokens"].values())
    return [row["store"], row["ranks"], row["write"], row["stop"],
            *(share(report["cached_tokens"][tier]) for tier in ("l1", "l2", "l3")),
            share(report["computed_tokens"]), share(given_up),
            *(f"{report['bytes'][way] / 1e6:.0f}" for way in ("l2_to_l3", "l3_to_l2")),
            report["backups"]["dropped_pages"], report["verify"]["pages_checked"], report["verify"]["mismatches"], report["divergences"], report["errors"]]


def print_table(rows):
    print(f"| {' | '.join(COLUMNS)} |")
    print(f"|{' --- |' * len(COLUMNS)}")
    for row in rows:
        print(f"| {' | '.join(map(str, cells(row)))} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("trace", type=pathlib.Path)
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("--limit", type=int, default=2000)
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.results.read_text(encoding="utf-8").splitlines()] if options.results.exists() else []
    done = {(row["store"], row["ranks"], row["write"], row["stop"]) for row in rows}
    wanted = list(itertools.product(STORES, RANKS, WRITE_POLICIES, STOP_POLICIES))
    with tempfile.TemporaryDirectory(prefix="hicache-policies-") as folder:
        trial = Trial(options.build / "bin", options.trace, options.limit, pathlib.Path(folder))
        for number, (store, ranks, write, stop) in enumerate(wanted, 1):
            if (store, ranks, write, stop) in done:
                continue
            print(f"{number}/{len(wanted)}: {store}, {ranks} ranks, {write}, {stop}", file=sys.stderr)
            row = {"store": store, "ranks": ranks, "write": write, "stop": stop, "report": trial.run(store, ranks, write, stop)}
            rows.append(row)
            with open(options.results, "a", encoding="utf-8") as results:
                results.write(json.dumps(row) + "\n")
    print_table(sorted(rows, key=lambda row: wanted.index((row["store"], row["ranks"], row["write"], row["stop"]))))


if __name__ == "__main__":
    main()
