"""For tests: SGLang's hierarchical cache and its linkers on a machine without a GPU.

SGLang loads this into each of its processes, by its own entry point for plug-ins (`sglang.srt.plugins`). It supplies what exists for a GPU alone:
streams and events that HiCache names, host memory that is registered with the device, and the copies between the two pools.
"""

from __future__ import annotations

import contextlib
import functools

import torch


class _Event:
    """What is asked of the CPU is done when the call returns, so every event has happened."""

    def __init__(self, *_, **__):
        pass

    def record(self, *_):
        pass

    wait = synchronize = record

    def query(self):
        return True

    def elapsed_time(self, _):
        return 0.0


class _Stream(contextlib.nullcontext):
    device = torch.device("cpu")

    def __init__(self, *_, **__):
        super().__init__(self)

    def synchronize(self, *_):
        pass

    wait_stream = wait_event = synchronize

    def record_event(self, event=None):
        return event or _Event()

    def query(self):
        return True


def _by_rows(src_layers, dst_layers, src_indices, dst_indices, page_size):
    """Between pools that both have the layers outermost."""
    for source, target in zip(src_layers, dst_layers, strict=True):
        target[dst_indices] = source[src_indices]


def _pages(indices, page_size):
    return indices.view(-1, page_size)[:, 0] // page_size


def _to_pages(src_ptrs, dst_ptrs, src_indices, dst_indices, page_size):
    """From the device's pool, whose layers are outermost, to one with pages outermost: K of all layers, then V of all."""
    layers = len(src_ptrs) // len(dst_ptrs)
    pages = _pages(dst_indices, page_size)
    for i, source in enumerate(src_ptrs):
        rows = source[src_indices]
        dst_ptrs[i // layers][pages, i % layers] = rows.view(len(pages), page_size, *rows.shape[1:])


def _from_pages(src_ptrs, dst_ptrs, src_indices, dst_indices, layer_id, page_size):
    """The way back, for one layer."""
    pages = _pages(src_indices, page_size)
    for source, target in zip(src_ptrs, dst_ptrs, strict=True):
        target[dst_indices] = source[pages, layer_id].flatten(0, 1)


def _unpinned(make, *what, pin_memory=False, **how):
    return make(*what, **how)


def activate():
    for name in ("tensor", "zeros", "empty"):
        setattr(torch, name, functools.partial(_unpinned, getattr(torch, name)))
    torch.Tensor.pin_memory = lambda tensor, *_: tensor
    torch.cpu.Event, torch.cpu.Stream = _Event, _Stream
    torch.cpu.stream = lambda stream: stream or _Stream()
    torch.cpu.current_stream = lambda *_, **__: _Stream()
    from sglang.srt.mem_cache.pool_host import base, common, mha

    common._cuda_host_register = lambda *_: None
    common._cuda_host_unregister = base._cuda_host_unregister = lambda *_: None
    mha.transfer_kv_direct = _by_rows
    mha.transfer_kv_all_layer_direct_lf_pf = _to_pages
    mha.transfer_kv_per_layer_direct_pf_lf = _from_pages
    # Whatever a pool is told.
    base.HostKVCache.pin_memory = property(lambda _: False, lambda *_: None)
