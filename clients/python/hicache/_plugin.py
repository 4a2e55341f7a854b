"""What the plug-ins for several engines need."""

from __future__ import annotations

import difflib
import hashlib
import inspect
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from hicache._buffers import wrong
from hicache._calls import AnyResult, Call, Keys
from hicache._errors import Error
from hicache._store import Store
from hicache.identity import FACTS, Identity, canonical

#: Bytes of one batch at the node. Four of them are copied at a time ("threads"), which stays below a client's share, an eighth, of a node of 128 MiB.
BATCH_BYTES = 2 << 20
#: What the node takes in one request.
MOST_KEYS = 4096
#: What a store has open: batches of a prompt of a million tokens, and more.
MOST_CALLS = 65536

_TLS = ("tls_cert", "tls_key", "tls_ca")
_SETTINGS: dict[str, Any] = {"socket": str, "address": str, **dict.fromkeys(_TLS, str), "tenant": str, "namespace": str, "timeout": (int, float), "threads": int,
                             "model_id": str, "numerics": str}
#: Of those what is part of page names, and no argument of Store.
_FACTS = ("namespace", "model_id", "numerics")


class Settings(NamedTuple):
    """What a user tells a plug-in."""

    #: Arguments of Store.
    store: dict[str, Any]
    #: What the user adds to page names: "namespace" and "numerics".
    operator: dict[str, str]
    #: What the user calls the weights, instead of their digest; empty if they are to be read.
    model_id: str


def own_settings(given: Mapping[str, Any], where: str, engines: Iterable[str] = ()) -> Settings:
    """The settings of hicache among those of an engine.

    @param where What the user knows them as.
    @param engines Names of the engine's own settings among them.
    @raises InvalidArgument one is wrong or not known, or it is not said where the node is
    """
    settings = {}
    for name, value in given.items():
        if name in _SETTINGS:
            if not isinstance(value, _SETTINGS[name]) or isinstance(value, bool):
                raise wrong(f'{where}: "{name}": {value!r} is not allowed')
            settings[name] = value
        elif name not in engines:
            near = difflib.get_close_matches(name, [*_SETTINGS, *engines], 1, 0.5)
            raise wrong(f'{where}: "{name}" is not known; ' + (f'did you mean "{near[0]}"?' if near else f"expected {', '.join(_SETTINGS)}"))
    if ("socket" in settings) == ("address" in settings):
        raise wrong(f'{where}: "socket": expected the path at which hicache-node listens on this machine, or instead "address", HOST:PORT of one on another')
    operator = {name: settings[name] for name in ("namespace", "numerics") if settings.get(name)}
    return Settings({name: value for name, value in settings.items() if name not in _FACTS}, operator, settings.get("model_id", ""))


def changed_functions(seams: Mapping[str, tuple[Callable[..., Any], tuple[str, ...]]]) -> list[str]:
    """Functions of an engine that take other arguments than expected, a sentence each."""
    return [f"{name}({', '.join(found)}); expected ({', '.join(expected)})" for name, (function, expected) in seams.items()
            if (found := tuple(inspect.signature(function).parameters)) != expected]


def changed_calls(of: type) -> list[str]:
    """Methods that an engine calls with arguments that this class does not take, or that it has not, a sentence each.

    @param of Derived from a class of the engine, which declares them.
    """
    found = [f"{of.__name__}.{name}, which is not there" for name in sorted(getattr(of, "__abstractmethods__", ()))]
    for name, ours in vars(of).items():
        theirs = next((vars(base)[name] for base in of.__mro__[1:] if name in vars(base)), None)
        if inspect.isfunction(ours) and inspect.isfunction(theirs):
            takes, given = inspect.signature(ours).parameters, inspect.signature(theirs).parameters
            if not any(each.kind is each.VAR_KEYWORD for each in takes.values()) and (more := [each for each in given if each not in takes]):
                found.append(f"{of.__name__}.{name} with {', '.join(more)}")
    return found


# How often an engine that works tells its facts again: the node may have evicted them, or been restarted.
_KEEP_S = 300.0
# How long the end of a name may take: an engine that ends waits for it.
_END_S = 2.0


class Stores:
    """Stores of one node, by namespace: an engine has another one when its weights change. Any thread."""

    # What was begun under the name before goes on.
    _MOST = 2

    def __init__(self, settings: Settings, **options: Any) -> None:
        self._arguments = {**settings.store, **options}
        self._lock = threading.Lock()  # Guards what follows.
        self._stores: dict[str, Store] = {}

    @property
    def where(self) -> str:
        return self._arguments.get("socket") or self._arguments["address"]

    def of(self, namespace: str) -> Store:
        """@raises Error this process cannot open another one"""
        with self._lock:
            store = self._stores.get(namespace)
            if store is None:
                store = self._stores[namespace] = Store(namespace=namespace, **self._arguments)
                while len(self._stores) > self._MOST:
                    self._stores.pop(next(iter(self._stores))).close()
            return store

    def poll(self) -> None:
        """Takes what is done, of all stores."""
        for store in list(self._stores.values()):
            store.poll()

    def close(self) -> None:
        with self._lock:
            while self._stores:
                self._stores.popitem()[1].close()


class Space(Stores):
    """The pages of an engine: a Store for its identity of the moment. Keeps the facts at the node, too, where people can ask for them."""

    def __init__(self, identity: Identity, settings: Settings, logger: logging.Logger, **options: Any) -> None:
        """@raises InvalidArgument a setting is wrong"""
        super().__init__(settings, **options)
        self.identity = identity
        self._logger = logger
        self._told, self._kept_at = "", 0.0
        # The name of the moment, if its pages are of no use after it.
        self._passing: str | None = None
        # Tells early what is wrong.
        Store(namespace=FACTS, **self._arguments).close()
        self._current()

    @property
    def store(self) -> Store | None:
        """None as long as it is not known whose pages they are."""
        return self._current()

    def _current(self) -> Store | None:
        namespace, facts = self.identity.namespace, self.identity.facts
        if namespace is None:
            return None
        store = self.of(namespace)
        now = time.monotonic()
        if self._told != namespace:
            self._logger.info("hicache: pages of %s are kept by the node at %s: %s", namespace, self.where, canonical(facts))
        if self._told != namespace or now - self._kept_at > _KEEP_S:
            ended = self._passing if self._passing != namespace else None
            self._told, self._kept_at, self._passing = namespace, now, namespace if self.identity.is_passing else None
            threading.Thread(target=self._keep, args=(namespace, canonical(facts).encode(), ended), name="hicache-facts", daemon=True).start()
        return store

    def close(self) -> None:
        passing, self._passing = self._passing, None
        super().close()
        if passing is not None:
            self._end(passing)

    def _end(self, namespace: str) -> None:
        """Pages of weights that no engine has any more leave the node first."""
        try:
            with Store(namespace=namespace, **{**self._arguments, "calls": None}) as store:
                store.clear(evict_first=True, timeout=_END_S)
        except Error:
            pass  # What is wrong with the node is told elsewhere.

    def _keep(self, namespace: str, facts: bytes, ended: str | None) -> None:
        if ended is not None:
            self._end(ended)
        try:
            with Store(namespace=FACTS, **{**self._arguments, "calls": None}) as store:
                # Nodes and pages know a namespace by its fingerprint.
                fingerprint = hashlib.sha256(namespace.encode()).hexdigest()[:16]
                store.put([namespace, fingerprint], [facts, facts])
        except Error:
            pass  # What is wrong with the node is told elsewhere.


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
