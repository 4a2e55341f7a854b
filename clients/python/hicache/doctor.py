"""python -m hicache doctor: what is there on this machine, what hicache would use, and whether it works."""

from __future__ import annotations

import argparse
import array
import asyncio
import json
import logging
import os
import pathlib
import platform
import re
import resource
import secrets
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

from hicache import _abi, _tree_abi, ops
from hicache._cache import Cache
from hicache._errors import Error
from hicache._files import PACKAGE, PROGRAMS, find_program, find_tree_library
from hicache._node import Node
from hicache._store import Store

OK, NOTE, WARNING, FAILURE = "ok", "note", "warning", "failure"

_PAGE = 65536
_PAGES = 8
_INDEX_PORT = 7766


class Finding(NamedTuple):
    """Something that was looked at, and a sentence about it."""

    what: str
    state: str
    sentence: str


class Findings:
    """What was found, said as it comes."""

    def __init__(self, say: Callable[[Finding], None]) -> None:
        self.all: list[Finding] = []
        self._say = say

    def add(self, what: str, state: str, sentence: str) -> None:
        self.all.append(Finding(what, state, sentence))
        self._say(self.all[-1])

    def attempt(self, what: str, body: Callable[[], str]) -> None:
        """Does something, and says what came of it: its own sentence, or that of the error."""
        try:
            self.add(what, OK, body())
        except (Error, OSError, AssertionError, ImportError, subprocess.SubprocessError) as trouble:
            self.add(what, FAILURE, str(trouble) or type(trouble).__name__)

    @property
    def has_failures(self) -> bool:
        return any(each.state == FAILURE for each in self.all)


def main(arguments: list[str]) -> int:
    """0 if everything that is there works, 1 if something does not."""
    parser = argparse.ArgumentParser(prog="python -m hicache")
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser("doctor", help="looks at this machine, and tries what hicache can do on it")
    doctor.add_argument("--socket", help="the node that engines would use here; it is tried too, with a few pages that are removed again")
    doctor.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    commands.add_parser("lm-server", help="serves LMCache's lm:// protocol from a node", add_help=False)
    flags = parser.parse_args(arguments)
    logging.getLogger("hicache").addHandler(logging.NullHandler())  # It kills a node, and says so itself.
    findings = Findings(lambda finding: None if flags.json else _say(finding))
    _look(findings, flags.socket)
    _try(findings, flags.socket)
    if flags.json:
        print(json.dumps({"ok": not findings.has_failures, "findings": [each._asdict() for each in findings.all]}, indent=2))
    else:
        print("Something does not work: see above." if findings.has_failures else "Everything that is here works.")
    return 1 if findings.has_failures else 0


def _say(finding: Finding) -> None:
    print(f"{finding.state.upper() if finding.state == FAILURE else finding.state:8} {finding.what}: {finding.sentence}", flush=True)


# What is there.


def _look(findings: Findings, where: str | None) -> None:
    findings.add("Python", OK, f"{platform.python_version()} at {sys.executable}; hicache at {PACKAGE}")
    findings.attempt("library", _library)
    for name in PROGRAMS:
        _look_at_program(findings, name)
    _look_at_memory(findings)
    _look_at_limits(findings)
    findings.attempt("memfd", _memfd)
    _look_at_shared_memory(findings)
    _look_at_ports(findings)
    if where is not None:
        _look_at_socket(findings, pathlib.Path(where))


def _library() -> str:
    library = _abi.library()
    return f"{library.path}, version {library.version}, C ABI {library.hc_abi_version()}"


def _look_at_program(findings: Findings, name: str) -> None:
    program = find_program(name)
    if program is None:
        findings.add(name, NOTE, "not here: neither in the package nor on PATH")
        return
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as trouble:
        findings.add(name, FAILURE, f"{program}: {trouble}")
        return
    version = said.stdout.splitlines()[0] if said.returncode == 0 and said.stdout else ""
    if not version:
        findings.add(name, FAILURE, f"{program} does not run: {(said.stderr.strip().splitlines() or ['it ended without a word'])[-1]}")
    elif version != f"hicache {_version()}":
        findings.add(name, WARNING, f"{program} is {version}; the library is {_version()}")
    else:
        findings.add(name, OK, f"{program}, {version}")


def _version() -> str:
    try:
        return _abi.library().version
    except (ImportError, OSError):
        return "not there"


def _kernel_figures() -> dict[str, int]:
    """/proc/meminfo, in bytes or pieces."""
    lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    found = (re.match(r"([^:]+):\s+(\d+)( kB)?", line) for line in lines)
    return {each[1]: int(each[2]) * (1024 if each[3] else 1) for each in found if each}


def _look_at_memory(findings: Findings) -> None:
    figures = _kernel_figures()
    findings.add("memory", OK, f"{_size(figures['MemAvailable'])} of {_size(figures['MemTotal'])} are free; a node takes its --memory at the start")
    huge, size = figures.get("HugePages_Free", 0), figures.get("Hugepagesize", 0)
    if huge:
        findings.add("huge pages", OK, f"{huge} of {_size(size)} are free: a node of up to {_size(huge * size)} uses them")
    else:
        findings.add("huge pages", NOTE, "none are free: a node uses ordinary pages, which costs some speed; vm.nr_hugepages reserves them")


def _look_at_limits(findings: Findings) -> None:
    locked, files = resource.getrlimit(resource.RLIMIT_MEMLOCK), resource.getrlimit(resource.RLIMIT_NOFILE)
    if locked[0] == resource.RLIM_INFINITY:
        findings.add("memlock", OK, "memory can be locked without limit")
    else:
        findings.add("memlock", NOTE, f"up to {_size(locked[0])} can be locked (ulimit -l): enough on one host; RDMA locks all of a node's memory")
    state = OK if files[1] == resource.RLIM_INFINITY or files[1] >= 4096 else WARNING
    findings.add("descriptors", state, f"up to {files[1]} (ulimit -Hn); a node needs two for each client")


def _memfd() -> str:
    descriptor = os.memfd_create("hicache-doctor")
    try:
        os.ftruncate(descriptor, _PAGE)
        assert os.pwrite(descriptor, b"x", _PAGE - 1) == 1, "cannot write"
    finally:
        os.close(descriptor)
    return "memory can be shared by descriptor, as nodes do; /dev/shm is not needed for that"


def _look_at_shared_memory(findings: Findings) -> None:
    if not os.access("/dev/shm", os.W_OK):
        findings.add("/dev/shm", WARNING, "cannot be written; ranks of one machine and several engines need it, a node does not")
        return
    findings.add("/dev/shm", OK, f"{_size(shutil.disk_usage('/dev/shm').free)} are free")


def _look_at_ports(findings: Findings) -> None:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", _INDEX_PORT))
            findings.add("ports", OK, f"{_INDEX_PORT} is free, which an index takes if it is not told otherwise")
        except OSError as trouble:
            findings.add("ports", NOTE, f"{_INDEX_PORT}, which an index takes if it is not told otherwise, is taken: {trouble.strerror}")


def _look_at_socket(findings: Findings, path: pathlib.Path) -> None:
    try:
        seen = path.stat()
    except OSError as trouble:
        findings.add("socket", FAILURE, f"{path}: {trouble.strerror}; no node listens there")
        return
    mode, owner = stat.filemode(seen.st_mode), seen.st_uid
    if not stat.S_ISSOCK(seen.st_mode):
        findings.add("socket", FAILURE, f"{path} is no socket ({mode})")
    elif owner != os.geteuid():
        findings.add("socket", FAILURE, f"{path} is of user {owner}, and this is user {os.geteuid()}: a node serves its own user alone")
    else:
        findings.add("socket", OK, f"{path} ({mode}) is of this user")


# Whether it works.


def _try(findings: Findings, where: str | None) -> None:
    if any(each.what == "library" and each.state == FAILURE for each in findings.all):
        findings.add("self-test", FAILURE, "not possible without the library")
        return
    try:
        _tree_abi.library()
    except (OSError, ImportError) as trouble:
        findings.add("a prefix cache", NOTE, f"not possible: {trouble}")
    else:
        findings.attempt("a prefix cache", _try_cache)
    if where is not None:
        findings.attempt("your node", lambda: _try_given(where))
    if find_program("hicache-node") is None:
        findings.add("self-test", NOTE, "not possible without hicache-node")
        return
    findings.attempt("a node of its own", _try_own)
    if find_program("hicache-index") is not None:
        findings.attempt("two nodes and an index", _try_cluster)


def _try_cache() -> str:
    prompt = array.array("I", range(64))
    with Cache({"device": "host", "model": "tiny", "page-size": 16, "device-pages": 8}) as cache:
        for request, cached in ((1, 0), (2, 48)):
            cache.apply([ops.Match(request, prompt), ops.Prefetch(request), ops.Schedule(request)]).check()
            cache.apply([ops.Load(request), ops.Allocate(request, len(prompt))]).check()
            released = cache.apply([ops.Insert(request, prompt), ops.Release(request)]).check()[1]
            while cache.step(0.05).in_flight:
                pass
            assert released.l1_tokens == cached, f"{released.l1_tokens} tokens of a prompt were cached, not {cached}"
    return f"{find_tree_library()}: a prompt was computed once and found the second time"


def _try_given(where: str) -> str:
    with Store(where, f"hicache-doctor/{secrets.token_hex(8)}") as store:
        store.connect()
        state = store.node_status()
        _use(store)
        return (f"{where} serves {state['clients']} clients with {_size(state['capacity_bytes'])}, {_size(state['used_bytes'])} of them in use; "
                "pages were put, read back and removed")


def _try_own() -> str:
    with Node("32MiB") as node:
        with node.store("hicache-doctor") as store:
            _use(store)
            asyncio.run(_use_asynchronously(store))
        # What one client put, another one gets; and a node that was killed comes back.
        with node.store("hicache-doctor") as store:
            names, pages = _pages()
            store.put(names, pages).check()
            with node.store("hicache-doctor") as other:
                _expect(other, names, pages)
            node.kill()
            assert store.exists(names).pages == 0, "pages are there without a node"
            node.start()
            _until_there(lambda: store.put(names, pages).pages == len(names), "the node did not come back")
            _expect(store, names, pages)
    return "pages were put, looked up, read back, pinned, read in place, awaited and removed; it was killed and came back"


def _use(store: Store) -> None:
    names, pages = _pages()
    try:
        store.put(names, pages, chain=True).check()
        assert store.exists(names).prefix == len(names), "pages that were stored are not found"
        _expect(store, names, pages)
        with store.pin(names, chain=True, in_place=True) as lease:
            assert [bytes(view) for view in lease.check()] == pages, "pages read in place are wrong"
    finally:
        store.remove(names)
    assert store.exists(names).pages == 0, "pages that were removed are found"


async def _use_asynchronously(store: Store) -> None:
    names, pages = _pages()
    for result in await asyncio.gather(*(store.start_put([name], [page]) for name, page in zip(names, pages, strict=True))):
        result.check()
    assert (await store.start_exists(names)).pages == len(names), "pages that were stored are not found"


def _try_cluster() -> str:
    with tempfile.TemporaryDirectory(prefix="hicache-") as folder, _Index(pathlib.Path(folder)) as index:
        flags = ["--index", index.address]
        with Node("32MiB", flags=flags) as first, Node("32MiB", flags=flags) as second:
            with first.store("hicache-doctor") as here, second.store("hicache-doctor") as there:
                names, pages = _pages()
                here.put(names, pages).check()
                _until_there(lambda: there.prefetch(names).pages == len(names), "one node's pages did not come to the other one")
                _expect(there, names, pages)
    return "an index and two nodes on this host: what was put at one was read at the other"


class _Index:
    """A hicache-index on a free port of this host."""

    def __init__(self, folder: pathlib.Path) -> None:
        with open(folder / "index.log", "w") as log:
            self._process = subprocess.Popen([str(find_program("hicache-index")), "--listen", "127.0.0.1:0"], stdin=subprocess.DEVNULL,
                                             stdout=subprocess.PIPE, stderr=log, text=True)
        found = re.match(r"listening on (\S+)", self._process.stdout.readline() if self._process.stdout else "")
        if not found:
            self.__exit__()
            raise AssertionError("hicache-index did not start: " + (folder / "index.log").read_text().strip()[-500:])
        self.address = found.group(1)

    def __enter__(self) -> _Index:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(20)
        if self._process.stdout:
            self._process.stdout.close()


def _pages() -> tuple[list[str], list[bytes]]:
    """Pages that nobody stored yet."""
    batch = secrets.token_hex(8)
    return [f"{batch}.{i}" for i in range(_PAGES)], [secrets.token_bytes(_PAGE) for _ in range(_PAGES)]


def _expect(store: Store, names: list[str], pages: list[bytes]) -> None:
    into = [bytearray(len(page)) for page in pages]
    store.get(names, into).check()
    assert into == pages, "bytes that were read are not those that were stored"


def _until_there(is_there: Callable[[], bool], sentence: str) -> None:
    """Tries again and again, for ten seconds."""
    end = time.monotonic() + 10
    while not is_there():
        assert time.monotonic() < end, sentence
        time.sleep(0.05)


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
