"""hicache.h for ctypes: structs and functions, nothing added. A test compares them with the list of the C ABI."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_char, c_char_p, c_int, c_int32, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any

from hicache._errors import error_of
from hicache._files import find_library

# What this package was written for.
ABI_VERSION = 1

CHAIN = 1
IN_PLACE = 2
HOST = -1
NO_BLOCK = 2**32 - 1


class Error(Structure):
    _fields_ = [("code", c_int32), ("text", c_char * 252)]


class Part(Structure):
    _fields_ = [("data", c_void_p), ("bytes", c_size_t)]


class Page(Structure):
    _fields_ = [("key", c_uint8 * 32), ("parent", c_uint8 * 32), ("parts", c_void_p), ("part_count", c_size_t),
                ("reserved", c_uint64 * 2)]


class Call(Structure):
    _fields_ = [("size", c_size_t), ("flags", c_uint32), ("timeout_ms", c_uint32), ("user", c_void_p), ("codes", c_void_p),
                ("lease", c_void_p)]


class Completion(Structure):
    _fields_ = [("ticket", c_uint64), ("user", c_void_p), ("lease", c_void_p), ("pages", c_uint32), ("prefix", c_uint32),
                ("error", Error), ("reserved", c_uint64 * 4)]


class LeasedPage(Structure):
    _fields_ = [("data", c_void_p), ("bytes", c_size_t), ("reserved", c_uint64 * 2)]


COUNTER_NAMES = ("connected", "open_calls", "completions", "leases", "pages_put", "bytes_put", "pages_got", "bytes_got", "pages_missed",
                 "pages_corrupt", "pages_failed")


class Counters(Structure):
    _fields_ = [(name, c_uint64) for name in ("size", *COUNTER_NAMES)]


NODE_STATE_NAMES = ("clients", "capacity_bytes", "used_bytes", "pages", "reserved_bytes", "leased_bytes", "reservations", "leases",
                    "pages_evicted", "pages_written", "pages_wanted", "pages_found", "expired_leases", "refused_calls")


class NodeState(Structure):
    _fields_ = [(name, c_uint64) for name in ("size", *NODE_STATE_NAMES)]


LOG = ctypes.CFUNCTYPE(None, c_void_p, c_int32, c_char_p)


class Options(Structure):
    _fields_ = [("size", c_size_t), ("log", LOG), ("log_user", c_void_p)]


class Tensor(Structure):
    _fields_ = [("data", c_void_p), ("blocks", c_uint64), ("stride", c_uint64), ("block_bytes", c_uint64), ("layer", c_uint64),
                ("reserved", c_uint64 * 2)]


class Layout(Structure):
    _fields_ = [("size", c_size_t), ("device", c_int32), ("blocks_per_page", c_uint32), ("tensors", c_void_p), ("tensor_count", c_size_t)]


class OffloadPage(Structure):
    _fields_ = [("key", c_uint8 * 32), ("parent", c_uint8 * 32), ("blocks", c_void_p), ("reserved", c_uint64 * 2)]


# Pointers to memory that is packed elsewhere are plain numbers (c_void_p): ctypes converts those fastest.
_BATCH = [c_void_p, c_void_p, c_size_t, POINTER(Call), POINTER(c_uint64), POINTER(Error)]

_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "hc_abi_version": (c_uint32, []),
    "hc_version": (c_char_p, []),
    "hc_code_name": (c_char_p, [c_int32]),
    "hc_code_sentence": (c_char_p, [c_int32]),
    "hc_open": (c_int32, [c_char_p, POINTER(Options), POINTER(c_void_p), POINTER(Error)]),
    "hc_close": (c_int32, [c_void_p]),
    "hc_connect": (c_int32, [c_void_p, c_uint32, POINTER(Error)]),
    "hc_names": (c_int32, [c_void_p, c_char_p, c_void_p, c_size_t, c_void_p]),
    "hc_model_content": (c_int32, [c_char_p, c_char_p, c_size_t, POINTER(Error)]),
    "hc_put": (c_int32, _BATCH),
    "hc_get": (c_int32, _BATCH),
    "hc_lookup": (c_int32, _BATCH),
    "hc_prefetch": (c_int32, _BATCH),
    "hc_pin": (c_int32, _BATCH),
    "hc_remove": (c_int32, _BATCH),
    "hc_lease_pages": (c_int32, [c_void_p, c_size_t, c_size_t, POINTER(LeasedPage), POINTER(c_uint32)]),
    "hc_unpin": (c_int32, [c_void_p]),
    "hc_event_fd": (c_int, [c_void_p]),
    "hc_poll": (c_int32, [c_void_p, POINTER(Completion), c_size_t, c_uint32, POINTER(c_size_t)]),
    "hc_wait": (c_int32, [c_void_p, c_uint64, c_uint32, POINTER(Completion)]),
    "hc_stats": (c_int32, [c_void_p, POINTER(Counters)]),
    "hc_node_status": (c_int32, [c_void_p, c_uint32, POINTER(NodeState), POINTER(Error)]),
    "hc_clear": (c_int32, [c_void_p, c_int32, c_uint32, POINTER(c_uint64), POINTER(Error)]),
    "hc_offload_open": (c_int32, [c_void_p, POINTER(Layout), POINTER(c_void_p), POINTER(Error)]),
    "hc_offload_close": (c_int32, [c_void_p]),
    "hc_offload_page_bytes": (c_uint64, [c_void_p]),
    "hc_offload_store": (c_int32, [*_BATCH[:4], c_void_p, *_BATCH[4:]]),
    "hc_offload_load": (c_int32, _BATCH),
    "hc_offload_wait_layer": (c_int32, [c_void_p, c_uint64, c_uint32, c_uint32]),
    "hc_offload_stream_wait": (c_int32, [c_void_p, c_uint64, c_uint32, c_void_p, c_uint32, POINTER(Error)]),
}


class Library:
    """A libhicache.so with its functions as attributes. Each call releases the GIL."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, path: str) -> None:
        self.path = path
        loaded = ctypes.CDLL(path)
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(loaded, name, None)
            if function is None:
                raise ImportError(f"{path} has no {name}: it is no libhicache.so, or one that is too old for this package")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        if self.hc_abi_version() < ABI_VERSION:
            raise ImportError(f"{path} offers version {self.hc_abi_version()} of the C ABI; this package needs {ABI_VERSION}")

    @property
    def version(self) -> str:
        return self.hc_version().decode()

    def raise_for(self, code: int, error: Error | None = None) -> None:
        """Raises what a code stands for, with the call's own sentence if there is one."""
        if code == 0:
            return
        text = error.text.decode(errors="replace") if error is not None else ""
        raise error_of(code, text or self.hc_code_sentence(code).decode())


_library: Library | None = None


def library() -> Library:
    """The library, loaded with the first use."""
    global _library
    if _library is None:
        _library = Library(find_library())
    return _library
