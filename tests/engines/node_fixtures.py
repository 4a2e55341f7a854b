"""A real node for each test, and damage to it."""

import mmap
import os
import pathlib
import time

import pytest

import hicache


@pytest.fixture
def node():
    with hicache.node("128MiB") as node:
        yield node


def settled(folder):
    """Waits until an engine that starts now is younger than the files of a folder: what changes later than that may not be what it has loaded."""
    newest = max(place.lstat().st_ctime_ns for place in [folder, *pathlib.Path(folder).rglob("*")])
    while time.time_ns() < newest + 100_000_000:
        os.sched_yield()
    return folder


@pytest.fixture
def damage(node):
    """Changes a byte in each 4 KiB of the node's memory, behind its back."""

    def flip():
        for link in pathlib.Path(f"/proc/{node.pid}/fd").iterdir():
            if "hicache-segment" in os.readlink(link):
                with open(link, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
                    for place in range(2048, len(memory), 4096):
                        memory[place] ^= 255
                return
        raise AssertionError("the node has no such memory")

    return flip
