"""A real node for each test."""

import os

import pytest

os.environ["LMCACHE_TRACK_USAGE"] = "false"

import hicache  # noqa: E402


@pytest.fixture
def node():
    with hicache.node("128MiB") as node:
        yield node
