"""A store behind a slow link, for python -m hicache store-host: each read takes a while, and all share the link's bytes per second."""

import threading
import time

from folder_store import FolderStore


class SlowStore(FolderStore):
    def __init__(self, options):
        super().__init__(options)
        self._call_s, self._bytes_per_s = options["call_seconds"], options["bytes_per_second"]
        self._link = threading.Lock()

    def read(self, slots, timeout):
        outcomes = super().read(slots, timeout)
        with self._link:
            time.sleep(sum(each.bytes for each in outcomes) / self._bytes_per_s)
        time.sleep(self._call_s)
        return outcomes
