"""sglang_prompts.py MODEL SOCKET REPORT

An engine of SGLang that serves some prompts and keeps their KV in the node at SOCKET, where the next engine finds it. On a machine without
a GPU it needs the settings below, and tests/engines/sglang/cpu_shim on PYTHONPATH.
"""

import sys

from prompts import serve

if len(sys.argv) != 4:
    sys.exit(__doc__)
model, socket, report = sys.argv[1:]
ON_CPU = {"device": "cpu", "attention_backend": "torch_native", "mem_fraction_static": 0.3, "max_total_tokens": 8192, "disable_overlap_schedule": True}


def main():
    import sglang

    linker = {"linker": "HicacheLinker", "linker_module_path": "hicache.sglang_linker", "linker_extra_config": {"socket": socket}}
    engine = sglang.Engine(model_path=model, dtype="bfloat16", page_size=32, enable_unified_cache_external_linker=True,
                           unified_cache_external_linker_backend="dynamic", unified_cache_external_linker_config=linker, **ON_CPU)

    def generate(prompt, tokens):
        output = engine.generate(input_ids=prompt, sampling_params={"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True})
        return output["output_ids"], output["meta_info"]["cached_tokens"]

    serve(generate, report)
    engine.shutdown()


# SGLang starts processes that import this file.
if __name__ == "__main__":
    main()
