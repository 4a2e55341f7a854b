"""Stores for the contract of stores that need torch: a class with the methods of SGLang's HiCacheStorage, and a part of an LMCache server."""

import hashlib
import threading

from hicache.lmcache_store import LmcacheStore


class TensorStorage:
    """What SGLang expects of a class, in memory."""

    def __init__(self, config, memory_pool):
        self._lock = threading.Lock()
        self._tensors = {}

    def batch_exists(self, keys):
        with self._lock:
            return next((i for i, key in enumerate(keys) if key not in self._tensors), len(keys))

    def batch_get(self, keys, targets):
        with self._lock:
            return [self._tensors.get(key) for key in keys]

    def batch_set(self, keys, values):
        with self._lock:
            for key, value in zip(keys, values, strict=True):
                self._tensors.setdefault(key, value.clone())
        return True


class ApartLmcacheStore(LmcacheStore):
    """Keeps its objects apart from those of others on the same server, by `tag`: the server forgets nothing."""

    def __init__(self, options):
        self._tag = options.pop("tag")
        super().__init__(options)

    def _apart(self, key):
        return hashlib.sha256(f"{self._tag} {key}".encode()).hexdigest()

    def lookup(self, keys, timeout):
        return super().lookup([self._apart(key) for key in keys], timeout)

    def read(self, slots, timeout):
        return super().read([slot._replace(key=self._apart(slot.key)) for slot in slots], timeout)

    def write(self, slots, timeout):
        return super().write([slot._replace(key=self._apart(slot.key)) for slot in slots], timeout)

    def remove(self, keys, timeout):
        return super().remove([self._apart(key) for key in keys], timeout)
