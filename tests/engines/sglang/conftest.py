"""Real engines of SGLang with a real node."""

import types

import pytest
from engines import HAS_LINKERS, Engine, tokens
from node_fixtures import damage, node  # noqa: F401

collect_ignore = [] if HAS_LINKERS else ["test_linker.py", "test_linker_calls.py"]


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
def state(node):
    """How the node is. Whoever asks is a client of it, for that time."""

    def ask():
        with node.store("observer", timeout=60) as store:
            return types.SimpleNamespace(**store.node_status())

    return ask
