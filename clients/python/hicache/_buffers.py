"""From Python's objects to the arrays of the C ABI, without a copy of their bytes."""

from __future__ import annotations

import array
import ctypes
import math
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from hicache._errors import Code, error_of

_PAGE = struct.Struct("=32s32sQQ16x")
_BUFFER_SIMPLE, _BUFFER_WRITABLE, _BUFFER_STRIDED = 0, 1, 0x18


class _PyBuffer(ctypes.Structure):
    """Py_buffer of CPython: as much of it as is read here, and its size."""

    _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.c_void_p), ("len", ctypes.c_ssize_t), ("rest", ctypes.c_byte * 56)]


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.restype, _get_buffer.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_void_p, ctypes.c_int]
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.restype, _release_buffer.argtypes = None, [ctypes.c_void_p]


def get_buffer(array: Any) -> _PyBuffer:
    """Where an array is, with any strides, to be written."""
    buffer = _PyBuffer()
    _get_buffer(array, ctypes.addressof(buffer), _BUFFER_STRIDED | _BUFFER_WRITABLE)
    return buffer


def release_buffer(buffer: _PyBuffer) -> None:
    _release_buffer(ctypes.addressof(buffer))


class Pointers(NamedTuple):
    """Raw memory for a whole batch: as many parts for each page, page by page. Who gives it keeps it alive until the call is done."""

    addresses: Sequence[int]
    lengths: Sequence[int]


class _DLTensor(ctypes.Structure):
    """DLTensor of DLPack."""

    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned, of DLPack 1. The older DLManagedTensor begins with its tensor."""

    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
                ("flags", ctypes.c_uint64), ("tensor", _DLTensor)]


# Host memory, such that CUDA has pinned, and that of a CUDA device.
_DL_HOST, _DL_CUDA = (1, 3), 2
_DL_READ_ONLY = 1
_capsule_has_name = ctypes.pythonapi.PyCapsule_IsValid
_capsule_has_name.restype, _capsule_has_name.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


class Strided(NamedTuple):
    """An array in memory. Strides are in bytes."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item_bytes: int
    #: The memory stays as long as this does.
    kept: Any
    #: The number of a CUDA device; None for host memory.
    device: int | None = None

    def is_contiguous(self, first: int = 0) -> bool:
        """Whether its items follow on each other, in the dimensions from one on."""
        expected = self.item_bytes
        for length, stride in zip(reversed(self.shape[first:]), reversed(self.strides[first:])):
            if length > 1 and stride != expected:
                return False
            expected *= length
        return True


def by_dlpack(array: Any, is_written: bool, is_host: bool = True) -> Strided:
    """An array of any library that has DLPack, in host memory, or in that of a CUDA device if `is_host` is not set."""
    kind, number = array.__dlpack_device__()
    if kind not in _DL_HOST and (is_host or kind != _DL_CUDA):
        raise wrong(f"a {type(array).__name__} is not in host memory")
    try:
        capsule = array.__dlpack__(max_version=(1, 0))
    except TypeError:
        capsule = array.__dlpack__()
    if _capsule_has_name(capsule, b"dltensor_versioned"):
        versioned = _Versioned.from_address(_capsule_pointer(capsule, b"dltensor_versioned"))
        tensor, is_read_only = versioned.tensor, bool(versioned.flags & _DL_READ_ONLY)
    else:
        tensor, is_read_only = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor")), False
    if is_read_only and is_written:
        raise wrong(f"a {type(array).__name__} cannot be written")
    item = tensor.bits * tensor.lanes // 8
    shape = tuple(tensor.shape[:tensor.ndim])
    if tensor.strides:
        strides = tuple(item * stride for stride in tensor.strides[:tensor.ndim])
    else:
        strides = tuple(item * math.prod(shape[i + 1:]) for i in range(len(shape)))
    # Whoever made the capsule frees the memory with it.
    return Strided((tensor.data or 0) + tensor.byte_offset, shape, strides, item, capsule, number if kind == _DL_CUDA else None)


def wrong(sentence: str):
    return error_of(Code.INVALID_ARGUMENT, sentence)


def address_of(memory: bytearray | array.array) -> int:
    """Where the bytes of an array are. It must not be empty, nor change its length while the address is used."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


class Parts:
    """The memory of a batch's pages, held until release()."""

    def __init__(self, pages: Pointers | Sequence[Any], page_count: int, is_written: bool) -> None:
        self._kept: list[Any] = []
        self._capsules: list[Any] = []
        self._buffers: Any = None
        self._held = 0
        if isinstance(pages, Pointers):
            self._take_pointers(pages, page_count)
            return
        if len(pages) != page_count:
            raise wrong(f"pages: {len(pages)} for {page_count} keys; expected one for each")
        flat: list[Any] = []
        self.counts = []
        for page in pages:
            parts = page if isinstance(page, list) else (page,)
            flat.extend(parts)
            self.counts.append(len(parts))
        self._flags = _BUFFER_WRITABLE if is_written else _BUFFER_SIMPLE
        try:
            self._take_objects(flat)
        except BaseException:
            self.release()
            raise

    def _take_pointers(self, pages: Pointers, page_count: int) -> None:
        count = len(pages.addresses)
        if count != len(pages.lengths) or page_count == 0 or count % page_count != 0:
            raise wrong(f"pages: {count} addresses and {len(pages.lengths)} lengths for {page_count} keys; expected as many of both, "
                        "and equally many for each key")
        self.table = array.array("Q", bytes(16 * count))
        self.table[0::2] = array.array("Q", pages.addresses)
        self.table[1::2] = array.array("Q", pages.lengths)
        self.counts = [count // page_count] * page_count
        self._kept.append(pages)

    def _take_objects(self, objects: list[Any]) -> None:
        self._buffers = (_PyBuffer * max(len(objects), 1))()
        self._first = ctypes.addressof(self._buffers)
        self._kept = objects
        self.table = array.array("Q", bytes(16 * max(len(objects), 1)))
        for i, each in enumerate(objects):
            self.table[2 * i], self.table[2 * i + 1] = self._take(each)

    def _take(self, part: Any) -> tuple[int, int]:
        """Where a part is, and its bytes."""
        if isinstance(part, tuple):
            if len(part) != 2 or not all(isinstance(number, int) for number in part):
                raise wrong("pages: a tuple is one part (address, bytes); several parts of a page go in a list")
            return part
        if hasattr(part, "data_ptr"):
            if part.device.type != "cpu" or not part.is_contiguous():
                raise wrong(f"pages: a tensor has to be contiguous and in host memory; one is on {part.device}")
            return part.data_ptr(), part.numel() * part.element_size()
        at = self._first + self._held * ctypes.sizeof(_PyBuffer)
        try:
            _get_buffer(part, at, self._flags)
        except (BufferError, TypeError, ValueError) as trouble:
            if hasattr(part, "__dlpack__"):
                return self._take_dlpack(part)
            kind = "contiguous and writable" if self._flags else "contiguous"
            raise wrong(f"pages: expected buffers that are {kind}, (address, bytes), or lists of them: {trouble}") from None
        buffer = self._buffers[self._held]
        self._held += 1
        return buffer.buf or 0, buffer.len

    def _take_dlpack(self, part: Any) -> tuple[int, int]:
        array = by_dlpack(part, bool(self._flags))
        if not array.is_contiguous():
            raise wrong(f"pages: expected arrays that are contiguous; a {type(part).__name__} is not")
        self._capsules.append(array.kept)
        return array.address, array.item_bytes * math.prod(array.shape)

    def pack(self, keys: bytes, parents: bytes) -> bytearray:
        """An array of hc_page."""
        count = len(self.counts)
        packed = bytearray(_PAGE.size * max(count, 1))
        part = address_of(self.table)
        for i, parts in enumerate(self.counts):
            _PAGE.pack_into(packed, _PAGE.size * i, keys[32 * i:32 * i + 32], parents[32 * i:32 * i + 32], part, parts)
            part += 16 * parts
        return packed

    def release(self) -> None:
        """Gives the buffers back: the library does not use them any more."""
        for i in range(self._held):
            _release_buffer(self._first + i * ctypes.sizeof(_PyBuffer))
        self._held = 0
        self._kept = []
        self._capsules = []
