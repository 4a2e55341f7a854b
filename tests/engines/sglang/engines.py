"""Real engines of SGLang on the CPU, each in a process of its own."""

import contextlib
import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).parent
#: Releases before have no linkers of others, and inject no faults.
HAS_LINKERS = tuple(map(int, re.findall(r"\d+", importlib.metadata.version("sglang"))[:3])) >= (0, 5, 23)
MODEL = os.environ["HICACHE_ENGINE_MODEL"]
#: Tokens of a page, and of an answer.
PAGE, ANSWER = 32, 8
#: Prompts whose lengths are no multiples of a page.
PROMPTS = [[(i * 7 + k * 13) % 250 for i in range(length)] for k, length in enumerate((1000, 1500, 333))]
#: Pages that a cache can have of a prompt: the last token is always computed.
PROMPT_PAGES = [(len(prompt) - 1) // PAGE for prompt in PROMPTS]
ENGINE = {"model_path": MODEL, "device": "cpu", "attention_backend": "torch_native", "dtype": "bfloat16", "page_size": PAGE,
          "mem_fraction_static": 0.3, "max_total_tokens": 8192, "disable_overlap_schedule": True, "skip_server_warmup": True}
# Of one answer. An engine starts in half a minute alone on two cores, and in many on a machine with much else to do.
PATIENCE = 600


def until(is_so, what, patience=60):
    """Waits for something that this process cannot be told of."""
    end = time.monotonic() + patience
    while not is_so():
        assert time.monotonic() < end, f"{what} never came"
        time.sleep(0.02)


class Server:
    """A process of SGLang, which is killed with all of its own at the end."""

    def __init__(self, command, log, more=None, pass_fds=()):
        self.log_path = log
        paths = [HERE / "cpu_shim", os.environ.get("PYTHONPATH", "")]
        threads = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1", "SGLANG_NCCL_SO_PATH": "/nonexistent"}
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "HF_HUB_OFFLINE": "1", **threads, **(more or {})}
        self._memory = set(os.listdir("/dev/shm"))
        with open(log, "w") as out:
            self._process = subprocess.Popen([*self._gently(), sys.executable, *command], stdin=subprocess.PIPE, stdout=out, stderr=out, text=True,
                                             env=environment, pass_fds=pass_fds, start_new_session=True)

    @staticmethod
    def _gently():
        return ["nice", "-n", "19"] if shutil.which("nice") else []

    @property
    def log(self):
        return self.log_path.read_text(errors="replace")

    def kill(self):
        """Ends the engine as a crash of all its processes does, and removes what it leaves behind. Python's own process for that is left to
        do its work, since nobody else knows whose semaphores are whose."""
        until(self._have_ended, "the end of the engine's processes")
        self._process.wait()
        self._process.stdin.close()
        for name in set(os.listdir("/dev/shm")) - self._memory:
            if name.startswith("sgl"):
                pathlib.Path("/dev/shm", name).unlink(missing_ok=True)

    def _have_ended(self):
        """Kills what runs of the engine's group; whether nothing does."""
        running = 0
        for place in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                # That of one that has ended is empty.
                command = (place / "cmdline").read_bytes()
                if command and os.getpgid(int(place.name)) == self._process.pid:
                    running += 1
                    if b"resource_tracker" not in command:
                        os.kill(int(place.name), signal.SIGKILL)
        return running == 0

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.kill()
        if kind is not None:
            print(f"--- {self.log_path}\n{self.log[-8000:]}", file=sys.stderr)


class Engine(Server):
    """`sglang.Engine`, asked by the driver beside this file."""

    def __init__(self, log, more=None, **arguments):
        ours, its = os.pipe()
        super().__init__([str(HERE / "driver.py"), json.dumps({**ENGINE, "log_level": "info", **arguments}), str(its)], log, more, (its,))
        os.close(its)
        self._answers = os.fdopen(ours)
        with contextlib.ExitStack() as if_it_fails:
            if_it_fails.callback(self.kill)
            assert self._answer() == "up"
            if_it_fails.pop_all()

    def kill(self):
        super().kill()
        self._answers.close()

    def ask(self, request):
        """Begins something; `answer` has what became of it."""
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def _answer(self):
        patience = threading.Timer(PATIENCE, self._process.kill)
        patience.start()
        try:
            line = self._answers.readline()
        finally:
            patience.cancel()
        assert line, f"the engine ended, or hung for {PATIENCE} s:\n{self.log[-8000:]}"
        return json.loads(line)

    def answer(self, may_fail=False):
        """What became of one request: outputs, or what SGLang raised."""
        answer = self._answer()
        assert may_fail or not (isinstance(answer, dict) and "trouble" in answer), answer["trouble"]
        return answer

    def begin(self, prompts=None, tokens=ANSWER, **more):
        """Asks for one prompt after the other, so that each is computed as it is in other runs."""
        for prompt in PROMPTS if prompts is None else prompts:
            self.ask({"generate": {"prompts": [prompt], "tokens": tokens, **more}})

    def generate(self, prompts=None, tokens=ANSWER, **more):
        prompts = PROMPTS if prompts is None else prompts
        self.begin(prompts, tokens, **more)
        return [output for _ in prompts for output in self.answer()]

    def flush(self):
        self.ask({"flush": True})
        self.answer()


class HttpServer(Server):
    """`sglang.launch_server`."""

    def __init__(self, log, *flags):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.place = f"http://127.0.0.1:{port}"
        settings = [text for name, value in ENGINE.items() for text in ([f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)]))]
        super().__init__(["-m", "sglang.launch_server", "--host", "127.0.0.1", "--port", str(port), "--admin-api-key", "K", *settings, *flags], log)
        with contextlib.ExitStack() as if_it_fails:
            if_it_fails.callback(self.kill)
            until(lambda: self._process.poll() is not None or self.ask("GET", "/health")[0] == 200, "the server", PATIENCE)
            if_it_fails.pop_all()

    def ask(self, method, path, body=None):
        """Status and text of the answer; 0 if there is none."""
        request = urllib.request.Request(self.place + path, json.dumps(body).encode() if body is not None else None, method=method,
                                         headers={"Authorization": "Bearer K", "Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refusal:
            return refusal.code, refusal.read().decode()
        except urllib.error.URLError as trouble:
            return 0, str(trouble)

    def generate(self):
        outputs = []
        for prompt in PROMPTS:
            sampling = {"temperature": 0, "max_new_tokens": ANSWER, "ignore_eos": True}
            status, text = self.ask("POST", "/generate", {"input_ids": prompt, "sampling_params": sampling})
            assert status == 200, text
            output = json.loads(text)
            outputs.append({"tokens": output["output_ids"], **(output["meta_info"].get("cached_tokens_details") or {})})
        return outputs

    def flush(self):
        until(lambda: self.ask("POST", "/flush_cache")[0] == 200, "an idle moment")


def tokens(outputs):
    return [output["tokens"] for output in outputs]


def from_storage(outputs):
    return [output.get("storage", 0) for output in outputs]
