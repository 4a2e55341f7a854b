"""What can go wrong, as codes of the C ABI and as exceptions."""

from __future__ import annotations

import enum


class Code(enum.IntEnum):
    """What calls and pages come to: enum hc_code of hicache.h, and enum hc_cache_code of hicache_tree.h. Later versions of the libraries
    have more."""

    OK = 0
    INVALID_ARGUMENT = 1
    OUT_OF_DEVICE_PAGES = 2
    OUT_OF_HOST_PAGES = 3
    UNKNOWN_ID = 4
    RANKS_DIVERGED = 5
    RANK_UNRESPONSIVE = 6
    NOT_FOUND = 7
    CORRUPT_PAGE = 8
    DEADLINE_EXCEEDED = 9
    STORE_FULL = 10
    IO_FAILURE = 11
    PEER_UNREACHABLE = 12
    MALFORMED_MESSAGE = 13
    LIMIT_REACHED = 14
    UNSUPPORTED = 15
    STOPPING = 16
    CONFIGURATION_MISMATCH = 17
    COPY_FAILED = 18
    DEVICE_LOST = 19
    STORE_UNAVAILABLE = 20
    FORKED = 1000
    OUT_OF_MEMORY = 1001
    INTERNAL = 1002


class Error(Exception):
    """Something failed. `code` is a Code, or a plain number that this package does not know; `sentence` says what was wrong."""

    def __init__(self, code: int, sentence: str) -> None:
        known = code in Code.__members__.values()
        super().__init__(f"{Code(code).name.lower() if known else code}: {sentence}")
        self.code = Code(code) if known else code
        self.sentence = sentence

    def __reduce__(self):
        return type(self), (int(self.code), self.sentence)


class InvalidArgument(Error, ValueError):
    """A value is not allowed."""


class NotFound(Error, LookupError):
    """The node does not have the page."""


class DeadlineExceeded(Error, TimeoutError):
    """The time was over first."""


class Unreachable(Error, ConnectionError):
    """The node is not there."""


_CLASSES: dict[int, type[Error]] = {
    Code.INVALID_ARGUMENT: InvalidArgument,
    Code.NOT_FOUND: NotFound,
    Code.DEADLINE_EXCEEDED: DeadlineExceeded,
    Code.PEER_UNREACHABLE: Unreachable,
}


def error_of(code: int, sentence: str) -> Error:
    """The exception for a code."""
    return _CLASSES.get(code, Error)(code, sentence)
