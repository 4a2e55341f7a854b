"""Real engines of SGLang with a real node."""

import mmap
import os
import pathlib
import types

import pytest
from engines import Engine, tokens

import hicache


@pytest.fixture
def engine(tmp_path):
    """Starts engines, which end with the test."""
    running = []

    def start(**arguments):
        running.append(Engine(tmp_path / f"engine{len(running)}.log", **arguments))
        return running[-1]

    yield start
    for each in running:
        each.kill()


@pytest.fixture(scope="session")
def oracle(tmp_path_factory):
    """What SGLang answers without any cache."""
    with Engine(tmp_path_factory.mktemp("oracle") / "log", disable_radix_cache=True) as engine:
        return tokens(engine.generate())


@pytest.fixture
def node():
    with hicache.node("128MiB") as node:
        yield node


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


@pytest.fixture
def state(node):
    """How the node is. Whoever asks is a client of it, for that time."""

    def ask():
        with node.store("observer", timeout=60) as store:
            return types.SimpleNamespace(**store.node_status())

    return ask
