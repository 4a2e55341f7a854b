"""AIBrix's class for SGLang on a machine without CUDA, which its pinned memory needs."""

import torch

_empty = torch.empty
torch.empty = lambda *args, **settings: _empty(*args, **{**settings, "pin_memory": False})

from sglang.srt.mem_cache.storage.aibrix_kvcache.aibrix_kvcache_storage import AibrixKVCacheStorage  # noqa: E402, F401
