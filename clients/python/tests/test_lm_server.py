"""The server for LMCache's old protocol, byte by byte, as clients of three ages send it."""

import contextlib
import pathlib
import random
import select
import socket
import struct
import subprocess
import sys
import time

import pytest

import hicache

GOLDEN = dict(line.split() for line in (pathlib.Path(__file__).parent / "lm_golden.txt").read_text().splitlines() if not line.startswith("#"))
KEY = b"vllm@meta-llama/Llama-3.1-8B@1@0@1f2e3d@bfloat16"
# How clients of each age write a header, and read one.
OLDEST, OLD, NEW = "<2i150s", "<8i150s", "<9i150s"
ANSWERS = {OLDEST: "<2i", OLD: "<8i", NEW: "<9i"}
ABOUT = {OLDEST: (), OLD: (1, 3, 2, 32, 64, 1024), NEW: (1, 3, 0, 2, 32, 64, 1024)}
NOTHING = {OLDEST: (), OLD: (1, 2, 0, 0, 0, 0), NEW: (1, 2, 0, 0, 0, 0, 0)}
PUT, GET, EXIST, LIST, HEALTH = range(1, 6)


def golden(name):
    return bytes.fromhex(GOLDEN[name])


def header(form, command, key=KEY, length=0, about=None):
    return struct.pack(form, command, length, *(NOTHING[form] if about is None else about), key.ljust(150))


class Server:
    def __init__(self, node_socket, folder, *flags):
        self.log = folder / "lm.log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen([sys.executable, "-m", "hicache", "lm-server", "--socket", node_socket, "--listen", "127.0.0.1:0", *flags],
                                            stdout=subprocess.PIPE, stderr=log, text=True)
        line = self.process.stdout.readline()
        assert line.startswith("listening on lm://"), self.log.read_text()
        self.port = int(line.rpartition(":")[2])

    def connect(self):
        made = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        return contextlib.closing(made)

    def end(self):
        self.process.terminate()
        status = self.process.wait(60)
        self.process.stdout.close()
        return status

    def until_it_says(self, sentence):
        end = time.monotonic() + 60
        while sentence not in self.log.read_text():
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.01)


@pytest.fixture(scope="module")
def large_node():
    """One whose clients may write chunks of 8 MiB."""
    with hicache.node("128MiB") as node:
        yield node


@pytest.fixture
def server(large_node, tmp_path):
    made = Server(large_node.socket, tmp_path, "--namespace", str(tmp_path))
    yield made
    assert made.end() == 0


def receive(client, size):
    data = bytearray()
    while len(data) < size:
        more = client.recv(size - len(data))
        assert more, f"the connection ended after {len(data)} of {size} bytes"
        data += more
    return bytes(data)


def ask(client, form, command, key=KEY, length=0, about=None):
    client.sendall(header(form, command, key, length, about))
    return struct.unpack(ANSWERS[form], receive(client, struct.calcsize(ANSWERS[form])))


@pytest.mark.parametrize("age", ["oldest", "old", "new"])
def test_the_bytes_of_a_real_client_get_those_of_a_real_server(server, age):
    data = random.Random(1).randbytes(7 << 20) + random.Random(age).randbytes(1 << 20)
    success, failure = golden(f"{age}_ok"), golden(f"{age}_fail")
    with server.connect() as client:
        for command in ("exist", "get"):
            client.sendall(golden(f"{age}_{command}"))
            assert receive(client, len(failure)) == failure
        client.sendall(golden(f"{age}_put") + data)
        client.sendall(golden(f"{age}_exist"))
        assert receive(client, len(failure)) == success[:4] + failure[4:]
        client.sendall(golden(f"{age}_get"))
        assert receive(client, len(success)) == success
        assert receive(client, len(data)) == data


def test_a_server_that_is_well_says_so(server):
    with server.connect() as client:
        client.sendall(golden("new_health"))
        assert receive(client, 36) == golden("new_ok")[:4] + golden("new_fail")[4:]


@pytest.mark.parametrize("form", [OLDEST, OLD, NEW])
def test_clients_of_each_age_find_what_they_stored(server, form):
    data = random.Random(2).randbytes(100_000)
    with server.connect() as client:
        assert ask(client, form, EXIST)[0] == 400
        client.sendall(header(form, PUT, length=len(data), about=ABOUT[form]) + data)
        assert ask(client, form, EXIST)[0] == 200
    with server.connect() as client:  # The form is that of the first message, whatever it is.
        code, length, *about = ask(client, form, GET)
        assert (code, length) == (200, len(data)) and receive(client, length) == data
        expected = list(ABOUT[form])
        if form == NEW:
            expected.append(expected.pop(2))
        assert about == expected


def test_clients_of_one_age_do_not_get_what_another_one_means_otherwise(server):
    with server.connect() as client:
        client.sendall(header(OLD, PUT, length=4, about=ABOUT[OLD]) + b"page")
        assert ask(client, OLD, EXIST)[0] == 200
    for form in (OLDEST, NEW):
        with server.connect() as client:
            assert ask(client, form, EXIST)[0] == 400


def test_bytes_that_come_one_by_one_are_a_message_too(server):
    with server.connect() as client:
        for byte in header(NEW, PUT, length=3, about=ABOUT[NEW]) + b"abc":
            client.sendall(bytes([byte]))
        assert ask(client, NEW, GET)[:2] == (200, 3) and receive(client, 3) == b"abc"


def test_requests_that_come_at_once_are_answered_in_their_order(server):
    with server.connect() as client:
        client.sendall(b"".join(header(NEW, PUT, b"chunk %d" % i, 4, ABOUT[NEW]) + struct.pack("<i", i) for i in range(64)) +
                       b"".join(header(NEW, GET, b"chunk %d" % i) for i in range(64)))
        for i in range(64):
            assert struct.unpack("<9i", receive(client, 36))[:2] == (200, 4)
            assert struct.unpack("<i", receive(client, 4)) == (i,)


NONSENSE = [
    (header(NEW, 6), "the command 6"),
    (header(NEW, -1), "the command -1"),
    (header(NEW, LIST), "a list of all keys"),
    (header(NEW, PUT, length=-1), "a chunk of -1 bytes"),
    (header(NEW, PUT, length=2**31 - 1), "a chunk of 2147483647 bytes"),
    (header(NEW, PUT, length=0), "a chunk of 0 bytes"),
    (header(NEW, GET, length=5), "5 bytes where there are none"),
    (header(NEW, GET, key=b"\xff\0"), "no text"),
    (header(NEW, EXIST, key=b""), "no text"),
    (bytes(186), "the command 0"),
    (b"GET / HTTP/1.1\r\n".ljust(200), "the command 542393671"),
]


def test_who_sends_nonsense_is_closed_with_one_line(server):
    with server.connect() as other:
        for bad, sentence in NONSENSE:
            with server.connect() as client:
                client.sendall(bad)
                with contextlib.suppress(ConnectionResetError):
                    assert client.recv(1) == b""
            server.until_it_says(sentence)
        assert len(server.log.read_text().splitlines()) == len(NONSENSE)
        assert ask(other, NEW, HEALTH)[0] == 200


def test_half_a_message_stores_nothing(server):
    with server.connect() as client:
        client.sendall(header(NEW, PUT, length=1000, about=ABOUT[NEW]) + bytes(500))
    server.until_it_says("it ended after 500 of 1000 bytes")
    with server.connect() as client:
        client.sendall(header(NEW, EXIST)[:100])
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""
    server.until_it_says("it ended after 100 of 158 bytes")
    with server.connect() as client:
        assert ask(client, NEW, EXIST)[0] == 400


def test_more_connections_than_are_allowed_are_closed(server):
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(server.connect()) for _ in range(300)]
        server.until_it_says("more are closed")
        closed = select.select(clients, [], [], 60)[0]
        assert closed and all(client.recv(1) == b"" for client in closed)
        assert ask(clients[0], NEW, HEALTH)[0] == 200


def test_a_node_that_ends_is_a_miss_until_it_is_back(node, tmp_path):
    server = Server(node.socket, tmp_path)
    with server.connect() as client:
        client.sendall(header(NEW, PUT, length=4, about=ABOUT[NEW]) + b"page")
        assert ask(client, NEW, EXIST)[0] == 200
        node.kill()
        assert ask(client, NEW, EXIST)[0] == 400 and ask(client, NEW, GET)[0] == 400 and ask(client, NEW, HEALTH)[0] == 400
        node.start()
        end = time.monotonic() + 60
        while ask(client, NEW, HEALTH)[0] != 200:
            assert time.monotonic() < end
        client.sendall(header(NEW, PUT, length=4, about=ABOUT[NEW]) + b"page")
        assert ask(client, NEW, GET)[:2] == (200, 4) and receive(client, 4) == b"page"
    assert server.end() == 0
