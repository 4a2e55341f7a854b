"""A real node for all tests, and a store for each of them."""

import os
import pathlib
import random
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import hicache  # noqa: E402

PAGE = 4096


def until(is_so):
    """Waits for something that this process cannot be told of."""
    end = time.monotonic() + 90
    while not is_so():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.001)


def page_of(number, size=PAGE):
    """Bytes that belong to one number and no other."""
    return random.Random(number).randbytes(size)


@pytest.fixture(scope="session")
def shared_node():
    with hicache.node("64MiB") as node:
        yield node


@pytest.fixture
def node():
    """A node that the test may end."""
    with hicache.node("16MiB") as node:
        yield node


@pytest.fixture
def store(shared_node, request):
    """A store with a namespace of its own."""
    with shared_node.store(request.node.nodeid, timeout=60) as store:
        yield store


@pytest.fixture
def descriptors():
    """How many descriptors this process has."""
    return lambda: len(os.listdir("/proc/self/fd"))
