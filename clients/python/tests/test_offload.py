"""An engine's blocks: hicache.Offload with arrays of numpy, and with whatever else has memory."""

import asyncio
import ctypes
import gc
import pickle
import threading

import pytest

import hicache
from hicache import Code

numpy = pytest.importorskip("numpy")

BLOCKS, PER_PAGE = 16, 2


def made(seed):
    """Two layers of keys and values; the blocks of the second one have room behind them."""
    random = numpy.random.default_rng(seed)
    tight = [random.integers(0, 255, (BLOCKS, 4, 8), dtype="uint8") for _ in range(2)]
    loose = [random.standard_normal((BLOCKS, 3, 8)).astype("float32")[:, :2] for _ in range(2)]
    return [tight, loose]


def page_of(layers, *blocks):
    return b"".join(tensor[block].tobytes() for tensors in layers for tensor in tensors for block in blocks)


def copy_of(layers):
    return [[tensor.copy() for tensor in tensors] for tensors in layers]


def are_equal(these, those):
    return all((one == other).all() for pair in zip(these, those) for one, other in zip(*pair))


@pytest.fixture
def layers():
    return made(1)


@pytest.fixture
def offload(store, layers):
    with hicache.Offload(store, layers, PER_PAGE) as offload:
        yield offload


def test_blocks_are_pages_and_pages_are_blocks(store, offload, layers):
    assert offload.page_bytes == PER_PAGE * 2 * (32 + 64) and offload.layers == 2
    result = offload.store(["a", "b"], [[3, 1], [4, 15]], chain=True).check()
    assert (result.pages, len(result)) == (2, 2)
    page = bytearray(offload.page_bytes)
    store.get(["b"], [page]).check()
    assert page == page_of(layers, 4, 15)
    other = made(2)
    store.put(["c"], [page_of(other, 5, 6)]).check()
    expected = copy_of(layers)
    for tensors, theirs in zip(expected, other):
        for tensor, their in zip(tensors, theirs):
            tensor[[9, 2]] = their[[5, 6]]
    offload.load(["c"], [(9, 2)]).check()
    assert are_equal(layers, expected)


def test_blocks_that_are_not_wanted_and_pages_that_are_not_there_change_nothing(offload, layers):
    offload.store(["a", "b"], numpy.array([[0, 1], [2, 3]])).check()
    expected = copy_of(layers)
    for tensors in expected:
        for tensor in tensors:
            tensor[10], tensor[11] = tensor[1], tensor[2]
    result = offload.load(["a", "nothing", "b"], [[None, 10], [12, 13], [11, -1]])
    assert result.codes == [Code.OK, Code.NOT_FOUND, Code.OK]
    assert are_equal(layers, expected)


def test_layers_are_waited_for(offload, layers):
    offload.store(["a"], [[0, 1]]).check()
    before = copy_of(layers)
    call = offload.start_load(["a"], [[4, 5]])
    for layer in range(2):
        call.wait_layer(layer)
        assert all((tensor[4:6] == then[0:2]).all() for tensor, then in zip(layers[layer], before[layer]))
    with pytest.raises(hicache.Error, match="host memory have no streams"):
        call.stream_wait(0, 0)
    assert call.result().check().pages == 1
    call.wait_layer(1)
    with pytest.raises(hicache.InvalidArgument, match="expected 0 to 1"):
        call.wait_layer(2)
    lost = offload.start_load(["a", "nothing"], [[4, 5], [6, 7]])
    with pytest.raises(hicache.NotFound):
        lost.wait_layer(0)
    assert lost.result().ok == [True, False]
    with pytest.raises(hicache.NotFound):
        lost.wait_layer(0)


def test_a_layer_that_does_not_come_in_time_is_an_error_of_the_waiting(node, layers):
    with node.store("slow", timeout=60) as store, hicache.Offload(store, layers, PER_PAGE) as offload:
        offload.store(["a"], [[0, 1]]).check()
        with node.paused():
            call = offload.start_load(["a"], [[4, 5]])
            with pytest.raises(hicache.DeadlineExceeded):
                call.wait_layer(0, timeout=0.01)
        call.wait_layer(1)
        assert call.result().pages == 1


def test_whoever_waits_for_a_layer_may_be_another_than_who_polls(store, offload):
    offload.store(["a"], [[0, 1]]).check()
    calls = [offload.start_load(["a"], [[4, 5]]) for _ in range(20)]
    failures = []

    def wait(call):
        try:
            for layer in range(2):
                call.wait_layer(layer)
        except BaseException as trouble:
            failures.append(trouble)

    threads = [threading.Thread(target=wait, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    while not all(call.done for call in calls):
        store.poll(1)
    for thread in threads:
        thread.join()
    assert not failures


def test_calls_are_awaited(offload, layers):
    before = copy_of(layers)

    async def use():
        await offload.start_store(["a"], [[0, 1]])
        return await asyncio.gather(*(offload.start_load(["a"], [[i, i + 1]]) for i in range(2, 10, 2)))

    assert [result.pages for result in asyncio.run(use())] == [1] * 4
    assert all((tensor[8:10] == then[0:2]).all() for tensors in zip(layers, before) for tensor, then in zip(*tensors))


def test_a_load_reads_from_a_lease_what_was_pinned(node, layers):
    with node.store("pinned", timeout=60) as store, hicache.Offload(store, layers, PER_PAGE) as offload:
        offload.store(["a"], [[0, 1]]).check()
        with store.pin(["a"]) as lease:
            node.kill()
            assert offload.load(["a", "b"], [[4, 5], [6, 7]], lease=lease).codes == [Code.OK, Code.NOT_FOUND]
        assert (layers[0][0][4:6] == layers[0][0][0:2]).all()
        with pytest.raises(hicache.Error, match="lease"):
            offload.load(["a"], [[4, 5]], lease=lease)
        assert offload.load(["a"], [[4, 5]]).codes == [Code.PEER_UNREACHABLE]


class Torch:
    """What is asked of a torch.Tensor."""

    def __init__(self, values, device="cpu"):
        self.values, self.shape = values, values.shape
        self.device = type("Device", (), {"type": device, "index": 0, "__str__": lambda self: self.type})()

    def data_ptr(self):
        return self.values.ctypes.data

    def element_size(self):
        return self.values.itemsize

    def stride(self):
        return tuple(stride // self.values.itemsize for stride in self.values.strides)


class ByDLPack:
    """An array of which only DLPack is known."""

    def __init__(self, values, device=1):
        self.values, self.device = values, device

    def __dlpack__(self, stream=None):
        return self.values.__dlpack__()

    def __dlpack_device__(self):
        return self.device, 0


@pytest.mark.parametrize("wrapped", [Torch, ByDLPack, lambda x: hicache.Tensor(x.ctypes.data, BLOCKS, x.strides[0], x[0].nbytes)])
def test_tensors_of_all_kinds_are_used_where_they_are(store, wrapped):
    layers = made(3)
    with hicache.Offload(store, [[wrapped(tensor) for tensor in tensors] for tensors in layers]) as offload:
        offload.store(["a"], [[7]]).check()
        page = bytearray(offload.page_bytes)
        store.get(["a"], [page]).check()
        assert page == page_of(layers, 7)
        before = copy_of(layers)
        offload.load(["a"], [[8]]).check()
    assert all((tensor[8] == then[7]).all() for tensors in zip(layers, before) for tensor, then in zip(*tensors))


def test_a_layer_with_one_tensor_needs_no_list_and_the_only_block_no_stride(store):
    tensor = numpy.arange(64, dtype="int64").reshape(1, 64)
    with hicache.Offload(store, [tensor, numpy.zeros((4, 8))]) as offload:
        assert offload.page_bytes == 512 + 64 and offload.layers == 2


def test_the_memory_of_the_blocks_stays_until_the_offload_is_closed(store):
    memory = bytearray(64)
    with hicache.Offload(store, [memoryview(memory).cast("B", (4, 16))]):
        with pytest.raises(BufferError):
            memory.append(0)
    memory.append(0)


@pytest.mark.parametrize("layers, sentence", [
    ([], "tensors"),
    ([[]], "tensors"),
    ([numpy.zeros((4, 4, 4))[:, ::2]], "each of them contiguous"),
    ([numpy.zeros(())], "first dimension"),
    ([bytes(16)], "can be written"),
    (["text"], "can be written"),
    ([hicache.Tensor(0, 1, 1, 1)], "data: NULL"),
    ([hicache.Tensor(64, 2, 1, 2)], "stride: 1"),
    ([Torch(numpy.zeros(4), "meta")], "one is on meta"),
    ([ByDLPack(numpy.zeros(4), 4)], "not in host memory"),
    ([ByDLPack(numpy.zeros(4), 2), numpy.zeros(4)], "on one device"),
])
def test_wrong_layers_are_refused_with_a_sentence(store, layers, sentence):
    with pytest.raises(hicache.InvalidArgument, match=sentence):
        hicache.Offload(store, layers)


@pytest.mark.parametrize("layer", [hicache.Tensor(1 << 40, 1, 16, 16, 0), ByDLPack(numpy.zeros(4), 2), Torch(numpy.zeros(4), "cuda")])
def test_blocks_of_a_gpu_need_one(store, layer):
    with pytest.raises(hicache.Error, match="device: 0; ") as trouble:
        hicache.Offload(store, [layer])
    assert trouble.value.code == Code.UNSUPPORTED


def test_blocks_in_host_memory_have_no_events(offload):
    with pytest.raises(hicache.InvalidArgument, match="event"):
        offload.store(["a"], [[0, 1]], event=1)


@pytest.mark.parametrize("blocks, sentence", [
    ([], "0 pages for 1 keys"),
    ([[1]], "1 of a page; expected 2"),
    ([[1, 2, 3]], "3 of a page"),
    ([[1, 16]], "16; there are 16"),
    ([[1, -2]], "expected numbers"),
    ([[1, "x"]], "expected numbers"),
    ([[1, None]], "stored whole"),
])
def test_wrong_blocks_are_refused_with_a_sentence(offload, blocks, sentence):
    with pytest.raises(hicache.InvalidArgument, match=sentence):
        offload.store(["a"], blocks)


def test_what_is_closed_is_used_no_more(shared_node, layers):
    store = shared_node.store("closed", timeout=60)
    one, other = hicache.Offload(store, layers), hicache.Offload(store, layers)
    one.close()
    one.close()
    with pytest.raises(hicache.Error, match="the offload is closed"):
        one.load(["a"], [[0]])
    call = other.start_store(["a"], [[0]])
    store.close()
    assert call.done
    with pytest.raises(hicache.Error, match="the store is closed"):
        other.load(["a"], [[0]])
    other.close()


def test_an_offload_that_nobody_uses_lets_the_memory_go(store):
    memory = bytearray(64)
    offload = hicache.Offload(store, [memory])
    call = offload.start_store(["a"], [[0]])
    del offload
    with pytest.raises(BufferError):
        memory.append(0)
    call.result().check()
    del call
    gc.collect()
    memory.append(0)


def test_an_offload_cannot_be_pickled(offload):
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(offload)


def test_pages_of_a_store_may_be_known_by_dlpack_alone(store):
    values = numpy.arange(32, dtype="float32").reshape(4, 8)
    store.put(["a", "b"], [ByDLPack(values), [ByDLPack(values[:2]), values[2:]]]).check()
    back = numpy.zeros_like(values)
    store.get(["a"], [ByDLPack(back)]).check()
    assert (back == values).all()
    page = ctypes.create_string_buffer(values.nbytes)
    store.get(["b"], [page]).check()
    assert bytes(page) == values.tobytes()
    for part, sentence in ((ByDLPack(values[:, ::2]), "contiguous"), (ByDLPack(values, 2), "not in host memory")):
        with pytest.raises(hicache.InvalidArgument, match=sentence):
            store.put(["c"], [part])
