"""The cluster store among processes that are killed, stopped and cut off, and memory that changes under it: nobody is served a wrong
byte, the others go on, the index comes back to what is true, and nothing is left behind.

    HICACHE_CHAOS_ROUNDS=200 HICACHE_CHAOS_SEED=1 python3 tests/system/chaos_test.py
"""

import collections
import contextlib
import functools
import json
import math
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

from harness import BIN, MPIRUN, REPLAYED_MODEL, SMALL_KV, SystemTest, main, write_trace
from segments import FIELDS, HEADER_BYTES, OBJECT_OFFSET, StoppedOwner, own_segment
from surroundings import Clocks, DeadAddress, Network, cpu_seconds, out_of_files

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
# Of a core, by a process that is out of file descriptors: one that spins takes what it gets.
IDLE_SHARE = 0.4
CRAFTED_NAMES = os.environ.get("HICACHE_CRAFTED_NAMES", BIN.parent / "tests/faults/crafted-names")
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
                reader = self.start_replay("reader", 1, "--trace", trace, "--verify", "all", "--linger", "forever",
                                           *self.storage(address, "0", host="reader", force_remote_reads=path == "remote"))
                reader.wait_for("requests in")
                report = self.read_report(reader)
                self.assert_clean(report)
                self.assertGreater(report["cached_tokens"]["l3"], 0)
                self.assertLess(report["cached_tokens"]["l3"], self.PROMPTS * PAGE)
                # The reader stays: what it says of damage last would end with it.
                self.wait_until("the owner names each damaged page", lambda: all(
                    f"page {page} is damaged" in owner.err.read_text() for page in damaged))
                self.wait_until("the index hears how many", lambda: self.corrupt(address, "owner") == len(damaged))
                for program in (reader, owner, index):
                    program.terminate()
                    program.wait(30)
                    self.assert_all_gone(program)


class ChaosTest(StoreTest):
    KEEPERS = ("keeper", "far")
    REPLAYS = {"writer": 2, "reader": 1}

    def test_faults_cost_hits_and_nothing_else(self):
        say(f"HICACHE_CHAOS_SEED={SEED} HICACHE_CHAOS_ROUNDS={ROUNDS}")
        self.rng = random.Random(SEED)
        self.launches, self.ended, self.hits, self.running, self.hurt = 0, 0, 0, {}, set()
        self.dead_seed = None
        self.open_network()
        self.clocks = Clocks(self.folder, self.rng)
        self.addCleanup(self.clocks.remove)
        self.trace = self.folder / "trace.jsonl"
        write_trace(self.trace, 120)
        self.start_cluster()
        faults = [self.kill_keeper, self.kill_writer, self.kill_reader, self.kill_index, self.pause_member, self.pause_index,
                  self.damage_bytes, self.damage_header, self.stop_reader_for_long, self.stick_disk, self.add_dead_seed,
                  self.exhaust_descriptors, self.craft_names]
        if self.network:
            faults += [self.cut_network, self.mute_network]
        if self.clocks.library:
            faults.append(self.set_clocks)
        else:
            say("skipped: clocks that differ, since there is no libfaketime")
        order = []
        try:
            for number in range(1, ROUNDS + 1):
                if not order:
                    order = self.rng.sample(faults, len(faults))
                # Each kind has its turn before the end, two in a round if they are more than the rounds.
                turns = math.ceil(len(order) / (ROUNDS + 1 - number))
                self.play_round(number, [order.pop() for _ in range(turns)])
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
        first, address = self.start_index(*self.index_flags, listen=f"{here}:0",
                                          enter=self.clocks.enter("shard0"))
        # On a machine that can be cut off, if there is one.
        self.far_host = self.network.there if self.network else here
        self.enter_far = ["ip", "netns", "exec", self.network.name] if self.network else []
        second, other = self.start_index("--shard", "1", "--join", address, *self.index_flags, listen=f"{self.far_host}:0",
                                         enter=[*self.enter_far, *self.clocks.enter("shard1")])
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
            program = self.start([*(self.enter_far if far else []), MPIRUN, 1, *self.clocks.enter(host), BIN / "hicache-rank", *common,
                                  *REPLAYED_MODEL, *self.storage(self.seeds(), "16MiB", host=host)], host)
            program.report = None
            program.wait_for("ranks ready")
        else:
            extra = {"replicas": 2} if name == "writer" else {"replicas": 1, "force_remote_reads": self.rng.random() < 0.5}
            program = self.start_replay(host, self.REPLAYS[name], "--trace", self.trace, "--verify", "all", "--device-pages", "512",
                                        "--prefill-tokens-per-second", "200000", *common,
                                        *self.storage(self.seeds(), "16MiB", host=host, **extra), enter=self.clocks.enter(host))
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
                                                   listen=self.addresses[number],
                                                   enter=[*(self.enter_far if number == 1 else []), *self.clocks.enter(f"shard{number}")])
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

    def mute_network(self):
        """Half of a connection: one side hears the other, which hears nothing. Or it hears nothing of the other's end."""
        far = self.rng.random() < 0.5
        seconds = self.rng.choice([0.5, TTL_S + 1.5, TTL_S + 3])
        begin = time.monotonic()
        self.network.mute(far)
        try:
            what = self.kill("far") if far and self.rng.random() < 0.5 else "nobody ended"
            time.sleep(max(0, begin + seconds - time.monotonic()))  # How long it is mute.
        finally:
            self.network.unmute(far)
        return f"lost what the machine {'of shard 1' if far else 'of the others'} sent for {time.monotonic() - begin:.1f} s; {what}"

    def exhaust_descriptors(self):
        """A process that cannot open anything any more, and at whose port somebody waits."""
        name = self.rng.choice(["index", "keeper"])
        if name == "index":
            number = self.rng.randrange(2)
            program, name, addresses = self.indexes[number], f"shard {number}", [self.addresses[number]]
            pid = program.process.pid
        else:
            pid, program, addresses = self.pid_of("keeper"), self.running["keeper"], []
            name = program.name
            self.wait_until("the index knows the keeper", lambda: addresses.extend(self.ports_of(name)) or addresses)
        complaints = functools.partial(self.count_complaints, program)
        before = complaints()
        with contextlib.ExitStack() as at_the_end:
            at_the_end.enter_context(out_of_files(pid))
            for address in 4 * addresses:
                host, port = address.rsplit(":", 1)
                at_the_end.enter_context(socket.create_connection((host, int(port)), timeout=10))
            self.wait_until(f"{name} says that it is out of descriptors", lambda: complaints() > before)
            begin, used = time.monotonic(), cpu_seconds(pid)
            time.sleep(1.5)  # How long it has none.
            share = (cpu_seconds(pid) - used) / (time.monotonic() - begin)
        self.assertLess(share, IDLE_SHARE, f"{name} spins while it is out of descriptors")
        return f"left {name} no file descriptor for {time.monotonic() - begin:.1f} s, in which it took {share:.2f} cores"

    def count_complaints(self, program):
        return len(re.findall("cannot accept connections|out of file descriptors", program.err.read_text()))

    def ports_of(self, host):
        """Where a member takes readers of pages, if the index knows it."""
        status = self.status(self.address) or {"members": []}
        return [member["page_address"] for member in status["members"] if member["host"] == host]

    def craft_names(self):
        """Pages whose names hold what once ended connections: they are stored, found and read like others."""
        self.launches += 1
        host = self.network.here if self.network else "127.0.0.1"
        command = [CRAFTED_NAMES, "--index", self.address, "--listen-host", host]
        owner = self.start([*command, "--host", f"crafted{self.launches}"], f"crafted{self.launches}")
        stored = owner.wait_for(r"stored (\d+)").group(1)
        for name, flags in (("maps", []), ("reads", ["--remote"])):
            reader = self.start([*command, "--read", *flags], f"{name}{self.launches}")
            self.assertEqual(reader.wait(30), 0, reader.text() + owner.text())
            self.assertIn(f"read {stored}", reader.out.read_text())
            self.programs.remove(reader)
        owner.terminate()
        self.assertEqual(owner.wait(30), 0, owner.text())
        self.assert_all_gone(owner)
        self.programs.remove(owner)
        return f"had {stored} crafted names stored and read"

    def set_clocks(self):
        """The clocks of all machines, none of which is right, jump; to processes that run, too."""
        self.clocks.jump()
        for index in self.indexes:
            self.assertIn("libfaketime", pathlib.Path(f"/proc/{index.process.pid}/maps").read_text())
        time.sleep(1)  # Until programs look.
        return "set the clocks of all machines"

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

    def play_round(self, number, faults):
        whats = []
        for fault in faults:
            self.look_after()
            whats.append(fault())
        what = "; ".join(whats)
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
