"""store_clients.py mooncake|nixl PLACE read|write OBJECT_BYTES SECONDS
store_clients.py lend PLACE BYTES

Moves objects with a client of Mooncake's or NIXL's own, without hicache's ranks around it, and prints the bytes per second as JSON: two threads, each with
batches of 8 MiB from or to one registered memory. PLACE is the address of Mooncake's master, or a folder. `lend` gives memory to Mooncake until it is killed.
"""

import ctypes
import itertools
import json
import mmap
import os
import signal
import sys
import threading
import time

from hicache.mooncake_store import MooncakeStore
from hicache.nixl_store import NixlStore
from hicache.store_host import Slot

BATCH = 8 << 20
TOTAL = 64 << 20


def lend(place, size):
    client = MooncakeStore({"master_server_address": place, "local_hostname": "127.0.0.1", "global_segment_size": size})
    print("lends", flush=True)
    signal.pause()
    client.close()


def main():
    if sys.argv[1] == "lend":
        return lend(*sys.argv[2:])
    name, place, action, size, seconds = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5])
    client = NixlStore({"path": place}) if name == "nixl" else MooncakeStore({"master_server_address": place, "global_segment_size": 0})
    count = max(1, BATCH // size)
    objects = max(TOTAL // size, 2 * count)
    names = itertools.count()
    apart = os.urandom(16).hex()
    moved = []

    def slots(memory, address):
        return [Slot(f"{next(names) % (objects if action == 'read' else 1 << 62):032x}{apart}", "", memory[i * size:(i + 1) * size], address + i * size)
                for i in range(count)]

    def move(call, until):
        window = mmap.mmap(-1, count * size)
        window[:] = os.urandom(size) * count
        address, memory = ctypes.addressof(ctypes.c_char.from_buffer(window)), memoryview(window)
        client.attach(memory, address)
        done = 0
        while not until():
            if any(outcome.status not in ("done", "present") for outcome in call(slots(memory, address), 60)):
                sys.exit("store_clients.py: an object failed")
            done += count * size
        moved.append(done)
        client.detach(address)

    if action == "read":
        filled = iter(range(-(-objects // count)))
        move(client.write, lambda: next(filled, None) is None)
        moved.clear()
    begun = time.monotonic()
    stop = begun + seconds
    threads = [threading.Thread(target=move, args=[client.read if action == "read" else client.write, lambda: time.monotonic() >= stop])
               for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    print(json.dumps({"bytes_per_s": sum(moved) / (time.monotonic() - begun)}))
    client.close()


if __name__ == "__main__":
    main()
