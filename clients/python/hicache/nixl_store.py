"""Objects of ranks in files that NIXL reads and writes: what `--hicache-storage-backend nixl` runs. Needs NIXL's wheel.

For who has a plug-in of NIXL that is faster than the kernel's own files. The keys of SGLang's own NIXL store are accepted.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import re
import threading
import time
import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

from nixl._api import nixl_agent, nixl_agent_config

from hicache.store_host import ABSENT, DONE, LIST_OBJECTS, Listing, ObjectStore, Outcome, Slot

logger = logging.getLogger(__name__)

_FILE_PLUGINS = ("POSIX", "GDS", "GDS_MT", "HF3FS")
# How often a transfer that is under way is looked at.
_POLL_S = 50e-6
_NAME = re.compile("[0-9a-f]{64}")


class _Choice(NamedTuple):
    """What the options say about NIXL."""

    plugin: str
    #: Of `plugin_parameters`: all go to the plug-in.
    parameters: dict[str, Any]
    #: In SGLang's forms: those that the plug-in knows go to it.
    offered: dict[str, Any]
    #: What precedes the names of these in the options.
    where: str
    #: Keys that mean nothing here, whatever the plug-in knows.
    unused: list[str]


def _chosen(options: dict[str, Any]) -> _Choice:
    """Reads hicache's form, `plugin` a name and `plugin_parameters` an object, and the two of SGLang: `plugin` an object with the parameters of
    each plug-in, of which one is active, or the parameters beside the other keys."""
    parameters = options.get("plugin_parameters", {})
    if not isinstance(parameters, dict):
        raise ValueError("nixl: key 'plugin_parameters': expected an object of texts")
    offered = {key: value for key, value in options.items() if key not in ("path", "plugin", "plugin_parameters")}
    plugin, where, unused = options.get("plugin", "POSIX"), "", []
    if isinstance(plugin, dict):
        active = {name: each for name, each in plugin.items() if isinstance(each, dict) and each.get("active") in (True, "true", "True")}
        if not active:
            raise ValueError('nixl: key \'plugin\': expected one plug-in with "active": true')
        # The order of the keys is lost on the way here.
        chosen = min(active, key=lambda name: _name_of(name) not in _FILE_PLUGINS)
        unused = [*offered, *(f"plugin.{name}" for name in active if name != chosen)]
        offered = {key: value for key, value in active[chosen].items() if key != "active"}
        plugin, where = chosen, f"plugin.{chosen}."
    plugin = _name_of(str(plugin))
    if plugin == "OBJ":
        raise ValueError("nixl: plug-in OBJ keeps objects in S3, and this store is one of files; expected --hicache-storage-backend s3 for a bucket")
    if plugin not in _FILE_PLUGINS:
        raise ValueError(f"nixl: key 'plugin' is {plugin!r}; expected one that has files: {', '.join(_FILE_PLUGINS)}")
    return _Choice(plugin, parameters, offered, where, unused)


def _name_of(plugin: str) -> str:
    """As NIXL calls it. SGLang's names are in lower case, and that of one is another."""
    return "HF3FS" if plugin == "3fs" else plugin.upper()


class NixlStore(ObjectStore):
    """A file for each object, `path`/<2 digits>/<64 digits>. One is written under another name and renamed, so it is whole or not there."""

    name = "nixl"
    survives_restarts = True
    is_shared = True
    tells_lengths = True
    lists = True

    def __init__(self, options: dict[str, Any]) -> None:
        choice = _chosen(options)
        plugin = choice.plugin
        if not options.get("path"):
            raise ValueError("nixl: key 'path' is missing; expected the folder, which SGLang has in SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR")
        self._folder = pathlib.Path(options["path"])
        for first in range(256):
            (self._folder / f"{first:02x}").mkdir(parents=True, exist_ok=True)
        self._agent = nixl_agent(f"hicache-{uuid.uuid4()}", nixl_agent_config(backends=[]))
        if plugin not in self._agent.get_plugin_list():
            raise ValueError(f"nixl: there is no plug-in {plugin}; expected one of {', '.join(self._agent.get_plugin_list())}")
        known = self._agent.get_plugin_params(plugin)
        if unused := sorted([*choice.unused, *(choice.where + name for name in choice.offered if name not in known)]):
            logger.warning("nixl: these keys mean nothing here: %s", ", ".join(unused))
        parameters = {name: value for name, value in choice.offered.items() if name in known} | choice.parameters
        self._agent.create_backend(plugin, {name: _text_of(value) for name, value in parameters.items()})
        self._plugin = plugin
        self._windows: dict[int, Any] = {}
        # An agent's calls are not for several threads at a time; its transfers go side by side.
        self._lock = threading.Lock()

    def attach(self, window: memoryview, address: int) -> None:
        with self._lock:
            self._windows[address] = self._agent.register_memory([(address, len(window), 0, "")], "DRAM", backends=[self._plugin])

    def detach(self, address: int) -> None:
        with self._lock:
            self._agent.deregister_memory(self._windows.pop(address), backends=[self._plugin])

    def lookup(self, keys: Sequence[str], timeout: float) -> Sequence[bool]:
        return [self._file(key).exists() for key in keys]

    def read(self, slots: Sequence[Slot], timeout: float) -> Sequence[Outcome]:
        outcomes = [ABSENT] * len(slots)
        with contextlib.ExitStack() as opened:
            pieces = []
            for i, slot in enumerate(slots):
                try:
                    file = os.open(self._file(slot.key), os.O_RDONLY | os.O_CLOEXEC)
                except FileNotFoundError:
                    continue
                opened.callback(os.close, file)
                size = os.fstat(file).st_size
                if size > len(slot.memory):
                    outcomes[i] = Outcome("misfit", detail=f"the object has {size} bytes; expected at most {len(slot.memory)}")
                    continue
                outcomes[i] = Outcome(bytes=size)
                pieces.append((slot.address, size, file))
            self._transfer("READ", pieces, timeout)
        return outcomes

    def write(self, slots: Sequence[Slot], timeout: float) -> Sequence[Outcome]:
        with contextlib.ExitStack() as opened:
            pieces, names = [], []
            for slot in slots:
                target = self._file(slot.key)
                name = target.with_name(f".{target.name}.{uuid.uuid4()}")
                file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                opened.callback(_unlink, name)
                opened.callback(os.close, file)
                pieces.append((slot.address, len(slot.memory), file))
                names.append((name, target))
            self._transfer("WRITE", pieces, timeout)
            return [_publish(name, target) for name, target in names]

    def remove(self, keys: Sequence[str], timeout: float) -> Sequence[Outcome]:
        return [DONE if _unlink(self._file(key)) else ABSENT for key in keys]

    def list_objects(self, start: str, timeout: float) -> Listing:
        """By name; a part begins after the last name of the one before."""
        objects: list[tuple[str, int]] = []
        for first in range(int(start[:2] or "0", 16), 256):
            folder = self._folder / f"{first:02x}"
            for name in sorted(name for name in os.listdir(folder) if name > start and _NAME.fullmatch(name)):
                if len(objects) == LIST_OBJECTS:
                    return Listing(objects, objects[-1][0])
                with contextlib.suppress(FileNotFoundError):
                    objects.append((name, (folder / name).stat().st_size))
        return Listing(objects)

    def health(self) -> str:
        space = os.statvfs(self._folder)
        return f"{self._plugin} in {self._folder}, {space.f_bavail * space.f_frsize >> 20} MiB free"

    def _file(self, key: str) -> pathlib.Path:
        return self._folder / key[:2] / key

    def _transfer(self, operation: str, pieces: list[tuple[int, int, int]], timeout: float) -> None:
        """Copies between memory and the beginnings of files: (address, bytes, file)."""
        if not pieces:
            return
        agent, end = self._agent, time.monotonic() + timeout
        files = [(0, size, file) for _, size, file in pieces]
        with self._lock:
            known = agent.register_memory([(*file, "") for file in files], "FILE", backends=[self._plugin])
            transfer = agent.initialize_xfer(operation, agent.get_xfer_descs([(address, size, 0) for address, size, _ in pieces], "DRAM"),
                                             agent.get_xfer_descs(files, "FILE"), agent.name, backends=[self._plugin])
            state = agent.transfer(transfer)
        try:
            while state == "PROC":
                if time.monotonic() > end:
                    raise TimeoutError("nixl: a transfer took too long")
                time.sleep(_POLL_S)
                with self._lock:
                    state = agent.check_xfer_state(transfer)
        finally:
            with self._lock:
                agent.release_xfer_handle(transfer)
                agent.deregister_memory(known, backends=[self._plugin])
        if state != "DONE":
            raise OSError(f"nixl: a transfer ended as {state}")


def _text_of(value: Any) -> str:
    """As NIXL's plug-ins read it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _unlink(name: pathlib.Path) -> bool:
    try:
        name.unlink()
    except FileNotFoundError:
        return False
    return True


def _publish(name: pathlib.Path, target: pathlib.Path) -> Outcome:
    """Gives a file its name, unless there is one already."""
    try:
        os.link(name, target)
    except FileExistsError:
        return Outcome("present")
    return DONE
