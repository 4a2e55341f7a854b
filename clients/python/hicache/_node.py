"""A real hicache-node for a notebook or a test."""

from __future__ import annotations

import atexit
import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Iterable, Iterator

from hicache._errors import Code, error_of
from hicache._files import find_program
from hicache._store import Store

_nodes: weakref.WeakSet[Node] = weakref.WeakSet()


class Node:
    """A hicache-node of this process: it ends with stop(), with the `with` that it was started in, or with this process."""

    def __init__(self, memory: str = "64MiB", *, socket: str | os.PathLike[str] | None = None, flags: Iterable[str] = (),
                 start_time: float = 60.0) -> None:
        """Starts a node, and returns when it serves.

        @param memory For pages, such as "8GiB"; taken at once.
        @param socket Where it listens; in a folder of its own if None.
        @param flags More flags of hicache-node.
        @param start_time Seconds that the start may take.
        @raises Error it does not start; the sentence is the node's own
        """
        self._process: subprocess.Popen | None = None
        self._owner = os.getpid()
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix="hicache-"))
        self.socket = os.fspath(socket) if socket is not None else str(self._folder / "node")
        #: What the node says.
        self.log = self._folder / "log"
        self._command = ["--memory", memory, "--socket", self.socket, *map(str, flags)]
        self._start_time = start_time
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        _nodes.add(self)

    @property
    def pid(self) -> int | None:
        """The node's process; None if none runs."""
        if self._process is None or os.getpid() != self._owner or self._process.poll() is not None:
            return None
        return self._process.pid

    def start(self) -> None:
        """Starts it again, after stop() or kill(); what it held is gone. Nothing happens if it runs."""
        if self.pid is not None:
            return
        program = find_program("hicache-node")
        if program is None:
            raise error_of(Code.UNSUPPORTED, "there is no hicache-node: neither in this package nor on PATH; HICACHE_BIN can name its folder")
        self._folder.mkdir(exist_ok=True)
        with open(self.log, "w") as log:
            process = subprocess.Popen([*_ends_with_us(), program, *self._command], stdin=subprocess.DEVNULL,
                                       stdout=subprocess.PIPE, stderr=log, text=True)
        self._process = process
        # A node that neither serves nor ends is killed, which ends the reading.
        patience = threading.Timer(self._start_time, process.kill)
        patience.start()
        try:
            line = process.stdout.readline() if process.stdout else ""
        finally:
            patience.cancel()
            patience.join()
            if process.stdout:
                process.stdout.close()
        if not line.startswith("listening on"):
            raise error_of(Code.IO_FAILURE, f"hicache-node did not start: {self._last_words(process.wait())}")

    def stop(self) -> None:
        """Ends it in order. Nothing happens if it has ended."""
        self._end(signal.SIGTERM)
        if os.getpid() == self._owner:
            shutil.rmtree(self._folder, ignore_errors=True)

    def kill(self) -> None:
        """Ends it as a crash does: start() starts it again."""
        self._end(signal.SIGKILL)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Has it hang, as a process does that the system has stopped."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            # Its threads stop one after the other.
            while not all(task.read_text().rpartition(")")[2].split()[0] == "T" for task in pathlib.Path(f"/proc/{self.pid}/task").glob("*/stat")):
                time.sleep(0.001)
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def store(self, namespace: str, **options) -> Store:
        """Opens a Store at this node; options as for Store."""
        return Store(self.socket, namespace, **options)

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __reduce__(self):
        raise TypeError("a Node cannot be pickled: it is a process of this one; give its socket to the other process")

    def __repr__(self) -> str:
        return f"<hicache.Node at {self.socket}, {f'process {self.pid}' if self.pid else 'ended'}>"

    def _end(self, how: signal.Signals) -> None:
        if self._process is None or os.getpid() != self._owner:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _last_words(self, status: int) -> str:
        said = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return re.sub(r"^(\S*: )?error: ", "", said[-1]) if said else f"it ended with {status}, without a word"


def node(memory: str = "64MiB", **options) -> Node:
    """Starts a hicache-node: `with hicache.node() as node: …`. Options as for Node."""
    return Node(memory, **options)


def _ends_with_us() -> list[str]:
    """A command by which the node ends with this process, even if it is killed. The kernel ends it with the thread that started it,
    so this is for the main thread."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "TERM"] if setpriv and threading.current_thread() is threading.main_thread() else []


@atexit.register
def _stop_all() -> None:
    for each in list(_nodes):
        each.stop()
