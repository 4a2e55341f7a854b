"""A node of another machine, as far as the client can tell: over TLS."""

import pytest
from conftest import PAGE, page_of

import hicache


def test_pages_are_shared_with_clients_of_the_nodes_machine(remote):
    node, address, files = remote
    keys = [f"page {i}" for i in range(4)]
    pages = [page_of(i, PAGE * (i + 1)) for i in range(4)]
    with node.store("shared") as here, hicache.Store(namespace="shared", address=address, **files) as there:
        there.put(keys, pages).check()
        for store in (here, there):
            back = [bytearray(len(page)) for page in pages]
            store.get(keys, back).check()
            assert back == pages
        assert there.exists([*keys, "missing"]).ok == [True] * 4 + [False]
        assert there.node_status()["pages_written"] == 4
        assert address in repr(there)


def test_pinned_pages_are_copies_that_stay(remote):
    _, address, files = remote
    with hicache.Store(namespace="pinned", address=address, **files) as store:
        store.put(["one"], [page_of(1)]).check()
        with store.pin(["one"], in_place=True) as lease:
            store.remove(["one"]).check()
            assert lease[0] == page_of(1)
            back = bytearray(PAGE)
            store.get(["one"], [back], lease=lease).check()
            assert back == page_of(1)
        assert store.exists(["one"]).ok == [False]


def test_a_client_names_its_node_in_one_way():
    for settings in ({}, {"socket": "/x", "address": "127.0.0.1:1"}, {"address": "nowhere"}, {"address": "127.0.0.1:1", "tls_ca": "/nowhere"}):
        with pytest.raises(hicache.InvalidArgument, match="address|tls_cert"):
            hicache.Store(namespace="x", **settings)


def test_an_engines_blocks_go_there_too(remote):
    numpy = pytest.importorskip("numpy")
    _, address, files = remote
    layers = [[numpy.arange(16 * 64, dtype="uint8").reshape(16, 64) + layer] for layer in range(3)]
    with hicache.Store(namespace="offload", address=address, **files) as store, hicache.Offload(store, layers, 2) as offload:
        offload.store(["a", "b"], [[0, 1], [2, 3]]).check()
        offload.load(["a", "b"], [[8, 9], [10, 11]]).check()
    for (tensor,) in layers:
        assert (tensor[8:12] == tensor[0:4]).all()
