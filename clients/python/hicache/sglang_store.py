"""A class with the methods of SGLang's HiCacheStorage as a store of ranks: what `--hicache-storage-backend dynamic` runs.

SGLang ships several, and others are written for it. They keep tensors by a text, all of one length that the reader knows.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hicache.store_host import ABSENT, DONE, ObjectStore, Outcome, Slot

# The class's configuration: one rank, since objects' names say already what belongs to whom.
_CONFIG = {"tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "attn_cp_rank": 0, "attn_cp_size": 1, "is_mla_model": False, "enable_storage_metrics": False,
           "is_page_first_layout": False, "model_name": "hicache"}
# Of a page header, which precedes an object in a store.
_HEADER_BYTES = 88


class SglangStore(ObjectStore):
    """Objects of ranks in an object of such a class, by its generic calls. It says neither whether a write was new nor why it failed, and removes nothing."""

    survives_restarts = True
    is_shared = True
    removes = False

    def __init__(self, make: Callable[..., Any], options: dict[str, Any]) -> None:
        # A class that is derived from SGLang's has imported it; to others the names of the fields are enough.
        sglang = sys.modules.get("sglang.srt.mem_cache.hicache_storage")
        own = {key: value for key, value in options.items() if key != "object_bytes"}
        config = (sglang.HiCacheStorageConfig if sglang else types.SimpleNamespace)(**_CONFIG, extra_config=own)
        self._storage = make(config, _pool(options["object_bytes"]) if "object_bytes" in options else {})
        self.name = str(options.get("backend_name", type(self._storage).__name__))

    def lookup(self, keys: Sequence[str], timeout: float) -> Sequence[bool]:
        """`batch_exists` counts how many are there before the first that is not."""
        there: list[bool] = []
        while len(there) < len(keys):
            there += [True] * min(self._storage.batch_exists(list(keys[len(there):])), len(keys) - len(there))
            if len(there) < len(keys):
                there.append(False)
        return there

    def read(self, slots: Sequence[Slot], timeout: float) -> Sequence[Outcome]:
        """Engines ask a class only for what it said was there, and some fail where that is not so."""
        there = [slot for slot, found in zip(slots, self.lookup([slot.key for slot in slots], timeout), strict=True) if found]
        targets = [_tensor(slot) for slot in there]
        found = (self._storage.batch_get([slot.key for slot in there], targets) if there else None) or [None] * len(there)
        outcomes = {slot.address: _received(tensor, target) for slot, tensor, target in zip(there, found, targets, strict=True)}
        return [outcomes.get(slot.address, ABSENT) for slot in slots]

    def write(self, slots: Sequence[Slot], timeout: float) -> Sequence[Outcome]:
        keys = [slot.key for slot in slots]
        if self._storage.batch_set(keys, [_tensor(slot) for slot in slots]):
            return [DONE] * len(slots)
        return [DONE if there else Outcome("failed", detail="the store did not take it") for there in self.lookup(keys, timeout)]

    def close(self) -> None:
        close = getattr(self._storage, "close", None)
        if close is not None:
            close()


def _pool(object_bytes: Any) -> types.SimpleNamespace:
    """What a class reads of an engine's host pool, with pages as long as an object in the store."""
    if type(object_bytes) is not int or object_bytes <= 0 or object_bytes % 2:
        raise ValueError(f"dynamic: key 'object_bytes' is {object_bytes!r}; expected the length of all objects, an even number of bytes")
    return types.SimpleNamespace(page_size=1, dtype=torch.uint8, target_layer_num=1, start_layer=0, end_layer=1, head_num=1,
                                 head_dim=(object_bytes + _HEADER_BYTES) // 2)


def _tensor(slot: Slot) -> torch.Tensor:
    return torch.frombuffer(slot.memory, dtype=torch.uint8)


def _received(found: torch.Tensor | None, target: torch.Tensor) -> Outcome:
    if found is None:
        return ABSENT
    found = found.reshape(-1).view(torch.uint8)
    if found.numel() != target.numel():
        return Outcome("misfit", detail=f"the object has {found.numel()} bytes; expected {target.numel()}")
    if found.data_ptr() != target.data_ptr():
        target.copy_(found)
    return Outcome(bytes=target.numel())
