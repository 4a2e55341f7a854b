"""vllm_prompts.py MODEL SOCKET REPORT

An engine of vLLM that serves some prompts and keeps their KV in the node at SOCKET, where the next engine finds it.
"""

import os
import sys

from prompts import serve

if len(sys.argv) != 4:
    sys.exit(__doc__)
model, socket, report = sys.argv[1:]
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

from vllm import LLM, SamplingParams  # noqa: E402
from vllm.config import KVTransferConfig  # noqa: E402


def main():
    transfer = KVTransferConfig(kv_connector="HicacheConnector", kv_connector_module_path="hicache.vllm", kv_role="kv_both",
                                kv_load_failure_policy="recompute", kv_connector_extra_config={"socket": socket, "block_size": 64})
    engine = LLM(model, kv_transfer_config=transfer, block_size=32, max_model_len=4096, dtype="bfloat16", enforce_eager=True)

    def generate(prompt, tokens):
        how = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        [output] = engine.generate([{"prompt_token_ids": prompt}], how, use_tqdm=False)
        return list(output.outputs[0].token_ids), output.num_cached_tokens

    serve(generate, report)


# vLLM starts processes that import this file.
if __name__ == "__main__":
    main()
