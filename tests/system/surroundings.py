"""What programs of a test are surrounded by, as far as it can be changed while they run: a network, an address, the clocks of machines, a
process's room for open files."""

import contextlib
import itertools
import os
import pathlib
import resource
import socket
import subprocess


class Network:
    """A network namespace behind a veth pair: what runs in it reaches this machine by that alone, until it is cut."""

    def __init__(self):
        self.name = f"hicache-{os.getpid()}"
        self.ends = [f"hc{os.getpid()}{end}" for end in "ab"]
        used = subprocess.run(["ip", "-4", "addr"], capture_output=True, text=True).stdout
        net = next(net for net in (f"10.213.{(os.getpid() + n) % 256}" for n in range(256)) if f" {net}." not in used)
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

    def mute(self, far):
        """From now on nothing arrives that one of the two sides sends, and neither is told: its frames are for a machine that is not there."""
        self.ip(*self.side(far), "neigh", "replace", self.other(far), "dev", self.ends[far], "lladdr", "02:00:00:00:00:01",
                "nud", "permanent")

    def unmute(self, far):
        self.ip(*self.side(far), "neigh", "del", self.other(far), "dev", self.ends[far])

    def side(self, far):
        return ["-n", self.name] if far else []

    def other(self, far):
        return self.here if far else self.there

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


class Clocks:
    """Wall clocks of machines, which differ and jump; time that passes is the same everywhere. Programs see them by way of libfaketime."""

    def __init__(self, folder, rng):
        self.folder, self.rng, self.files = folder, rng, []
        self.library = next(pathlib.Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)

    def enter(self, host):
        """The command that starts a program on a machine with a clock of its own; none if there is no libfaketime."""
        if not self.library:
            return []
        self.files.append(self.folder / f"clock-{host}")
        self.set(self.files[-1])
        return ["env", f"LD_PRELOAD={self.library}", f"FAKETIME_TIMESTAMP_FILE={self.files[-1]}", "FAKETIME_CACHE_DURATION=1",
                "FAKETIME_DONT_FAKE_MONOTONIC=1", "NO_FAKE_STAT=1"]

    def set(self, file):
        seconds = self.rng.choice([1, 60, 3600, 86400, 10 * 365 * 86400]) * self.rng.choice([-1, 1])
        file.write_text(f"{seconds:+d}\n")

    def jump(self):
        for file in self.files:
            self.set(file)

    def remove(self):
        """Removes what libfaketime leaves in shared memory when its process is killed: the names end with the number of a process."""
        for path in pathlib.Path("/dev/shm").glob("*faketime_*"):
            number = path.name.rsplit("_", 1)[1]
            if number.isdigit() and not pathlib.Path("/proc", number).exists():
                path.unlink(missing_ok=True)


@contextlib.contextmanager
def out_of_files(pid):
    """A process that has as many open files as it may."""
    taken = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    usual = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (next(n for n in itertools.count() if n not in taken), usual[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, usual)


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
