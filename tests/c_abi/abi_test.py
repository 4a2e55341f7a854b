"""abi_test.py CLASS

What programs in other languages rely on: that hicache.h, or the header that $HICACHE_HEADER names, compiles, that the library exports its functions and nothing else, that numbers
and layouts stay as they are (abi.txt), and that the examples work. With `--renew`, and the environment that ctest sets, it writes abi.txt
anew instead: lines may be added, and none may change or go while HC_ABI_VERSION stays.
"""

import difflib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/system"))

from harness import BIN, SystemTest  # noqa: E402

LIBRARY = pathlib.Path(os.environ["HICACHE_LIBRARY"])
CC, CXX = os.environ["HICACHE_CC"], os.environ["HICACHE_CXX"]
HEADER = ROOT / "include" / os.environ.get("HICACHE_HEADER", "hicache.h")
IS_TREE = HEADER.name == "hicache_tree.h"
LIST = pathlib.Path(__file__).with_name("tree_abi.txt" if IS_TREE else "abi.txt")
VERSION = "HICACHE_TREE_1" if IS_TREE else "HICACHE_1"
NUMBERS = ("HC_MAX_OPS", "HC_CACHE_ABI_VERSION") if IS_TREE else ("HC_MAX_PAGES", "HC_ABI_VERSION")
STRICT = ["-Wall", "-Wextra", "-Werror", "-pedantic"]


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120, **options)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def exported():
    return sorted(line.split()[-1] for line in run("nm", "-D", "--defined-only", LIBRARY).splitlines())


def header_without_comments():
    return re.sub(r"//.*", "", HEADER.read_text())


def layout(folder):
    """Enumerators, and sizes and offsets of what is in the structs, as the compiler sees them."""
    text = header_without_comments()
    lines = []
    for name, body in re.findall(r"enum (\w+) \{(.*?)\}", text, re.DOTALL):
        for each in re.findall(r"(\w+) = ", body):
            lines.append(f'printf("{name} {each} %d\\n", (int){each});')
    for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\n\} \1;", text, re.DOTALL):
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        for member in re.findall(r"(\w+)(?:\[\d+\])?;", body):
            lines.append(f'printf("{name}.{member} at %zu, %zu\\n", offsetof({name}, {member}), sizeof((({name} *)0)->{member}));')
    lines += [f'printf("{name} %d\\n", {name});' for name in NUMBERS]
    source = folder / "layout.c"
    source.write_text(f'#include <{HEADER.name}>\n#include <stdio.h>\nint main(void) {{\n' + "\n".join(lines) + "\nreturn 0;\n}\n")
    run(CC, "-std=c11", *STRICT, f"-I{HEADER.parent}", source, "-o", folder / "layout")
    return run(folder / "layout").splitlines()


def abi(folder):
    return [f"exported {name}" for name in exported()] + layout(folder)


class List(SystemTest):
    def test_what_is_exported_and_laid_out_is_what_the_list_says(self):
        found, listed = abi(self.folder), LIST.read_text().splitlines()
        changes = "\n".join(difflib.unified_diff(listed, found, "abi.txt", "this build", lineterm="", n=0))
        self.assertEqual(found, listed, f"the ABI is not that of {LIST}:\n{changes}\n"
                         "If lines were only added, renew the list: run this test's command (ctest -V -R c_abi.list shows it) with --renew")

    def test_each_function_of_the_header_is_exported_and_nothing_else(self):
        declared = set(re.findall(r"\b(hc_\w+)\(", header_without_comments()))
        names = {name.split("@@")[0] for name in exported()} - {VERSION}
        self.assertEqual(declared, names)
        self.assertTrue(all(name.endswith(f"@@{VERSION}") or name == VERSION for name in exported()), exported())

    def test_no_library_is_needed_that_only_ranks_use(self):
        needed = set(re.findall(r"NEEDED\s+lib(\w+)", run("objdump", "-p", LIBRARY)))
        self.assertNotIn("mpi", needed)
        if not IS_TREE:
            self.assertFalse(needed & {"ucp", "ucs", "uct", "zmq", "prometheus", "cares", "yaml"}, needed)

    def test_nothing_runs_when_the_library_is_loaded(self):
        """But for what <iostream> does in each source that includes it, as CAF's headers do: it counts its users."""
        constructors = re.findall(r" [tT] (_GLOBAL__\S+)", run("nm", LIBRARY))
        called = set()
        for name in constructors:
            code = run("objdump", "-d", "-C", "--no-show-raw-insn", f"--disassemble={name}", LIBRARY)
            called |= set(re.findall(r"(?:call|jmp)\s+[0-9a-f]+ <(.*)>$", code, re.MULTILINE))
        if IS_TREE:
            # CLI11 makes its validators.
            others = [name for name in called if not re.match(r"CLI::|std::|_GLOBAL__|operator (new|delete)|_Unwind_Resume|__cxa_atexit", name)]
            self.assertFalse(others)
            return
        self.assertTrue(called <= {"std::ios_base::Init::Init()@plt", "__cxa_atexit@plt"}, called)
        # And the compiler's own entry, frame_dummy.
        size = int(re.search(r"\.init_array\s+INIT_ARRAY\s+\S+\s+\S+\s+([0-9a-f]+)", run("readelf", "-SW", LIBRARY)).group(1), 16)
        self.assertEqual(size // 8, len(constructors) + 1)


class Header(SystemTest):
    def compile(self, compiler, suffix, *flags):
        source = self.folder / f"header{suffix}"
        source.write_text(2 * f"#include <{HEADER.name}>\n")
        run(compiler, *flags, *STRICT, "-fsyntax-only", f"-I{HEADER.parent}", source)

    def test_is_c11(self):
        self.compile(CC, ".c", "-std=c11")

    def test_is_c_plus_plus_of_any_age(self):
        for standard in ("c++11", "c++20"):
            self.compile(CXX, ".cpp", f"-std={standard}", "-Wold-style-cast")


class Examples(SystemTest):
    def setUp(self):
        super().setUp()
        self.path = self.folder / "socket"
        node = self.start([BIN / "hicache-node", "--memory", "16MiB", "--socket", self.path], "node")
        node.wait_for("listening on")

    def put(self, name, text):
        self.assertEqual(run(BIN / "hicache-put-and-get", self.path, "put", name, text), "stored\n")

    def test_what_one_process_in_c_puts_another_one_gets(self):
        self.put("greeting", "hello, world")
        self.assertEqual(run(BIN / "hicache-put-and-get", self.path, "get", "greeting"), "hello, world\n")
        absent = subprocess.run([BIN / "hicache-put-and-get", self.path, "get", "nothing"], capture_output=True, text=True, timeout=60)
        self.assertEqual(absent.returncode, 2)
        self.assertIn("nothing is not there", absent.stderr)

    def test_without_a_node_the_example_says_so(self):
        nobody = subprocess.run([BIN / "hicache-put-and-get", self.folder / "nobody", "get", "x"], capture_output=True, text=True, timeout=60)
        self.assertEqual(nobody.returncode, 1)
        self.assertIn("peer_unreachable", nobody.stderr)


class Engine(SystemTest):
    def start_engine(self, **settings):
        settings = {"device": "host", "step-timeout": "60s", **settings}
        return self.start([BIN / "hicache-tree-engine", json.dumps(settings)], f"engine-{settings.get('rank', 0)}")

    def expect_hits(self, *engines):
        for engine in engines:
            self.assertEqual(engine.wait(), 0, engine.text())
            self.assertEqual(engine.out.read_text(), "round 1: 0 of 300 tokens were cached\nround 2: 256 of 300 tokens were cached\n")

    def test_a_prompt_is_cached_the_second_time(self):
        self.expect_hits(self.start_engine())

    def test_two_processes_are_two_ranks(self):
        meeting = {"rendezvous": f"unix:{self.folder / 'meet'}", "ranks": 2, "job": "test"}
        self.expect_hits(*(self.start_engine(rank=rank, **meeting) for rank in range(2)))

    def test_ranks_that_differ_say_so(self):
        meeting = {"rendezvous": f"unix:{self.folder / 'meet'}", "ranks": 2}
        engines = [self.start_engine(rank=rank, **meeting, **{"device-pages": 64 + rank}) for rank in range(2)]
        self.assertEqual([engine.wait() for engine in engines], [1, 1])
        self.assertIn("different values of --device-pages", engines[0].err.read_text())
        self.assertIn("another rank could not be opened", engines[1].err.read_text())

    def test_a_wrong_setting_is_one_sentence(self):
        engine = self.start_engine(**{"page-size": 24})
        self.assertEqual(engine.wait(), 1)
        self.assertEqual(engine.err.read_text().count("\n"), 1, engine.text())
        self.assertIn("--page-size", engine.err.read_text())


class Rust(Examples):
    def test_what_a_process_in_c_puts_one_in_rust_gets(self):
        program = self.folder / "get"
        run("rustc", "-D", "warnings", "-L", f"native={LIBRARY.parent}", "-C", f"link-arg=-Wl,-rpath,{LIBRARY.parent}",
            ROOT / "examples/rust/get.rs", "-o", program, cwd=self.folder)
        self.put("greeting", "hello, rust")
        self.assertEqual(run(program, self.path, "greeting"), "hello, rust\n")
        absent = subprocess.run([program, self.path, "nothing"], capture_output=True, text=True, timeout=60)
        self.assertEqual(absent.returncode, 1)
        self.assertIn("nothing is not there", absent.stderr)

    test_what_one_process_in_c_puts_another_one_gets = None
    test_without_a_node_the_example_says_so = None


if __name__ == "__main__":
    if "--renew" in sys.argv:
        with tempfile.TemporaryDirectory() as folder:
            LIST.write_text("\n".join(abi(pathlib.Path(folder))) + "\n")
        sys.exit(0)
    if "Rust" in sys.argv and (not shutil.which("rustc") or os.environ.get("HICACHE_SANITIZER")):
        print("skipped: there is no rustc, or it would have to link a sanitizer")
        sys.exit(77)
    unittest.main(verbosity=2)
