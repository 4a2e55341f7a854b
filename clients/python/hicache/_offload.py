"""An engine's blocks, copied between its memory and the node."""

from __future__ import annotations

import array
import contextlib
import ctypes
import math
import os
import struct
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from hicache import _abi
from hicache._buffers import Strided, address_of, by_dlpack, get_buffer, release_buffer, wrong
from hicache._calls import Call, Lease, Result
from hicache._errors import Code, Error, error_of
from hicache._store import SLICE_MS, KeyLike, Store, Timeout, put_off

_PAGE = struct.Struct("=32s32sQ16x")

# The blocks of a page; None or -1 for one that is not wanted.
Blocks = Sequence[int | None]


class Tensor(NamedTuple):
    """Blocks in raw memory. Who gives it keeps the memory alive until the Offload is closed."""

    #: Of block 0.
    address: int
    blocks: int
    #: Bytes from one block to the next.
    stride: int
    block_bytes: int
    #: The number of a CUDA device; None for host memory.
    device: int | None = None


class LoadCall(Call):
    """A Call that loads blocks, layer by layer."""

    def __init__(self, store: Store, codes: Any, offload: Offload) -> None:
        super().__init__(store, codes, None)
        self._offload = offload

    def wait_layer(self, layer: int, timeout: Timeout = ...) -> None:
        """Waits until a layer of all pages is in its blocks.

        @raises NotFound a page failed, so the layer will never be there for all: result() says more, and raises nothing by itself
        @raises DeadlineExceeded it takes longer
        """
        self._offload._wait_layer(self, layer, timeout)

    def stream_wait(self, layer: int, stream: int, timeout: Timeout = ...) -> None:
        """Has a CUDA stream wait, on the device, until a layer of all pages is in its blocks. The caller waits until the copies are queued.

        @param stream A cudaStream_t, such as torch.cuda.current_stream().cuda_stream.
        @raises as wait_layer()
        """
        self._offload._wait_layer(self, layer, timeout, stream)


class Offload:
    """The blocks of an engine that keeps its own block table. Any thread, as for a Store.

    A page is the bytes of so many blocks: layer by layer, tensor by tensor, block by block. What makes these differ has to be in the namespace of
    the store.
    """

    def __init__(self, store: Store, layers: Sequence[Any], blocks_per_page: int = 1) -> None:
        """@param layers For each layer its tensors, or the one that it has. A tensor is an array, or tensor, whose first dimension is the blocks and
        whose blocks are contiguous, in host memory and writable; or a Tensor. Its memory is used until close(). All tensors may be in the memory of one
        CUDA device instead, if the library was built with CUDA.
        """
        self._handle: Any = None
        self._store = store
        self._library = store._library
        self._process = os.getpid()
        self._users = 0
        self._is_closed = False
        self._held: list[Any] = []
        self._kept: list[Any] = []
        self.blocks_per_page = blocks_per_page
        self.layers = len(layers)
        try:
            tensors = [(layer, self._take(each)) for layer, of in enumerate(layers)
                       for each in (of if isinstance(of, (list, tuple)) and not isinstance(of, Tensor) else (of,))]
            devices = {tensor.device for _, tensor in tensors}
            if len(devices) > 1:
                raise wrong("layers: expected all tensors in host memory, or on one device")
            device = next(iter(devices), None)
            packed = (_abi.Tensor * max(len(tensors), 1))(*[_abi.Tensor(*tensor[:4], layer) for layer, tensor in tensors])
            how = _abi.Layout(ctypes.sizeof(_abi.Layout), _abi.HOST if device is None else device, blocks_per_page, ctypes.addressof(packed), len(tensors))
            handle, error = ctypes.c_void_p(), _abi.Error()
            with store._using as client:
                self._library.raise_for(self._library.hc_offload_open(client, how, handle, error), error)
        except BaseException:
            self._release()
            raise
        self._handle = handle.value
        #: How long each page is.
        self.page_bytes: int = self._library.hc_offload_page_bytes(self._handle)

    # Batches.

    def store(self, keys: Sequence[KeyLike], blocks: Sequence[Blocks], *, chain: bool = False, parent: KeyLike | None = None,
              event: int | None = None, timeout: Timeout = ...) -> Result:
        """Stores blocks as pages: see start_store()."""
        return self.start_store(keys, blocks, chain=chain, parent=parent, event=event, timeout=timeout).result()

    def load(self, keys: Sequence[KeyLike], blocks: Sequence[Blocks], *, lease: Lease | None = None, timeout: Timeout = ...) -> Result:
        """Loads pages into blocks: see start_load()."""
        return self.start_load(keys, blocks, lease=lease, timeout=timeout).result()

    def start_store(self, keys: Sequence[KeyLike], blocks: Sequence[Blocks], *, chain: bool = False, parent: KeyLike | None = None,
                    event: int | None = None, timeout: Timeout = ...) -> Call:
        """Stores blocks as pages. What is there already is not written again. The blocks must not change until the call is done.

        @param blocks For each key the numbers of its blocks.
        @param chain, parent As for Store.put().
        @param event For blocks of a CUDA device: a cudaEvent_t that was recorded, after which they are complete. The copies wait for it.
        """
        packed = self._store.names(keys).packed
        call = Call(self._store, (ctypes.c_int32 * (len(packed) // 32))(), None)
        call._offload = self

        def begin(_client: int, items: int, count: int, how: Any, ticket: Any, error: Any) -> int:
            return self._library.hc_offload_store(self._handle, items, count, how, event, ticket, error)

        return self._start(begin, packed, self._store._parents(packed, chain, parent), blocks, call, timeout, None)

    def start_load(self, keys: Sequence[KeyLike], blocks: Sequence[Blocks], *, lease: Lease | None = None, timeout: Timeout = ...) -> LoadCall:
        """Loads pages into blocks: first all bytes of all pages are verified, then they are copied layer by layer. The blocks of a page that is not
        fine stay as they are.

        @param blocks For each key the numbers of its blocks; None or -1 for those that are not wanted.
        @param lease Load these pages and no others, without asking the node.
        """
        packed = self._store.names(keys).packed
        call = LoadCall(self._store, (ctypes.c_int32 * (len(packed) // 32))(), self)

        def begin(_client: int, items: int, count: int, how: Any, ticket: Any, error: Any) -> int:
            return self._library.hc_offload_load(self._handle, items, count, how, ticket, error)

        return self._start(begin, packed, bytes(len(packed)), blocks, call, timeout, lease)

    # Others.

    def close(self) -> None:
        """Waits for open calls. When this returns, the memory of the blocks is not used any more."""
        if self._handle is None or os.getpid() != self._process:
            return
        with self._store._changed:
            was_closed, self._is_closed = self._is_closed, True
            while self._users:
                self._store._changed.wait()
        if not was_closed:
            with contextlib.suppress(Error), self._store._using:  # With the store, it was closed too.
                self._library.hc_offload_close(self._handle)
            self._release()

    def __enter__(self) -> Offload:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is None or self._is_closed or os.getpid() != self._process:
            return
        put_off(self.close)

    def __reduce__(self):
        raise TypeError("an Offload cannot be pickled: its memory is of this process")

    # What follows is its own, and that of its calls.

    @contextlib.contextmanager
    def _using(self) -> Iterator[None]:
        """It is not closed meanwhile."""
        with self._store._changed:
            if self._is_closed:
                raise error_of(Code.STOPPING, "the offload is closed")
            self._users += 1
        try:
            yield
        finally:
            with self._store._changed:
                self._users -= 1
                self._store._changed.notify_all()

    def _start(self, begin: Any, packed: bytes, parents: bytes, blocks: Sequence[Blocks], call: Any, timeout: Timeout, lease: Lease | None) -> Any:
        pin = self._store._pin_of(lease)
        count = len(packed) // 32
        numbers = self._numbers(blocks, count)
        items = bytearray(_PAGE.size * max(count, 1))
        at, step = address_of(numbers), numbers.itemsize * self.blocks_per_page
        for i in range(count):
            _PAGE.pack_into(items, _PAGE.size * i, packed[32 * i:32 * i + 32], parents[32 * i:32 * i + 32], at + step * i)
        # The library copies all of it before it returns.
        with self._using():
            return self._store._start(begin, items, count, call, timeout, 0, pin.handle if pin else None)

    def _numbers(self, blocks: Sequence[Blocks], count: int) -> array.array:
        if len(blocks) != count:
            raise wrong(f"blocks: those of {len(blocks)} pages for {count} keys; expected them for each")
        numbers = array.array("I")
        for page in blocks:
            if len(page) != self.blocks_per_page:
                raise wrong(f"blocks: {len(page)} of a page; expected {self.blocks_per_page}, with None for those that are not wanted")
            try:
                numbers.extend([_abi.NO_BLOCK if number is None or number == -1 else number for number in page])
            except (OverflowError, TypeError):
                raise wrong(f"blocks: {list(page)}; expected numbers of blocks, or None") from None
        return numbers if count else array.array("I", [0])

    def _wait_layer(self, call: LoadCall, layer: int, timeout: Timeout, stream: int | None = None) -> None:
        """Until it is there, or queued for a stream, or the call is done."""
        if not 0 <= layer < self.layers:
            raise wrong(f"layer: {layer}; expected 0 to {self.layers - 1}")
        end = time.monotonic() + self._store._milliseconds(timeout) / 1000
        while not call.done:
            left_ms, error = max(math.ceil((end - time.monotonic()) * 1000), 0), _abi.Error()
            slice_ms = min(left_ms, SLICE_MS)
            with self._using(), self._store._using:
                if stream is None:
                    code = self._library.hc_offload_wait_layer(self._handle, call._ticket, layer, slice_ms)
                else:
                    code = self._library.hc_offload_stream_wait(self._handle, call._ticket, layer, stream, slice_ms, error)
            if code == Code.OK:
                return
            if code == Code.UNKNOWN_ID:  # Somebody has just taken the completion.
                self._store._wait(call)
            elif code != Code.DEADLINE_EXCEEDED or left_ms == 0:
                self._library.raise_for(code, error)
        call.result().check()

    def _take(self, tensor: Any) -> Tensor:
        """Where the blocks of a tensor are."""
        if isinstance(tensor, Tensor):
            return tensor
        strided = self._strided(tensor)
        if not strided.shape or not strided.is_contiguous(1):
            raise wrong(f"layers: a {type(tensor).__name__} has to have the blocks as its first dimension, each of them contiguous")
        blocks, block_bytes = strided.shape[0], strided.item_bytes * math.prod(strided.shape[1:])
        # The only block of a tensor may have any stride.
        return Tensor(strided.address, blocks, strided.strides[0] if blocks > 1 else block_bytes, block_bytes, strided.device)

    def _strided(self, tensor: Any) -> Strided:
        self._kept.append(tensor)
        if hasattr(tensor, "data_ptr"):
            if tensor.device.type not in ("cpu", "cuda"):
                raise wrong(f"layers: a tensor has to be in host memory, or on a CUDA device; one is on {tensor.device}")
            item, device = tensor.element_size(), tensor.device.index if tensor.device.type == "cuda" else None
            return Strided(tensor.data_ptr(), tuple(tensor.shape), tuple(item * stride for stride in tensor.stride()), item, None, device)
        try:
            with memoryview(tensor) as view:
                shape, strides, item = view.shape, view.strides, view.itemsize
            self._held.append(get_buffer(tensor))
            return Strided(self._held[-1].buf or 0, shape, strides, item, None)
        except (BufferError, TypeError, ValueError) as trouble:
            if not hasattr(tensor, "__dlpack__"):
                raise wrong(f"layers: expected arrays that can be written, tensors, or hicache.Tensor: {trouble}") from None
        made = by_dlpack(tensor, True, is_host=False)
        self._kept.append(made.kept)
        return made

    def _release(self) -> None:
        for buffer in self._held:
            release_buffer(buffer)
        self._held, self._kept = [], []
