#!/usr/bin/env python3
"""lint.py BUILD_FOLDER [SOURCE...]

Runs clang-tidy over the product's sources, or over those named, and fails if it finds anything. BUILD_FOLDER has been built with g++ and Ninja.

Clean sources are remembered in ${XDG_CACHE_HOME:-~/.cache}/hicache/lint, by the content of all that they include, and are not checked again until that changes.
Sources that were committed last come first. After HICACHE_LINT_SECONDS (900) no further source is begun, and those that are left are named.
"""

import concurrent.futures
import functools
import hashlib
import json
import os
import pathlib
import shlex
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
PRODUCT = ("base", "messages", "rpc", "cache", "identity", "gpu", "transport", "backends", "actors", "stores", "runtime", "launch", "c_abi", "c_tree", "examples")
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "hicache/lint"
KEPT_DAYS = 30
# What only g++ knows, and its precompiled headers.
GNU_FLAGS = ("-fpch-preprocess", "-Winvalid-pch", "-Wno-restrict", "-Wno-maybe-uninitialized", "-Wno-tsan")
# The analyzer looks at one function at a time: looking through calls makes it find little more in CAF's templates and takes up to four times as long.
SHALLOW = ("-Xclang", "-analyzer-config", "-Xclang", "mode=shallow")


def output(*command, folder=ROOT):
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


@functools.cache
def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def included(build):
    """All files that each object was compiled from, by the compiler's own list. A precompiled header stands for what it includes."""
    found, target = {}, None
    for line in output("ninja", "-t", "deps", folder=build).splitlines():
        if line.startswith("    "):
            found[target].add((build / line.strip()).resolve())
        elif ": #deps" in line and "(VALID)" in line:
            target = (build / line.split(": #deps")[0]).resolve()
            found[target] = set()
    for files in found.values():
        for header in [each for each in files if each in found]:
            files.remove(header)
            files |= found[header]
    return found


def arguments(entry):
    """The compiler's flags as clang understands them."""
    kept, words = [], shlex.split(entry["command"])
    words = words[next(i for i, word in enumerate(words) if word.startswith(("-D", "-I", "-isystem", "-O"))):]
    skipped = False
    for word in words:
        if skipped:
            skipped = False
        elif word in ("-include", "-o", "-c"):
            skipped = True
        elif word not in GNU_FLAGS:
            kept.append(word)
    return kept


def last_commits():
    """When each file was committed last; one that differs from its commit comes first."""
    times, now = {}, 0
    for line in output("git", "log", "--format=%ct", "--name-only").splitlines():
        if line.isdigit():
            now = int(line)
        elif line:
            times.setdefault(line, now)
    for line in output("git", "status", "--porcelain").splitlines():
        times[line[3:]] = time.time()
    return times


class Linter:
    def __init__(self, build):
        self.build, self.included = build, included(build)
        self.end = time.monotonic() + float(os.environ.get("HICACHE_LINT_SECONDS", "900"))
        self.version = output("clang-tidy", "--version") + digest(ROOT / ".clang-tidy")

    def key(self, entry):
        words = shlex.split(entry["command"])
        compiled = self.included.get((self.build / words[words.index("-o") + 1]).resolve())
        if not compiled:
            sys.exit(f"lint: build first: nothing was compiled from {entry['file']}")
        text = [self.version, " ".join((*arguments(entry), *SHALLOW)).replace(str(ROOT), ""), str(pathlib.Path(entry["file"]).relative_to(ROOT))]
        text += sorted(f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path} {digest(path)}" for path in compiled)
        return CACHE / hashlib.sha256("\n".join(text).encode()).hexdigest()

    def check(self, entry):
        """What is wrong with the source; nothing if it is clean; None if there was no time to look."""
        clean = self.key(entry)
        if clean.exists():
            clean.touch()
            return ""
        if time.monotonic() > self.end:
            return None
        run = subprocess.run(["clang-tidy", "--quiet", entry["file"], "--", *arguments(entry), *SHALLOW], cwd=self.build, capture_output=True, text=True)
        if run.returncode == 0:
            clean.touch()
            return ""
        return run.stdout or run.stderr


def main(build, *named):
    build = pathlib.Path(build).resolve()
    CACHE.mkdir(parents=True, exist_ok=True)
    for old in CACHE.iterdir():
        if old.stat().st_mtime < time.time() - KEPT_DAYS * 86400:
            old.unlink()
    sources = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["file"])
        if path.suffix == ".cpp" and path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in PRODUCT:
            sources.setdefault(str(path.relative_to(ROOT)), entry)
    times = last_commits()
    order = sorted(named or sources, key=lambda path: -times.get(path, 0))
    linter = Linter(build)
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        results = dict(zip(order, pool.map(lambda path: linter.check(sources[path]), order)))
    print("".join(text for text in results.values() if text), end="")
    left, wrong = [path for path in order if results[path] is None], [path for path in order if results[path]]
    if left:
        print(f"lint: there was no time for {len(left)} of {len(order)} sources: {' '.join(left)}")
    print(f"lint: {len(order) - len(left) - len(wrong)} sources are clean, {len(wrong)} are not")
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
