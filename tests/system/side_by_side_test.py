"""side_by_side_test.py TEST...

Runs each of these system tests (ranks, node ...) twice at the same time, while another program leaves files in shared memory and /tmp that look
like those of hicache, MPI, UCX and libfaketime. A test that looks at what it did not make itself fails here.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import threading

HERE = pathlib.Path(__file__).resolve().parent


class Stranger:
    """A program that makes files all the time, and removes none of them before it ends."""

    def __init__(self):
        self.made, self.ended = [], threading.Event()
        self.thread = threading.Thread(target=self.run)

    def __enter__(self):
        self.thread.start()
        return self

    def run(self):
        folders, names = (pathlib.Path("/dev/shm"), pathlib.Path(tempfile.gettempdir())), ("hicache", "vader_segment", "ucx", "ompi")
        while not self.ended.wait(0.5):
            for folder in folders:
                for name in names:
                    path = folder / f"{name}.stranger.{os.getpid()}.{len(self.made)}"
                    path.touch()
                    self.made.append(path)

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()
        for path in self.made:
            path.unlink()


def main(names):
    failed = []
    with Stranger():
        for name in names:
            runs = [subprocess.Popen([sys.executable, HERE / f"{name}_test.py"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                    for _ in range(2)]
            for number, run in enumerate(runs, 1):
                said = run.communicate()[0]
                print(f"--- {name}, run {number}: {run.returncode}\n{said}", flush=True)
                if run.returncode not in (0, 77):
                    failed.append(f"{name}, run {number}")
    if failed:
        print(f"failed beside another run: {'; '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
