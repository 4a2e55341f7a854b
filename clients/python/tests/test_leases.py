"""Pages that are pinned, and read where they are."""

import gc
import threading

import pytest
from conftest import PAGE, page_of, until

import hicache
from hicache import Code


def put(store, *names):
    store.put(list(names), [page_of(name) for name in names]).check()


def test_pages_are_read_where_they_are(store):
    put(store, "a", "b")
    with store.pin(["a", "missing", "b"], in_place=True) as lease:
        assert (lease.pages, lease.prefix, lease.sizes) == (2, 1, [PAGE, 0, PAGE])
        assert lease[0] == page_of("a") and lease[-1] == page_of("b")
        assert lease[0].readonly and 0 < lease.left <= 300
        with pytest.raises(hicache.NotFound):
            lease[1]
        with pytest.raises(IndexError):
            lease[3]
    assert store.node_status()["leases"] == 0


def test_pages_are_read_by_a_lease_after_they_were_removed(store):
    put(store, "a", "b")
    with store.pin(["a"]) as lease:
        store.remove(["a", "b"]).check()
        pages = [bytearray(PAGE), bytearray(PAGE)]
        assert store.get(["a", "b"], pages, lease=lease).codes == [Code.OK, Code.NOT_FOUND]
        assert pages[0] == page_of("a")
        with pytest.raises(hicache.InvalidArgument, match="in_place=True"):
            lease[0]


def test_a_chain_ends_at_the_first_page_that_is_missing(store):
    put(store, "a", "c")
    with store.pin(["a", "b", "c"], chain=True) as lease:
        assert (lease.pages, lease.prefix) == (1, 1)


def test_a_lease_of_nothing_is_no_error(store):
    with store.pin(["missing"]) as lease:
        assert (lease.pages, lease.sizes, lease.left) == (0, [0], 0)
        with pytest.raises(hicache.NotFound):
            lease.check()


def test_a_lease_that_is_over_says_so(store):
    put(store, "a")
    lease = store.pin(["a"], in_place=True)
    lease.unpin()
    lease.unpin()
    for use in (lambda: lease[0], lambda: lease.sizes, lambda: store.get(["a"], [bytearray(PAGE)], lease=lease)):
        with pytest.raises(hicache.Error, match="over"):
            use()


def test_a_view_keeps_its_page_pinned(store):
    put(store, "a")
    with store.pin(["a"], in_place=True) as lease:
        view = lease[0][100:]
    assert store.node_status()["leases"] == 1
    assert view == page_of("a")[100:]
    del view
    assert store.node_status()["leases"] == 0


def test_an_array_of_numpy_keeps_its_page_pinned(store):
    numpy = pytest.importorskip("numpy")
    put(store, "a")
    values = numpy.frombuffer(store.pin(["a"], in_place=True)[0], dtype="u1")
    gc.collect()
    assert store.node_status()["leases"] == 1
    assert values.tobytes() == page_of("a")
    del values
    assert store.node_status()["leases"] == 0


def test_a_view_outlives_its_node(node):
    with node.store("n") as store:
        put(store, "a")
        with store.pin(["a"], in_place=True) as lease:
            node.kill()
            assert lease[0] == page_of("a")
            assert store.exists(["a"]).codes == [Code.PEER_UNREACHABLE]
            assert lease[0] == page_of("a")


def test_a_store_is_not_closed_under_a_view(shared_node, request):
    store = shared_node.store(request.node.nodeid)
    put(store, "a")
    lease = store.pin(["a"], in_place=True)
    view = lease[0]
    with pytest.raises(BufferError, match="1 leases"):
        store.close()
    assert not store.is_closed and view == page_of("a")
    view.release()
    lease.unpin()
    store.close()
    assert store.is_closed


def test_closing_a_store_ends_its_leases(shared_node, request):
    with shared_node.store(request.node.nodeid) as store:
        put(store, "a")
        lease = store.pin(["a"], in_place=True)
    with pytest.raises(hicache.Error, match="over"):
        lease[0]


def test_a_lease_ends_by_its_time(shared_node, request):
    with shared_node.store(request.node.nodeid, lease=0.001) as store:
        put(store, "a")
        with store.pin(["a"]) as lease:
            until(lambda: lease.left == 0)
            store.remove(["a"]).check()
            assert store.get(["a"], [bytearray(PAGE)], lease=lease).codes in ([Code.OK], [Code.NOT_FOUND])


def test_leases_come_and_go_in_threads(store):
    put(store, "a", "b")
    failures = []

    def use():
        try:
            for _ in range(100):
                with store.pin(["a", "b"], in_place=True) as lease:
                    assert lease[0] == page_of("a") and lease[1] == page_of("b")
        except BaseException as trouble:
            failures.append(trouble)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert store.stats()["leases"] == 0
