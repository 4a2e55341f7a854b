"""What the plug-ins for several engines need."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from hicache._buffers import wrong
from hicache._calls import Result
from hicache._errors import Error

#: Bytes of one batch at the node. Four of them are copied at a time ("threads"), which stays below a client's share, an eighth, of a node of 128 MiB.
BATCH_BYTES = 2 << 20
#: What the node takes in one request.
MOST_KEYS = 4096

_SETTINGS: dict[str, Any] = {"socket": str, "tenant": str, "namespace": str, "timeout": (int, float), "threads": int}


def settings_of(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The settings of hicache among those of an engine.

    @param where What the user knows them as.
    @raises InvalidArgument one is wrong, or "socket" is missing
    """
    settings = {}
    for name, kind in _SETTINGS.items():
        if name in given:
            if not isinstance(given[name], kind) or isinstance(given[name], bool):
                raise wrong(f'{where}: "{name}": {given[name]!r} is not allowed')
            settings[name] = given[name]
    if "socket" not in settings:
        raise wrong(f'{where}: "socket": expected the path at which hicache-node listens')
    return settings


def pages_in_a_batch(page_bytes: int) -> int:
    """How many pages of that length go to the node at a time."""
    return min(max(BATCH_BYTES // max(page_bytes, 1), 1), MOST_KEYS)


class Trouble:
    """Logs what went wrong, once until something succeeds."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._last = ""

    def note(self, result: Result) -> Result:
        self.tell(result.error)
        return result

    def tell(self, error: Error | None) -> None:
        sentence = str(error) if error is not None else ""
        if sentence and sentence != self._last:
            self._logger.warning("hicache: %s; such pages are misses", sentence)
        self._last = sentence
