"""vLLM's host tier for an engine without a GPU. vLLM's own refuses: its worker copies by CUDA. This one copies between the same blocks and the same
shared memory, with the processor; all else is vLLM's."""

import time

from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class CpuTieringSpec(TieringOffloadingSpec):
    def get_worker(self, kv_caches):
        if self._worker is None:
            region = SharedOffloadRegion(engine_id=self._engine_id, num_chunks=self.num_chunks, rank=self.config.parallel.rank,
                                         kv_bytes_per_chunk=self.kv_bytes_per_chunk, cpu_page_size=self.cpu_page_size_per_worker)
            self._worker = CpuWorker(kv_caches, self.blocks_per_chunk, region)
        return self._worker


class CpuWorker(OffloadingWorker):
    def __init__(self, kv_caches, blocks_per_chunk, region):
        self._kv, self._blocks_per_chunk, self._region = kv_caches, blocks_per_chunk, region
        self._host = [region.create_next_worker_view(tensor.page_size_bytes * blocks_per_chunk) for tensor in kv_caches.tensors]
        self._done = []

    def submit_store(self, job_id, src_spec, dst_spec):
        return self._copy(job_id, src_spec, dst_spec, is_load=False)

    def submit_load(self, job_id, src_spec, dst_spec):
        return self._copy(job_id, dst_spec, src_spec, is_load=True)

    def _copy(self, job, spec, host, is_load):
        began_at, copied, block, chunk = time.monotonic(), 0, 0, -1
        for group, (count, first) in enumerate(zip(spec.group_sizes, spec.block_indices, strict=True)):
            for i in range(count):
                slot = (first + i) % self._blocks_per_chunk
                chunk += i == 0 or slot == 0
                for ref in self._kv.group_data_refs[group]:
                    tensor = self._kv.tensors[ref.tensor_idx]
                    engines = tensor.tensor[int(spec.block_ids[block])][:ref.page_size_bytes]
                    start = slot * tensor.page_size_bytes
                    hosts = self._host[ref.tensor_idx][int(host.chunk_ids[chunk])][start:start + ref.page_size_bytes]
                    engines.copy_(hosts) if is_load else hosts.copy_(engines)
                    copied += ref.page_size_bytes
                block += 1
        self._done.append(TransferResult(job, True, copied, time.monotonic() - began_at))
        return True

    def get_finished(self):
        done, self._done = self._done, []
        return done

    def wait(self, job_ids):
        pass

    def shutdown(self):
        self._host.clear()
        self._region.cleanup()
