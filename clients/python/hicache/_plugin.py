"""What the plug-ins for several engines need."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hicache._buffers import wrong
from hicache._calls import AnyResult, Call, Keys
from hicache._errors import Error

#: Bytes of one batch at the node. Four of them are copied at a time ("threads"), which stays below a client's share, an eighth, of a node of 128 MiB.
BATCH_BYTES = 2 << 20
#: What the node takes in one request.
MOST_KEYS = 4096
#: What a store has open: batches of a prompt of a million tokens, and more.
MOST_CALLS = 65536

_TLS = ("tls_cert", "tls_key", "tls_ca")
_SETTINGS: dict[str, Any] = {"socket": str, "address": str, **dict.fromkeys(_TLS, str), "tenant": str, "namespace": str, "timeout": (int, float), "threads": int}


def own_settings(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The settings of hicache among those of an engine: but for "namespace", arguments of Store.

    @param where What the user knows them as.
    @raises InvalidArgument one is wrong, or it is not said where the node is
    """
    settings = {}
    for name, kind in _SETTINGS.items():
        if name in given:
            if not isinstance(given[name], kind) or isinstance(given[name], bool):
                raise wrong(f'{where}: "{name}": {given[name]!r} is not allowed')
            settings[name] = given[name]
    if ("socket" in settings) == ("address" in settings):
        raise wrong(f'{where}: "socket": expected the path at which hicache-node listens on this machine, or instead "address", HOST:PORT of one on another')
    return settings


class Trouble:
    """Logs what went wrong, once until something succeeds."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._last = ""

    def note(self, result: AnyResult) -> AnyResult:
        self.tell(result.error)
        return result

    def tell(self, error: Error | None) -> None:
        sentence = str(error) if error is not None else ""
        if sentence and sentence != self._last:
            self._logger.warning("hicache: %s; such pages are misses", sentence)
        self._last = sentence


class Transfer:
    """Pages that are copied between the engine's memory and the node, in batches. What cannot be begun is a miss, as what fails later."""

    def __init__(self, trouble: Trouble) -> None:
        self.began_at = time.monotonic()
        #: Of what was begun.
        self.bytes = 0
        self._trouble = trouble
        self._calls: list[tuple[int, Call | None]] = []

    def begin(self, start: Callable[[Keys, Any], Call], names: Keys, memory: Sequence[Any], page_bytes: int) -> None:
        """Begins to copy pages.

        @param memory Of each page what `start` takes.
        """
        step = min(max(BATCH_BYTES // max(page_bytes, 1), 1), MOST_KEYS)
        for first in range(0, len(names), step):
            part = names[first:first + step]
            try:
                self._calls.append((len(part), start(part, memory[first:first + step])))
                self.bytes += page_bytes * len(part)
            except Error as error:
                self._trouble.tell(error)
                self.miss(len(part))

    def miss(self, pages: int) -> None:
        """So many pages are not copied at all."""
        self._calls.append((pages, None))

    @property
    def is_done(self) -> bool:
        return all(call is None or call.done for _, call in self._calls)

    def are_fine(self) -> list[bool]:
        """Waits, and says which of the pages were copied, in their order."""
        return [is_fine for pages, call in self._calls for is_fine in self._outcome(pages, call)]

    def _outcome(self, pages: int, call: Call | None) -> list[bool]:
        try:
            return self._trouble.note(call.result()).ok if call is not None else [False] * pages
        except Error as error:
            self._trouble.tell(error)
            return [False] * pages


def putter(start_put: Callable[..., Call], parent: bytes | None) -> Callable[[Keys, Any], Call]:
    """Puts pages as a chain, behind a page that is there already, so that the node evicts none before those that follow it.

    @param start_put Of a Store, or start_store of an Offload.
    """
    before: list[Any] = [parent]

    def start(names: Keys, memory: Any) -> Call:
        call = start_put(names, memory, chain=True, parent=before[-1])
        before[:] = [names[-1]]
        return call

    return start
