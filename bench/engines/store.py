"""store.py NODE_BENCH RESULT

Overhead of Python for a node's clients: put, get and exists by `hicache.Store`, compared with the C++ client (NODE_BENCH) at the same node.
Both alternate, in separate processes. Writes rows for bench/table.py to the file RESULT.
"""

import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time

import hicache

BATCH = 8 << 20
# Bytes of the node's memory, and of the pages that are read repeatedly.
MEMORY, READ = 1 << 30, 128 << 20
ROUNDS = 5
SECONDS = 0.5
SIZES = {64 << 10: "64 KiB", 1 << 20: "1 MiB"}


class Client:
    """A client with a batch of pages."""

    def __init__(self, store, page):
        self._store, self._count = store, BATCH // page
        self._bytes = bytearray(b"\1") * BATCH
        view = memoryview(self._bytes)
        self._pages = [view[i * page:(i + 1) * page] for i in range(self._count)]
        self._numbers = itertools.count()
        self._kept = []

    def put(self):
        names = self._store.names([f"{id(self)}/{next(self._numbers)}" for _ in range(self._count)])
        self._store.put(names, self._pages).check()
        return names

    def fill(self, amount):
        self._kept = [self.put() for _ in range(amount // BATCH)]
        self._at = itertools.cycle(self._kept)

    def get(self):
        self._store.get(next(self._at), self._pages).check()

    def exists(self):
        self._store.exists(next(self._at)).check()


def calls_a_second(call):
    """Mean number of calls per second."""
    times = []
    end = time.perf_counter() + SECONDS
    while (start := time.perf_counter()) < end:
        call()
        times.append(time.perf_counter() - start)
    return len(times) / sum(times)


def of_python(node):
    figures = {}
    for page in SIZES:
        with node.store("python", timeout=60) as store:
            client = Client(store, page)
            # Twice, so that all of the node's memory is in this process's page table, as in the C++ client's.
            client.fill(2 * MEMORY)
            figures["put", page] = calls_a_second(client.put)
            client.fill(READ)
            figures["get", page] = calls_a_second(client.get)
            figures["exists", page] = calls_a_second(client.exists)
    return figures


def of_cpp(program, node):
    with tempfile.NamedTemporaryFile() as result:
        subprocess.run([program, f"--node={node.socket}", f"--benchmark_min_time={SECONDS}", f"--benchmark_out={result.name}", "--benchmark_out_format=json"],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        rows = json.load(result)["benchmarks"]
    figures = {}
    for row in rows:
        assert "error_message" not in row, row
        name, page = row["name"].split("/")[:2]
        figures[name.removeprefix("node_"), int(page)] = row["bytes"] / BATCH
    return figures


def main(program, result):
    rounds = []
    with hicache.node(str(MEMORY)) as node:
        for done in range(ROUNDS):
            print(f"Measuring: a client in Python beside one in C++, {done + 1} of {ROUNDS}", file=sys.stderr, flush=True)
            rounds.append((of_python(node), of_cpp(program, node)))
    rows = []
    for what, page in rounds[0][0]:
        mine, other = (statistics.median(of[side][what, page] for of in rounds) for side in (0, 1))
        ratio = statistics.median(of[0][what, page] / of[1][what, page] for of in rounds)
        if what == "exists":
            # Ratio of times instead of rates.
            ratio, keys = 1 / ratio, BATCH // page
            target, holds = ("ratio <= 1.3", ratio <= 1.3) if keys == 128 else (None, None)
            rows.append({"name": f"python: exists of {keys} keys", "value": 1e6 / mine, "unit": "us", "baseline": 1e6 / other,
                         "ratio": ratio, "target": target, "holds": holds})
        else:
            least = 0.9 if page == 1 << 20 else 0.8
            rows.append({"name": f"python: {what}, {SIZES[page]}", "value": mine * BATCH / 2**30, "unit": "GiB/s", "baseline": other * BATCH / 2**30,
                         "ratio": ratio, "target": f"ratio >= {least:g}", "holds": ratio >= least})
    with open(result, "w") as file:
        json.dump({"rows": rows}, file)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
