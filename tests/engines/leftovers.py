"""Shared memory that vLLM leaves behind when it is killed."""

import os
import pathlib

_MEMORY = pathlib.Path("/dev/shm")


class Leftovers:
    """What is there now is none."""

    def __init__(self):
        self._before = set(os.listdir(_MEMORY))

    def remove(self):
        for name in set(os.listdir(_MEMORY)) - self._before:
            if name.startswith(("vllm_offload_", "vllm_dist_", "psm_", "torch_", "sem.mp-")):
                (_MEMORY / name).unlink(missing_ok=True)
