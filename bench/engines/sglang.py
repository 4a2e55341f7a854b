#!/usr/bin/env python3
"""bench/engines/sglang.py [--prompts N] [--tokens N]

Time to first token of a cold engine for prompts that another engine on the same host has computed: SGLang without a cache, with its
own `file` storage, with a Mooncake store over TCP, and with hicache as storage and as linker. Real engines with a tiny model on the CPU,
so the ratios compare data paths rather than models. Runs in the Python of SGLang's environment, with the variables set by
tests/engines/run.sh: HICACHE_ENGINE_MODEL, HICACHE_LIBRARY, HICACHE_BIN, PYTHONPATH.
"""

import argparse
import contextlib
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/engines/sglang"))

import hicache  # noqa: E402
from engines import Engine, until  # noqa: E402

TIERS = {"enable_hierarchical_cache": True, "hicache_ratio": 2.0, "hicache_size": 0, "hicache_write_policy": "write_through",
         "hicache_io_backend": "direct", "hicache_mem_layout": "page_first_direct", "hicache_storage_prefetch_policy": "wait_complete"}


def free_ports(count):
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextlib.contextmanager
def mooncake(folder):
    """Runs Mooncake's master and a client that provides memory as a node does. Yields the configuration of an engine that provides none."""
    programs = pathlib.Path(sys.executable).parent
    rpc, metadata, metrics, port, http = free_ports(5)
    place = {"master_server_address": f"127.0.0.1:{rpc}", "metadata_server": f"http://127.0.0.1:{metadata}/metadata", "protocol": "tcp"}
    master = [programs / "mooncake_master", "--rpc_address=127.0.0.1", f"--rpc_port={rpc}", "--enable_http_metadata_server=true",
              "--http_metadata_server_host=127.0.0.1", f"--http_metadata_server_port={metadata}", f"--metrics_port={metrics}"]
    client = [programs / "mooncake_client", "--host=127.0.0.1", f"--port={port}", "--global_segment_size=256 MB", "--enable_http_server=true",
              f"--http_port={http}", *(f"--{name}={value}" for name, value in place.items())]
    with contextlib.ExitStack() as running, open(folder / "mooncake", "w") as log:
        for command, listens in ((master, metadata), (client, http)):
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
            running.callback(process.wait)
            running.callback(os.killpg, process.pid, signal.SIGKILL)
            until(lambda at=listens: answers(at), f"{command[0].name}, which writes to {log.name},")
        yield {**place, "local_hostname": "127.0.0.1", "global_segment_size": 0, "master_metrics_port": metrics}


def answers(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def kinds(socket, mooncake_store):
    ours = {"backend_name": "hicache", "module_path": "hicache.sglang", "class_name": "HicacheStorage", "interface_v1": 1,
            "hicache_storage_pass_prefix_keys": True, "socket": socket}
    linker = {"linker": "HicacheLinker", "linker_module_path": "hicache.sglang_linker", "linker_extra_config": {"socket": socket}}
    return {
        "computed": {"disable_radix_cache": True},
        "file": {**TIERS, "hicache_storage_backend": "file"},
        "mooncake": {**TIERS, "hicache_storage_backend": "mooncake", "hicache_storage_backend_extra_config": json.dumps(mooncake_store)},
        "hicache storage": {**TIERS, "hicache_storage_backend": "dynamic", "hicache_storage_backend_extra_config": json.dumps(ours)},
        "hicache linker": {"enable_unified_cache_external_linker": True, "unified_cache_external_linker_backend": "dynamic",
                           "unified_cache_external_linker_config": linker},
    }


def fill(settings, prompts, folder):
    """Runs an engine that computes and stores the prompts."""
    with Engine(folder / "filling", environment(folder), **settings) as engine:
        engine.generate(prompts, tokens=1)
        engine.flush()
        # There is no notification when the last page has been written.
        time.sleep(5)


def environment(folder):
    return {"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": str(folder)}


def measure(all_settings, prompts, folder):
    """@returns for each kind the median time to first token in a cold engine, in seconds, and the number of cached tokens"""
    with contextlib.ExitStack() as running:
        # Idle engines use no CPU, so all can run at once and be measured in turn under similar conditions.
        engines = {kind: running.enter_context(Engine(folder / kind, environment(folder), sleep_on_idle=True, **settings))
                   for kind, settings in all_settings.items()}
        for engine in engines.values():
            # Excludes one-time initialisation.
            engine.generate([[251] * len(prompts[0]), [252] * 300], tokens=1)
        seconds, cached = {kind: [] for kind in engines}, dict.fromkeys(engines, 0)
        for prompt in prompts:
            for kind, engine in engines.items():
                [output] = engine.generate([prompt], tokens=1)
                seconds[kind].append(output["seconds"])
                cached[kind] += output["cached"]
    return {kind: statistics.median(each) for kind, each in seconds.items()}, cached


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=3000)
    options = parser.parse_args()
    prompts = [[(i * 7 + k * 13) % 250 for i in range(options.tokens)] for k in range(options.prompts)]
    with contextlib.ExitStack() as running:
        folder = pathlib.Path(running.enter_context(tempfile.TemporaryDirectory()))
        node = running.enter_context(hicache.node("256MiB"))
        all_settings = kinds(node.socket, running.enter_context(mooncake(folder)))
        for kind in list(all_settings)[1:]:
            fill(all_settings[kind], prompts, folder)
        medians, cached = measure(all_settings, prompts, folder)
    for kind, median in medians.items():
        print(f"{kind:16} {median * 1000:8.1f} ms, {cached[kind]} of {options.prompts * options.tokens} tokens cached, "
              f"{medians['computed'] / median:.2f} × as fast as computing, {medians['file'] / median:.2f} × as fast as file, {medians['mooncake'] / median:.2f} × as fast as mooncake")


if __name__ == "__main__":
    main()
