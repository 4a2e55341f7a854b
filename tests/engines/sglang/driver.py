"""A real engine in a process of its own: SGLang leaks and cannot be started twice in one.

Arguments: those of `sglang.Engine` as JSON, and a descriptor for answers. Each line of the input is a request as JSON, each line on the
descriptor its answer.
"""

import json
import os
import sys
import time


def _generate(engine, prompts, tokens, adapter=None):
    start = time.monotonic()
    more = {"lora_path": [adapter] * len(prompts)} if adapter else {}
    outputs = engine.generate(input_ids=prompts, sampling_params={"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}, **more)
    seconds = time.monotonic() - start
    return [{"seconds": seconds, "tokens": output["output_ids"], "cached": output["meta_info"]["cached_tokens"],
             "finish": output["meta_info"]["finish_reason"]["type"], **(output["meta_info"].get("cached_tokens_details") or {})}
            for output in outputs]


def _flush(engine):
    """Drops what the engine has on the device and in its host tier, as soon as nothing is under way there."""
    end = time.monotonic() + 60
    while not engine.flush_cache().success:
        if time.monotonic() > end:
            raise TimeoutError("the cache was never idle")
        time.sleep(0.05)


def main():
    arguments, answers = json.loads(sys.argv[1]), os.fdopen(int(sys.argv[2]), "w")
    import sglang

    engine = sglang.Engine(**arguments)
    print(json.dumps("up"), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "generate" in request:
                answer = _generate(engine, **request["generate"])
            else:
                answer = engine.update_weights_from_disk(request["update"])[0] if "update" in request else _flush(engine)
        except Exception as trouble:  # The test decides whether it was to be expected.
            answer = {"trouble": f"{type(trouble).__name__}: {trouble}"}
        print(json.dumps(answer), file=answers, flush=True)
    engine.shutdown()


if __name__ == "__main__":
    main()
