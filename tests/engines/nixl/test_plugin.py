"""NIXL itself, from its wheel, with our plug-in. Skipped where there is no NIXL, or no plug-in: NIXL's headers are in no package."""

import contextlib
import os
import pathlib
import secrets
import time

import pytest

import hicache

PLUGIN = os.environ.get("HICACHE_NIXL_PLUGIN", "")
if not PLUGIN:
    pytest.skip("HICACHE_NIXL_PLUGIN does not name libplugin_HICACHE.so", allow_module_level=True)
os.environ["NIXL_PLUGIN_DIR"] = str(pathlib.Path(PLUGIN).parent)
api = pytest.importorskip("nixl._api")
torch = pytest.importorskip("torch")

SIZE = 1 << 20
OBJECTS = 4


@pytest.fixture(scope="module")
def node():
    with hicache.node("128MiB") as node:
        yield node


class Agent:
    """An agent of NIXL with our back end, with memory and objects that are registered."""

    def __init__(self, node, namespace="tests", **more):
        self.real = api.nixl_agent(secrets.token_hex(4), api.nixl_agent_config(backends=[]))
        self.real.create_backend("HICACHE", {"socket": node.socket, "namespace": namespace, **more})

    @contextlib.contextmanager
    def registered(self, keys, *memory):
        objects = [(0, SIZE, i, key) for i, key in enumerate(keys)]
        known = [self.real.register_memory(list(memory)), self.real.register_memory(objects, "OBJ")]
        yield objects
        for each in known:
            self.real.deregister_memory(each)

    def move(self, operation, pieces, places):
        """What becomes of a transfer between pieces of memory and (offset, length, number of the object)."""
        handle = self.real.initialize_xfer(operation, self.real.get_xfer_descs(pieces), self.real.get_xfer_descs(places, "OBJ"), self.real.name)
        state = self.real.transfer(handle)
        end = time.monotonic() + 60
        while state == "PROC":
            assert time.monotonic() < end
            state = self.real.check_xfer_state(handle)
        self.real.release_xfer_handle(handle)
        return state

    def there(self, objects):
        return [found is not None for found in self.real.query_memory(objects, "HICACHE", "OBJ")]


def random_memory():
    return torch.randint(0, 255, (OBJECTS, SIZE), dtype=torch.uint8)


WHOLE = [(0, SIZE, i) for i in range(OBJECTS)]


def test_what_is_written_is_found_and_read_by_others(node):
    keys = [secrets.token_hex(8) for _ in range(OBJECTS)]
    stored, read = random_memory(), torch.zeros((OBJECTS, SIZE), dtype=torch.uint8)
    one, other, stranger = Agent(node), Agent(node), Agent(node, "other tests")
    with one.registered(keys, stored) as objects:
        assert one.there(objects) == [False] * OBJECTS
        assert one.move("WRITE", list(stored), WHOLE) == "DONE"
        assert one.there(objects) == [True] * OBJECTS
    with other.registered(keys, read) as objects:
        assert other.there(objects + [(0, SIZE, 9, "nobody's")]) == [True] * OBJECTS + [False]
        assert other.move("READ", list(read), WHOLE) == "DONE"
    assert torch.equal(stored, read)
    with stranger.registered(keys, read) as objects:
        assert stranger.there(objects) == [False] * OBJECTS


def test_an_object_in_pieces_is_one_page(node):
    keys = [secrets.token_hex(8) for _ in range(OBJECTS)]
    stored, read = random_memory(), torch.zeros((OBJECTS, SIZE), dtype=torch.uint8)
    half = SIZE // 2
    halves = [(at, half, i) for i in range(OBJECTS) for at in (0, half)]
    agent = Agent(node)
    with agent.registered(keys, stored, read) as objects:
        assert agent.move("WRITE", [piece for each in stored for piece in (each[:half], each[half:])], halves) == "DONE"
        assert agent.there(objects) == [True] * OBJECTS
        assert agent.move("READ", list(read), WHOLE) == "DONE"
    assert torch.equal(stored, read)


def test_what_is_not_there_and_what_is_not_whole_fails(node):
    memory = random_memory()
    agent = Agent(node)
    with agent.registered([secrets.token_hex(8) for _ in range(OBJECTS)], memory):
        with pytest.raises(Exception, match="NOT_FOUND"):
            agent.move("READ", list(memory), WHOLE)
        with pytest.raises(Exception, match="NOT_SUPPORTED"):
            agent.move("READ", [memory[0][:10]], [(10, 10, 0)])
    with pytest.raises(Exception, match="BACKEND"):
        agent.real.register_memory([(0, SIZE, 1, "")], "OBJ")


def test_wrong_parameters_are_refused(node):
    for wrong in ({"namespace": ""}, {"threads": "many"}, {"colour": "blue"}):
        with pytest.raises(Exception, match="BACKEND"):
            Agent(node, **{"namespace": "tests", **wrong})


def test_a_node_that_ends_fails_the_transfer_until_it_is_back():
    with hicache.node("128MiB") as node:
        keys, memory = [secrets.token_hex(8) for _ in range(OBJECTS)], random_memory()
        agent = Agent(node, timeout_ms="5000")
        with agent.registered(keys, memory) as objects:
            assert agent.move("WRITE", list(memory), WHOLE) == "DONE"
            node.kill()
            assert agent.there(objects) == [False] * OBJECTS
            with pytest.raises(Exception, match="BACKEND"):
                agent.move("READ", list(memory), WHOLE)
            node.start()
            end = time.monotonic() + 60
            while True:
                with contextlib.suppress(Exception):
                    assert agent.move("WRITE", list(memory), WHOLE) == "DONE"
                    break
                assert time.monotonic() < end
            assert agent.there(objects) == [True] * OBJECTS
