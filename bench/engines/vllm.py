"""vllm.py [--prompts N] [--tokens N]

Time to first token of a freshly started vLLM engine for prompts that another engine has computed: with hicache as the host tier, with hicache behind vLLM's
host tier, with vLLM's file tier there, with LMCache's server, and without any; and the time that each adds to a step of the scheduler. Real engines on the CPU, with the
tiny model of tests/engines; run it in the environment and with the variables of tests/engines/run.sh. Prints one line per figure.
"""

import argparse
import pathlib
import statistics
import sys
import tempfile

ENGINES = pathlib.Path(__file__).resolve().parents[2] / "tests/engines"
sys.path[:0] = [str(ENGINES / "vllm"), str(ENGINES / "lmcache")]

import hicache  # noqa: E402
from conftest import CHUNK, Engine, transfer  # noqa: E402
from processes import lmcache_server  # noqa: E402


def behind_the_host_tier(tier):
    return {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"spec_name": "CpuTieringSpec", "spec_module_path": "cpu_tiering", "cpu_bytes_to_use": 256 << 20,
                                          "block_size": CHUNK, "secondary_tiers": [tier]}}


def at_lmcache(port):
    return {"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both",
            "kv_connector_extra_config": {"lmcache.mp.host": "tcp://localhost", "lmcache.mp.port": port}}


def measure(folder, prompts, configuration):
    """@returns of a second engine: seconds to the first token of each prompt, number of cached tokens, and its connector's times"""
    options = {"together": True, **({"transfer": configuration} if configuration else {})}
    if configuration:
        with Engine(folder / "log", **options) as engine:
            engine.generate(prompts, tokens=1)
            # More steps, so that everything is stored.
            engine.generate([[0] * 5], tokens=20)
    with Engine(folder / "log", **options) as engine:
        # Warm-up: compiles both kinds of prefill.
        strange = [[(i * 11 + 5) % 250 for i in range(length)] for length in (len(prompts[0]), 64 + 40)]
        for prompt in strange:
            engine.generate([prompt], tokens=2)
            engine.do("reset")
            engine.generate([prompt], tokens=2)
        if configuration:
            engine.do("times")
        outputs = engine.generate(prompts, tokens=1)
        loading = engine.do("times") if configuration else None
        engine.generate([[0] * 7], tokens=200)
        times = engine.do("times") if configuration else None
    return [output["seconds"] for output in outputs], sum(output["cached"] for output in outputs), loading, times


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=3500, help="of each prompt (3500)")
    chosen = parser.parse_args()
    prompts = [[(i * 7 + k * 13) % 250 for i in range(chosen.tokens)] for k in range(chosen.prompts)]
    seconds = {}
    with hicache.node("512MiB") as node, tempfile.TemporaryDirectory() as name, lmcache_server(pathlib.Path(name)) as port:
        folder = pathlib.Path(name)
        for what, configuration in {
                "nothing": None,
                "vLLM's file tier": behind_the_host_tier({"type": "fs", "root_dir": str(folder / "files")}),
                "LMCache": at_lmcache(port),
                "HicacheTier": behind_the_host_tier({"type": "HicacheTier", "module_path": "hicache.vllm_tier", "socket": node.socket}),
                "HicacheConnector": transfer(node)}.items():
            each, cached, loading, times = measure(folder, prompts, configuration)
            seconds[what] = statistics.median(each)
            line = f"{what}: first token after {seconds[what] * 1e3:.1f} ms (median of {len(each)}; {cached} tokens cached)"
            for than in ("nothing", "vLLM's file tier", "LMCache"):
                if than in seconds and than != what:
                    line += f", {seconds[what] / seconds[than]:.2f} of {than}"
            if times:
                line += "".join(f"; its {side} {1e6 * times[side] / times['steps']:.0f} us a step while decoding, "
                                f"{1e6 * loading[side] / len(prompts):.0f} us a prompt that is loaded" for side in ("scheduler", "worker"))
            print(line, flush=True)


if __name__ == "__main__":
    main()
