"""Batches of pages, one call after the other."""

import array
import ctypes
import pickle
import threading

import pytest
from conftest import PAGE, page_of

import hicache
from hicache import Code


def test_what_is_put_is_read_back(store):
    keys = [f"page {i}" for i in range(100)]
    assert store.put(keys, [page_of(i) for i in range(100)]).check().pages == 100
    pages = [bytearray(PAGE) for _ in keys]
    result = store.get(keys, pages).check()
    assert pages == [page_of(i) for i in range(100)]
    assert (len(result), result.pages, result.prefix, result.error) == (100, 100, 100, None)
    assert result.ok == [True] * 100 and result.codes == [0] * 100


def test_every_kind_of_buffer_is_used_where_it_is(store):
    data = page_of(1)
    raw = ctypes.create_string_buffer(data, PAGE)
    kinds = [data, bytearray(data), memoryview(data), memoryview(b"x" + data)[1:], array.array("B", data), array.array("d", data), raw,
             (ctypes.addressof(raw), PAGE)]
    keys = [f"kind {i}" for i in range(len(kinds))]
    store.put(keys, kinds).check()
    target = bytearray(PAGE + 2)
    back = [bytearray(PAGE), memoryview(target)[1:-1], array.array("Q", bytes(PAGE)), ctypes.create_string_buffer(PAGE)]
    into = ctypes.create_string_buffer(PAGE)
    store.get(keys[:5], [*back, (ctypes.addressof(into), PAGE)]).check()
    assert [bytes(each) for each in (*back, into)] == [data] * 5
    assert target == b"\0" + data + b"\0"


def test_arrays_of_numpy_are_used_where_they_are(store):
    numpy = pytest.importorskip("numpy")
    values = numpy.random.default_rng(1).standard_normal((2, 16, 32)).astype("float32")
    store.put(["a"], [values]).check()
    back = numpy.zeros_like(values)
    store.get(["a"], [back]).check()
    assert (back == values).all()
    with pytest.raises(hicache.InvalidArgument, match="contiguous"):
        store.put(["b"], [values[:, ::2]])


class Tensor:
    """What is asked of a torch.Tensor."""

    def __init__(self, memory, device="cpu", is_contiguous=True):
        self.memory, self._is_contiguous = memory, is_contiguous
        self.device = type("Device", (), {"type": device, "__str__": lambda self: self.type})()

    def data_ptr(self):
        return ctypes.addressof(self.memory)

    def numel(self):
        return len(self.memory) // 2

    def element_size(self):
        return 2

    def is_contiguous(self):
        return self._is_contiguous


def test_tensors_in_host_memory_are_used_where_they_are(store):
    store.put(["a"], [Tensor(ctypes.create_string_buffer(page_of(1), PAGE))]).check()
    back = Tensor(ctypes.create_string_buffer(PAGE))
    store.get(["a"], [back]).check()
    assert bytes(back.memory) == page_of(1)
    for other in (Tensor(back.memory, device="cuda"), Tensor(back.memory, is_contiguous=False)):
        with pytest.raises(hicache.InvalidArgument, match="host memory"):
            store.put(["a"], [other])


def test_a_page_of_several_parts_is_one_page(store):
    data = page_of(1)
    store.put(["a"], [[data[:1], data[1:1000], (0, 0), b"", data[1000:]]]).check()
    first, second = bytearray(3000), bytearray(PAGE - 3000)
    store.get(["a"], [[first, second]]).check()
    assert bytes(first + second) == data


def test_pointers_name_the_memory_of_a_whole_batch(store):
    keys, half = ["a", "b", "c"], PAGE // 2
    source = ctypes.create_string_buffer(b"".join(page_of(i) for i in range(3)), 3 * PAGE)
    target = ctypes.create_string_buffer(3 * PAGE)

    def halves(memory):
        return hicache.Pointers([ctypes.addressof(memory) + i * half for i in range(6)], [half] * 6)

    store.put(keys, halves(source)).check()
    store.get(keys, halves(target)).check()
    assert bytes(target) == bytes(source)
    for addresses, lengths in (([1, 2], [1]), ([1, 2], [1, 2])):
        with pytest.raises(hicache.InvalidArgument, match="equally many"):
            store.put(keys, hicache.Pointers(addresses, lengths))


def test_a_lookup_tells_the_prefix_and_misses_are_no_errors(store):
    store.put(["a", "b", "d"], [page_of(i) for i in range(3)]).check()
    result = store.exists(["a", "b", "c", "d"])
    assert (result.pages, result.prefix, result.error) == (3, 2, None)
    assert result.codes == [Code.OK, Code.OK, Code.NOT_FOUND, Code.OK]
    with pytest.raises(hicache.NotFound, match="1 of 4 pages"):
        result.check()
    pages = [bytearray(PAGE) for _ in range(4)]
    result = store.get(["a", "b", "c", "d"], pages)
    assert result.ok == [True, True, False, True]
    assert pages[3] == page_of(2)


def test_names_are_bytes_or_text_and_differ_by_namespace(store, shared_node):
    assert store.names(["a"])[0] == store.names([b"a"])[0]
    assert store.names(["\u00e4"])[0] == store.names(["\u00e4".encode()])[0]
    assert len(set(store.names(["a", b"a\0", b"", "b"]))) == 4
    with shared_node.store("another") as other:
        assert other.names(["a"])[0] != store.names(["a"])[0]
        store.put(["a"], [page_of(1)]).check()
        assert other.exists(["a"]).pages == 0


def test_named_keys_are_used_as_they_are(store):
    keys = store.names(["a", "b", "c"])
    assert store.names(keys) is keys and list(store.names(list(keys))) == list(keys)
    assert list(keys[1:]) == [keys[1], keys[2]] and isinstance(keys[1:], hicache.Keys)
    store.put(keys, [page_of(i) for i in range(3)]).check()
    assert store.exists([keys[0], "b", keys[-1]]).pages == 3
    with pytest.raises(hicache.InvalidArgument, match="32"):
        hicache.Key(b"short")
    with pytest.raises(IndexError):
        keys[3]


def test_what_is_removed_is_gone(store):
    store.put(["a", "b"], [page_of(1), page_of(2)]).check()
    assert store.remove(["a", "never"]).check().pages == 2
    assert store.exists(["a", "b"]).ok == [False, True]


def test_a_namespace_is_cleared_and_no_other(node):
    with node.store("one", timeout=60) as one, node.store("other", timeout=60) as other:
        for store in (one, other):
            store.put(["a", "b"], [page_of(1), page_of(2)]).check()
        assert one.clear() == 2 and one.exists(["a", "b"]).ok == [False, False] and other.exists(["a", "b"]).ok == [True, True]
        assert one.clear() == 0


def test_pages_that_are_of_no_use_any_more_leave_first(node):
    page = page_of(1, 1 << 20)
    with node.store("one", timeout=60) as one, node.store("other", timeout=60) as other:
        one.put(["a"], [page]).check()
        ended, later = [f"ended {i}" for i in range(5)], [f"later {i}" for i in range(10)]
        for name in ended:
            other.put([name], [page]).check()
        assert other.clear(evict_first=True) == 5
        # One page too many.
        for name in later:
            other.put([name], [page]).check()
        assert one.exists(["a"]).ok == [True]
        assert all(other.exists([name]).ok[0] for name in later) and not all(other.exists([name]).ok[0] for name in ended)


def test_a_prefetch_says_what_is_there(store):
    store.put(["a", "c"], [page_of(1), page_of(2)]).check()
    assert store.prefetch(["a", "b", "c"]).ok == [True, False, True]
    assert store.prefetch(["a", "b", "c"], chain=True).prefix == 1


def test_no_page_is_evicted_before_those_that_follow_it(node):
    with node.store("chains", timeout=60) as store:
        size, prompt = 512 << 10, [f"prompt {i}" for i in range(4)]
        for i, name in enumerate(prompt):
            store.put([name], [page_of(i, size)], chain=i > 1, parent=prompt[i - 1] if i > 0 else None).check()
        others = 0
        while store.node_status()["pages_evicted"] < 2:  # A look-up would be a use of the pages.
            store.put([f"other {others}"], [page_of(100 + others, size)]).check()
            others += 1
        there = store.exists(prompt).ok
        assert there == sorted(there, reverse=True) and sum(there) in (1, 2), there


def test_a_wrong_length_is_an_error_of_that_page(store):
    store.put(["a", "b"], [page_of(1), page_of(2)]).check()
    pages = [bytearray(PAGE), bytearray(PAGE - 1)]
    result = store.get(["a", "b"], pages)
    assert result.codes == [Code.OK, Code.INVALID_ARGUMENT] and pages[0] == page_of(1)
    with pytest.raises(hicache.InvalidArgument):
        result.check()


@pytest.mark.parametrize("keys, pages, sentence", [
    ("abc", [b"x"], "not a single one"),
    ([1], [b"x"], "one is a int"),
    (["a"], [], "0 for 1 keys"),
    (["a"], ["text"], "expected buffers"),
    (["a"], [(1, 2, 3)], r"\(address, bytes\)"),
    ([], [], "0 pages"),
    (["a"] * 4097, [b"x"] * 4097, "4096"),
])
def test_wrong_batches_are_refused_with_a_sentence(store, keys, pages, sentence):
    with pytest.raises(hicache.InvalidArgument, match=sentence) as trouble:
        store.put(keys, pages)
    assert trouble.value.code == Code.INVALID_ARGUMENT and isinstance(trouble.value, ValueError)
    assert "\n" not in str(trouble.value)


def test_memory_that_cannot_be_written_is_refused(store):
    for memory in (bytes(PAGE), memoryview(bytes(PAGE))):
        with pytest.raises(hicache.InvalidArgument, match="writable"):
            store.get(["a", "b"], [bytearray(PAGE), memory])


def test_memory_is_held_while_it_is_used_and_not_after(store):
    first, second = bytearray(PAGE), bytearray(PAGE)
    store.put(["a"], [first]).check()
    first.append(0)  # Not possible while a buffer of it is in use.
    with pytest.raises(hicache.InvalidArgument):
        store.put(["a", "b"], [second, "text"])
    second.append(0)


@pytest.mark.parametrize("settings, sentence", [
    ({"socket": ""}, "socket"),
    ({"socket": "x" * 108}, "107 bytes"),
    ({"namespace": ""}, "namespace"),
    ({"namespace": 7}, "namespace"),
    ({"threads": 0}, "threads"),
    ({"calls": 10**9}, "calls"),
    ({"lease": 10**4}, "lease_ms"),
    ({"timeout": -2}, "timeout"),
    ({"timeout": float("nan")}, "timeout"),
])
def test_a_wrong_setting_is_one_sentence_that_names_it(settings, sentence):
    with pytest.raises(hicache.InvalidArgument, match=sentence) as trouble:
        hicache.Store(**{"socket": "/nowhere", "namespace": "n", **settings})
    assert "\n" not in str(trouble.value)


def test_threads_share_a_store(store):
    failures = []

    def use(thread):
        try:
            for i in range(50):
                key, data = f"{thread}.{i}", page_of(1000 * thread + i)
                store.put([key], [data]).check()
                page = bytearray(PAGE)
                store.get([key], [page]).check()
                assert page == data
        except BaseException as trouble:
            failures.append(trouble)

    threads = [threading.Thread(target=use, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert store.stats()["pages_got"] == 400 and store.stats()["open_calls"] == 0


def test_stats_and_status_have_the_names_of_the_header(store):
    store.put(["a"], [page_of(1)]).check()
    assert store.stats()["pages_put"] == 1 and store.stats()["bytes_put"] == PAGE
    assert store.node_status()["capacity_bytes"] == 64 << 20


def test_nothing_of_a_store_can_be_pickled(store):
    call = store.start_exists(["a"])
    call.result()
    store.put(["a"], [page_of(1)]).check()
    with store.pin(["a"]) as lease:
        for each in (store, call, lease):
            with pytest.raises(TypeError, match="cannot be pickled"):
                pickle.dumps(each)


def test_results_errors_and_keys_can_be_pickled(store):
    error = pytest.raises(hicache.NotFound, store.exists(["a"]).check).value
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.code, str(again)) == (hicache.NotFound, Code.NOT_FOUND, str(error))
    keys = store.names(["a", "b"])
    assert list(pickle.loads(pickle.dumps(keys))) == list(keys)
    assert pickle.loads(pickle.dumps(keys[0])) == keys[0]


def test_a_code_of_a_later_version_is_an_error_too():
    error = hicache.Error(77, "something new")
    assert error.code == 77 and str(error) == "77: something new"
