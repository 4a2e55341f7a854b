"""Calls that are awaited, or taken by poll()."""

import asyncio
import gc
import select
import threading
import weakref

import pytest
from conftest import PAGE, page_of, until

import hicache
from hicache import Code


def test_many_calls_at_once_need_no_threads(store):
    async def one(i):
        data = page_of(i)
        (await store.start_put([f"k{i}"], [data])).check()
        page = bytearray(PAGE)
        (await store.start_get([f"k{i}"], [page])).check()
        assert page == data
        return threading.active_count()

    async def many():
        return await asyncio.gather(*(one(i) for i in range(500)))

    before = threading.active_count()
    assert set(asyncio.run(many())) == {before}
    assert store.stats()["open_calls"] == 0 and not store._watches


def test_an_awaited_pin_is_a_lease(store):
    async def use():
        (await store.start_put(["a"], [page_of(1)])).check()
        with await store.start_pin(["a"], in_place=True) as lease:
            assert lease[0] == page_of(1)
        assert (await store.start_prefetch(["a", "b"], chain=True)).prefix == 1
        assert (await store.start_remove(["a"])).pages == 1
        assert (await store.start_exists(["a"])).pages == 0

    asyncio.run(use())
    assert store.node_status()["leases"] == 0


def test_a_call_can_be_awaited_twice_and_by_two(store):
    async def use():
        call = store.start_exists(["a"])
        first, second = await asyncio.gather(call, call)
        assert first is second is await call
        assert call.done and call.result() is first

    asyncio.run(use())


def test_nothing_of_an_event_loop_is_kept(store, descriptors):
    asyncio.run(asyncio.sleep(0))
    store.connect()
    before = descriptors()

    async def use():
        await asyncio.gather(*(store.start_exists(["a"]) for _ in range(10)))
        return weakref.ref(asyncio.get_running_loop())

    loops = [asyncio.run(use()) for _ in range(5)]
    gc.collect()
    assert descriptors() == before
    assert not any(loop() for loop in loops)


def test_event_loops_and_threads_share_a_store(store):
    failures = []

    def waits(number):
        for i in range(50):
            store.put([f"{number}.{i}"], [page_of(i)]).check()

    def awaits(number):
        async def use():
            await asyncio.gather(*(store.start_put([f"{number}.{i}"], [page_of(i)]) for i in range(50)))

        for _ in range(3):
            asyncio.run(use())

    def run(body, number):
        try:
            body(number)
        except BaseException as trouble:
            failures.append(trouble)

    threads = [threading.Thread(target=run, args=(body, i)) for i, body in enumerate([waits, awaits] * 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert store.exists([f"{i}.{j}" for i in range(6) for j in range(50)]).pages == 300
    assert not store._open and not store._watches


def test_a_call_that_is_no_longer_awaited_gives_its_memory_back(store):
    page = bytearray(PAGE)

    async def use():
        task = asyncio.ensure_future(store.start_put(["a"], [page]))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(use())
    until(lambda: not store.stats()["open_calls"])
    store.poll()
    page.append(0)
    assert not store._open and store.exists(["a"]).pages == 1


def test_a_wait_for_ends_in_time_while_the_node_hangs(node):
    async def use(store):
        call = store.start_exists(["a"], timeout=0.3)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(call, 0.01)
        assert (await call).codes == [Code.DEADLINE_EXCEEDED]

    with node.store("n") as store:
        store.connect()
        with node.paused():
            asyncio.run(use(store))


def test_calls_are_taken_by_poll(store):
    calls = [store.start_put([f"k{i}"], [page_of(i)]) for i in range(20)]
    taken = []
    while len(taken) < 20:
        assert select.select([store.fileno()], [], [], 60)[0]
        taken += store.poll()
    assert set(taken) == set(calls) and all(call.result().pages == 1 for call in calls)
    assert store.poll() == [] and store.poll(timeout=0.01) == []
    assert not select.select([store.fileno()], [], [], 0)[0]


def test_a_call_that_another_thread_takes_is_done_for_who_waits(store):
    end = threading.Event()

    def take():
        while not end.is_set():
            store.poll(timeout=0.01)

    thread = threading.Thread(target=take)
    thread.start()
    try:
        for i in range(200):
            store.put([f"k{i}"], [page_of(i)]).check()
    finally:
        end.set()
        thread.join()


def test_calls_for_which_nobody_waits_do_not_fill_the_store(shared_node, request):
    with shared_node.store(request.node.nodeid, calls=4) as store:
        for i in range(100):
            try:
                store.start_put([f"k{i}"], [page_of(i)])
            except hicache.Error as trouble:
                assert trouble.code == Code.LIMIT_REACHED  # These four are still under way.
                store.poll(timeout=60)
        until(lambda: not store.stats()["open_calls"])
        assert store.exists([f"k{i}" for i in range(100)]).pages > 4


def test_closing_a_store_ends_what_is_awaited(node):
    async def use(store):
        calls = [asyncio.ensure_future(store.start_put([f"k{i}"], [page_of(i)], timeout=60)) for i in range(100)]
        await asyncio.sleep(0)
        await asyncio.get_running_loop().run_in_executor(None, store.close)
        return await asyncio.gather(*calls, return_exceptions=True)

    store = node.store("n")
    store.connect()
    with node.paused():
        ended = asyncio.run(use(store))
    assert {type(each) for each in ended} == {hicache.Error} and {each.code for each in ended} == {Code.STOPPING}
