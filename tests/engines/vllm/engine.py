"""engine.py OPTIONS

A vLLM engine that does what it is told: a JSON object on each line of the standard input, answered by one on the standard output.
OPTIONS is a JSON object: what `vllm.LLM` takes, "transfer" for its KVTransferConfig, "events" for its KVEventsConfig, and "together" for a scheduler and
a worker in one process.
"""

import ctypes
import json
import os
import signal
import sys
import time

import numpy


def spoil(how, process=0):
    """Does something to the last page that the next load reads, just before it is read."""
    from hicache.vllm import Worker, _name
    begin = Worker._begin

    def spoiled(self, job, group, keys, addresses):
        if job.is_load:
            Worker._begin = begin
            names = self._store.names([_name(keys[-1], self._rank)])
            if how == "kill":
                os.kill(process, signal.SIGKILL)
            elif how == "damage":
                with self._store.pin(names, in_place=True) as lease:
                    ctypes.memset(numpy.frombuffer(lease[0], dtype="uint8").ctypes.data, 7, 100)
            else:
                self._store.remove(names).check()
            if how == "replace":
                self._store.put(names, [os.urandom(self.page_bytes[group])]).check()
        begin(self, job, group, keys, addresses)

    Worker._begin = spoiled
    return how


def change_weights(worker, factor):
    """As a training would, in the memory of a worker."""
    worker.model_runner.get_model().model.layers[1].input_layernorm.weight.data.mul_(factor)


class Times:
    """How long the engine's connector takes, of an engine in one process."""

    def __init__(self, llm):
        from vllm.distributed.kv_transfer import get_kv_transfer_group
        scheduler = llm.llm_engine.engine_core.engine_core.scheduler
        self._seconds = {"scheduler": [], "worker": []}
        for side, of, methods in (("scheduler", scheduler.connector, ("on_new_request", "get_num_new_matched_tokens", "update_state_after_alloc",
                                                                      "build_connector_meta", "update_connector_output", "take_events",
                                                                      "request_finished_all_groups", "has_pending_push_work")),
                                  ("worker", get_kv_transfer_group(), ("handle_preemptions", "start_load_kv", "wait_for_save", "get_transfer_results",
                                                                       "get_block_ids_with_load_errors", "build_connector_worker_meta"))):
            for method in (each for each in methods if hasattr(of, each)):
                setattr(of, method, self._timed(self._seconds[side], getattr(of, method)))
        self._steps = 0
        schedule = scheduler.schedule

        def counted(*more, **named):
            self._steps += 1
            return schedule(*more, **named)

        scheduler.schedule = counted

    @staticmethod
    def _timed(seconds, method):
        def timed(*more, **named):
            began_at = time.perf_counter()
            try:
                return method(*more, **named)
            finally:
                seconds.append(time.perf_counter() - began_at)

        return timed

    def take(self):
        """Since it was asked last."""
        taken = {"steps": self._steps, **{side: sum(seconds) for side, seconds in self._seconds.items()}}
        self._steps = 0
        for seconds in self._seconds.values():
            seconds.clear()
        return taken


def main(options):
    # What the engine prints must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    together = options.pop("together", False)
    os.environ.update(VLLM_CPU_KVCACHE_SPACE="1", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1", VLLM_LOGGING_LEVEL="INFO",
                      VLLM_ENABLE_V1_MULTIPROCESSING="0" if together else "1")
    if options.get("tensor_parallel_size", 1) == 2:
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "0|1"
        options["distributed_executor_backend"] = "mp"
    from vllm import LLM, SamplingParams
    from vllm.config import KVEventsConfig, KVTransferConfig
    from vllm.lora.request import LoRARequest
    if options.get("transfer", {}).get("kv_connector") == "LMCacheMPConnector":
        # LMCache loads numba, and vLLM, which looks into all objects of all modules for its kernels, takes numba's library for one with a dictionary.
        from llvmlite.binding import ffi
        ffi._lib_fn_wrapper.get = lambda self, name: None
    for name, kind, key in (("transfer", KVTransferConfig, "kv_transfer_config"), ("events", KVEventsConfig, "kv_events_config")):
        if name in options:
            options[key] = kind(**options.pop(name))
    llm = LLM(enforce_eager=True, max_model_len=options.pop("max_model_len", 4096), dtype=options.pop("dtype", "float32"), block_size=32, enable_prefix_caching=True, max_num_seqs=4, **options)

    def generate(prompts, tokens=12, adapter=None):
        lora = None if adapter is None else LoRARequest(*adapter)
        how = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, logprobs=0)
        began_at = time.perf_counter()
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], how, use_tqdm=False, lora_request=lora)
        return [{"tokens": list(output.outputs[0].token_ids), "cached": output.num_cached_tokens, "reason": output.outputs[0].finish_reason,
                 "seconds": time.perf_counter() - began_at,
                 "logprobs": [next(iter(step.values())).logprob for step in output.outputs[0].logprobs or []]} for output in outputs]

    def change(factor):
        llm.collective_rpc(change_weights, args=(factor,))

    def load_adapter(adapter):
        return llm.llm_engine.engine_core.add_lora(LoRARequest(*adapter, load_inplace=True))

    def reset(connector=False):
        return llm.reset_prefix_cache(reset_connector=connector)

    def drafted():
        """Tokens that a draft model has proposed so far, and those of them that were right."""
        counted = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
        return [counted[f"vllm:spec_decode_num_{what}_tokens"] for what in ("draft", "accepted")]

    timed = []

    def times():
        if not timed:
            timed.append(Times(llm))
        return timed[0].take()

    calls = {"generate": generate, "reset": reset, "change": change, "load_adapter": load_adapter, "drafted": drafted, "spoil": spoil, "times": times}
    print(json.dumps({"is": "up"}), file=answers)
    for line in sys.stdin:
        what = json.loads(line)
        print(json.dumps(calls[what.pop("do")](**what)), file=answers)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
