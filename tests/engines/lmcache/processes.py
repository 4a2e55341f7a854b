"""Programs that the tests start, and talk to in lines of JSON."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.request

from leftovers import Leftovers

PATIENCE_S = 300
#: Tokens that LMCache keeps together.
CHUNK = 64


@contextlib.contextmanager
def program(log, *command, **options):
    """A process, and all that it starts: they end with the `with`."""
    leftovers = Leftovers()
    with open(log, "a") as said:
        process = subprocess.Popen([str(word) for word in command], stderr=said, start_new_session=True, text=True, **options)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream:
                stream.close()
        leftovers.remove()


class Engine:
    """A process that answers each line with one."""

    def __init__(self, process, log):
        self.process, self.log = process, log
        assert self.answer() == "ready"

    def ask(self, question=None):
        self.begin(question)
        return self.answer()

    def begin(self, question=None):
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()

    def answer(self):
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE_S)
        line = self.process.stdout.readline() if ready else ""
        assert line, f"the engine did not answer: {self.log.read_text()[-3000:]}"
        return json.loads(line)


@contextlib.contextmanager
def engine(log, *command):
    with program(log, *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield Engine(process, log)


def free_port():
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return made.getsockname()[1]


@contextlib.contextmanager
def lmcache_server(folder, node=None, model_id="bfloat16"):
    """A server, with the node below it if there is one; yields its port."""
    port, http = free_port(), free_port()
    below = []
    if node:
        adapter = {"type": "native_plugin", "module_path": "hicache.lmcache", "class_name": "NativeClient",
                   "adapter_params": {"socket": node.socket, "model_id": model_id, "base_requests_only": True}}
        below = ["--l2-adapter", json.dumps(adapter)]
    log = folder / "server.log"
    with program(log, sys.executable, "-m", "lmcache.cli.main", "server", "--host", "localhost", "--port", port, "--http-port", http,
                 "--chunk-size", CHUNK, "--l1-size-gb", "0.5", "--eviction-policy", "LRU", "--supported-transfer-mode", "auto",
                 "--disable-observability", *below, stdout=subprocess.DEVNULL,
                 env={**os.environ, "LMCACHE_TRACK_USAGE": "false"}) as process:
        end = time.monotonic() + PATIENCE_S
        while True:
            assert process.poll() is None and time.monotonic() < end, f"the server did not start: {log.read_text()[-3000:]}"
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{http}/healthcheck", timeout=5):
                break
            time.sleep(0.2)
        yield port
