"""python -m hicache store-host MODULE:CLASS: a store of objects in a process of its own, for ranks on this host (docs/backends.md, "external").

A rank connects over a Unix socket and sends a descriptor of memory that both map, its window. Requests say which objects to read into the window or to
write from it (messages/store_protocol.capnp). Each connection has a thread; connections with equal options share one store.
"""

from __future__ import annotations

import abc
import argparse
import contextlib
import ctypes
import importlib
import json
import logging
import mmap
import os
import pathlib
import select
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

logger = logging.getLogger(__name__)

VERSION = 1
_MESSAGE_BYTES = 4 << 20
_WINDOW_BYTES = 64 << 30
# Objects in a part of a list.
LIST_OBJECTS = 1024
# Characters of what is said about one object.
_TEXT = 1000
# What calls may still take when the host is asked to end; the rank waits a little longer.
_END_S = 3.0
# Of the kernel: a process, its user and its group.
_PEER = struct.Struct("3i")
_KEY = struct.Struct("<4Q")


class Slot(NamedTuple):
    """An object of a request. `memory` is where its bytes go to or come from, at `address` in this process, for the length of the call."""

    #: 64 hexadecimal digits.
    key: str
    #: Of a write: the object before it in its prefix, as far as it is known.
    parent: str
    memory: memoryview
    address: int


class Outcome(NamedTuple):
    """What became of one object: status is done, present, absent, full, failed, unsupported or misfit, as in the protocol."""

    status: str = "done"
    #: Of a read: the object's length.
    bytes: int = 0
    detail: str = ""


class Listing(NamedTuple):
    """Some of a store's objects, at most LIST_OBJECTS: the name and the length of each, as they were written."""

    objects: Sequence[tuple[str, int]]
    #: What the call for the next part is given; empty after the last one.
    next: str = ""


DONE, ABSENT = Outcome(), Outcome("absent")


class ObjectStore(abc.ABC):
    """What a class needs to be a store. Calls come from several threads at a time. They answer in the order of the objects, with an outcome for
    each; an exception fails the whole call. The client does not wait for longer than `timeout` seconds; what comes later is ignored.

    Objects are whole or not there: a store must not offer an object before its last byte is written. The client verifies what it reads.
    """

    name = "store"
    survives_restarts = False
    is_shared = False
    #: Reads may have room for more bytes than the object has.
    tells_lengths = False
    #: Whether `remove` does.
    removes = True
    #: Whether `list_objects` does.
    lists = False
    #: Objects of one call, and bytes of one object; 0: no preference.
    preferred_batch = 0
    preferred_object_bytes = 0

    def __init__(self, options: dict[str, Any]) -> None:
        """@param options The user's. What is raised refuses the client, with its sentence"""

    def attach(self, window: memoryview, address: int) -> None:
        """A window in which slots will lie, until detach(). It can be registered for transfers."""

    def detach(self, address: int) -> None:
        """No call uses this window any more."""

    @abc.abstractmethod
    def lookup(self, keys: Sequence[str], timeout: float) -> Sequence[bool]: ...

    @abc.abstractmethod
    def read(self, slots: Sequence[Slot], timeout: float) -> Sequence[Outcome]: ...

    @abc.abstractmethod
    def write(self, slots: Sequence[Slot], timeout: float) -> Sequence[Outcome]: ...

    def remove(self, keys: Sequence[str], timeout: float) -> Sequence[Outcome]:
        return [Outcome("unsupported")] * len(keys)

    def list_objects(self, start: str, timeout: float) -> Listing:
        """Some objects, in an order of the store's own.

        @param start Empty for the first part, then `next` of the last one
        """
        raise NotImplementedError("the store cannot list its objects")

    def health(self) -> str:
        """One sentence for an operator. What is raised is an unhealthy store."""
        return ""

    def close(self) -> None:
        """No call comes any more."""


class _Bad(Exception):
    """What a client did wrong: its connection is closed."""


def _protocol() -> tuple[Any, type[Exception]]:
    """The schema, from the package or from the source tree around it, and what is raised for a message that is none."""
    try:
        import capnp
    except ImportError as missing:
        raise ValueError("the store host needs pycapnp: pip install 'hicache[store]'") from missing
    package = pathlib.Path(__file__).resolve().parent
    root = next(folder for folder in (package / "schema", package.parents[2]) if (folder / "messages").is_dir())
    # The last one has capnp/c++.capnp.
    imports = [str(root), str(pathlib.Path(capnp.__file__).parents[1])]
    return capnp.load(str(root / "messages/store_protocol.capnp"), imports=imports), capnp.KjException


def _text(told: str) -> str:
    """As the protocol takes it."""
    return told.replace("\0", " ")[:_TEXT]


def _sentence(error: BaseException) -> str:
    return _text((f"{error}".splitlines() or [""])[0] or type(error).__name__)


class _Window:
    """Memory of the client, mapped."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._map = mmap.mmap(descriptor, size)
        self.memory = memoryview(self._map)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def slot(self, wanted: Any, *, is_written: bool) -> Slot:
        # A field's name as an attribute takes four times as long.
        offset, size = wanted._get("offset"), wanted._get("bytes")
        if size > len(self.memory) or offset > len(self.memory) - size:
            raise _Bad(f"{size} bytes at {offset} are outside its window")
        parent = _hex(wanted._get("parent")) if is_written else ""
        return Slot(_hex(wanted._get("key")), parent, self.memory[offset:offset + size], self.address + offset)

    def close(self) -> None:
        self.memory.release()
        # A store that kept a part of it keeps it mapped.
        with contextlib.suppress(BufferError):
            self._map.close()


def _hex(key: Any) -> str:
    get = key._get
    return _KEY.pack(get("word0"), get("word1"), get("word2"), get("word3")).hex()


def _set_key(key: Any, name: str) -> None:
    try:
        key.word0, key.word1, key.word2, key.word3 = _KEY.unpack(bytes.fromhex(name))
    except (ValueError, struct.error) as error:
        raise ValueError(f"the store listed {name!r}; expected 64 hexadecimal digits") from error


class StoreHost:
    """Serves connections of ranks with stores of one class."""

    def __init__(self, make: Callable[[dict[str, Any]], ObjectStore]) -> None:
        self._make = make
        self._schema, self._bad_message = _protocol()
        self._lock = threading.Lock()
        self._stores: dict[str, ObjectStore] = {}
        self._connections: dict[socket.socket, threading.Thread] = {}

    def run(self, listener: socket.socket, *until: int) -> None:
        """Accepts connections until one of these descriptors can be read; then ends what there is."""
        while True:
            ready, _, _ = select.select([listener, *until], [], [])
            if ready != [listener]:
                break
            client, _ = listener.accept()
            _, user, _ = _PEER.unpack(client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
            if user not in (0, os.geteuid()):
                logger.warning("a process of user %d is refused", user)
                client.close()
                continue
            thread = threading.Thread(target=self._serve, args=[client], daemon=True)
            with self._lock:
                self._connections[client] = thread
            thread.start()
        self._end()

    def _end(self) -> None:
        with self._lock:
            connections = dict(self._connections)
        for client in connections:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
        for thread in connections.values():
            thread.join(_END_S)
        for store in self._stores.values():
            store.close()

    def _serve(self, client: socket.socket) -> None:
        try:
            _Connection(self._schema, client).serve(self._store)
        except (_Bad, self._bad_message) as trouble:
            logger.warning("a client sent what this host does not understand: %s; the connection is closed", _sentence(trouble))
        except ConnectionError:
            pass
        finally:
            client.close()
            with self._lock:
                self._connections.pop(client, None)

    def _store(self, options: str) -> ObjectStore:
        given = json.loads(options)
        text = json.dumps(given, sort_keys=True)
        with self._lock:
            if text not in self._stores:
                self._stores[text] = self._make(given)
            return self._stores[text]


class _Connection:
    def __init__(self, schema: Any, client: socket.socket) -> None:
        self._schema = schema
        self._client = client
        self._last_error = ""

    def serve(self, open_store: Callable[[str], ObjectStore]) -> None:
        body, descriptors = self._receive_hello()
        try:
            with self._schema.StoreHello.from_bytes(body) as hello:
                version, size, options = hello.version, hello.windowBytes, hello.options
            if len(descriptors) != 1 or not 0 < size <= min(_WINDOW_BYTES, os.fstat(descriptors[0]).st_size):
                raise _Bad("the first message has no window, or one shorter than it says")
            window = _Window(descriptors[0], size)
        finally:
            for each in descriptors:
                os.close(each)
        try:
            self._serve_window(window, version, options, open_store)
        finally:
            window.close()

    def _serve_window(self, window: _Window, version: int, options: str, open_store: Callable[[str], ObjectStore]) -> None:
        welcome = self._schema.StoreWelcome.new_message()
        try:
            if version != VERSION:
                raise ValueError(f"the rank speaks version {version} of the protocol; expected {VERSION}")
            store = open_store(options)
            store.attach(window.memory, window.address)
        except Exception as error:  # noqa: BLE001  Whatever a store raises.
            logger.warning("the store cannot be used: %s", _sentence(error), exc_info=not isinstance(error, ValueError | OSError))
            welcome.error = _sentence(error)
            self._send(welcome)
            return
        try:
            for name in ("name", "survivesRestarts", "isShared", "tellsLengths", "removes", "lists", "preferredBatch", "preferredObjectBytes"):
                setattr(welcome, name, getattr(store, "".join(f"_{c.lower()}" if c.isupper() else c for c in name)))
            self._send(welcome)
            while (body := self._receive()) is not None:
                with self._schema.StoreRequest.from_bytes(body) as request:
                    self._send(self._answer(store, window, request))
        finally:
            store.detach(window.address)

    def _answer(self, store: ObjectStore, window: _Window, request: Any) -> Any:
        answer = self._schema.StoreAnswer.new_message(number=request.number)
        timeout, kind = request.milliseconds / 1000, str(request.kind)
        slots = [window.slot(each, is_written=kind == "write") for each in request.objects]
        keys = [slot.key for slot in slots]
        try:
            if kind == "health":
                answer.detail, answer.isOk = _text(store.health()), True
            elif kind == "lookup":
                self._fill(answer, keys, [DONE if there else ABSENT for there in store.lookup(keys, timeout)])
            elif kind == "remove":
                self._fill(answer, keys, store.remove(keys, timeout))
            elif kind == "list":
                self._fill_list(answer, store.list_objects(request.start, timeout))
            else:
                self._fill(answer, keys, (store.read if kind == "read" else store.write)(slots, timeout))
            self._last_error = ""
        except Exception as error:  # noqa: BLE001  Whatever a store raises.
            sentence = _sentence(error)
            if sentence != self._last_error:
                logger.warning("%s failed: %s", kind, sentence, exc_info=not isinstance(error, OSError))
            self._last_error = sentence
            answer = self._schema.StoreAnswer.new_message(number=request.number)
            if kind == "health":
                answer.detail = sentence
            else:
                answer.error = sentence
        finally:
            for slot in slots:
                slot.memory.release()
        return answer

    @staticmethod
    def _fill(answer: Any, keys: Sequence[str], outcomes: Sequence[Outcome]) -> None:
        if len(outcomes) != len(keys):
            raise TypeError(f"the store answered for {len(outcomes)} objects; expected {len(keys)}")
        for to, outcome in zip(answer.init("objects", len(keys)), outcomes, strict=True):
            to.status, to.bytes, to.detail = outcome.status, outcome.bytes, _text(outcome.detail)

    @staticmethod
    def _fill_list(answer: Any, found: Listing) -> None:
        if len(found.objects) > LIST_OBJECTS:
            raise ValueError(f"the store listed {len(found.objects)} objects; expected at most {LIST_OBJECTS}")
        for to, (name, size) in zip(answer.init("listed", len(found.objects)), found.objects, strict=True):
            _set_key(to.key, name)
            to.bytes = size
        answer.next = found.next

    def _receive_hello(self) -> tuple[bytes, list[int]]:
        """The first message, and the descriptors that came with its first byte."""
        head, descriptors, _, _ = socket.recv_fds(self._client, 4, 1)
        try:
            head += self._exactly(4 - len(head))
            return self._exactly(self._length(head)), list(descriptors)
        except BaseException:
            for each in descriptors:
                os.close(each)
            raise

    def _receive(self) -> bytes | None:
        """The next message; None at the end."""
        head = self._client.recv(4)
        return self._exactly(self._length(head + self._exactly(4 - len(head)))) if head else None

    @staticmethod
    def _length(head: bytes) -> int:
        length = int.from_bytes(head, "little")
        if length > _MESSAGE_BYTES:
            raise _Bad(f"a message of {length} bytes")
        return length

    def _exactly(self, size: int) -> bytes:
        received = bytearray(size)
        with memoryview(received) as rest:
            done = 0
            while done < size:
                count = self._client.recv_into(rest[done:])
                if not count:
                    raise ConnectionResetError
                done += count
        return bytes(received)

    def _send(self, message: Any) -> None:
        body = message.to_bytes()
        self._client.sendall(len(body).to_bytes(4, "little") + body)


def class_of(text: str) -> Callable[[dict[str, Any]], ObjectStore]:
    """What makes the stores that MODULE:CLASS names.

    @raises ValueError there is no such class, or it is no store
    """
    module, _, name = text.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise ValueError(f"{text}: {error}") from error
    except AttributeError as error:
        raise ValueError(f"{text}: the module has no class {name!r}") from error
    if isinstance(found, type) and issubclass(found, ObjectStore):
        return found
    if callable(found) and all(hasattr(found, method) for method in ("batch_get", "batch_set", "batch_exists")):
        from hicache.sglang_store import SglangStore
        return lambda options: SglangStore(found, options)
    raise ValueError(f"{text}: expected a subclass of hicache.store_host.ObjectStore, or a class with the methods of SGLang's HiCacheStorage")


def _listen(path: str) -> socket.socket:
    """Takes the place of a socket at which nobody listens any more."""
    listener = socket.socket(socket.AF_UNIX)
    with contextlib.suppress(FileNotFoundError):
        if pathlib.Path(path).is_socket():
            with socket.socket(socket.AF_UNIX) as probe:
                if probe.connect_ex(path) == 0:
                    raise ValueError(f"--socket: a process listens at {path} already")
            os.unlink(path)
    mask = os.umask(0o077)
    try:
        listener.bind(path)
    except OSError as error:
        raise ValueError(f"--socket: {path}: {error.strerror or error}") from error
    finally:
        os.umask(mask)
    listener.listen(128)
    return listener


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m hicache store-host", description="Keeps objects of ranks in a store that is written in Python.")
    parser.add_argument("store", metavar="MODULE:CLASS", help="a subclass of hicache.store_host.ObjectStore, or a class with the methods of SGLang's HiCacheStorage")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--socket", metavar="PATH", help="a Unix socket to listen at, for ranks with this path in their configuration")
    where.add_argument("--fd", type=int, metavar="N", help="a listening socket that is open already; the host then ends with its standard input")
    given = parser.parse_args(arguments)
    logging.basicConfig(format="%(asctime)s %(levelname)s store-host: %(message)s", level=logging.INFO)
    ended, end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(end)
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_: None)
    try:
        host = StoreHost(class_of(given.store))
        listener = socket.socket(fileno=given.fd) if given.socket is None else _listen(given.socket)
    except (ValueError, OSError) as error:
        print(f"store-host: {_sentence(error)}", file=sys.stderr)
        return 2
    with listener:
        if given.socket is not None:
            print(f"listening at {given.socket}", flush=True)
        host.run(listener, ended, *([sys.stdin.fileno()] if given.fd is not None else []))
        if given.socket is not None:
            os.unlink(given.socket)
    return 0
