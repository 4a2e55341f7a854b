"""stores.py BUILD_DIRECTORY RESULT.json [STORE...]

The stores `disk`, `redis`, `s3`, `mooncake` and `nixl` on a real file system and real servers, beside the tools that measure these: fio with the same engine,
depth and block size, redis-benchmark with the same size and pipeline, libcurl's multi interface with as many connections, Mooncake and NIXL in one process with the same batches. Alternates figure
and baseline; figures are medians, ratios medians of the per-round ratios.
"""

import contextlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import urllib.request

import store

ROUNDS = 3
SECONDS = 1.5
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
# Of a store's batches: stores_main.cpp has the same.
BATCH = 8 * MIB
TRANSFER = MIB
# Of the objects that redis is asked for, likewise.
REDIS_TOTAL = 256 * MIB
# moto takes any signature.
SIGNED = {"Authorization": "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"}


def say(what):
    print(f"Measuring: stores, {what}", file=sys.stderr)


def size_name(size):
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


def output_of(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        sys.exit(f"stores.py: {command[0]} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


class Bench:
    def __init__(self, build):
        self.program = build / "bench" / "stores_bench"

    def ask(self, *words):
        return json.loads(output_of([self.program, *words, SECONDS]))

    def speed(self, *words):
        return self.ask(*words)["bytes_per_s"] / GIB


def compare(name, figure, baseline, least_ratio):
    say(name)
    pairs = [(figure(), baseline()) for _ in range(ROUNDS)]
    return store.make_row(name, "GiB/s", pairs, least_ratio=least_ratio)


def fio(folder, action, size):
    """Bytes per second of what the store does: transfers of at most 1 MiB, two threads with half of a batch each, and writes that are
    synced after each batch."""
    block = min(size, TRANSFER)
    depth = BATCH // block
    words = ["fio", "--name=bench", f"--directory={folder}", "--ioengine=io_uring", "--direct=1", "--output-format=json", "--numjobs=2",
             "--group_reporting", f"--bs={block}", f"--iodepth={depth}", f"--runtime={SECONDS}", "--time_based", "--size=512m", "--thread",
             f"--rw={ {'read': 'read', 'random': 'randread', 'write': 'write'}[action] }"]
    if action == "write":
        words.append(f"--fdatasync={depth}")
    job = json.loads(output_of(words))["jobs"][0]
    return job["write" if action == "write" else "read"]["bw_bytes"] / GIB


def measure_disk(bench, rows):
    if shutil.which("fio") is None:
        return say("no fio, so no rows of disk")
    with tempfile.TemporaryDirectory(prefix="hicache-bench-", dir=os.environ.get("HICACHE_BENCH_DISK", ".")) as folder:
        def run(action, size):
            with tempfile.TemporaryDirectory(dir=folder) as place:
                return bench.ask("disk", place, action, size)

        for action, what in (("read", "read in order"), ("random", "read at random"), ("write", "write")):
            for size in (64 * KIB, MIB, 8 * MIB):
                rows.append(compare(f"disk: {what}, {size_name(size)}, beside fio", lambda: run(action, size)["bytes_per_s"] / GIB,
                                    lambda: fio(folder, action, size), 0.95))
        say("disk: reads beside writes")
        pairs = [(run("mixed", 64 * KIB)["p99_s"] * 1e3, run("random", 64 * KIB)["p99_s"] * 1e3) for _ in range(ROUNDS)]
        rows.append(store.make_row("disk: p99 of reads beside writes, beside reads alone", "ms", pairs, most_ratio=3))


def redis_benchmark(port, action, size):
    # What is to be read has to be there.
    commands = {"read": "set,get", "write": "set"}[action]
    pipeline = BATCH // size
    requests = max(4 * pipeline, GIB // size)
    # As many keys as the store has objects: one key alone would stay in the processor's cache.
    out = output_of(["redis-benchmark", "-p", port, "-c", 1, "-P", pipeline, "-d", size, "-n", requests, "-r", REDIS_TOTAL // size, "-t", commands, "--csv"])
    per_second = float(out.strip().splitlines()[-1].split(",")[1].strip('"'))
    return per_second * size / GIB


def measure_redis(bench, rows):
    if shutil.which("redis-server") is None or shutil.which("redis-benchmark") is None:
        return say("no redis-server, so no rows of redis")
    port = store.free_port()
    with contextlib.ExitStack() as running, tempfile.TemporaryDirectory(prefix="hicache-bench-") as folder:
        server = subprocess.Popen(["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder, "--maxmemory",
                                   "2gb", "--maxmemory-policy", "allkeys-lru"], stdout=subprocess.PIPE, text=True)
        running.enter_context(server)
        running.callback(server.kill)
        while "Ready to accept" not in server.stdout.readline():
            pass
        for action in ("read", "write"):
            for size in (64 * KIB, MIB):
                rows.append(compare(f"redis: {action}, {size_name(size)}, beside redis-benchmark",
                                    lambda: bench.speed("redis", f"127.0.0.1:{port}", action, size),
                                    lambda: redis_benchmark(port, action, size), 0.9))


def measure_s3(bench, rows):
    moto = os.environ.get("HICACHE_MOTO_SERVER", "moto_server")
    if shutil.which(moto) is None:
        return say("no moto_server, so no rows of s3")
    os.environ.update(AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test", no_proxy="127.0.0.1")
    port = store.free_port()
    endpoint = f"http://127.0.0.1:{port}"
    with contextlib.ExitStack() as running, tempfile.TemporaryFile() as log:
        server = subprocess.Popen([moto, "-H", "127.0.0.1", "-p", str(port)], stdout=log, stderr=subprocess.PIPE, text=True)
        running.enter_context(server)
        running.callback(server.kill)
        while "Press CTRL+C" not in server.stderr.readline():
            pass
        # It goes on to log, and would wait for somebody to read.
        threading.Thread(target=lambda: [None for _ in server.stderr], daemon=True).start()
        urllib.request.urlopen(urllib.request.Request(f"{endpoint}/bench", method="PUT", headers=SIGNED), timeout=60).close()
        for action in ("read", "write"):
            for size in (64 * KIB, MIB, 8 * MIB):
                rows.append(compare(f"s3: {action}, {size_name(size)}, beside libcurl alone",
                                    lambda: bench.speed("s3", endpoint, action, size),
                                    lambda: bench.speed("curl", endpoint, action, size), 0.9))


def client_alone(name, place, action, size):
    # Mooncake and NIXL print more.
    told = output_of([os.environ["HICACHE_STORE_PYTHON"], pathlib.Path(__file__).with_name("store_clients.py"), name, place, action, size, SECONDS])
    return json.loads(told.splitlines()[-1])["bytes_per_s"] / GIB


def measure_mooncake(bench, rows):
    python = pathlib.Path(os.environ.get("HICACHE_STORE_PYTHON", "absent"))
    if not (python.parent / "mooncake_master").exists():
        return say("no Mooncake, so no rows of mooncake")
    port = store.free_port()
    place = f"127.0.0.1:{port}"
    with contextlib.ExitStack() as running, tempfile.TemporaryFile() as log:
        def start(*command):
            process = running.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True))
            running.callback(process.kill)
            return process

        start(python.parent / "mooncake_master", "--rpc_address=127.0.0.1", f"--rpc_port={port}", "--metrics_port=0",
              "--eviction_high_watermark_ratio=0.5", "--eviction_ratio=0.3", "--default_kv_lease_ttl=1000")
        lender = start(python, pathlib.Path(__file__).with_name("store_clients.py"), "lend", place, str(8 * GIB))
        if lender.stdout.readline() != "lends\n":
            sys.exit("stores.py: no client lends memory to Mooncake")
        for action in ("read", "write"):
            for size in (64 * KIB, MIB):
                rows.append(compare(f"mooncake: {action}, {size_name(size)}, beside its client alone",
                                    lambda: bench.speed("mooncake", place, action, size),
                                    lambda: client_alone("mooncake", place, action, size), 0.95))


def measure_nixl(bench, rows):
    python = os.environ.get("HICACHE_STORE_PYTHON", "python3")
    if subprocess.run([python, "-c", "import nixl"], capture_output=True, check=False).returncode != 0:
        return say("no NIXL, so no rows of nixl")
    with tempfile.TemporaryDirectory(prefix="hicache-bench-", dir=os.environ.get("HICACHE_BENCH_DISK", ".")) as folder:
        def run(measure, action, size):
            with tempfile.TemporaryDirectory(dir=folder) as place:
                return measure(place, action, size)

        for action in ("read", "write"):
            for size in (64 * KIB, MIB):
                rows.append(compare(f"nixl: {action}, {size_name(size)}, beside its agent alone",
                                    lambda: run(lambda *more: bench.speed("nixl", *more), action, size),
                                    lambda: run(lambda *more: client_alone("nixl", *more), action, size), 0.95))


def main():
    build, result, *chosen = sys.argv[1:]
    bench = Bench(pathlib.Path(build))
    rows = []
    for name, measure in (("disk", measure_disk), ("redis", measure_redis), ("s3", measure_s3), ("mooncake", measure_mooncake), ("nixl", measure_nixl)):
        if not chosen or name in chosen:
            measure(bench, rows)
    pathlib.Path(result).write_text(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
