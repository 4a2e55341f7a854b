"""Stores for the tests of the store host: a plain folder, and classes that a host refuses."""

import os
import pathlib
import time

from hicache.store_host import ABSENT, DONE, Listing, ObjectStore, Outcome


class FolderStore(ObjectStore):
    """A file for each object in the folder `path`. What lies beside them is for the test: `pid`, `closed`, and `broken`, while which calls fail."""

    name = "folder"
    survives_restarts = True
    tells_lengths = True
    lists = True

    def __init__(self, options):
        self._folder = pathlib.Path(options["path"])
        if not self._folder.is_dir():
            raise ValueError(f"folder: key 'path': there is no {self._folder}")
        (self._folder / "pid").write_text(str(os.getpid()))

    def _check(self):
        if (self._folder / "broken").exists():
            raise OSError("folder: it is broken")

    def lookup(self, keys, timeout):
        self._check()
        return [(self._folder / key).exists() for key in keys]

    def read(self, slots, timeout):
        self._check()
        outcomes = []
        for slot in slots:
            try:
                found = (self._folder / slot.key).read_bytes()
            except FileNotFoundError:
                outcomes.append(ABSENT)
                continue
            if len(found) > len(slot.memory):
                outcomes.append(Outcome("misfit"))
                continue
            slot.memory[:len(found)] = found
            outcomes.append(Outcome(bytes=len(found)))
        return outcomes

    def write(self, slots, timeout):
        self._check()
        outcomes = []
        for slot in slots:
            if (self._folder / slot.key).exists():
                outcomes.append(Outcome("present"))
                continue
            new = self._folder / f"new.{slot.key}.{slot.address}"
            new.write_bytes(slot.memory)
            new.rename(self._folder / slot.key)
            outcomes.append(DONE)
        return outcomes

    def remove(self, keys, timeout):
        self._check()
        outcomes = []
        for key in keys:
            try:
                (self._folder / key).unlink()
                outcomes.append(DONE)
            except FileNotFoundError:
                outcomes.append(ABSENT)
        return outcomes

    def list_objects(self, start, timeout):
        """A few at a time, by name."""
        self._check()
        names = sorted(file.name for file in self._folder.iterdir() if len(file.name) == 64 and file.name > start)
        return Listing([(name, (self._folder / name).stat().st_size) for name in names[:7]], names[6] if len(names) > 7 else "")

    def health(self):
        self._check()
        return "a folder"

    def close(self):
        (self._folder / "closed").touch()


class SlowStore(FolderStore):
    """Takes a second for each read."""

    def read(self, slots, timeout):
        time.sleep(1)
        return super().read(slots, timeout)


class KeepingStore(FolderStore):
    removes = False
    lists = False


class ShortStore(FolderStore):
    """Forgets to answer for one object."""

    def lookup(self, keys, timeout):
        return super().lookup(keys, timeout)[1:]


class CrowdedStore(FolderStore):
    """Lists too much at once, and what is no name."""

    def list_objects(self, start, timeout):
        return Listing([("README", 100)] if start else [("0" * 64, 100)] * 1025)


class NotAStore:
    pass
