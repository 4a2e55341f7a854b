"""store.py BUILD_DIRECTORY RESULT.json [PART...]

The cluster store, run as separate processes, compared with baselines: copies with memcpy, reads over TCP with ucx_perftest, requests
to the index with bare Cap'n Proto RPC without lookup. Alternates figure and baseline; figures are medians, ratios medians of the
per-round ratios.
"""

import collections
import contextlib
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROUNDS = 5
FEW_ROUNDS = 3
PATIENCE_S = 60
PERFTEST_S = 15
LONGEST_S = 900
MIB = 1 << 20
HOLD = ("--linger", "forever", "--seconds", "0.01")
# Members of store_bench send no heartbeats, so they must not expire.
SILENT = ("--member-ttl", "3600s")
SAMPLE = 128
SMALL_KEYS = 1000000
MANY_KEYS = 10000000
MANY_MEMBERS = 1000
# Pause between withdrawals; each removes a thousandth of the keys.
WITHDRAWAL_PAUSE_S = 0.02
MOST_KEY_BYTES = 96
MOST_RESTART_S = 2
MOST_DEAD_S = 0.1

# By Mooncake's own measurements on two cores of another machine, with its TCP transport tuned.
MOONCAKE_64K_GB_S = 1.3
MOONCAKE_1M_GB_S = 2.2
MOONCAKE_KEYS_S = 228e3
MOONCAKE_KEYS_S_4_THREADS = 511e3
MOONCAKE_KEY_BYTES = 790
MOONCAKE_DEAD_S = 11.2
AHEAD = 4

# Variants of ucx_perftest: outstanding sends, and the message size from which rendezvous is used.
UCX_VARIANTS = [(sends, rendezvous) for sends in (0, 4, 16) for rendezvous in ("auto", "inf")]


def give_up(sentence):
    sys.exit(f"store.py: {sentence}")


def say(what):
    print(f"Measuring: store, {what}", file=sys.stderr)


class Programs:
    """Starts the programs of a build; on close kills those still running."""

    def __init__(self, build):
        self.build = build
        self.running = contextlib.ExitStack()

    def path(self, name):
        return str(self.build / ("bench" if name == "store_bench" else "bin") / name)

    def start(self, name, *flags):
        """Starts a process with pipes for input and output."""
        process = subprocess.Popen([self.path(name), *map(str, flags)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, text=True)
        self.running.callback(end, process)
        return process

    def ask(self, name, *flags):
        """Runs a program and returns the JSON object that it prints."""
        command = [self.path(name), *map(str, flags)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        except subprocess.TimeoutExpired:
            give_up(f"{' '.join(command)} takes longer than {PATIENCE_S} s")
        if done.returncode != 0:
            give_up(f"{name} {' '.join(map(str, flags))} ended with {done.returncode}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def start_index(self, *flags, listen="127.0.0.1:0"):
        """Starts an index. @returns the process and its address"""
        index = self.start("hicache-index", "--listen", listen, "--log-level", "error", *flags)
        return index, address_of(index)

    def start_putter(self, index, *flags):
        """Starts a `hicache-bench` that stores and holds values; returns when they are stored."""
        putter = self.start("hicache-bench", "store", "--op", "put", "--json", "--index", index, *HOLD, *flags)
        if json.loads(read_line(putter))["errors"] != 0:
            give_up("a value was not stored")
        return putter

    def bench(self, op, index, *flags):
        report = self.ask("hicache-bench", "store", "--op", op, "--json", "--index", index, *flags)
        if report["errors"] != 0:
            give_up(f"{report['errors']} errors of {op}")
        return report


def end(process):
    if process.poll() is None:
        process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):
            pipe.close()


def read_line(process):
    line = process.stdout.readline()
    if not line:
        give_up(f"{process.args[0]} ended with {process.wait()} before it said anything")
    return line


def address_of(process):
    return re.search(r"listening on (\S+)", read_line(process)).group(1)


def make_row(name, unit, pairs=(), values=(), least_ratio=None, most_ratio=None, most=None):
    """Makes a row from (figure, baseline) pairs of the rounds, or from figures alone."""
    values = [value for value, _ in pairs] or values
    value = statistics.median(values)
    row = {"name": name, "value": value, "unit": unit, "baseline": None, "ratio": None, "target": None, "holds": None}
    if pairs:
        row["baseline"] = statistics.median(baseline for _, baseline in pairs)
        row["ratio"] = statistics.median(value / baseline for value, baseline in pairs)
    for text, of, bound, sign in (("ratio >=", row["ratio"], least_ratio, 1), ("ratio <=", row["ratio"], most_ratio, -1),
                                  ("<=", value, most, -1)):
        if bound is not None:
            row["target"] = f"{text} {bound:g}"
            row["holds"] = sign * of >= sign * bound
    return row


# -- values -------------------------------------------------------------------


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_perftest(sends, rendezvous):
    """GiB/s of 1 MiB messages by UCX; 0 on failure or timeout: both processes spin, and a busy machine may starve them."""
    environment = os.environ | {"UCX_RNDV_THRESH": rendezvous}
    common = ["ucx_perftest", "-p", str(free_port())]
    test = [*common, "127.0.0.1", "-t", "ucp_am_bw", "-s", str(MIB), "-n", "500", "-w", "50", "-O", str(sends), "-f"]
    server = subprocess.Popen(common, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            client = subprocess.run(test, env=environment, capture_output=True, text=True, timeout=PERFTEST_S, check=False)
            if client.returncode == 0:
                # Columns: iterations, three times, then MiB/s of the last interval and overall.
                return float(client.stdout.split("\n")[-2].split()[5]) / 1024
            time.sleep(0.05) # The server does not listen yet.
    except subprocess.TimeoutExpired:
        pass
    finally:
        server.kill()
        server.wait()
    return 0


class Perftest:
    """Best current result of ucx_perftest. After the first measurement only the two best variants are run."""

    def __init__(self):
        self.variants = UCX_VARIANTS

    def measure(self):
        found = {variant: run_perftest(*variant) for variant in self.variants}
        self.variants = sorted(self.variants, key=found.get)[-2:]
        best = found[self.variants[-1]]
        if best == 0:
            give_up("ucx_perftest measures nothing here")
        return best


def own_seconds(process):
    """Processor time of a running process."""
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children_seconds():
    """Processor time of the processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure_replicated_put(programs):
    """GiB/s of puts that return when the value is on two hosts."""
    size = ("--value-size", "1MiB", "--segment-size", "512MiB", "--keys", 16)
    index, address = programs.start_index()
    holder = programs.start_putter(address, "--host", "b", "--remote", *size)
    # Long enough to fill both segments once.
    report = programs.bench("put", address, "--host", "a", "--replicas", 2, "--seconds", 2.5, *size)
    held = [member["pages"] for member in programs.ask("hicachectl", "status", "--json", "--index", address)["members"]]
    if max(held) < min(256, 16 * report["ops"]) / 2:
        give_up("a put on two hosts left no copies")
    end(holder)
    end(index)
    return report["gib_per_s"]


def measure_values(programs):
    say(f"values; TCP goes by {pathlib.Path('/proc/sys/net/ipv4/tcp_congestion_control').read_text(encoding='ascii').strip()}")
    has_ucx = shutil.which("ucx_perftest") is not None
    if not has_ucx:
        print("store.py: there is no ucx_perftest (package ucx-utils), so nothing is compared with it", file=sys.stderr)
    _, index = programs.start_index()
    large = ("--value-size", "1MiB", "--batch", 16, "--keys", 256)
    small = ("--value-size", "64KiB", "--batch", 128, "--keys", 4096)
    owner = programs.start_putter(index, *large)
    _, other_index = programs.start_index()
    programs.start_putter(other_index, *small)
    perftest = Perftest()
    pairs = collections.defaultdict(list)
    times = collections.defaultdict(list)
    for i in range(ROUNDS):
        say(f"values, round {i + 1} of {ROUNDS}")
        memcpy = programs.ask("store_bench", "memcpy")["gib_per_s"]
        get = programs.bench("get", index, *large, "--seconds", 1)["gib_per_s"]
        get_small = programs.bench("get", other_index, *small, "--seconds", 1)["gib_per_s"]
        get_by_four = programs.bench("get", index, *large, "--seconds", 1, "--threads", 4)["gib_per_s"]
        before = own_seconds(owner), children_seconds()
        report = programs.bench("get", index, *large, "--seconds", 1, "--remote")
        mib = report["ops"] * 16
        times["owner"].append((own_seconds(owner) - before[0]) / mib * 1000)
        times["reader"].append((children_seconds() - before[1]) / mib * 1000)
        remote = report["gib_per_s"]
        remote_small = programs.bench("get", other_index, *small, "--seconds", 1, "--remote")["gib_per_s"]
        pairs["get"].append((get, memcpy))
        pairs["four"].append((get_by_four, get))
        gb_of_gib = (1 << 30) / 1e9
        pairs["get, GB"].append((get * gb_of_gib, MOONCAKE_1M_GB_S))
        pairs["small, GB"].append((get_small * gb_of_gib, MOONCAKE_64K_GB_S))
        pairs["remote, GB"].append((remote * gb_of_gib, MOONCAKE_1M_GB_S))
        pairs["remote small, GB"].append((remote_small * gb_of_gib, MOONCAKE_64K_GB_S))
        if has_ucx:
            best = perftest.measure()
            pairs["remote"].append((remote, best))
            pairs["put"].append((measure_replicated_put(programs), best))
    rows = [make_row("get, same host, 1 MiB x 16, over memcpy", "GiB/s", pairs["get"], least_ratio=0.8),
            make_row("get, same host, 1 MiB x 16, 4 threads over 1", "GiB/s", pairs["four"], least_ratio=1)]
    if has_ucx:
        rows += [make_row("get by TCP, 1 MiB x 16, over ucx_perftest", "GiB/s", pairs["remote"], least_ratio=0.6),
                 make_row("put on two hosts by TCP, 1 MiB x 16, over ucx_perftest", "GiB/s", pairs["put"], least_ratio=0.4)]
    return rows + [
        make_row("get by TCP, 1 MiB x 16: processor time of the reader for each MiB", "ms", values=times["reader"]),
        make_row("get by TCP, 1 MiB x 16: processor time of the owner for each MiB", "ms", values=times["owner"]),
        make_row("get, same host, 1 MiB x 16, over Mooncake's", "GB/s", pairs["get, GB"], least_ratio=AHEAD),
        make_row("get, same host, 64 KiB x 128, over Mooncake's", "GB/s", pairs["small, GB"], least_ratio=AHEAD),
        make_row("get by TCP, 1 MiB x 16, over Mooncake's", "GB/s", pairs["remote, GB"]),
        make_row("get by TCP, 64 KiB x 128, over Mooncake's", "GB/s", pairs["remote small, GB"]),
    ]


# -- requests to the index ----------------------------------------------------


def measure_requests(programs):
    _, index = programs.start_index(*SILENT)
    bare = ("--bare", "--index", address_of(programs.start("store_bench", "serve")))
    say(f"an index of {SMALL_KEYS} keys")
    owner = programs.start("store_bench", "announce", "--index", index, "--keys", SMALL_KEYS, "--batch", 4096, "--stay")
    read_line(owner)
    pairs = collections.defaultdict(list)
    lookups = ("--batch", 128, "--keys", SMALL_KEYS, "--seconds", 1)
    for i in range(ROUNDS):
        say(f"requests, round {i + 1} of {ROUNDS}")

        def ask(*flags):
            """Runs the lookups with the index and with bare RPC."""
            return [programs.ask("store_bench", "ask", *of, *lookups, *flags) for of in (("--index", index), bare)]

        one, four = (programs.bench("exists", index, *lookups, "--threads", threads) for threads in (1, 4))
        threads_one, threads_four = (programs.ask("store_bench", "ask", *bare, *lookups, "--by-threads", "--outstanding", count)
                                     for count in (1, 4))
        actor_one, actor_many = (ask("--outstanding", count) for count in (1, 16))
        news = ("--keys", SMALL_KEYS, "--batch", 128, "--outstanding", 4)
        announced = [programs.ask("store_bench", "announce", *of, *news) for of in (("--index", index), bare)]
        for name, reports in (("exists", (four, threads_four)), ("actor", actor_many), ("announce", announced)):
            pairs[name].append(tuple(report["keys_per_s"] / 1e6 for report in reports))
        for name, reports in (("wait", (one, threads_one)), ("actor waits", actor_one)):
            pairs[name].append(tuple(report["latency_us"]["p50"] for report in reports))
        pairs["client"].append((one["keys_per_s"] / 1e6, MOONCAKE_KEYS_S / 1e6))
        pairs["actor client"].append((actor_many[0]["keys_per_s"] / 1e6, MOONCAKE_KEYS_S / 1e6))
        pairs["4 threads"].append((four["keys_per_s"] / 1e6, MOONCAKE_KEYS_S_4_THREADS / 1e6))
    return [
        make_row("exists, 128 keys, 4 threads, over bare RPC of 4 threads", "Mkeys/s", pairs["exists"], least_ratio=0.7),
        make_row("looking up 128 keys, 16 requests of an actor under way, over bare RPC", "Mkeys/s", pairs["actor"],
                 least_ratio=0.8),
        make_row("announcing 128 keys, 4 requests of an actor under way, over bare RPC", "Mkeys/s", pairs["announce"],
                 least_ratio=0.5),
        make_row("exists, 128 keys, one thread, median, over bare RPC", "us", pairs["wait"], most_ratio=1.5),
        make_row("looking up 128 keys by an actor, median, over bare RPC", "us", pairs["actor waits"],
                 most_ratio=1.5),
        make_row("looking up 128 keys, 16 requests of an actor under way, over Mooncake's", "Mkeys/s", pairs["actor client"],
                 least_ratio=AHEAD),
        make_row("exists, 128 keys, one thread, over Mooncake's", "Mkeys/s", pairs["client"], least_ratio=AHEAD),
        make_row("exists, 128 keys, 4 threads, over Mooncake's of 4", "Mkeys/s", pairs["4 threads"]),
    ]


# -- many keys ----------------------------------------------------------------


def resident_bytes(process):
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
    return int(re.search(r"VmRSS:\s+(\d+) kB", status).group(1)) * 1024


@contextlib.contextmanager
def withdrawals(owner):
    """In the meantime withdraws one member after the other."""
    is_over = threading.Event()

    def withdraw():
        while not is_over.wait(WITHDRAWAL_PAUSE_S):
            owner.stdin.write("\n")
            owner.stdin.flush()

    thread = threading.Thread(target=withdraw)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def measure_many_keys(programs):
    say(f"an index of {MANY_KEYS} keys of {MANY_MEMBERS} members")
    index, address = programs.start_index(*SILENT)
    empty = resident_bytes(index)
    owner = programs.start("store_bench", "announce", "--index", address, "--keys", MANY_KEYS, "--members", MANY_MEMBERS,
                           "--batch", 4096, "--outstanding", 2, "--stay")
    read_line(owner)
    key_bytes = (resident_bytes(index) - empty) / MANY_KEYS
    pairs = []
    lookups = ("--batch", 128, "--keys", SMALL_KEYS // 10, "--seconds", 1.5)
    for i in range(ROUNDS):
        say(f"withdrawals, round {i + 1} of {ROUNDS}")
        quiet = programs.bench("exists", address, *lookups)["latency_us"]["p99"]
        with withdrawals(owner):
            pairs.append((programs.bench("exists", address, *lookups)["latency_us"]["p99"], quiet))
    end(owner)
    end(index)
    return [
        make_row("memory of the index per key, of 10 million", "B", values=[key_bytes], most=MOST_KEY_BYTES),
        make_row("memory of the index per key, under Mooncake's", "B", [(key_bytes, MOONCAKE_KEY_BYTES)], most_ratio=1 / AHEAD),
        make_row("look-up of 128 keys, p99, while one segment of a thousand after the other goes", "us", pairs, most_ratio=2),
    ]


# -- processes that die -------------------------------------------------------


def wait_for(watch, is_reached):
    """Reads the output of `store_bench watch`. @returns the time at which is_reached became true"""
    while True:
        seen = json.loads(read_line(watch))
        if is_reached(seen):
            return seen["time"]


def measure_restart(programs):
    say(f"putting {SMALL_KEYS} values")
    index, address = programs.start_index()
    programs.start_putter(address, "--value-size", 64, "--batch", 4096, "--keys", SMALL_KEYS, "--segment-size", "1GiB")
    watch = programs.start("store_bench", "watch", "--index", address)

    def is_whole(seen):
        return seen["keys"] >= SMALL_KEYS and seen["found"] == SAMPLE

    wait_for(watch, is_whole)
    times = []
    for i in range(FEW_ROUNDS):
        say(f"restart of an index, round {i + 1} of {FEW_ROUNDS}")
        end(index)
        wait_for(watch, lambda seen: seen["found"] == 0)
        began = time.monotonic()
        index, _ = programs.start_index(listen=address)
        times.append(wait_for(watch, is_whole) - began)
    return [make_row("restart of an index of a million keys, until it has all", "s", values=times, most=MOST_RESTART_S)]


def measure_dead_owner(programs):
    _, address = programs.start_index()
    watch = programs.start("store_bench", "watch", "--index", address)
    times = []
    for i in range(FEW_ROUNDS):
        say(f"death of an owner, round {i + 1} of {FEW_ROUNDS}")
        putter = programs.start_putter(address, "--value-size", "4KiB", "--batch", 128, "--keys", SAMPLE, "--segment-size",
                                       "64MiB")
        wait_for(watch, lambda seen: seen["found"] == SAMPLE)
        began = time.monotonic()
        end(putter)
        times.append(wait_for(watch, lambda seen: seen["found"] == 0) - began)
    return [make_row("pages of a killed owner are offered for, beside Mooncake's", "s", [(x, MOONCAKE_DEAD_S) for x in times],
                     most=MOST_DEAD_S)]


PARTS = {"values": measure_values, "requests": measure_requests, "keys": measure_many_keys, "restart": measure_restart,
         "death": measure_dead_owner}


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGALRM, lambda *_: give_up(f"it takes longer than {LONGEST_S} s"))
    signal.alarm(LONGEST_S)
    # Only TCP between hosts, for hicache and ucx_perftest.
    os.environ["UCX_TLS"] = "tcp"
    build, result, *chosen = sys.argv[1:]
    rows = []
    for part in [PARTS[name] for name in chosen or PARTS]:
        programs = Programs(pathlib.Path(build).resolve())
        with programs.running:
            rows += part(programs)
    with open(result, "w", encoding="utf-8") as file:
        json.dump({"rows": rows}, file)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
