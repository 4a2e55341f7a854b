"""Stored pages in the memory of a process that lends it to the cluster store, for tests that damage them."""

import os
import pathlib
import signal
import struct
import time

# Of messages/page_header.hpp and page_header.capnp: two words of framing, then the fields, each with its offset and bytes.
HEADER_BYTES = 88
OBJECT_OFFSET = 128
SLOT_ALIGNMENT = 64
FIELDS = {"magic": (16, 4), "version": (20, 2), "generation": (24, 4), "fingerprint": (32, 8), "key": (40, 32), "length": (72, 8),
          "checksum": (80, 8)}
MAGIC = b"HKVP"


class StoredObject:
    """An object in a segment: where its slot begins, how long it is, the name of its page as programs print it."""

    def __init__(self, slot, header):
        self.slot = slot
        self.length = struct.unpack_from("<Q", header, FIELDS["length"][0])[0]
        at, size = FIELDS["key"]
        self.page = header[at : at + size].hex()


def own_segment(pid):
    """Where the process has mapped the segment that it lends, as (begin, end). Peers' segments are mapped for reading only."""
    for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines():
        if "memfd:hicache-segment" in line and line.split()[1].startswith("rw"):
            begin, end = line.split()[0].split("-")
            return int(begin, 16), int(end, 16)
    return None


class StoppedOwner:
    """The memory of an owner that stands still meanwhile, so that nothing is damaged between being written and being sealed."""

    def __init__(self, pid):
        self.pid = pid

    def __enter__(self):
        os.kill(self.pid, signal.SIGSTOP)
        while pathlib.Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "TZX":
            time.sleep(0.001)
        where = own_segment(self.pid)
        self.begin, end = where if where else (0, 0)
        # The descriptor is sealed against writers; the process's own mapping is not.
        self.file = open(f"/proc/{self.pid}/mem", "r+b", buffering=0)
        self.memory = self.read(0, end - self.begin)
        return self

    def __exit__(self, *_):
        self.file.close()
        os.kill(self.pid, signal.SIGCONT)

    def read(self, at, size):
        self.file.seek(self.begin + at)
        parts = []
        while size > 0 and (part := self.file.read(size)):
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def objects(self):
        """What is stored, by address. The length of each is that of its header."""
        found, at = [], self.memory.find(MAGIC)
        while at >= 0:
            slot = at - FIELDS["magic"][0]
            if slot >= 0 and slot % SLOT_ALIGNMENT == 0:
                stored = StoredObject(slot, self.memory[slot : slot + HEADER_BYTES])
                if 0 < stored.length <= len(self.memory) - slot - OBJECT_OFFSET:
                    found.append(stored)
            at = self.memory.find(MAGIC, at + 1)
        return found

    def flip(self, at, bit):
        byte = self.read(at, 1)[0] ^ 1 << bit
        self.file.seek(self.begin + at)
        self.file.write(bytes([byte]))
        assert self.read(at, 1)[0] == byte
