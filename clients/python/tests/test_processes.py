"""Nodes that die, hang and come back; forks; stores that are closed."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import warnings

import pytest
from conftest import PAGE, page_of, until

import hicache
from hicache import Code


def in_child(body):
    """Runs it in a forked child; what the child says."""
    ours, its = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Later Pythons warn of forks beside threads: this is a test of them.
        child = os.fork()
    if child == 0:
        try:
            said = repr(body())
        except BaseException as trouble:
            said = f"{type(trouble).__name__}: {trouble}"
        os.write(its, said.encode())
        os._exit(0)
    os.close(its)
    with open(ours) as pipe:
        said = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    return said


def test_a_store_begins_without_its_node(tmp_path):
    with hicache.Store(tmp_path / "node", "n", timeout=60) as store:
        result = store.exists(["a", "b"])
        assert result.codes == [Code.PEER_UNREACHABLE] * 2 and result.prefix == 0
        with pytest.raises(hicache.Unreachable, match="node") as trouble:
            result.check()
        assert isinstance(trouble.value, ConnectionError)
        with pytest.raises(hicache.Unreachable):
            store.connect()
        with pytest.raises(hicache.Unreachable):
            store.node_status()
        with hicache.node("16MiB", socket=tmp_path / "node"):
            until(lambda: store.put(["a"], [page_of(1)]).pages)
            assert store.exists(["a"]).pages == 1 and store.stats()["connected"] == 1


def test_a_store_goes_on_after_its_node_was_killed(node):
    with node.store("n", timeout=60) as store:
        store.put(["a"], [page_of(1)]).check()
        node.kill()
        page = bytearray(PAGE)
        assert store.get(["a"], [page]).codes == [Code.PEER_UNREACHABLE]
        node.start()
        until(lambda: store.get(["a"], [page]).codes != [Code.PEER_UNREACHABLE])
        assert store.get(["a"], [page]).codes == [Code.NOT_FOUND]
        store.put(["a"], [page_of(2)]).check()
        store.get(["a"], [page]).check()
        assert page == page_of(2)


def test_calls_end_when_the_node_is_killed_under_them(node):
    with node.store("n", timeout=60) as store:
        codes = set()
        for i in range(300):
            if i == 150:
                node.kill()
            codes |= set(store.put([f"k{i}"], [page_of(i, 65536)]).codes)
        assert codes <= {Code.OK, Code.PEER_UNREACHABLE} and len(codes) == 2


def test_a_node_that_hangs_costs_no_more_than_the_deadline(node):
    with node.store("n", timeout=60) as store:
        store.connect()
        with node.paused():
            begin = time.monotonic()
            result = store.exists(["a"], timeout=0.2)
            assert result.codes == [Code.DEADLINE_EXCEEDED] and 0.2 <= time.monotonic() - begin < 10
            with pytest.raises(hicache.DeadlineExceeded) as trouble:
                result.check()
            assert isinstance(trouble.value, TimeoutError)


def test_a_call_needs_some_time_and_may_have_all_of_it(store):
    with pytest.raises(hicache.InvalidArgument, match="timeout"):
        store.exists(["a"], timeout=0)
    assert store.exists(["a"], timeout=None).codes == [Code.NOT_FOUND]


def test_closing_ends_calls_that_others_wait_for(node):
    store = node.store("n")
    store.connect()
    pages = [bytearray(PAGE) for _ in range(8)]
    ended = []

    def wait(i):
        try:
            ended.append(store.get([f"k{i}"], [pages[i]], timeout=60))
        except hicache.Error as trouble:
            ended.append(trouble.code)

    threads = [threading.Thread(target=wait, args=(i,)) for i in range(8)]
    with node.paused():
        for thread in threads:
            thread.start()
        until(lambda: store.stats()["open_calls"] == 8)
        begin = time.monotonic()
        store.close()
        for thread in threads:
            thread.join()
        assert time.monotonic() - begin < 30
    assert ended == [Code.STOPPING] * 8
    for page in pages:
        page.append(0)


def test_a_closed_store_says_so(shared_node):
    with shared_node.store("n") as store:
        open_call = store.start_exists(["a"])
    store.close()
    assert store.is_closed and "closed" in repr(store)
    for use in (lambda: store.exists(["a"]), lambda: store.names(["a"]), store.stats, store.poll, store.fileno, store.connect, store.node_status):
        with pytest.raises(hicache.Error, match="closed") as trouble:
            use()
        assert trouble.value.code == Code.STOPPING
    try:
        assert open_call.result().codes == [Code.NOT_FOUND]
    except hicache.Error as trouble:
        assert trouble.code == Code.STOPPING


def test_a_store_that_is_dropped_is_closed(shared_node, descriptors):
    before = descriptors()
    store = shared_node.store("n")
    store.connect()
    with pytest.warns(ResourceWarning, match="not closed"):
        del store
    assert descriptors() == before


def test_a_forked_child_gets_errors_and_opens_its_own(store, shared_node):
    store.put(["a"], [page_of(1)]).check()
    call = store.start_exists(["a"])
    with store.pin(["a"], in_place=True) as lease:

        def child():
            codes = []
            for use in (lambda: store.exists(["a"]), call.result, lambda: lease.left, store.poll):
                try:
                    use()
                except hicache.Error as trouble:
                    codes.append(trouble.code.name)
            lease.unpin()
            store.close()
            with shared_node.store(store.namespace, timeout=60) as own:
                page = bytearray(PAGE)
                own.get(["a"], [page]).check()
                return codes, page == page_of(1)

        assert in_child(child) == repr((["FORKED"] * 4, True))
        assert call.result().pages == 1
        assert lease[0] == page_of(1)
    assert store.exists(["a"]).pages == 1


def test_a_fork_while_threads_use_the_store_does_not_hang(store):
    end = threading.Event()

    def use():
        while not end.is_set():
            store.exists(["a"])

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            assert in_child(lambda: store.exists(["a"])).startswith("Error: forked")
    finally:
        end.set()
        for thread in threads:
            thread.join()


def read_in_another_process(socket, namespace, queue):
    with hicache.Store(socket, namespace, timeout=60) as store:
        page = bytearray(PAGE)
        queue.put((store.get(["a"], [page]).codes, bytes(page)))


def test_a_spawned_process_reads_what_this_one_put(store, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    store.put(["a"], [page_of(1)]).check()
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=read_in_another_process, args=(store.socket, store.namespace, queue))
    process.start()
    assert queue.get(timeout=60) == ([0], page_of(1))
    process.join()
    queue.close()
    queue.join_thread()


def run_python(code, *arguments, **environment):
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment})


def runs(pid):
    """Whether the process does; one that nobody has reaped yet does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_program_that_closes_nothing_ends(shared_node):
    done = run_python("""
import hicache, sys
store = hicache.Store(sys.argv[1], "n")
store.put(["a"], [b"x" * 4096]).check()
calls = [store.start_put([f"k{i}"], [bytearray(65536)]) for i in range(20)]
view = store.pin(["a"], in_place=True)[0]
node = hicache.node("16MiB")
print(node.pid, node.socket)
""", shared_node.socket)
    assert done.returncode == 0, done.stderr
    pid, socket = done.stdout.split()
    assert not runs(pid) and not os.path.exists(socket)


def test_a_node_ends_with_a_program_that_is_killed(tmp_path):
    done = run_python("""
import hicache, os, signal
print(hicache.node("16MiB").pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
""", TMPDIR=str(tmp_path))  # Nobody is left to remove the node's folder.
    assert done.returncode == -signal.SIGKILL
    until(lambda: not runs(done.stdout.strip()))


def test_a_wait_ends_with_a_signal(node):
    def interrupt(signum, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    page = bytearray(PAGE)
    try:
        with node.store("n") as store:
            store.connect()
            with node.paused():
                signal.setitimer(signal.ITIMER_REAL, 0.3)
                with pytest.raises(KeyboardInterrupt):
                    store.put(["a"], [page], timeout=60)
            until(lambda: not store.stats()["open_calls"])
            store.poll()
            page.append(0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_the_log_tells_of_the_connection(node, caplog):
    caplog.set_level("INFO", "hicache")
    with node.store("n", timeout=60) as store:
        store.connect()
        node.kill()
        store.exists(["a"])
    assert f"connected to the node at {node.socket}" in caplog.text and "does not serve" in caplog.text


def test_a_node_that_does_not_start_says_why(tmp_path, shared_node):
    for options, sentence in (({"memory": "7 parrots"}, "--memory"), ({"socket": tmp_path / "no" / "folder"}, "--socket"),
                              ({"socket": shared_node.socket}, "--socket"), ({"flags": ["--nonsense"]}, "nonsense")):
        with pytest.raises(hicache.Error, match=sentence) as trouble:
            hicache.node(**{"memory": "16MiB", **options})
        assert "\n" not in str(trouble.value)


def test_a_node_leaves_nothing(descriptors):
    before = descriptors()
    with hicache.node("16MiB") as node:
        pid, folder = node.pid, os.path.dirname(node.socket)
        assert node.log.exists() and str(pid) in repr(node)
    assert not runs(pid) and not os.path.exists(folder)
    assert node.pid is None and descriptors() == before
    with pytest.raises(TypeError, match="socket"):
        node.__reduce__()
