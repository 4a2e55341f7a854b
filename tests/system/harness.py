"""What the system tests share: starting the real programs, waiting for what they say, and checking what they leave behind."""

import contextlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("HICACHE_BIN", ROOT / "build/release/bin"))
MPIRUN = ROOT / "launch/mpirun.sh"
TRACE = ROOT.parent / "shared/traces/conversation_trace.jsonl"

# KV of one layer and few elements: the tests are about where pages go, not about how wide they are.
SMALL_KV = ["--layers", "1", "--head-dim", "4"]

# Whose KV it is that hicache-replay makes up, for the programs that have to be told.
REPLAYED_MODEL = ["--model-id", "hicache-kv-pattern-1"]


_ports = []


def free_ports(count):
    """The first of `count` ports in a row for servers that cannot say which one they were given. Until this process ends no other test gets
    them, and the kernel gives none of them to programs that ask for any port."""
    below = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        first = random.SystemRandom().randrange(10000, below - count)
        held = []
        try:
            for port in range(first, first + count):
                held.append(socket.socket(socket.AF_UNIX))
                held[-1].bind(f"\0hicache-test-port-{port}")
                with socket.create_server(("127.0.0.1", port)):
                    pass
        except OSError:
            for each in held:
                each.close()
        else:
            _ports.extend(held)
            return first


def free_port():
    return free_ports(1)


class Program:
    """A process in a group of its own, its output kept in files."""

    def __init__(self, arguments, folder, name, environment=None, descriptors=()):
        self.out = folder / f"{name}.out"
        self.err = folder / f"{name}.err"
        self.name = name
        with open(self.out, "w") as out, open(self.err, "w") as err:
            self.process = subprocess.Popen([str(a) for a in arguments], stdout=out, stderr=err,
                                            stdin=subprocess.DEVNULL, start_new_session=True,
                                            env={**os.environ, **(environment or {})}, pass_fds=descriptors)

    def wait(self, seconds=120):
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.name} did not end in {seconds} s\n{self.text()}") from None

    def wait_for(self, pattern, seconds=60):
        """Waits until the output matches; returns the match."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = re.search(pattern, self.out.read_text())
            if found:
                return found
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        found = re.search(pattern, self.out.read_text())
        if found:
            return found
        raise AssertionError(f"{self.name} never said '{pattern}'\n{self.text()}")

    def signal(self, number):
        """Signals the ranks that an mpirun started, if it is one. It would pass SIGTERM on five seconds later."""
        for pid in self.ranks().values() or [self.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def terminate(self):
        self.signal(signal.SIGTERM)

    def kill(self):
        """Kills the process and everything it started."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    def children(self):
        """Process ids of the ranks that an mpirun started."""
        found = subprocess.run(["pgrep", "-g", str(self.process.pid), "hicache-replay"], capture_output=True, text=True)
        more = subprocess.run(["pgrep", "-s", str(self.process.pid), "hicache-replay"], capture_output=True, text=True)
        return sorted({int(pid) for pid in (found.stdout + more.stdout).split()})

    def ranks(self):
        """The process id of each rank that an mpirun started and that still runs."""
        found = {}
        for pid in subprocess.run(["pgrep", "-s", str(self.process.pid)], capture_output=True, text=True).stdout.split():
            try:
                variables = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue  # It has just ended.
            found |= {int(text.split(b"=")[1]): int(pid) for text in variables if text.startswith(b"OMPI_COMM_WORLD_RANK=")}
        return found

    def text(self):
        return f"--- {self.name} out\n{self.out.read_text()}\n--- {self.name} err\n{self.err.read_text()}"


class SystemTest(unittest.TestCase):
    """A test with a folder of its own, which kills what it started and checks that nothing is left."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="hicache-test-"))
        # MPI and UCX put their files in shared memory here, where no other program has any.
        self.shared_memory = pathlib.Path(tempfile.mkdtemp(prefix="hicache-test-", dir="/dev/shm"))
        self.programs = []
        self.addCleanup(self.clean_up)

    def clean_up(self):
        # In order rather than by force, so that what is left afterwards is the programs' fault.
        running = [program for program in reversed(self.programs) if program.process.poll() is None]
        for program in running:
            program.terminate()
            try:
                program.process.wait(20)
            except subprocess.TimeoutExpired:
                program.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
        left = os.listdir(self.shared_memory)
        shutil.rmtree(self.shared_memory)
        self.assertEqual(left, [], "shared memory is left")

    def start(self, arguments, name, environment=None, descriptors=()):
        own = {"OMPI_MCA_btl_vader_backing_directory": str(self.shared_memory), "UCX_POSIX_DIR": str(self.shared_memory)}
        program = Program(arguments, self.folder, name, {**own, **(environment or {})}, descriptors)
        self.programs.append(program)
        return program

    def start_index(self, *flags, listen="127.0.0.1:0", enter=()):
        """Starts an index, on a free port unless told which, by a command that enters its machine; returns it and its address."""
        index = self.start([*enter, BIN / "hicache-index", "--listen", listen, *flags], "index")
        return index, index.wait_for(r"listening on (\S+)").group(1)

    def start_replay(self, name, ranks, *flags, enter=()):
        """Starts a replay, its ranks by a command that enters their machine."""
        report = self.folder / f"{name}.json"
        program = self.start([MPIRUN, ranks, *enter, BIN / "hicache-replay", "--report", report, *flags], name)
        program.report = report
        return program

    def replay(self, name, ranks, *flags, seconds=300, code=0):
        """Runs a replay to its end; returns its report."""
        program = self.start_replay(name, ranks, *flags)
        self.assertEqual(program.wait(seconds), code, program.text())
        return self.read_report(program)

    def read_report(self, program):
        return json.loads(program.report.read_text())

    def assert_clean(self, report):
        self.assertEqual(report["verify"]["mismatches"], 0)
        self.assertEqual(report["errors"], 0)
        self.assertEqual(report["divergences"], 0)
        self.assertEqual(report["prompt_tokens"], report["computed_tokens"] + cached(report))

    def assert_commands_work(self, backend, config, lists=True, removes=True):
        """hicachectl store puts, finds, checks, copies and removes objects of a store that has none yet."""
        settings, content, copy = self.folder / f"{backend}.toml", self.folder / "object", self.folder / f"copy-of-{backend}"
        settings.write_text(f"hicache-storage-backend = \"{backend}\"\nmodel-id = \"m\"\nhicache-storage-backend-extra-config = '{json.dumps(config)}'\n")
        content.write_text("the bytes of an object")
        names = ["1" * 64, "2" * 64]

        def run(*words, code=0):
            done = subprocess.run([BIN / "hicachectl", "store", *words, "--config", settings], capture_output=True, text=True, timeout=120)
            self.assertEqual(done.returncode, code, f"{words}: {done.stdout}{done.stderr}")
            return done.stdout

        for name in names:
            run("put", name, content)
        self.assertEqual(run("exists", *names), "".join(f"{name}  1 ({backend})\n" for name in names))
        self.assertEqual(run("get", names[1]), content.read_text())
        if lists:
            self.assertEqual(sorted(line.split()[:2] for line in run("ls").splitlines()), [[name, "22"] for name in names])
            self.assertRegex(run("du"), r"^ +2 objects +44 B ")
            self.assertRegex(run("verify"), r"^ +2 objects +44 B, 0 damaged, 0 not read ")
            self.assertIn("2 objects, 44 B copied", run("export", copy))
        run("rm", *names, code=0 if removes else 1)
        if removes:
            run("exists", names[0], code=1)
        if lists:
            self.assertIn("2 objects, 44 B copied", run("import", copy))
            self.assertEqual(run("get", names[1]), content.read_text())

    def assert_all_gone(self, program):
        """Nothing of the program's session is left, once the system has reaped it."""
        end = time.monotonic() + 10
        while time.monotonic() < end:
            alive = subprocess.run(["pgrep", "-s", str(program.process.pid)], capture_output=True, text=True)
            if not alive.stdout.split():
                return
            time.sleep(0.05)
        self.fail(f"{program.name} left processes behind: {alive.stdout.split()}")


class SharedPagesTest(SystemTest):
    """A test whose instances store the pages of one trace for each other."""

    PAGE = 64

    def setUp(self):
        super().setUp()
        self.trace = self.folder / "trace.jsonl"
        self.rows = write_trace(self.trace, 40)
        self.least_computed = sum(row["input_length"] - (row["input_length"] - 1) // self.PAGE * self.PAGE for row in self.rows)

    def assert_all_found(self, report):
        """The instance computed nothing that another one had stored, and what it was given was right."""
        self.assert_clean(report)
        self.assertGreater(report["cached_tokens"]["l3"], 0)
        self.assertEqual(report["computed_tokens"], self.least_computed)


def cached(report):
    return sum(report["cached_tokens"].values())


def write_trace(path, requests, seed=7):
    """A made-up trace of conversations that come back and branch; returns its rows."""
    rng = random.Random(seed)
    rows, conversations, block = [], [], 0
    for i in range(requests):
        if conversations and rng.random() < 0.6:
            blocks = list(rng.choice(conversations))
            blocks = blocks[: rng.randint(1, len(blocks))]
        else:
            blocks = []
        for _ in range(rng.randint(1, 6)):
            blocks.append(block)
            block += 1
        conversations.append(blocks)
        length = (len(blocks) - 1) * 512 + rng.randint(1, 512)
        rows.append({"timestamp": i * 10, "input_length": length, "output_length": 10, "hash_ids": blocks})
    pathlib.Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows


def reusable_tokens(rows, page_size):
    """What the rows themselves say can be reused: for each request the whole pages, short of its last token, that an earlier request
    had behind the same prefix. Nothing here comes from hicache."""
    seen, total = set(), 0
    for row in rows:
        length, blocks = row["input_length"], row["hash_ids"]
        hit = True
        for page in range(length // page_size):
            end = (page + 1) * page_size
            # A page is named by all blocks that reach into the prefix up to its end, and by that end.
            name = (tuple(blocks[: (end + 511) // 512]), end)
            hit = hit and name in seen and end <= length - 1
            total += page_size if hit else 0
            seen.add(name)
    return total


def whole_pages(rows, page_size):
    """How many different whole pages the prompts have."""
    return len({(tuple(row["hash_ids"][: (end + 511) // 512]), end)
                for row in rows for end in range(page_size, row["input_length"] + 1, page_size)})


def main():
    if not (BIN / "hicache-replay").exists():
        sys.exit(f"build first: there is no hicache-replay in {BIN}")
    unittest.main(verbosity=2)
