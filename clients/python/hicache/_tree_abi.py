"""hicache_tree.h for ctypes: structs and functions, nothing added. A test compares them with the list of the C ABI."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_int, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

from hicache import _abi
from hicache._files import find_tree_library

# What this package was written for.
ABI_VERSION = 1

NO_LIMIT = 2**64 - 1
EVENTS = 1
CHUNKED = 1
STREAMING = 2

KINDS = ("match", "prefetch", "schedule", "load", "allocate", "insert", "release", "evict", "pin", "unpin", "open_session", "close_session",
         "lock", "unlock", "backup", "load_node", "clear")
NEWS_KINDS = ("step", "failure", "stored", "removed", "cleared", "lost")


def _numbers(names: str, kind: Any = c_uint64) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class Layer(Structure):
    _fields_ = [*_numbers("address page_stride token_stride"), ("reserved", c_uint64 * 2)]


class Options(Structure):
    _fields_ = [("size", c_size_t), ("log", _abi.LOG), ("log_user", c_void_p), ("flags", c_uint32), ("l1_pages", c_uint32),
                ("layers", POINTER(Layer)), ("layer_count", c_size_t)]


class Info(Structure):
    _fields_ = [("size", c_size_t), *_numbers("rank ranks page_size layers parts is_host_addressable", c_uint32),
                *_numbers("device_pages host_pages"), ("row_bytes", c_uint64 * 4)]


COUNTER_NAMES = ("bytes_l1_to_l2", "bytes_l2_to_l1", "bytes_l2_to_l3", "bytes_l3_to_l2", "evicted_l1", "evicted_l2", "steps",
                 "storage_failures", "errors", "free_l1", "free_l2")


class Counters(Structure):
    _fields_ = [("size", c_size_t), *_numbers(" ".join(COUNTER_NAMES))]


class Op(Structure):
    _fields_ = [*_numbers("kind flags", c_uint32), ("request", c_uint64), ("tokens", c_void_p), ("token_count", c_size_t),
                ("extra_key", c_char_p), ("extra_key_bytes", c_size_t), ("salt", c_char_p), ("salt_bytes", c_size_t), ("limit", c_uint64),
                ("tier", c_uint32), ("priority", c_int32), *_numbers("session generation node ttl_ms"), ("after", c_void_p),
                ("reserved", c_uint64 * 4)]


class TierTokens(Structure):
    _fields_ = [("tier", c_char_p), ("tokens", c_uint64)]


class L3Use(Structure):
    _fields_ = [("size", c_size_t), ("tiers", POINTER(TierTokens)), ("tier_count", c_size_t),
                *_numbers("load_estimate_ns compute_estimate_ns")]


class Answer(Structure):
    _fields_ = [("code", c_int32), ("kind", c_uint32), ("text", c_char_p), ("pages", c_void_p), ("page_count", c_size_t),
                ("progress", c_void_p),
                *_numbers("node generation is_ready device_tokens host_tokens wanted_tokens loading_tokens from_storage_tokens "
                          "duplicate_tokens pinned_tokens freed_tokens writing_tokens written_tokens evictable_tokens protected_tokens "
                          "l1_tokens l2_tokens l3_tokens computed_tokens given_up_tokens"),
                ("give_up", c_char_p), ("l3_backend", c_char_p), ("l3", POINTER(L3Use)), ("reserved", c_uint64 * 3)]


class Ready(Structure):
    _fields_ = [*_numbers("request fetched_tokens device_tokens host_tokens"), ("reserved", c_uint64 * 2)]


class Facts(Structure):
    _fields_ = [("size", c_size_t), *_numbers("in_flight was_in_flight", c_uint32), ("ready", POINTER(Ready)), ("ready_count", c_size_t),
                ("failed", POINTER(c_uint64)), ("failed_count", c_size_t)]


class News(Structure):
    _fields_ = [*_numbers("kind tier", c_uint32), ("code", c_int32), ("text", c_char_p), ("parent", c_void_p), ("keys", c_void_p),
                ("key_count", c_size_t), ("tokens", c_void_p), ("token_count", c_size_t), ("extra_key", c_void_p),
                ("extra_key_bytes", c_size_t), ("salt", c_void_p), ("salt_bytes", c_size_t), ("lost", c_uint64), ("reserved", c_uint64 * 2)]


_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "hc_cache_abi_version": (c_uint32, []),
    "hc_cache_open": (c_int32, [c_char_p, POINTER(Options), POINTER(c_void_p), POINTER(_abi.Error)]),
    "hc_cache_close": (c_int32, [c_void_p]),
    "hc_cache_describe": (c_int32, [c_void_p, POINTER(Info)]),
    "hc_cache_layer": (c_int32, [c_void_p, c_uint32, c_uint32, POINTER(Layer)]),
    "hc_cache_apply": (c_int32, [c_void_p, POINTER(Op), c_size_t, c_uint32, POINTER(c_void_p), POINTER(_abi.Error)]),
    "hc_answers_wait": (c_int32, [c_void_p, c_uint32, POINTER(_abi.Error)]),
    "hc_answers_items": (POINTER(Answer), [c_void_p, POINTER(c_size_t)]),
    "hc_answers_free": (c_int32, [c_void_p]),
    "hc_cache_step": (c_int32, [c_void_p, c_uint32, POINTER(Facts), POINTER(_abi.Error)]),
    "hc_progress_done": (c_int32, [c_void_p, POINTER(c_uint32)]),
    "hc_progress_wait": (c_int32, [c_void_p, c_uint32]),
    "hc_cache_wait_for_layer": (c_int32, [c_void_p, c_void_p, c_void_p, c_uint32, POINTER(_abi.Error)]),
    "hc_cache_event_fd": (c_int, [c_void_p]),
    "hc_cache_poll": (c_int32, [c_void_p, c_uint32, POINTER(c_void_p)]),
    "hc_news_items": (POINTER(News), [c_void_p, POINTER(c_size_t)]),
    "hc_news_free": (c_int32, [c_void_p]),
    "hc_cache_stats": (c_int32, [c_void_p, POINTER(Counters)]),
}

_library: Any = None


def library() -> Any:
    """libhicache_tree.so with its functions as attributes, loaded with the first use. Each call releases the GIL."""
    global _library
    if _library is None:
        path = find_tree_library()
        loaded = ctypes.CDLL(path)
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(loaded, name, None)
            if function is None:
                raise ImportError(f"{path} has no {name}: it is no libhicache_tree.so, or one that is too old for this package")
            function.restype, function.argtypes = result, arguments
        if loaded.hc_cache_abi_version() < ABI_VERSION:
            raise ImportError(f"{path} offers version {loaded.hc_cache_abi_version()} of the C ABI; this package needs {ABI_VERSION}")
        _library = loaded
    return _library
