"""Programs that the tests start, and talk to in lines of JSON."""

import contextlib
import json
import os
import select
import signal
import subprocess

PATIENCE_S = 300


@contextlib.contextmanager
def program(log, *command, **options):
    """A process, and all that it starts: they end with the `with`."""
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
