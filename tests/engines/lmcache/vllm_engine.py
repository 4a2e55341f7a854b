"""vllm_engine.py RANKS [PORT]

vLLM on so many ranks, with a `lmcache server` at that port, or without any. Each line of standard input is one round: the prompts are generated for, and a line of JSON
tells the tokens and how many of each prompt's tokens were not computed. vLLM's own prefix cache is empty in each round.
"""

import json
import os
import sys

os.environ.update(VLLM_CPU_KVCACHE_SPACE="1", HF_HUB_OFFLINE="1", VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL="WARNING",
                  VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1", LMCACHE_TRACK_USAGE="false")

from vllm import LLM, SamplingParams  # noqa: E402
from vllm.config import KVTransferConfig  # noqa: E402

PROMPTS = [[(i * 7 + k * 13) % 250 for i in range(length)] for k, length in enumerate((1000, 1500, 333, 2000))]


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # What libraries print is no answer.
    options = {}
    if sys.argv[1] != "1":
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "0|1"
        options.update(tensor_parallel_size=int(sys.argv[1]), distributed_executor_backend="mp")
    if len(sys.argv) > 2:
        # LMCache loads numba, and vLLM, which looks into all objects of all modules for its kernels, takes numba's library for one with a dictionary.
        from llvmlite.binding import ffi
        ffi._lib_fn_wrapper.get = lambda self, name: None
        options["kv_transfer_config"] = KVTransferConfig(
            kv_connector="LMCacheMPConnector", kv_role="kv_both",
            kv_connector_extra_config={"lmcache.mp.host": "tcp://localhost", "lmcache.mp.port": int(sys.argv[2])})
    engine = LLM(model=os.environ["HICACHE_ENGINE_MODEL"], enforce_eager=True, max_model_len=4096, dtype="bfloat16", block_size=32,
                 enable_prefix_caching=True, max_num_seqs=4, **options)
    print(json.dumps("ready"), file=answers, flush=True)
    for _ in sys.stdin:
        engine.reset_prefix_cache()
        tokens, cached = [], []
        for prompt in PROMPTS:
            [made] = engine.generate([{"prompt_token_ids": prompt}], SamplingParams(temperature=0, max_tokens=12, ignore_eos=True), use_tqdm=False)
            tokens.append(list(made.outputs[0].token_ids))
            cached.append(made.num_cached_tokens)
        print(json.dumps({"tokens": tokens, "cached": cached}), file=answers, flush=True)


if __name__ == "__main__":
    main()
