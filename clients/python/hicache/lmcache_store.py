"""Objects of ranks in a server of LMCache's `lm://` protocol: what `--hicache-storage-backend lmcache` runs.

The protocol of LMCache 0.4.2 and later. It knows neither removal nor a reply to a write, so a write asks afterwards whether the object is there.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from hicache.store_host import ABSENT, DONE, ObjectStore, Outcome, Slot

logger = logging.getLogger(__name__)

_PUT, _GET, _EXIST, _HEALTH = 1, 2, 3, 5
_SUCCESS, _FAILURE = 200, 400
# Command, length, format, data type, location, four numbers of a shape, key.
_REQUEST = struct.Struct("<9i150s")
# Code, length, format, data type, four numbers of a shape, location.
_REPLY = struct.Struct("<9i")
# Format and data type of bytes.
_BINARY, _UINT8 = 4, 6
_LENGTH_MAX = (1 << 31) - 1
# Bytes of an object too long for its room that are read and dropped, so that the connection stays of use: longer ones are no objects of hicache.
_SKIPPED_MAX = 64 << 20
# What they are read into.
_PIECE = 64 << 10


class LmcacheStore(ObjectStore):
    """Chunks named hicache@1@0@<64 digits>@uint8. What a reader found damaged is overwritten by its next write, since it cannot be removed."""

    name = "lmcache"
    survives_restarts = True
    is_shared = True
    tells_lengths = True
    removes = False

    def __init__(self, options: dict[str, Any]) -> None:
        if unknown := sorted(options.keys() - {"remote_url"}):
            logger.warning("lmcache: these keys mean nothing here: %s", ", ".join(unknown))
        url = urlsplit(str(options.get("remote_url", "")))
        if url.scheme != "lm" or not url.hostname or not url.port:
            raise ValueError("lmcache: key 'remote_url': expected lm://HOST:PORT")
        self._address = (url.hostname, url.port)
        self._lock = threading.Lock()
        self._idle: list[socket.socket] = []
        # Damaged, and not written again yet.
        self._unwanted: set[str] = set()
        self.health()

    def lookup(self, keys: Sequence[str], timeout: float) -> Sequence[bool]:
        with self._connection(timeout) as server:
            return [there and key not in self._unwanted for key, there in zip(keys, server.exist(keys), strict=True)]

    def read(self, slots: Sequence[Slot], timeout: float) -> Sequence[Outcome]:
        with self._connection(timeout) as server:
            server.send(b"".join(_request(_GET, slot.key) for slot in slots))
            return [self._receive(server, slot) for slot in slots]

    def write(self, slots: Sequence[Slot], timeout: float) -> Sequence[Outcome]:
        keys = [slot.key for slot in slots]
        with self._connection(timeout) as server:
            there = server.exist(keys)
            for slot, is_there in zip(slots, there, strict=True):
                if (not is_there or slot.key in self._unwanted) and len(slot.memory) <= _LENGTH_MAX:
                    server.send(_request(_PUT, slot.key, len(slot.memory)))
                    server.send(slot.memory)
            stored = server.exist(keys)
        self._unwanted.difference_update(keys)
        return [Outcome("failed", detail="lmcache: the server did not keep the object") if not now else Outcome("present") if before else DONE
                for before, now in zip(there, stored, strict=True)]

    def remove(self, keys: Sequence[str], timeout: float) -> Sequence[Outcome]:
        self._unwanted.update(keys)
        return [Outcome("unsupported", detail="lmcache: the protocol has no removal")] * len(keys)

    def health(self) -> str:
        with self._connection(5) as server:
            server.send(_request(_HEALTH, "0" * 64))
            if server.reply()[0] != _SUCCESS:
                raise OSError("lmcache: the server is not well")
        return f"lm://{self._address[0]}:{self._address[1]}"

    def close(self) -> None:
        for each in self._idle:
            each.close()

    def _receive(self, server: _Server, slot: Slot) -> Outcome:
        code, length = server.reply()
        if code != _SUCCESS:
            return ABSENT
        if length > len(slot.memory) + _SKIPPED_MAX:
            raise OSError(f"lmcache: the server announced {length} bytes; expected at most {len(slot.memory)}")
        if length > len(slot.memory):
            server.skip(length)
            return Outcome("misfit", detail=f"the object has {length} bytes; expected at most {len(slot.memory)}")
        server.receive_into(slot.memory[:length])
        return ABSENT if slot.key in self._unwanted else Outcome(bytes=length)

    @contextlib.contextmanager
    def _connection(self, timeout: float) -> Iterator[_Server]:
        """A connection of one call. One on which a call failed may have more to come, and is closed."""
        end = time.monotonic() + timeout
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            connection = socket.create_connection(self._address, timeout)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            yield _Server(connection, end)
        except TimeoutError as late:
            connection.close()
            raise TimeoutError("lmcache: the server took too long") from late
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._idle.append(connection)


class _Server:
    """The server, for one call, which ends at its deadline however slowly the server sends."""

    def __init__(self, connection: socket.socket, end: float) -> None:
        self._connection, self._end = connection, end

    def send(self, data: bytes | memoryview) -> None:
        self._connection.settimeout(self._left())
        self._connection.sendall(data)

    def exist(self, keys: Sequence[str]) -> list[bool]:
        self.send(b"".join(_request(_EXIST, key) for key in keys))
        return [self.reply()[0] == _SUCCESS for _ in keys]

    def reply(self) -> tuple[int, int]:
        """Code and length."""
        reply = bytearray(_REPLY.size)
        self.receive_into(memoryview(reply))
        code, length, *_ = _REPLY.unpack(reply)
        if code not in (_SUCCESS, _FAILURE):
            raise OSError(f"lmcache: the server answered {code}; expected {_SUCCESS} or {_FAILURE}")
        if length < 0:
            raise OSError(f"lmcache: the server announced {length} bytes")
        return code, length

    def skip(self, size: int) -> None:
        piece = memoryview(bytearray(min(size, _PIECE)))
        while size > 0:
            part = piece[:size]
            self.receive_into(part)
            size -= len(part)

    def receive_into(self, target: memoryview) -> None:
        done = 0
        while done < len(target):
            self._connection.settimeout(self._left())
            count = self._connection.recv_into(target[done:])
            if count == 0:
                raise ConnectionResetError("lmcache: the server ended the connection")
            done += count

    def _left(self) -> float:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


def _request(command: int, key: str, length: int = 0) -> bytes:
    return _REQUEST.pack(command, length, _BINARY, _UINT8, 0, length, 0, 0, 0, f"hicache@1@0@{key}@uint8".encode().ljust(150))
