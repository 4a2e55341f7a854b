"""What hicache-router adds to a completion: through it and directly, in turns, of prompts that the instance behind it has cached."""

import contextlib
import http.client
import subprocess
import time

import ttft_engine as engines
from ttft_engine import Engine, percentile, random_tokens, row, say

#: (tokens of the prompt, tokens of the completion, how often), and the share of these in a short run
COMPLETIONS = ((64, 1, 400), (4096, 1, 200), (64, 32, 40))
SHORT = 5


@contextlib.contextmanager
def running_router(programs, folder, engine):
    """Yields the address of a router that sends requests to the engine, which publishes its events."""
    command = [programs / "hicache-router", "--listen", "127.0.0.1:0", "--log-level", "warn", "--instance",
               f"{engine.address},events=ipc://{folder}/events,replay=ipc://{folder}/replay"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as router:
        try:
            address = router.stdout.readline().split()[2]
            while not is_ready(address):
                time.sleep(0.05)
            yield address
        finally:
            router.terminate()


def is_ready(address):
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request("GET", "/health")
    with connection.getresponse() as response:
        return response.status == 200


def measure(programs, folder, is_short):
    """@returns rows"""
    model = folder / "routed"
    engines.write_model(model, engines.SHAPES["compute-bound"])
    rows = []
    events = ["--kv-events", f"ipc://{folder}/events", "--kv-events-replay", f"ipc://{folder}/replay"]
    with Engine(programs, model, folder, "--device-pages", 256, *events) as engine, running_router(programs, folder, engine) as router:
        addresses = {"through the router": router, "directly": engine.address}
        for length, answer, rounds in COMPLETIONS:
            say(f"router: {length} cached tokens, completions of {answer}")
            prompt = random_tokens(length + 1, length)
            engine.ask(prompt)
            body = engines.body_of(prompt, answer)
            times = {way: [] for way in addresses}
            for way, address in (rounds // SHORT if is_short else rounds) * list(addresses.items()):
                begin = time.perf_counter()
                for _ in engines.stream(address, body, engine.give_up):
                    pass
                times[way].append(time.perf_counter() - begin)
            for name, share in (("median", 0.5), ("p99", 0.99)):
                through, direct = (1e3 * percentile(times[way], share) for way in addresses)
                rows.append(row(f"{length} cached tokens and {answer} to complete: through the router, beside directly, {name}", through, "ms", direct))
    return rows
