"""python -m hicache lm-server: LMCache's old remote protocol, `lm://host:port`, answered with the pages of a node.

A client sends a header and, to store, bytes behind it; the server answers with a header and, if it has what was asked for, bytes. Numbers have 32 bits and the
order of x86. There is no version in it: three forms of the header are in use, and what a connection sends first tells which one it is. A chunk is
found by those only who use the same form, because they differ in what their numbers mean.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import signal
import socket
import struct
import sys
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from hicache._errors import Error
from hicache._plugin import Trouble
from hicache._store import Store

logger = logging.getLogger(__name__)

PUT, GET, EXIST, LIST, HEALTH = range(1, 6)
_SUCCESS, _FAILURE = 200, 400
_KEY_BYTES = 150

# An honest chunk is of some MiB; the protocol would allow 2 GiB.
_CHUNK_BYTES = 256 << 20
# Chunks that are on their way to the node, of all connections.
_PUT_BYTES = 1 << 30
_CONNECTIONS = 256
# How long a message that was begun may take: so long, and as long as it takes with so many bytes each second.
_STALL_S = 30.0
_SLOWEST = 1 << 20


class Form(NamedTuple):
    """How clients of one age write their headers: command, length, `numbers` about the chunk, and the key."""

    numbers: int

    @property
    def request_bytes(self) -> int:
        return 4 * (2 + self.numbers) + _KEY_BYTES

    def read(self, header: bytes) -> Request:
        command, length, *about = struct.unpack_from(f"<{2 + self.numbers}i", header)
        return Request(command, length, tuple(about), header[-_KEY_BYTES:].rstrip(b" "))

    def answer(self, code: int, length: int = 0, about: Sequence[int] = ()) -> bytes:
        """What a client of this form expects. Those of the last one get the chunk's location at the end, and send it in the middle."""
        numbers = list(about or _NOTHING[:self.numbers])
        if self.numbers == 7:
            numbers.append(numbers.pop(2))
        return struct.pack(f"<{2 + self.numbers}i", code, length, *numbers)


class Request(NamedTuple):
    """What a client wants. `about` is for other clients: layout, data type, location and shape of the chunk."""

    command: int
    length: int
    about: tuple[int, ...]
    key: bytes


# LMCache's first generation, which 0.3.0 still has; 0.3.0; 0.5.
_FORMS = (Form(0), Form(6), Form(7))
# What is said about no chunk: layout 1, data type 2.
_NOTHING = (1, 2, 0, 0, 0, 0, 0)


def form_of(beginning: bytes) -> Form:
    """Which form the first header of a connection has; `beginning` has at least as many bytes as the shortest one. Where one form has its
    key, which is printable, the others have numbers that are far smaller than four printable bytes."""
    for form in _FORMS[:-1]:
        at = 4 * (2 + form.numbers)
        if all(0x20 <= byte < 0x7f for byte in beginning[at:at + 4]):
            return form
    return _FORMS[-1]


class _Bad(Exception):
    """What a client did wrong: its connection is closed."""


class _Room:
    """A number of bytes that connections share. In their order."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()

    @contextlib.asynccontextmanager
    async def of(self, size: int) -> AsyncIterator[None]:
        async with self._turn:
            while self._left < size:
                self._changed.clear()
                await self._changed.wait()
            self._left -= size
        try:
            yield
        finally:
            self._left += size
            self._changed.set()


class LmServer:
    """Serves connections until it is cancelled, in one thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._room = _Room(_PUT_BYTES)
        self._connections: set[asyncio.Task] = set()
        self._trouble = Trouble(logger)
        self._is_full = False

    async def run(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                made, address = await loop.sock_accept(listener)
                if len(self._connections) >= _CONNECTIONS:
                    if not self._is_full:
                        logger.warning("there are %d connections already; more are closed", _CONNECTIONS)
                    self._is_full = True
                    made.close()
                    continue
                self._is_full = False
                made.setblocking(False)
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                task = loop.create_task(self._serve(made, f"{address[0]}:{address[1]}"))
                self._connections.add(task)
                task.add_done_callback(self._connections.discard)
        finally:
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, client: socket.socket, name: str) -> None:
        try:
            await _Connection(self, client).run()
        except _Bad as trouble:
            logger.warning("%s: %s; the connection is closed", name, trouble)
        except (ConnectionError, TimeoutError, asyncio.TimeoutError):
            logger.info("%s: the client went away", name)
        except Error as trouble:
            logger.warning("%s: %s; the connection is closed", name, trouble)
        finally:
            client.close()


class _Connection:
    """Requests of one client, one after the other."""

    def __init__(self, server: LmServer, client: socket.socket) -> None:
        self._client = client
        self._store, self._room, self._trouble = server._store, server._room, server._trouble
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        beginning = await self._begin(min(form.request_bytes for form in _FORMS))
        if not beginning:
            return
        form = form_of(beginning)
        header = bytes(beginning + await self._receive(form.request_bytes - len(beginning)))
        while header:
            await self._answer(form, form.read(header))
            header = bytes(await self._begin(form.request_bytes))

    async def _answer(self, form: Form, request: Request) -> None:
        if request.command not in (PUT, GET, EXIST, HEALTH):
            raise _Bad("it wants a list of all keys, which a node does not have" if request.command == LIST else
                       f"it sent the command {request.command}, which is none")
        if not all(0x20 <= byte < 0x7f for byte in request.key) or (not request.key and request.command != HEALTH):
            raise _Bad("it sent a key that is no text")
        key = f"{form.request_bytes}@".encode() + request.key
        if request.command == PUT:
            await self._put(form, request, key)
            return
        if request.length != 0:
            raise _Bad(f"it announced {request.length} bytes where there are none")
        if request.command == GET:
            await self._get(form, key)
            return
        # Chunks of other hosts count as well.
        result = self._trouble.note(await self._store.start_prefetch([key]))
        is_good = result.error is None if request.command == HEALTH else result.pages == 1
        await self._send(form.answer(_SUCCESS if is_good else _FAILURE))

    async def _put(self, form: Form, request: Request, key: bytes) -> None:
        """There is no answer to this."""
        if not 0 < request.length <= _CHUNK_BYTES:
            raise _Bad(f"it announced a chunk of {request.length} bytes; 1 to {_CHUNK_BYTES} are allowed")
        async with self._room.of(request.length):
            data = await self._receive(request.length)
            about = struct.pack(f"<{form.numbers}i", *request.about)
            self._trouble.note(await self._store.start_put([key], [[about, data]]))

    async def _get(self, form: Form, key: bytes) -> None:
        """Sends a chunk from where the node has it."""
        with await self._store.start_pin([key], in_place=True) as lease:
            self._trouble.note(lease)
            if lease.pages == 0:
                await self._send(form.answer(_FAILURE))
                return
            page = lease[0]
            try:
                about = struct.unpack_from(f"<{form.numbers}i", page)
                data = page[4 * form.numbers:]
                await self._send(form.answer(_SUCCESS, len(data), about))
                # Behind the lease's end there may be other bytes.
                await self._send(data, min(lease.left - 1, _STALL_S + len(data) / _SLOWEST))
            finally:
                page = data = None

    async def _begin(self, size: int) -> bytearray:
        """A message, however long it takes to come; empty if the client ends the connection instead."""
        data = bytearray(size)
        first = await self._loop.sock_recv_into(self._client, memoryview(data))
        return await self._receive(size, data, first) if first else bytearray()

    async def _receive(self, size: int, data: bytearray | None = None, done: int = 0) -> bytearray:
        """The rest of a message that was begun. It has to come soon."""
        data = bytearray(size) if data is None else data
        view = memoryview(data)

        async def fill() -> None:
            nonlocal done
            while done < size:
                more = await self._loop.sock_recv_into(self._client, view[done:])
                if more == 0:
                    raise _Bad(f"it ended after {done} of {size} bytes")
                done += more

        try:
            await asyncio.wait_for(fill(), _STALL_S + size / _SLOWEST)
        except (TimeoutError, asyncio.TimeoutError):
            raise _Bad(f"it sent {done} of {size} bytes and no more") from None
        return data

    async def _send(self, data: bytes | memoryview, time_s: float = _STALL_S) -> None:
        try:
            await asyncio.wait_for(self._loop.sock_sendall(self._client, data), time_s)
        except (TimeoutError, asyncio.TimeoutError):
            raise _Bad("it does not read what it asked for") from None


def _listen(text: str) -> socket.socket:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f'"{text}" is not allowed; expected HOST:PORT')
    try:
        [(family, *_, address), *_] = socket.getaddrinfo(host.strip("[]") or "127.0.0.1", int(port), type=socket.SOCK_STREAM)
        listener = socket.create_server(address[:2], family=family)
    except OSError as trouble:
        raise argparse.ArgumentTypeError(f"cannot listen on {text}: {trouble}") from None
    listener.setblocking(False)
    return listener


async def _until_signal(server: LmServer, listener: socket.socket) -> None:
    serving = asyncio.ensure_future(server.run(listener))
    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, serving.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await serving


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m hicache lm-server", description="Serves LMCache's lm:// protocol from a node.")
    parser.add_argument("--socket", required=True, help="where hicache-node listens")
    parser.add_argument("--listen", type=_listen, default="127.0.0.1:65432", metavar="HOST:PORT",
                        help="default: 127.0.0.1:65432; 0 is any free port. The protocol knows neither passwords nor encryption")
    parser.add_argument("--namespace", default="", help="a text that sets these chunks apart from others with the same keys")
    given = parser.parse_args(arguments)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    names = json.dumps({"engine": "lmcache", "mode": "lm", "more": given.namespace}, sort_keys=True)
    with contextlib.closing(given.listen) as listener, Store(given.socket, names) as store:
        host, port = listener.getsockname()[:2]
        print(f"listening on lm://{host}:{port}", flush=True)
        asyncio.run(_until_signal(LmServer(store), listener))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
