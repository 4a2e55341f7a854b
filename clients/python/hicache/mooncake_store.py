"""Objects of ranks in a Mooncake store: what `--hicache-storage-backend mooncake` runs. Needs Mooncake's wheel.

The keys of the configuration are those that SGLang has for its own Mooncake store, and mean the same.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Sequence
from typing import Any

from mooncake.store import MooncakeDistributedStore

from hicache.store_host import ObjectStore, Outcome, Slot

logger = logging.getLogger(__name__)

# Of Mooncake's statuses. An object whose writer has not finished is not there yet.
_KINDS = {-704: "absent", -703: "absent", -200: "full", -600: "misfit"}
# Key: default, and the variable of the environment that Mooncake's own configuration knows it by.
_SETTINGS: dict[str, tuple[Any, str]] = {
    "master_server_address": (None, "MOONCAKE_MASTER"), "metadata_server": ("P2PHANDSHAKE", "MOONCAKE_TE_META_DATA_SERVER"),
    "local_hostname": ("localhost", "MOONCAKE_LOCAL_HOSTNAME"), "protocol": ("tcp", "MOONCAKE_PROTOCOL"), "device_name": ("", "MOONCAKE_DEVICE"),
    "global_segment_size": ("4gb", "MOONCAKE_GLOBAL_SEGMENT_SIZE"), "extra_backend_tag": ("", "")}
# Of the client's own calls; objects are copied from and to the window instead.
_LOCAL_BUFFER_BYTES = 16 << 20


class MooncakeStore(ObjectStore):
    """The transfer engine copies between the window and the memory of the cluster. Mooncake evicts by itself."""

    name = "mooncake"
    is_shared = True
    tells_lengths = True

    def __init__(self, options: dict[str, Any]) -> None:
        settings = {name: options.get(name, os.environ.get(variable, default)) for name, (default, variable) in _SETTINGS.items()}
        if settings["master_server_address"] is None:
            if options.get("client_server_address"):
                raise ValueError("mooncake: key 'client_server_address' names a client of its own, which reads and writes memory of Mooncake's alone, "
                                 "and not the ranks'; expected 'master_server_address', to which this store is a client itself")
            raise ValueError("mooncake: key 'master_server_address' is missing; expected HOST:PORT of its master")
        if unknown := sorted(options.keys() - _SETTINGS.keys()):
            logger.warning("mooncake: these keys mean nothing here: %s", ", ".join(unknown))
        segment_bytes = _bytes(settings["global_segment_size"])
        # What other clients lend outlives this one.
        self.survives_restarts = segment_bytes == 0
        device = settings["device_name"]
        # Sets these objects apart from others of hicache.
        self._prefix = f"hicache/{settings['extra_backend_tag']}/" if settings["extra_backend_tag"] else "hicache/"
        self._store = MooncakeDistributedStore()
        status = self._store.setup(settings["local_hostname"], settings["metadata_server"], segment_bytes, _LOCAL_BUFFER_BYTES, settings["protocol"],
                                   json.dumps(device) if isinstance(device, dict) else device, settings["master_server_address"])
        if status != 0:
            raise OSError(f"mooncake: no connection to the master at {settings['master_server_address']} (status {status})")

    def attach(self, window: memoryview, address: int) -> None:
        status = self._store.register_buffer(address, len(window))
        if status != 0:
            raise OSError(f"mooncake: a window of {len(window)} bytes cannot be registered (status {status})")

    def detach(self, address: int) -> None:
        self._store.unregister_buffer(address)

    def lookup(self, keys: Sequence[str], timeout: float) -> Sequence[bool]:
        found = self._store.batch_is_exist([self._name(key) for key in keys])
        if any(status < 0 for status in found):
            raise OSError(f"mooncake: the look-up failed (status {min(found)})")
        return [status == 1 for status in found]

    def read(self, slots: Sequence[Slot], timeout: float) -> Sequence[Outcome]:
        return [_outcome(status) for status in self._store.batch_get_into(*self._lists(slots))]

    def write(self, slots: Sequence[Slot], timeout: float) -> Sequence[Outcome]:
        return [_outcome(status) for status in self._store.batch_put_from(*self._lists(slots))]

    def remove(self, keys: Sequence[str], timeout: float) -> Sequence[Outcome]:
        """Also while a reader has a lease: readers verify."""
        return [_outcome(self._store.remove(self._name(key), force=True)) for key in keys]

    def health(self) -> str:
        status = self._store.health_check()
        if status != 0:
            raise OSError(f"mooncake: its client is not well (status {status})")
        return ""

    def close(self) -> None:
        self._store.close()

    def _name(self, key: str) -> str:
        return self._prefix + key

    def _lists(self, slots: Sequence[Slot]) -> tuple[list[str], list[int], list[int]]:
        return [self._name(slot.key) for slot in slots], [slot.address for slot in slots], [len(slot.memory) for slot in slots]


def _outcome(status: int) -> Outcome:
    if status >= 0:
        return Outcome(bytes=status)
    return Outcome(_KINDS.get(status, "failed"), detail=f"mooncake: status {status}")


def _bytes(size: Any) -> int:
    """A number, or a text such as "4gb"."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", str(size).strip().lower())
    if not found:
        raise ValueError(f"mooncake: key 'global_segment_size' is {size!r}; expected a number of bytes, or a size such as 4gb")
    return int(float(found[1]) * 1024 ** " kmgt".index(found[2] or " "))
