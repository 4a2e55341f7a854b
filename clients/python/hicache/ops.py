"""What an engine asks of a hicache.Cache, and how it is answered. docs/integrating.md says what each operation does.

Tokens are a buffer of 32-bit numbers (array.array("I"), an array of numpy), which is not copied by Python, or any sequence of numbers.
Requests, sessions and priorities are the engine's own numbers. Times are in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from hicache._cache import Progress


# Operations. A class attribute names the kind in hicache_tree.h.


@dataclass(frozen=True)
class Match:
    """Opens a request: finds the longest cached prefix and locks it. @returns Matched"""

    request: int
    tokens: Any
    #: How many of the tokens may come from the cache; None is all but the last one.
    limit: int | None = None
    #: What separates requests beside their tokens: the adapter and the tenant.
    extra_key: bytes = b""
    salt: bytes = b""
    session: int = 0
    generation: int = 0


@dataclass(frozen=True)
class Prefetch:
    """Looks in L3 for what follows the match. @returns Prefetched"""

    request: int


@dataclass(frozen=True)
class Schedule:
    """The request is to run. @returns Scheduled"""

    request: int


@dataclass(frozen=True)
class Load:
    """Brings what L2 has of the match to L1. @returns Loaded"""

    request: int
    #: More tokens are left alone.
    limit: int | None = None


@dataclass(frozen=True)
class Allocate:
    """Takes pages of L1 for the first `limit` tokens, as far as the request has none. @returns Allocated"""

    request: int
    limit: int


@dataclass(frozen=True)
class Insert:
    """Gives computed pages to the tree. @returns Inserted"""

    request: int
    tokens: Any
    priority: int = 0
    #: A part of a prefill, and not the last one.
    chunked: bool = False
    #: Pins the prefix for that time.
    ttl: float = 0
    #: The address of a cudaEvent_t after which the pages are complete; None: they are.
    after: int | None = None


@dataclass(frozen=True)
class Release:
    """Closes a request. @returns Released"""

    request: int
    #: The address of a cudaEvent_t after which nothing uses the pages any more; None: nothing does.
    after: int | None = None


@dataclass(frozen=True)
class Evict:
    """Makes room: at least `limit` tokens. @returns Evicted"""

    limit: int
    #: "L1" or "L2".
    tier: str = "L1"


@dataclass(frozen=True)
class Pin:
    """Keeps what is cached of a prefix. @returns Pinned"""

    tokens: Any
    ttl: float
    extra_key: bytes = b""
    salt: bytes = b""


@dataclass(frozen=True)
class Unpin:
    """Ends all pins whose end lies within the tokens. @returns Pinned"""

    tokens: Any
    extra_key: bytes = b""
    salt: bytes = b""


@dataclass(frozen=True)
class OpenSession:
    """Opens a session. @returns Session"""

    session: int
    #: It keeps the pages of a turn for the next one.
    streaming: bool = False


@dataclass(frozen=True)
class CloseSession:
    """Closes a session. @returns Session"""

    session: int
    generation: int


@dataclass(frozen=True)
class Lock:
    """Locks the prefix that ends with a node; counts. @returns Locked"""

    node: int


@dataclass(frozen=True)
class Unlock:
    """Takes one such lock back. @returns Locked"""

    node: int


@dataclass(frozen=True)
class Backup:
    """Writes the prefix that ends with a node to L2. @returns BackedUp"""

    node: int


@dataclass(frozen=True)
class LoadNode:
    """Loads the prefix that ends with a node to L1. @returns NodeLoaded"""

    node: int
    limit: int | None = None


@dataclass(frozen=True)
class Clear:
    """Forgets everything. @returns Cleared"""


#: In the order of enum hc_op_kind.
KINDS = (Match, Prefetch, Schedule, Load, Allocate, Insert, Release, Evict, Pin, Unpin, OpenSession, CloseSession, Lock, Unlock, Backup,
         LoadNode, Clear)

# Answers. Pages are a memoryview of 32-bit numbers, in prefix order: page i holds tokens i * page_size and following.


class Matched(NamedTuple):
    device_tokens: int
    host_tokens: int
    pages: memoryview
    node: int


class Prefetched(NamedTuple):
    wanted_tokens: int


class Scheduled(NamedTuple):
    #: False: the facts of a later step list the request.
    is_ready: bool


class Loaded(NamedTuple):
    device_tokens: int
    loading_tokens: int
    from_storage_tokens: int
    pages: memoryview
    #: None if all pages are there.
    progress: Progress | None


class Allocated(NamedTuple):
    pages: memoryview


class Inserted(NamedTuple):
    duplicate_tokens: int
    pinned_tokens: int
    pages: memoryview
    node: int


class Released(NamedTuple):
    """Where the tokens of the prompt came from."""

    l1_tokens: int
    l2_tokens: int
    l3_tokens: int
    computed_tokens: int
    #: Of the computed ones: a tier had them, and why they were computed all the same.
    given_up_tokens: int
    give_up: str
    l3_backend: str
    #: The l3_tokens by tier, if L3 is made of tiers, fastest first.
    l3_tiers: tuple[tuple[str, int], ...]
    #: Estimated time to load what L3 had for the request, and to compute it; 0: not known.
    load_estimate_ns: int
    compute_estimate_ns: int


class Evicted(NamedTuple):
    freed_tokens: int
    writing_tokens: int


class Pinned(NamedTuple):
    pinned_tokens: int


class Session(NamedTuple):
    generation: int


class Locked(NamedTuple):
    evictable_tokens: int
    protected_tokens: int


class BackedUp(NamedTuple):
    written_tokens: int


class NodeLoaded(NamedTuple):
    loading_tokens: int


class Cleared(NamedTuple):
    pass


#: The answer to each of KINDS.
ANSWERS = (Matched, Prefetched, Scheduled, Loaded, Allocated, Inserted, Released, Evicted, Pinned, Pinned, Session, Session, Locked, Locked,
           BackedUp, NodeLoaded, Cleared)
