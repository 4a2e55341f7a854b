"""The cluster store among processes that are killed, stopped and cut off, and memory that changes under it: nobody is served a wrong
byte, the others go on, the index comes back to what is true, and nothing is left behind.

    HICACHE_CHAOS_ROUNDS=200 HICACHE_CHAOS_SEED=1 python3 tests/system/chaos_test.py
"""

import collections
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import time

from harness import BIN, MPIRUN, REPLAYED_MODEL, SMALL_KV, SystemTest, main, write_trace
from segments import FIELDS, HEADER_BYTES, OBJECT_OFFSET, StoppedOwner, own_segment

ROUNDS = int(os.environ.get("HICACHE_CHAOS_ROUNDS", 12))
SEED = int(os.environ.get("HICACHE_CHAOS_SEED", random.randrange(10**6)))
PAGE = 64
TTL_S = 2
# On top of what members and index may take: a busy machine, on which to start a replay alone takes seconds.
SLACK_S = 10
# When index and members have given up a connection whose other end takes nothing (rpc/limits.hpp), and looked.
GIVEN_UP_S = 10
# An index keeps its tables for the pages of the trace; what it takes beyond its first round is room of the allocator.
INDEX_GROWTH_KB = 32 * 1024
# Likewise the open files of a keeper: those for members that have gone must not add up.
MEMBER_FILES = 64
CHECKED_FIELDS = list(FIELDS)


def say(text):
    print(text, file=sys.stderr, flush=True)


def resident_kb(pid):
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0])


class StoreTest(SystemTest):
    """Programs around one index, on this machine or partly in a network namespace."""

    def storage(self, address, segment, **extra):
        return [*SMALL_KV, "--hicache-storage-backend", "cluster", "--index", address, "--segment-size", segment,
                "--hicache-storage-backend-extra-config", json.dumps({"prefetch_threshold": PAGE, **extra})]

    def status(self, address, seconds=10):
        """What the index says; nothing if it cannot be reached."""
        try:
            answer = subprocess.run([BIN / "hicachectl", "status", "--index", address, "--json"], capture_output=True, text=True,
                                    timeout=seconds)
        except subprocess.TimeoutExpired:
            return None
        return json.loads(answer.stdout) if answer.returncode == 0 else None

    def wait_until(self, what, condition, seconds=20):
        """Waits for the condition; returns how long that took."""
        begin = time.monotonic()
        while not condition():
            self.assertLess(time.monotonic() - begin, seconds, what)
            time.sleep(0.02)
        return time.monotonic() - begin


class DamageTest(StoreTest):
    PROMPTS = 40

    def write_single_pages(self):
        """Prompts of one page each, which share nothing: each page is looked for once."""
        path = self.folder / "single.jsonl"
        rows = [{"timestamp": i, "input_length": PAGE + 1, "output_length": 1, "hash_ids": [i]} for i in range(self.PROMPTS)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    def start_owner(self, address, trace, **extra):
        owner = self.start_replay("owner", 1, "--trace", trace, "--verify", "all", "--linger", "forever",
                                  *self.storage(address, "16MiB", **extra))
        owner.wait_for("requests in")
        self.assert_clean(self.read_report(owner))
        return owner

    def damage_pages(self, pid, rng, wanted):
        """Flips a bit in each of so many objects, in half of them in the header; returns what was damaged in which."""
        done = {}
        with StoppedOwner(pid) as memory:
            objects = memory.objects()
            self.assertGreaterEqual(len(objects), self.PROMPTS)
            rng.shuffle(objects)
            for stored in objects[:wanted]:
                if len(done) % 2 == 0:
                    name = "bytes"
                    begin, size = OBJECT_OFFSET, stored.length
                else:
                    name = CHECKED_FIELDS[len(done) // 2 % len(CHECKED_FIELDS)]
                    begin, size = FIELDS[name]
                memory.flip(stored.slot + begin + rng.randrange(size), rng.randrange(8))
                done[stored.page] = name
        return done

    def corrupt(self, address, host):
        return sum(member["corrupt"] for member in self.status(address)["members"] if member["host"] == host)

    def test_damaged_pages_are_misses_and_are_counted(self):
        rng = random.Random(SEED)
        for path in ("mapped", "remote"):
            with self.subTest(path=path, HICACHE_CHAOS_SEED=SEED):
                index, address = self.start_index("--member-ttl", f"{TTL_S}s")
                trace = self.write_single_pages()
                owner = self.start_owner(address, trace, host="owner")
                damaged = self.damage_pages(owner.ranks()[0], rng, 28)
                reader = self.start_replay("reader", 1, "--trace", trace, "--verify", "all",
                                           *self.storage(address, "0", host="reader", force_remote_reads=path == "remote"))
                self.assertEqual(reader.wait(), 0, reader.text())
                report = self.read_report(reader)
                self.assert_clean(report)
                self.assertGreater(report["cached_tokens"]["l3"], 0)
                self.assertLess(report["cached_tokens"]["l3"], self.PROMPTS * PAGE)
                said = owner.err.read_text()
                missed = {page: field for page, field in damaged.items() if f"page {page} is damaged" not in said}
                self.assertEqual(missed, {}, "the owner names each damaged page\n" + said + reader.text())
                self.wait_until("the index hears how many", lambda: self.corrupt(address, "owner") == len(damaged))
                for program in (owner, index):
                    program.terminate()
                    program.wait(30)
                    self.assert_all_gone(program)


class Network:
    """A network namespace behind a veth pair: what runs in it reaches this machine by that alone, until it is cut."""

    def __init__(self):
        self.name = f"hicache-{os.getpid()}"
        self.ends = [f"hc{os.getpid()}{end}" for end in "ab"]
        net = f"10.213.{os.getpid() % 256}"
        self.here, self.there = f"{net}.1", f"{net}.2"

    def ip(self, *arguments):
        subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)

    def build(self):
        """Why there is none; nothing if there is one."""
        try:
            self.ip("netns", "add", self.name)
            self.ip("link", "add", self.ends[0], "type", "veth", "peer", "name", self.ends[1], "netns", self.name)
            self.ip("addr", "add", f"{self.here}/24", "dev", self.ends[0])
            self.ip("link", "set", self.ends[0], "up")
            self.ip("-n", self.name, "addr", "add", f"{self.there}/24", "dev", self.ends[1])
            self.ip("-n", self.name, "link", "set", self.ends[1], "up")
            self.ip("-n", self.name, "link", "set", "lo", "up")
            return None
        except (OSError, subprocess.CalledProcessError) as error:
            self.remove()
            return f"{error} {getattr(error, 'stderr', '') or ''}".strip()

    def cut(self):
        # The far end: this end keeps its address, which the members here use as well.
        self.ip("-n", self.name, "link", "set", self.ends[1], "down")

    def heal(self):
        self.ip("-n", self.name, "link", "set", self.ends[1], "up")

    def remove(self):
        for command in (["link", "del", self.ends[0]], ["netns", "del", self.name]):
            subprocess.run(["ip", *command], capture_output=True)


class DeadAddress:
    """A port where connections are neither taken nor refused: its queue is full."""

    def __init__(self, host):
        self.socket = socket.create_server((host, 0), backlog=0)
        self.waiting = []
        for _ in range(8):
            waiting = socket.socket()
            waiting.setblocking(False)
            waiting.connect_ex(self.socket.getsockname())
            self.waiting.append(waiting)

    def __str__(self):
        return "{}:{}".format(*self.socket.getsockname())

    def close(self):
        for each in (*self.waiting, self.socket):
            each.close()


class ChaosTest(StoreTest):
    KEEPERS = ("keeper", "far")
    REPLAYS = {"writer": 2, "reader": 1}

    def test_faults_cost_hits_and_nothing_else(self):
        say(f"HICACHE_CHAOS_SEED={SEED} HICACHE_CHAOS_ROUNDS={ROUNDS}")
        self.rng = random.Random(SEED)
        self.launches, self.ended, self.hits, self.running, self.hurt = 0, 0, 0, {}, set()
        self.dead_seed = None
        self.open_network()
        self.trace = self.folder / "trace.jsonl"
        write_trace(self.trace, 120)
        self.start_cluster()
        faults = [self.kill_keeper, self.kill_writer, self.kill_reader, self.kill_index, self.pause_member, self.pause_index,
                  self.damage_bytes, self.damage_header, self.stop_reader_for_long, self.stick_disk, self.add_dead_seed]
        if self.network:
            faults.append(self.cut_network)
        order = []
        try:
            for number in range(1, ROUNDS + 1):
                if not order:
                    order = self.rng.sample(faults, len(faults))
                self.play_round(number, order.pop())
            self.end_cluster()
        except BaseException:
            say(f"failed with HICACHE_CHAOS_SEED={SEED}")
            raise

    # -- programs ------------------------------------------------------------

    def open_network(self):
        self.network = Network()
        if trouble := self.network.build():
            say(f"skipped: cuts of the network, since no network namespace can be made: {trouble}")
            self.network = None
        else:
            self.addCleanup(self.network.remove)

    def start_cluster(self):
        here = self.network.here if self.network else "127.0.0.1"
        self.index_flags = ["--member-ttl", f"{TTL_S}s", *(["--insecure"] if self.network else [])]
        first, address = self.start_index(*self.index_flags, listen=f"{here}:0")
        # On a machine that can be cut off, if there is one.
        self.far_host = self.network.there if self.network else here
        self.enter_far = ["ip", "netns", "exec", self.network.name] if self.network else []
        second, other = self.start_index("--shard", "1", "--join", address, *self.index_flags, listen=f"{self.far_host}:0",
                                         enter=self.enter_far)
        self.indexes, self.addresses = [first, second], [address, other]
        self.address = ",".join(self.addresses)
        self.resident_kb, self.files = {}, {}
        for name in (*self.KEEPERS, *self.REPLAYS):
            self.launch(name)

    def launch(self, name):
        """Starts a member, on what counts as a machine that nobody has been on."""
        self.launches += 1
        host = f"{name}{self.launches}"
        far = name == "far" and self.network
        listen = self.network.there if far else self.network.here if self.network else None
        common = ["--listen-host", listen, "--insecure"] if listen else []
        if name in self.KEEPERS:
            program = self.start([*(self.enter_far if far else []), MPIRUN, 1, BIN / "hicache-rank", *common, *REPLAYED_MODEL,
                                  *self.storage(self.seeds(), "16MiB", host=host)], host)
            program.report = None
            program.wait_for("ranks ready")
        else:
            extra = {"replicas": 2} if name == "writer" else {"replicas": 1, "force_remote_reads": self.rng.random() < 0.5}
            program = self.start_replay(host, self.REPLAYS[name], "--trace", self.trace, "--verify", "all", "--device-pages", "512",
                                        "--prefill-tokens-per-second", "200000", *common,
                                        *self.storage(self.seeds(), "16MiB", host=host, **extra))
        self.running[name] = program

    def seeds(self):
        """The addresses of the index, from now on behind one that does not answer, if there is such a one."""
        return f"{self.dead_seed},{self.address}" if self.dead_seed else self.address

    def look_after(self, restart=True):
        """Checks what has ended, and starts it again unless it shall wait."""
        for name in (*self.KEEPERS, *self.REPLAYS):
            program = self.running.get(name)
            if program and program.process.poll() is not None:
                self.check_ended(program)
                del self.running[name]
            if name not in self.running and restart:
                self.launch(name)
        for index in self.indexes:
            self.assertTrue(index.process.poll() is None, index.text())

    def check_ended(self, program, by_itself=True):
        hurt = program.name in self.hurt
        self.assert_all_gone(program)
        text = program.report.read_text() if program.report and program.report.exists() else ""
        report = json.loads(text) if text else {}
        # Until the end of a replay its report is there, but says nothing.
        if "verify" in report:
            self.assertEqual(report["verify"]["mismatches"], 0, program.text())
            self.hits += report["cached_tokens"]["l3"]
            if not hurt:
                try:
                    self.assert_clean(report)
                except AssertionError as error:
                    raise AssertionError(f"{error}\n{json.dumps(report)}\n{program.text()}") from None
        elif program.report:
            self.assertTrue(hurt, f"ended without a report\n{program.text()}")
        if by_itself and not hurt:
            self.assertEqual(program.process.poll(), 0, program.text())
        self.ended += 1
        self.programs.remove(program)
        for path in (program.out, program.err, program.report):
            if path:
                path.unlink(missing_ok=True)

    def pid_of(self, name):
        """A process of the member, when it has some."""
        found = {}

        def runs():
            self.look_after()
            found.update(self.running[name].ranks())
            return len(found) > 0

        self.wait_until(f"{name} runs", runs)
        return found[self.rng.randrange(len(found))]

    # -- faults: each returns what it has done, when it is over ---------------------

    def kill(self, name):
        pid = self.pid_of(name)
        program = self.running[name]
        self.hurt.add(program.name)
        os.kill(pid, signal.SIGKILL)
        program.wait(30)
        return f"killed a rank of {program.name}"

    def kill_keeper(self):
        return self.kill(self.rng.choice(self.KEEPERS))

    def kill_writer(self):
        return self.kill("writer")

    def kill_reader(self):
        return self.kill("reader")

    def kill_index(self):
        number = self.rng.randrange(2)
        self.indexes[number].kill()
        self.assert_all_gone(self.indexes[number])
        self.programs.remove(self.indexes[number])
        time.sleep(self.rng.choice([0, 1]))  # How long it is away.
        self.indexes[number], _ = self.start_index("--shard", number, "--join", self.addresses[1 - number], *self.index_flags,
                                                   listen=self.addresses[number], enter=self.enter_far if number == 1 else [])
        self.resident_kb.pop(number, None)
        return f"killed shard {number}"

    def pause(self, pid):
        seconds = self.rng.choice([0.3, 1, TTL_S + 1, TTL_S + 2.5])
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)  # The pause itself.
        os.kill(pid, signal.SIGCONT)
        return seconds

    def pause_member(self):
        name = self.rng.choice([*self.KEEPERS, *self.REPLAYS])
        pid = self.pid_of(name)
        return f"stopped a rank of {self.running[name].name} for {self.pause(pid)} s"

    def stop_reader_for_long(self):
        """One that takes no replies, until everyone has given it up; the others get theirs."""
        pid = self.pid_of("reader")
        os.kill(pid, signal.SIGSTOP)
        try:
            begin = time.monotonic()
            self.wait_until("the others get hits meanwhile", self.gets_hits, TTL_S + 1 + SLACK_S)
            time.sleep(max(0, begin + GIVEN_UP_S - time.monotonic()))  # The stop itself.
        finally:
            os.kill(pid, signal.SIGCONT)
        return f"stopped a rank of {self.running['reader'].name} for {time.monotonic() - begin:.0f} s"

    def stick_disk(self):
        """A replay whose pages lie on a disk that hangs: pipes stand for them."""
        self.launches += 1
        pages = self.folder / f"disk{self.launches}"
        flags = ["--trace", self.trace, "--limit", "10", "--verify", "all", *SMALL_KV, "--hicache-storage-backend", "file",
                 "--hicache-storage-backend-extra-config", json.dumps({"prefetch_threshold": PAGE, "path": str(pages)}),
                 "--hicache-storage-timeout", "400ms", "--shutdown-grace", "500ms"]
        for name in ("writes", "hangs"):
            program = self.start_replay(f"{name}{self.launches}", 1, *flags)
            self.assertEqual(program.wait(60), 0, program.text())
            files = list(pages.rglob("*.kv"))
            self.assertGreater(len(files), 0)
            self.assert_clean(self.read_report(program))
            self.assert_all_gone(program)
            self.programs.remove(program)
            for path in files:
                path.unlink()
                os.mkfifo(path)
        shutil.rmtree(pages)
        return "had a replay's disk hang"

    def add_dead_seed(self):
        """Those who start from now on are told of an address where nobody answers, before the others."""
        if not self.dead_seed:
            self.dead_seed = DeadAddress(self.network.here if self.network else "127.0.0.1")
            self.addCleanup(self.dead_seed.close)
        return f"added a seed that does not answer; {self.kill_keeper()}"

    def pause_index(self):
        number = self.rng.randrange(2)
        return f"stopped shard {number} for {self.pause(self.indexes[number].process.pid)} s"

    def damage(self, begin, size_of):
        """Flips bits in several pages of whoever holds some."""
        names = [*self.KEEPERS, *self.REPLAYS]
        self.rng.shuffle(names)
        held = []

        def somebody_holds_pages():
            self.look_after()
            for name in names:
                for pid in self.running[name].ranks().values():
                    if own_segment(pid) and self.flip_in(pid, begin, size_of):
                        held.append(self.running[name].name)
                        return True
            return False

        self.wait_until("somebody holds pages", somebody_holds_pages)
        return f"flipped bits in pages of {held[0]}"

    def flip_in(self, pid, begin, size_of):
        with StoppedOwner(pid) as memory:
            objects = memory.objects()
            for stored in self.rng.sample(objects, min(len(objects), 200)):
                memory.flip(stored.slot + begin + self.rng.randrange(size_of(stored)), self.rng.randrange(8))
        return len(objects)

    def damage_bytes(self):
        return self.damage(OBJECT_OFFSET, lambda stored: stored.length)

    def damage_header(self):
        return self.damage(0, lambda stored: HEADER_BYTES)

    def cut_network(self):
        seconds = self.rng.choice([0.5, TTL_S + 1.5, TTL_S + 3])
        self.network.cut()
        begin = time.monotonic()
        if seconds > TTL_S + 1:
            self.wait_until("the index forgets who is cut off", lambda: "far" not in (self.members() or ["far"]), TTL_S + 1 + SLACK_S)
        time.sleep(max(0, begin + seconds - time.monotonic()))  # How long it is cut.
        self.network.heal()
        return f"cut off the machine of {self.running['far'].name} and shard 1 for {time.monotonic() - begin:.1f} s"

    # -- rounds -------------------------------------------------------------------

    def members(self):
        """The kinds of the members that the index knows; nothing if it does not answer."""
        status = self.status(self.address)
        return None if status is None else [member["host"].rstrip("0123456789") for member in status["members"]]

    def has_converged(self):
        """Whether the index knows exactly the members that live, and all of its shards answer. What has ended stays away meanwhile."""
        self.look_after(restart=False)
        status = self.last_status = self.status(self.address)
        if not status or [shard["reached"] for shard in status["shards"]] != [True, True]:
            return False
        alive = {program.name: self.REPLAYS.get(name, 1) for name, program in self.running.items()}
        return collections.Counter(member["host"] for member in status["members"]) == collections.Counter(alive)

    def gets_hits(self):
        """Whether one who comes cold gets pages from the others."""
        self.look_after()
        self.launches += 1
        common = ["--listen-host", self.network.here, "--insecure"] if self.network else []
        probe = self.start_replay(f"probe{self.launches}", 1, "--trace", self.trace, "--limit", "10", "--verify", "all", *common,
                                  *self.storage(self.address, "0", force_remote_reads=self.rng.random() < 0.5))
        self.assertEqual(probe.wait(60), 0, probe.text())
        hits = self.read_report(probe)["cached_tokens"]["l3"]
        self.check_ended(probe)
        return hits > 0

    def play_round(self, number, fault):
        self.look_after()
        what = fault()
        healed = time.monotonic()
        self.look_after()
        try:
            self.wait_until("the index knows who lives", self.has_converged, TTL_S + 1 + SLACK_S)
            knows = time.monotonic() - healed
            self.wait_until("there are hits again", self.gets_hits, TTL_S + 1 + SLACK_S)
        except AssertionError as error:
            raise AssertionError(f"round {number}, {what}: {error}\n{self.last_status}\n"
                                 + "\n".join(program.text() for program in self.programs)) from None
        self.check_bounds()
        say(f"round {number}: {what}; the index knew {knows:.1f} s later, hits {time.monotonic() - healed:.1f} s later; "
            f"indexes take {', '.join(f'{resident_kb(index.process.pid) >> 10} MiB' for index in self.indexes)}")

    def check_bounds(self):
        for number, index in enumerate(self.indexes):
            now = resident_kb(index.process.pid)
            self.assertLess(now, self.resident_kb.setdefault(number, now) + INDEX_GROWTH_KB, f"memory of shard {number}")
        for name in self.KEEPERS:
            for pid in self.running[name].ranks().values() if name in self.running else []:
                now = len(os.listdir(f"/proc/{pid}/fd"))
                self.assertLess(now, self.files.setdefault(pid, now) + MEMBER_FILES, f"open files of {name}")

    def end_cluster(self):
        for program in list(self.running.values()):
            program.terminate()
            program.wait(30)
            self.check_ended(program, by_itself=False)
        self.wait_until("the index knows that all have gone", lambda: self.members() == [], TTL_S + 1 + SLACK_S)
        for index in self.indexes:
            index.terminate()
            self.assertEqual(index.wait(20), 0, index.text())
        say(f"{self.ended} replays and keepers ended; {self.hits} tokens were read from others")
        self.assertGreater(self.hits, 0)


if __name__ == "__main__":
    main()
