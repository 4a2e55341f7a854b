#!/usr/bin/env python3
"""bench/engines/files.py {sglang|lmcache} STORES_BENCH RESULT.json

The store `file` beside the files of an engine's own cache, on the same file system with objects of the same sizes, in batches of 8 MiB: SGLang's
`HiCacheFile`, LMCache's `LocalDiskBackend`. None of them syncs, so all move what the page cache holds; hicache verifies what it reads. Alternates figure
and baseline. Runs in the engine's Python (tests/engines/run.sh ENGINE --run).
"""

import asyncio
import itertools
import json
import logging
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

os.environ["LMCACHE_TRACK_USAGE"] = "false"
# In place of this folder, which has a sglang.py.
sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

import torch  # noqa: E402

import store  # noqa: E402

ROUNDS = 5
SECONDS = 1.5
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
BATCH = 8 * MIB
# Of the objects that are read.
TOTAL = 512 * MIB


class SglangFiles:
    """Called as SGLang's controller calls it: a batch at a time."""

    name = "SGLang's file store"

    def __init__(self, folder, size, count):
        from sglang.srt.mem_cache.hicache_storage import HiCacheFile, HiCacheStorageConfig
        self._store = HiCacheFile(HiCacheStorageConfig(0, 1, 0, 1, 0, 1, False, False, True, "bench"), folder)
        self._pages = [torch.randint(0, 256, (size,), dtype=torch.uint8) for _ in range(count)]

    def write(self, numbers):
        assert self._store.batch_set([f"{number:064x}" for number in numbers], self._pages)

    def read(self, numbers):
        assert all(page is not None for page in self._store.batch_get([f"{number:064x}" for number in numbers], self._pages))

    def close(self):
        pass


class LmcacheFiles:
    """Called as LMCache's storage manager calls it: memory comes from its allocator, and threads of its own read and write."""

    name = "LMCache's local disk"

    def __init__(self, folder, size, count):
        from lmcache.utils import CacheEngineKey
        from lmcache.v1.config import LMCacheEngineConfig
        from lmcache.v1.memory_allocators.mixed_memory_allocator import MixedMemoryAllocator
        from lmcache.v1.memory_management import MemoryFormat
        from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
        from lmcache.v1.storage_backend.local_disk_backend import LocalDiskBackend
        self._key = lambda number: CacheEngineKey("bench", 1, 0, number + 1, torch.uint8)
        place = f"file://{pathlib.Path(folder).resolve()}/"
        config = LMCacheEngineConfig.from_defaults(local_disk=place, max_local_disk_size=64, local_cpu=False, max_local_cpu_size=1)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        memory = LocalCPUBackend(config, memory_allocator=MixedMemoryAllocator(GIB), dst_device="cpu")
        self._allocate = lambda: memory.allocate(torch.Size([2, 1, size // 32, 16]), torch.uint8, MemoryFormat.KV_2LTD)
        self._store = LocalDiskBackend(config, self._loop, memory, dst_device="cpu")

    def write(self, numbers):
        written = threading.Semaphore(0)
        pages = [self._allocate() for _ in numbers]
        self._store.batched_submit_put_task([self._key(number) for number in numbers], pages, on_complete_callback=lambda _: written.release())
        for page in pages:
            page.ref_count_down()
            written.acquire()

    def read(self, numbers):
        for page in self._store.batched_get_blocking([self._key(number) for number in numbers]):
            assert page is not None
            page.ref_count_down()

    def close(self):
        self._store.close()
        self._loop.call_soon_threadsafe(self._loop.stop)


def theirs(make, folder, action, size):
    """GiB per second."""
    count = max(1, BATCH // size)
    numbers = itertools.count()
    files = make(folder, size, count)
    known = []
    if action == "read":
        for _ in range(TOTAL // (size * count)):
            known.append(list(itertools.islice(numbers, count)))
            files.write(known[-1])
    again = itertools.cycle(known)
    moved, begun = 0, time.monotonic()
    while time.monotonic() - begun < SECONDS:
        if action == "read":
            files.read(next(again))
        else:
            files.write(list(itertools.islice(numbers, count)))
        moved += size * count
    speed = moved / (time.monotonic() - begun) / GIB
    files.close()
    return speed


def ours(program, folder, action, size):
    done = subprocess.run([program, "file", folder, action, str(size), str(SECONDS)], capture_output=True, text=True, check=True, timeout=600)
    return json.loads(done.stdout)["bytes_per_s"] / GIB


def main():
    make = {"sglang": SglangFiles, "lmcache": LmcacheFiles}[sys.argv[1]]
    program, result = sys.argv[2], pathlib.Path(sys.argv[3])
    logging.disable(logging.WARNING)
    rows = []
    for action, (size, name, least) in itertools.product(("read", "write"), ((64 * KIB, "64 KiB", 2), (8 * MIB, "8 MiB", 1))):
        what = f"file: {action}, {name}, beside {make.name}"
        print(f"Measuring: {what}", file=sys.stderr)
        pairs = []
        for _ in range(ROUNDS):
            with tempfile.TemporaryDirectory(prefix="hicache-bench-", dir=".") as folder:
                pairs.append((ours(program, f"{folder}/ours", action, size), theirs(make, f"{folder}/theirs", action, size)))
        rows.append(store.make_row(what, "GiB/s", pairs, least_ratio=least))
    result.write_text(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
