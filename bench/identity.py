"""bench/identity.py RESULT.json

Learning what a model is: all bytes of a checkpoint of 1 GiB that is in the page cache, digested by as many threads as there are processors, beside the same
threads that read it and do nothing else; and the second time, from the record.
"""

import concurrent.futures
import json
import os
import pathlib
import statistics
import struct
import sys
import tempfile
import time

from hicache.identity import content_of

GIB, TENSORS, ROUNDS = 1 << 30, 64, 7
PIECE, READ = 8 << 20, 256 << 10


def write_checkpoint(folder):
    size = GIB // TENSORS
    header = json.dumps({f"t{i}": {"dtype": "U8", "shape": [size], "data_offsets": [i * size, (i + 1) * size]} for i in range(TENSORS)}).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for _ in range(TENSORS):
            file.write(os.urandom(size))


def read(path):
    """Reads a file as the digest does, a piece at a time by each thread, into memory that stays in a cache."""
    descriptor, size = os.open(path, os.O_RDONLY), os.stat(path).st_size

    def piece(first):
        buffer = bytearray(READ)
        for at in range(first, min(first + PIECE, size), READ):
            os.preadv(descriptor, [buffer], at)

    try:
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
            list(threads.map(piece, range(0, size, PIECE)))
    finally:
        os.close(descriptor)


def seconds(do, *arguments):
    began_at = time.perf_counter()
    do(*arguments)
    return time.perf_counter() - began_at


def main(result):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name) / "model"
        folder.mkdir()
        os.environ["XDG_CACHE_HOME"] = name
        write_checkpoint(folder)
        time.sleep(2.5)  # What has just changed is not remembered.
        digests, reads, again = [], [], []
        for _ in range(ROUNDS):
            reads.append(seconds(read, folder / "model.safetensors"))
            (folder / "model.safetensors").touch()
            digests.append(seconds(content_of, folder))
            time.sleep(2.5)
            content_of(folder)
            again.append(seconds(content_of, folder))
    digest, baseline = statistics.median(digests), statistics.median(reads)
    rows = [{"name": "identity: a checkpoint of 1 GiB, once, beside reading it", "value": digest * 1e3, "unit": "ms", "baseline": baseline * 1e3,
             "ratio": digest / baseline, "target": "ratio <= 1.2", "holds": digest / baseline <= 1.2},
            {"name": "identity: the second time", "value": statistics.median(again) * 1e3, "unit": "ms", "baseline": None, "ratio": None, "target": "<= 5",
             "holds": statistics.median(again) <= 0.005}]
    pathlib.Path(result).write_text(json.dumps({"rows": rows}))


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    main(sys.argv[1])
