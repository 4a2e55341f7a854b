"""The client of LMCache's protocol against servers that send what no server may: nothing is believed, and every call ends."""

import contextlib
import random
import socket
import struct
import threading
import time
import tracemalloc

import pytest

from hicache.lmcache_store import LmcacheStore
from hicache.store_host import Outcome, Slot

SUCCESS, FAILURE = 200, 400
HEALTH, REQUEST_BYTES = 5, 9 * 4 + 150
KEYS = [f"{i:064x}" for i in range(3)]
ROOM, GUARD = 1000, 64
MISFIT = "misfit"


def reply(code, length=0):
    return struct.pack("<9i", code, length, 4, 6, length, 0, 0, 0, 0)


class BadServer:
    """Is well when it is asked so. Answers everything else with `says`, bytes or what yields them, and sends nothing after it."""

    def __init__(self):
        self.says = b""
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"lm://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=[client], daemon=True).start()

    def _serve(self, client):
        with client, contextlib.suppress(OSError):
            while request := client.recv(REQUEST_BYTES, socket.MSG_WAITALL):
                if struct.unpack_from("<i", request)[0] != HEALTH:
                    break
                client.sendall(reply(SUCCESS))
            for part in [self.says] if isinstance(self.says, bytes) else self.says:
                client.sendall(part)
            client.shutdown(socket.SHUT_WR)
            while client.recv(1 << 16):
                pass

    def end(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def server():
    made = BadServer()
    yield made
    made.end()


@pytest.fixture
def store(server):
    made = LmcacheStore({"remote_url": server.url})
    yield made
    made.close()


class Rooms:
    """Slots for the objects of a call, with bytes between them that nobody may touch."""

    def __init__(self, count=1):
        self._bytes = bytearray(b"\xaa" * (count * (ROOM + GUARD)))
        all_bytes = memoryview(self._bytes)
        self.slots = [Slot(KEYS[i], "", all_bytes[at:at + ROOM], 0) for i, at in enumerate(range(0, len(self._bytes), ROOM + GUARD))]

    def guards(self):
        return b"".join(self._bytes[at + ROOM:at + ROOM + GUARD] for at in range(0, len(self._bytes), ROOM + GUARD))


def test_an_object_that_fits_is_read(server, store):
    server.says = reply(SUCCESS, 7) + b"objects"
    rooms = Rooms()
    assert store.read(rooms.slots, 60) == [Outcome(bytes=7)]
    assert bytes(rooms.slots[0].memory[:8]) == b"objects\xaa"


@pytest.mark.parametrize("says, sentence", [
    (b"", "the server ended the connection"),
    (reply(SUCCESS, 7)[:-1], "the server ended the connection"),
    (reply(SUCCESS, 7) + b"object", "the server ended the connection"),
    (reply(SUCCESS, ROOM + 1) + b"x" * ROOM, "the server ended the connection"),
    (reply(SUCCESS, -1), "the server announced -1 bytes"),
    (reply(0), "the server answered 0; expected 200 or 400"),
    (reply(SUCCESS + 256, 7) + b"objects", "the server answered 456; expected 200 or 400"),
    (b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", "the server answered"),
], ids=["nothing", "half a header", "half an object", "half of a long object", "negative length", "no code", "unknown code", "HTTP"])
def test_a_reply_that_is_none_is_an_error_and_ends_the_connection(server, store, says, sentence):
    server.says = says
    with pytest.raises(OSError, match=f"^lmcache: {sentence}"):
        store.read(Rooms().slots, 60)
    with pytest.raises(OSError, match="^lmcache: "):
        store.read(Rooms().slots, 60)
    assert server.connections == 2


def test_no_memory_is_taken_for_a_length_that_is_only_announced(server, store):
    tracemalloc.start()
    try:
        for length in ((1 << 31) - 1, 1 << 30, (64 << 20) + ROOM + 1):
            server.says = reply(SUCCESS, length)
            with pytest.raises(OSError, match=f"^lmcache: the server announced {length} bytes; expected at most {ROOM}$"):
                store.read(Rooms().slots, 60)
        server.says = reply(SUCCESS, 64 << 20)
        with pytest.raises(ConnectionResetError):
            store.read(Rooms().slots, 60)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_what_is_too_long_is_skipped_and_the_next_object_is_read(server, store):
    long = 3 << 20
    server.says = reply(SUCCESS, long) + b"x" * long + reply(FAILURE) + reply(SUCCESS, 7) + b"objects"
    rooms = Rooms(3)
    outcomes = store.read(rooms.slots, 60)
    assert [each.status for each in outcomes] == [MISFIT, "absent", "done"]
    assert outcomes[0].detail == f"the object has {long} bytes; expected at most {ROOM}"
    assert bytes(rooms.slots[2].memory[:7]) == b"objects" and bytes(rooms.slots[0].memory) == b"\xaa" * ROOM


def test_a_call_ends_at_its_deadline_however_slowly_the_server_sends(server, store):
    gone = threading.Event()

    def drops():
        yield reply(SUCCESS, ROOM)
        while not gone.wait(0.02):
            yield b"x"

    server.says = drops()
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="^lmcache: the server took too long$"):
        store.read(Rooms().slots, 0.3)
    gone.set()
    assert time.monotonic() - began < 10, "a byte each 20 ms would take 20 s"


def test_a_server_that_sends_nothing_costs_no_more_than_the_deadline(server, store):
    gone = threading.Event()
    server.says = (b"" for _ in [0] if gone.wait(60))
    with pytest.raises(TimeoutError, match="^lmcache: the server took too long$"):
        store.lookup(KEYS, 0.1)
    gone.set()


def some_reply(random):
    """A reply and what may follow it, of a server that means well, errs, or lies."""
    code = random.choice([SUCCESS, SUCCESS, SUCCESS, FAILURE, 0, -SUCCESS, random.getrandbits(31)])
    length = random.choice([0, 1, ROOM - 1, ROOM, ROOM + 1, 5 * ROOM, random.randrange(2 * ROOM), (1 << 31) - 1, -1, -(1 << 31)])
    body = random.randbytes(min(max(length, 0), 8 * ROOM)) if code == SUCCESS else b""
    return reply(code, length) + body


def expected_of(says, rooms):
    """What a read makes of these bytes: for each object its status and its bytes; None if the call fails."""
    outcomes = []
    for _ in range(rooms):
        if len(says) < 36:
            return None
        code, length = struct.unpack_from("<2i", says)
        says = says[36:]
        if code not in (SUCCESS, FAILURE) or length < 0:
            return None
        if code == FAILURE:
            outcomes.append(("absent", b""))
            continue
        if len(says) < length:
            return None
        outcomes.append((MISFIT, b"") if length > ROOM else ("done", says[:length]))
        says = says[length:]
    return outcomes


def test_random_replies_are_read_as_they_are_or_refused(server, store):
    """Of one seed: what fails does so each time."""
    chance = random.Random(18)
    read = 0
    for number in range(400):
        says = b"".join(some_reply(chance) for _ in range(3))
        kind = chance.randrange(4)
        if kind == 0:
            says = says[:chance.randrange(len(says) + 1)]
        elif kind == 1:
            says = chance.randbytes(chance.randrange(200))
        elif kind == 2:
            at = chance.randrange(len(says))
            says = says[:at] + bytes([says[at] ^ 1 << chance.randrange(8)]) + says[at + 1:]
        server.says = says
        rooms, expected = Rooms(3), expected_of(says, 3)
        try:
            outcomes = store.read(rooms.slots, 60)
        except OSError as error:
            assert expected is None, f"case {number}: {error}"
            assert str(error).startswith("lmcache: ")
        else:
            found = [(each.status, bytes(slot.memory[:each.bytes])) for each, slot in zip(outcomes, rooms.slots, strict=True)]
            assert found == expected, f"case {number}"
            read += 1
            # The server has nothing more to say on this connection.
            with pytest.raises(OSError):
                store.read(rooms.slots, 60)
        assert rooms.guards() == b"\xaa" * (3 * GUARD), f"case {number}"
        with contextlib.suppress(OSError):
            assert all(isinstance(there, bool) for there in store.lookup(KEYS, 60))
    assert 20 < read < 380, "the cases tell nothing"


def test_random_replies_to_a_write_are_no_success_that_was_not_said(server, store):
    chance = random.Random(19)
    for _ in range(100):
        # Not there before the write, and then whatever comes.
        server.says = reply(FAILURE) * 3 + b"".join(some_reply(chance)[:36] for _ in range(3))[:chance.randrange(109)]
        said = [server.says[at:at + 36] for at in range(3 * 36, len(server.says), 36)]
        try:
            outcomes = store.write(Rooms(3).slots, 60)
        except OSError as error:
            assert str(error).startswith("lmcache: ")
        else:
            assert [each.status == "done" for each in outcomes] == [struct.unpack_from("<i", each)[0] == SUCCESS for each in said]
            with pytest.raises(OSError):
                store.lookup(KEYS, 60)
