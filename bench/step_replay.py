"""step_replay.py BUILD_DIRECTORY RESULT.json

Overhead of an attached L3 for requests that miss in all tiers: replays prompts without common prefixes, alternately with and
without L3, and compares the median times to the first token.
"""

import contextlib
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

ROUNDS = 5
REQUESTS = 40
TOKENS = 4096
BLOCK_TOKENS = 512
RANKS = 2
# A current GPU prefills some ten thousand tokens a second with a model of 8 billion parameters.
TOKENS_PER_SECOND = 50000
MOST_RATIO = 1.02
PATIENCE_S = 300

ROOT = pathlib.Path(__file__).resolve().parent.parent


def write_trace(path):
    """Writes requests that share no blocks."""
    blocks = TOKENS // BLOCK_TOKENS
    with open(path, "w", encoding="utf-8") as file:
        for i in range(REQUESTS):
            file.write(json.dumps({"timestamp": 0, "input_length": TOKENS, "output_length": 1,
                                   "hash_ids": list(range(i * blocks, (i + 1) * blocks))}) + "\n")


@contextlib.contextmanager
def running_index(programs):
    """Runs an index of the cluster store and yields its address."""
    with subprocess.Popen([programs / "hicache-index", "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True) as index:
        try:
            found = None
            while not found:
                line = index.stdout.readline()
                if not line:
                    sys.exit("step_replay.py: hicache-index ended before it was listening")
                found = re.search(r"listening on (\S+)", line)
            yield found.group(1)
        finally:
            index.terminate()


class Replay:
    def __init__(self, programs, folder):
        self.programs = programs
        self.folder = folder
        self.trace = folder / "trace.jsonl"
        write_trace(self.trace)

    def run(self, *flags):
        """Runs one replay on a fresh instance and returns its report."""
        report = self.folder / "report.json"
        command = [ROOT / "launch/mpirun.sh", RANKS, self.programs / "hicache-replay", "--trace", self.trace, "--report", report,
                   "--prefill-tokens-per-second", TOKENS_PER_SECOND, "--device", "host", "--log-level", "error",
                   "--verify", "off", *flags]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        if done.returncode != 0:
            sys.exit(f"step_replay.py: hicache-replay ended with {done.returncode}\n{done.stdout}{done.stderr}")
        found = json.loads(report.read_text(encoding="utf-8"))
        if found["computed_tokens"] != REQUESTS * TOKENS or found["storage_failures"] != 0:
            sys.exit("step_replay.py: a replay did not compute all of its tokens, or its L3 failed")
        return found

    def run_file(self):
        with tempfile.TemporaryDirectory(dir=self.folder) as store:
            return self.run("--hicache-storage-backend", "file", "--hicache-storage-backend-extra-config",
                            json.dumps({"path": store}))

    def run_cluster(self):
        with running_index(self.programs) as address:
            return self.run("--hicache-storage-backend", "cluster", "--index", address, "--segment-size", "64MiB")


def main():
    programs = pathlib.Path(sys.argv[1]) / "bin"
    kinds = ("none", "file", "cluster")
    times = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as folder:
        replay = Replay(programs, pathlib.Path(folder))
        for _ in range(ROUNDS):
            for kind, run in zip(kinds, (replay.run, replay.run_file, replay.run_cluster)):
                times[kind].append(run()["ttft_ms"]["p50"])
    rows = []
    for kind in kinds[1:]:
        ratio = statistics.median(with_l3 / without for with_l3, without in zip(times[kind], times["none"]))
        rows.append({"name": f"first token of a miss, L3 {kind}, prefill {TOKENS_PER_SECOND} tokens/s",
                     "value": statistics.median(times[kind]), "unit": "ms", "baseline": statistics.median(times["none"]),
                     "ratio": ratio, "target": f"ratio <= {MOST_RATIO:g}", "holds": ratio <= MOST_RATIO})
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump({"rows": rows}, file)


if __name__ == "__main__":
    main()
