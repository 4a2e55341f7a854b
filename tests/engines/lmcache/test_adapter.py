"""LMCache's own adapter for native connectors, over ours and a real node."""

import contextlib
import os
import select
import time

import pytest
import torch
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.l2_adapters import native_plugin_l2_adapter as plugin
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj

import hicache
from hicache.lmcache import NativeClient

FLOATS = 32768  # 128 KiB in each chunk


def key(number, salt="", model="tiny"):
    return ObjectKey(chunk_hash=ObjectKey.IntHash2Bytes(number), model_name=model, kv_rank=0, cache_salt=salt)


def chunk(value, floats=FLOATS):
    tensor = torch.full((floats,), float(value))
    about = MemoryObjMetadata(shape=tensor.shape, dtype=tensor.dtype, address=0, phy_size=floats * 4, fmt=MemoryFormat.KV_2LTD, ref_count=1)
    return TensorMemoryObj(tensor, about, parent_allocator=None)


def value_of(chunk):
    values = chunk.raw_data.unique().tolist()
    assert len(values) == 1
    return values[0]


class Adapter:
    """The adapter that `lmcache server` makes of our entry of --l2-adapter, with waiting."""

    def __init__(self, socket, model_id="float32", **params):
        config = plugin.NativePluginL2AdapterConfig.from_dict({
            "module_path": "hicache.lmcache", "class_name": "NativeClient", "max_capacity_gb": 1,
            "adapter_params": {"socket": socket, "model_id": model_id, "base_requests_only": True, **params}})
        self.real = plugin._create_native_plugin_l2_adapter(config)
        self.client = self.real._client

    def store(self, keys, chunks):
        task = self.real.submit_store_task(keys, chunks)
        self._wait(self.real.get_store_event_fd())
        return self.real.pop_completed_store_tasks()[task]

    def look_up(self, keys):
        task = self.real.submit_lookup_and_lock_task(keys, {})
        self._wait(self.real.get_lookup_and_lock_event_fd())
        found = self.real.query_lookup_and_lock_result(task)
        return [found.test(i) for i in range(len(keys))]

    def load(self, keys, chunks):
        task = self.real.submit_load_task(keys, chunks)
        self._wait(self.real.get_load_event_fd())
        read = self.real.query_load_result(task)
        return [read.test(i) for i in range(len(keys))]

    @staticmethod
    def _wait(event):
        assert select.select([event], [], [], 60)[0], "the adapter never said that the task is done"
        os.eventfd_read(event)


@contextlib.contextmanager
def adapter(node, **params):
    made = Adapter(node.socket, **params)
    try:
        yield made
    finally:
        made.real.close()


def until(is_so):
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)


def test_what_is_stored_is_found_and_loaded(node):
    keys = [key(i) for i in range(5)]
    with adapter(node) as one:
        stored = one.store(keys, [chunk(i) for i in range(5)])
        assert stored.is_successful() and stored.bytes_transferred() == 5 * FLOATS * 4
        assert one.look_up([keys[0], keys[1], key(9), keys[3]]) == [True, True, False, True]
        into = [chunk(-1) for _ in range(3)]
        assert one.load([keys[0], key(9), keys[3]], into) == [True, False, True]
        assert [value_of(into[0]), value_of(into[2])] == [0, 3]
        assert one.real.report_status()["is_healthy"]
    with adapter(node) as other:  # As after a restart of the server.
        into = [chunk(-1) for _ in range(5)]
        assert other.look_up(keys) == [True] * 5 and other.load(keys, into) == [True] * 5
        assert [value_of(each) for each in into] == [0, 1, 2, 3, 4]


def test_salt_model_and_weights_keep_chunks_apart(node):
    with adapter(node) as one, adapter(node, model_id="bfloat16") as other:
        assert one.store([key(1)], [chunk(1)]).is_successful()
        assert one.look_up([key(1), key(1, salt="alice"), key(1, model="tall")]) == [True, False, False]
        assert other.look_up([key(1)]) == [False]


def test_a_chunk_of_another_length_is_a_miss(node):
    with adapter(node) as one:
        assert one.store([key(1)], [chunk(1)]).is_successful()
        assert one.load([key(1)], [chunk(-1, FLOATS // 2)]) == [False]


def test_a_damaged_chunk_is_a_miss(node, damage):
    with adapter(node) as one:
        assert one.store([key(1)], [chunk(1)]).is_successful()
        assert one.look_up([key(1)]) == [True]
        damage()
        assert one.load([key(1)], [chunk(-1)]) == [False]
        assert one.look_up([key(1)]) == [False]


def test_deleted_chunks_are_gone_and_not_accounted_for(node):
    with adapter(node) as one:
        assert one.store([key(1), key(2)], [chunk(1), chunk(2)]).is_successful()
        assert one.real.get_usage().total_bytes_used == 2 * FLOATS * 4
        one.real.delete([key(1), key(9)])
        assert one.real.get_usage().total_bytes_used == FLOATS * 4
        assert one.look_up([key(1), key(2)]) == [False, True]


def test_a_look_up_pins_until_the_load(node):
    keys = [key(i) for i in range(20)]
    with adapter(node, lease=60) as one, node.store("others") as store:
        one.store(keys, [chunk(i) for i in range(20)])
        assert all(one.look_up(keys))
        assert store.node_status()["leased_bytes"] >= 20 * FLOATS * 4
        for batch in range(40):  # Twice what the node has room for: it evicts whatever nobody pinned.
            store.put([f"{batch}.{i}" for i in range(8)], [bytes(786432)] * 8)
        into = [chunk(-1) for _ in keys]
        assert all(one.load(keys, into))
        assert [value_of(each) for each in into] == list(range(20))
        until(lambda: store.node_status()["leased_bytes"] == 0)


def test_what_is_never_loaded_is_pinned_for_a_while_only(node):
    with adapter(node, lease=0.2) as one, node.store("others") as store:
        one.store([key(1)], [chunk(1)])
        assert one.look_up([key(1)]) == [True]
        until(lambda: store.node_status()["leased_bytes"] == 0)
        into = chunk(-1)
        assert one.load([key(1)], [into]) == [True] and value_of(into) == 1


def test_more_than_the_share_of_leases_is_found_and_loaded(node):
    keys = [key(i) for i in range(48)]  # 24 MiB, of which a client may pin 16.
    with adapter(node, lease=60) as one:
        for i in range(48):
            assert one.store([keys[i]], [chunk(i, 4 * FLOATS)]).is_successful()
        assert all(one.look_up(keys))
        into = [chunk(-1, 4 * FLOATS) for _ in keys]
        assert all(one.load(keys, into))
        assert [value_of(each) for each in into] == list(range(48))


def test_many_batches_at_once_all_come_to_an_end(node):
    with adapter(node) as one:
        tasks = [one.real.submit_store_task([key(i)], [chunk(i)]) for i in range(200)]
        done = {}

        def all_done():
            done.update(one.real.pop_completed_store_tasks())
            return len(done) == len(tasks)

        until(all_done)
        assert all(done[task].is_successful() for task in tasks)
        assert all(one.look_up([key(i) for i in range(200)]))


def test_nothing_to_do_is_done_at_once(node):
    with adapter(node) as one:
        assert one.load([], []) == [] and one.look_up([]) == []


def test_a_node_that_ends_is_a_miss_until_it_is_back(node):
    with adapter(node, timeout=5) as one:
        assert one.store([key(1)], [chunk(1)]).is_successful()
        assert one.look_up([key(1)]) == [True]
        node.kill()
        into = chunk(-1)
        if one.load([key(1)], [into]) == [True]:  # The memory of a node is there as long as a client has it pinned.
            assert value_of(into) == 1
        assert one.look_up([key(1)]) == [False] and one.load([key(1)], [into]) == [False]
        assert not one.store([key(1)], [chunk(1)]).is_successful()
        node.start()
        until(lambda: one.store([key(1)], [chunk(1)]).is_successful())
        into = chunk(-1)
        assert one.look_up([key(1)]) == [True] and one.load([key(1)], [into]) == [True] and value_of(into) == 1


def test_closing_ends_what_is_under_way(node):
    one = Adapter(node.socket)
    chunks = [chunk(i) for i in range(64)]
    for i, each in enumerate(chunks):
        one.real.submit_store_task([key(i)], [each])
    one.real.close()
    one.client.close()
    assert one.client.drain_completions() == []
    with pytest.raises(hicache.Error, match="closed"):
        one.client.submit_batch_exists(["a"])
    for each in chunks:
        each.raw_data.fill_(-1)  # Nobody reads it any more.


@pytest.mark.parametrize("params, what", [({"base_requests_only": True}, '"model_id": expected a text that says what LMCache\'s keys do not: the weights'),
                                          ({"model_id": "m"}, '"base_requests_only": expected true'), ({"model_id": "m", "base_requests_only": False}, "adapters"),
                                          ({"model_id": "m", "base_requests_only": True, "tenat": "t"}, 'did you mean "tenant"')])
def test_a_server_of_which_it_is_not_said_whose_chunks_it_has_is_refused(node, params, what):
    with pytest.raises(hicache.InvalidArgument, match=what):
        NativeClient(socket=node.socket, **params)
