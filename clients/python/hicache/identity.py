"""What a page's name says: everything that changes a bit of the page, by content.

An engine chooses names for its own lifetime: a path, a served name, the number of an adapter. Pages outlive engines, so their names are made of facts
that another engine can check: the bytes of the weights, the configuration as the engine holds it, the type of the KV, the layout. An `Identity` collects
them, keeps them readable, and turns them into the namespace of a `Store`. What cannot be learnt is not shared: such an engine has pages of its own.
"""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import json
import logging
import os
import pathlib
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from hicache import _abi
from hicache._errors import Error

#: Grows when the meaning of a fact changes.
VERSION = 1
#: What a namespace made of facts begins with; a digest of the facts follows.
PREFIX = f"identity-{VERSION}:"
#: The namespace in which the facts themselves are kept, as pages, by the namespaces made of them.
FACTS = "hicache identities"

# How long an engine's start waits for the digest of its weights. What takes longer goes on behind it: until it is known, look-ups miss and nothing is stored.
_WAIT_S = 10.0
# Reading that takes longer is told of.
_TELL_AFTER_S = 2.0
_JSON_BYTES = 1 << 20
# Of a model's configuration: where it came from, how texts are made and read, and how long they may be. Nothing of that changes the KV of given tokens.
_NO_CONFIGURATION = re.compile(
    r"_name_or_path|_commit_hash|transformers_version|torch_dtype|dtype|architectures_?|_?attn_implementation.*|_auto_class|name_or_path|tokenizer_class"
    r"|(bos|eos|pad|sep|decoder_start|unk|mask|cls)_token_id|use_cache|return_dict|output_(attentions|hidden_states|scores)|problem_type|task_specific_params"
    r"|finetuning_task|id2label|label2id|chat_template|generation_config|is_decoder_only|revision|context_len")


class Content(NamedTuple):
    """What of a folder or file decides the bytes of its KV."""

    weights: str
    files: dict[str, str]
    bytes: int
    #: When any of the files changed last, in nanoseconds since 1970.
    changed_ns: int

    @property
    def digest(self) -> str:
        """One text for all of it."""
        return digest_of([self.weights, self.files])


def content_of(path: str | os.PathLike[str]) -> Content:
    """Reads a model's or an adapter's folder, or a file of weights: all bytes the first time, then as long as nothing changes from a record.

    @raises InvalidArgument a file is missing, unreadable or malformed, or changed meanwhile
    """
    library, error, text = _abi.library(), _abi.Error(), ctypes.create_string_buffer(_JSON_BYTES)
    library.raise_for(library.hc_model_content(os.fsencode(path), text, len(text), error), error)
    return Content(**json.loads(text.value))


def digest_of(facts: Any) -> str:
    """SHA-256 of facts in their canonical form."""
    return hashlib.sha256(canonical(facts).encode()).hexdigest()


def canonical(facts: Any) -> str:
    """JSON in which equal facts have equal text."""
    return json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    """What JSON has no word for."""
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=str)
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    if hasattr(value, "to_dict"):
        return value.to_dict()
    fields = getattr(value, "__dataclass_fields__", None)
    if fields is not None:
        return {name: getattr(value, name, None) for name in fields}
    return str(value)


def configuration(config: Any) -> dict[str, Any]:
    """What of a model's configuration, as the engine holds it, can change its KV: all but a list of what cannot."""
    plain = json.loads(canonical(config.to_dict() if hasattr(config, "to_dict") else dict(config)))

    def kept(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {name: kept(below) for name, below in value.items() if below is not None and not _NO_CONFIGURATION.fullmatch(name)}

    return kept(plain)


class Fields(NamedTuple):
    """Which fields of an engine's settings are facts."""

    #: By what they are called there, with what they are.
    facts: Mapping[str, str]
    #: An expression that matches the names of all that change no page, or that are facts of another name.
    others: str

    def of(self, settings: Any, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """The facts among settings, without those that say nothing: releases differ in which fields they have. A field on neither list counts where it was
        given: at worst pages are not shared that could be."""
        found = {}
        for name in names_of(settings):
            value = getattr(settings, name, None)
            if name in self.facts or (not re.fullmatch(self.others, name) and value != defaults.get(name)):
                found[name] = value
        return {name: value for name, value in json.loads(canonical(found)).items() if value not in (None, False, "", [], {})}

    def unknown(self, names: Iterable[str]) -> list[str]:
        """Names on neither list: those that a new release brought."""
        return sorted(name for name in names if name not in self.facts and not re.fullmatch(self.others, name))


def names_of(settings: Any) -> list[str]:
    """The fields of settings, or of their class."""
    if dataclasses.is_dataclass(settings):
        return [field.name for field in dataclasses.fields(settings)]
    return list(getattr(settings, "__struct_fields__", None) or vars(settings))


def defaults_of(settings: Any) -> dict[str, Any]:
    """What fields have that nobody has given."""
    defaults = {}
    for name, field in getattr(settings, "__dataclass_fields__", {}).items():
        if field.default is not dataclasses.MISSING:
            defaults[name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            defaults[name] = field.default_factory()
    names, values = getattr(settings, "__struct_fields__", ()), getattr(settings, "__struct_defaults__", ())
    defaults.update(zip(names[len(names) - len(values):], values, strict=True))
    return defaults


class Source(NamedTuple):
    """Where the weights of a model are: a folder or file; or why that is not known; or what their owner calls them."""

    path: str | None = None
    unknown: str = ""
    called: str = ""


def folder_of(model: str, revision: str | None, commit: str | None = None) -> Source:
    """What an engine has loaded that was told of a path, or of a name in a hub.

    @param commit As a configuration that was loaded from a hub knows it: a branch may have moved since.
    """
    if os.path.exists(model):
        return Source(model)
    try:
        from huggingface_hub import snapshot_download

        return Source(snapshot_download(model, revision=commit or revision, local_files_only=True))
    except Exception as trouble:
        return Source(unknown=f"{model} is neither a path nor in the cache of a hub: {trouble}")


def started_ns() -> int:
    """When this process started, by the clock of files."""
    with open("/proc/self/stat") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    return time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME) + ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


class Identity:
    """The facts of an engine's pages. Any thread."""

    def __init__(self, facts: Mapping[str, Any], models: Mapping[str, Source], logger: logging.Logger, *, since_ns: int | None = None) -> None:
        """Begins to read the weights, and waits a little for them.

        @param facts What is known now; by part.
        @param models What of the engine has weights: "model", "draft".
        @param since_ns What changed later may not be what the engine has loaded; when this process started if None.
        """
        self._logger = logger
        self._facts: dict[str, Any] = json.loads(canonical(facts))
        self._models = dict(models)
        self._since_ns = started_ns() if since_ns is None else since_ns
        self._lock = threading.Lock()  # Guards what follows.
        self._content: dict[str, dict[str, Any]] | None = None
        self._in_memory: str | None = None
        self._all: dict[str, Any] | None = None
        self._namespace: str | None = None
        self._known = threading.Event()
        threading.Thread(target=self._learn, name="hicache-identity", daemon=True).start()
        if not self._known.wait(_WAIT_S):
            logger.info("hicache: weights are still being read to learn their identity; until that is done nothing is found and nothing is kept")

    @property
    def is_known(self) -> bool:
        return self._known.is_set()

    def wait(self, seconds: float | None = None) -> bool:
        """Until the weights are known."""
        return self._known.wait(seconds)

    @property
    def facts(self) -> dict[str, Any] | None:
        """All facts; None until they are known."""
        return self._all

    @property
    def namespace(self) -> str | None:
        """What to call pages; None until it is known."""
        return self._namespace

    @property
    def is_passing(self) -> bool:
        """Whether pages of this name are of no use once the engine has another one: those of weights that were changed in memory, and private ones."""
        facts = self._all or {}
        return "weights in memory" in facts or any(str(facts.get(part, {}).get("weights")).startswith("private ") for part in self._models)

    def weights_are(self, in_memory: str | None) -> bool:
        """The engine's weights are others than it was loaded with.

        @param in_memory A digest of them, which another engine can have too; None for those that it was loaded with.
        @return whether that is new
        """
        with self._lock:
            is_new, self._in_memory = in_memory != self._in_memory, in_memory
            self._combine()
            return is_new

    def _combine(self) -> None:
        if self._content is None:
            return
        facts = dict(self._facts)
        for part, content in self._content.items():
            facts[part] = {**facts.get(part, {}), **content, **({} if self._in_memory is None else {"weights": "in memory"})}
        if self._in_memory is not None:
            facts["weights in memory"] = self._in_memory
        self._all, self._namespace = facts, PREFIX + digest_of(facts)

    def _learn(self) -> None:
        content = {part: self._content_of(part, source) for part, source in self._models.items()}
        with self._lock:
            self._content = content
            self._combine()
        self._known.set()

    def _content_of(self, part: str, source: Source) -> dict[str, Any]:
        if source.called:
            return {"weights": f"called {source.called}"}
        try:
            if source.path is None:
                return self._private(part, source.unknown)
            began_at = time.monotonic()
            content = content_of(source.path)
            seconds = time.monotonic() - began_at
            if seconds > _TELL_AFTER_S:
                self._logger.info("hicache: read %.1f GB of %s in %.1f s; the next start takes that from a record", content.bytes / 1e9, source.path, seconds)
            if content.changed_ns >= self._since_ns:
                return self._private(part, f"{source.path} has changed since this process began, so what was loaded may be something else")
            # The engine tells the configuration itself.
            return {"weights": content.weights, "files": {name: digest for name, digest in content.files.items() if name != "config.json"}}
        except (Error, OSError) as trouble:
            return self._private(part, str(trouble))

    def _private(self, part: str, why: str) -> dict[str, Any]:
        self._logger.warning('hicache: pages of this engine are not shared, and are not found after it ends: the weights of the %s are not known: %s; '
                             'a setting "model_id" can name them', part, why)
        return {"weights": f"private {uuid.uuid4()}"}


def weights_digest(tensors: Iterable[tuple[str, Any]]) -> str:
    """A digest of tensors as they are in an engine's memory: of names, types, shapes and all elements, on the device that has them.

    Elements are summed with pseudo-random odd factors modulo 2^64, twice: not for adversaries, but no update of weights is missed.
    """
    import torch

    total = hashlib.sha256()
    factors: dict[Any, list[Any]] = {}
    step = 1 << 20
    for name, tensor in sorted(tensors, key=lambda each: each[0]):
        tensor = tensor.detach()
        raw = tensor.contiguous().reshape(-1).view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)
        if raw.device not in factors:
            made = torch.Generator().manual_seed(0x68696361)
            factors[raw.device] = [torch.randint(-(1 << 62), 1 << 62, (step,), generator=made).mul_(2).add_(1).to(raw.device) for _ in range(2)]
        sums = []
        words = raw[:raw.numel() // 4 * 4].view(torch.int32)
        for first in range(0, words.numel(), step):
            part = words[first:first + step].to(torch.int64)
            sums += [(part * factor[:part.numel()]).sum() for factor in factors[raw.device]]
        numbers = torch.stack(sums).cpu().numpy().tobytes() if sums else b""
        total.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        total.update(numbers + raw[raw.numel() // 4 * 4:].cpu().numpy().tobytes())
    return total.hexdigest()


class Memory:
    """Which weights an engine has in its memory, and whether its caches have KV of others: until they are emptied, nobody else may have its pages."""

    def __init__(self, caches: Iterable[str]) -> None:
        self._caches = frozenset(caches)
        self._loaded: str | None = None
        self._now: str | None = None
        self._used: set[str] = set()
        self._mixed: set[str] = set()
        self._private = ""

    @property
    def is_begun(self) -> bool:
        return self._loaded is not None

    def loaded(self, digest: str) -> None:
        """What the engine was started with."""
        self._loaded = self._now = digest

    def use(self) -> None:
        """Something is computed, and kept in all caches."""
        self._used.update(self._caches)

    def emptied(self, caches: Iterable[str]) -> None:
        """Caches have nothing of before any more."""
        self._used.difference_update(caches)
        self._mixed.difference_update(caches)

    def are(self, digest: str) -> None:
        """What the engine has now."""
        if digest != self._now:
            self._now = digest
            self._mixed |= self._used
            self._private = f"private {uuid.uuid4()}"

    def name(self, caches: Iterable[str]) -> str | None:
        """For Identity.weights_are(), of pages that come out of these caches."""
        if self._mixed.intersection(caches):
            return self._private
        return None if self._now == self._loaded else self._now


class Adapters:
    """What the adapters (LoRA) are that an engine has loaded, by content."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._lock = threading.Lock()  # Guards what follows.
        self._loaded: dict[Any, str] = {}
        self._private: dict[Any, str] = {}
        self._told = False

    def load(self, key: Any, path: str, load: Callable[[], Any], has_worked: Callable[[Any], bool] = lambda _: True) -> Any:
        """Loads an adapter, and notes what it is."""
        before = self._now(path)
        result = load()
        if has_worked(result):
            self._note(key, before if before is not None and before == self._now(path) else None, path)
        return result

    def name_of(self, key: Any, path: str, is_reloaded: bool = False) -> str:
        """What an adapter's pages are called after.

        @param key What the engine knows it by, for as long as it has it.
        @param is_reloaded The engine reads it from its path each time.
        """
        now = self._now(path)
        with self._lock:
            known = self._loaded.get(key)
        if known is None or is_reloaded:
            return self._note(key, now, path)
        if known != now and not known.startswith("private"):
            # The engine may have either of both.
            return self._note((key, now), None, path)
        return known

    def loaded(self, key: Any) -> str:
        """What an adapter is called that was loaded by load(), or noted."""
        with self._lock:
            known = self._loaded.get(key)
        return known if known is not None else self._note(key, None, str(key))

    def content_before(self, path: str, since_ns: int) -> str | None:
        """Of an adapter that was loaded by then; None if its files have changed later."""
        try:
            content = content_of(path)
            return content.digest if content.changed_ns < since_ns else None
        except (Error, OSError):
            return None

    def note(self, key: Any, digest: str | None, path: str) -> None:
        """What is known of an adapter that was loaded: its content, or None."""
        self._note(key, digest, path)

    def _now(self, path: str) -> str | None:
        try:
            source = folder_of(path, None)
            return content_of(source.path).digest if source.path is not None else None
        except (Error, OSError):
            return None

    def _note(self, key: Any, digest: str | None, path: str) -> str:
        with self._lock:
            if digest is None:
                if not self._told:
                    self._logger.warning("hicache: pages of requests with the adapter %s, and others like it, are not shared: its files cannot be read, or have "
                                         "changed since it was loaded", path)
                self._told = True
                digest = self._private.setdefault(key, f"private {uuid.uuid4()}")
            self._loaded[key] = digest
            return digest


def hub_commit(config: Any) -> str | None:
    """Of which commit of a hub's repository a configuration is."""
    commit = getattr(config, "_commit_hash", None)
    return commit if isinstance(commit, str) and re.fullmatch("[0-9a-f]{40}", commit) else None


def scales_of(path: str | None) -> str | None:
    """The digest of a file of KV scales."""
    return None if not path else hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()
