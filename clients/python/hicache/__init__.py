"""hicache: pages of bytes in the memory of this host's hicache-node, for processes that come and go.

    import hicache

    with hicache.node() as node, hicache.Store(node.socket, "my-model/bf16") as store:
        store.put(["a", "b"], [b"1" * 4096, b"2" * 4096]).check()
        page = bytearray(4096)
        store.get(["b"], [page]).check()
"""

from hicache import ops
from hicache._buffers import Pointers
from hicache._cache import Cache
from hicache._calls import Call, Key, Keys, Lease, Result
from hicache._errors import Code, DeadlineExceeded, Error, InvalidArgument, NotFound, Unreachable
from hicache._node import Node, node
from hicache._offload import LoadCall, Offload, Tensor
from hicache._store import Store

__all__ = ["Cache", "Call", "Code", "DeadlineExceeded", "Error", "InvalidArgument", "Key", "Keys", "Lease", "LoadCall", "Node", "NotFound", "Offload",
           "Pointers", "Result", "Store", "Tensor", "Unreachable", "node", "ops"]
