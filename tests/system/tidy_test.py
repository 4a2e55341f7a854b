"""tidy_test.py BUILD_FOLDER

Looks at the tree itself: what the compiler does not complain about and a reader should not have to.
"""

import json
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(sys.argv[1])
LAYERS = ("base", "messages", "rpc", "cache", "identity", "gpu", "transport", "backends", "stores", "actors", "runtime", "launch", "c_abi", "c_tree")
CPP = (".hpp", ".cpp", ".cu")
MAX_LINES = 600
MAX_FUNCTION_LINES = 60
# What docs name of other programs and libraries.
FOREIGN = {"--hf-overrides", "--json-model-override-args", "--kv-events-config", "--load-format", "--max-model-len", "--network", "--prefix-caching-hash-algo",
           "--quantization-param-path", "--userns", "MASTER_PORT", "reload_weights", "storage_plugins", "ucp_request_send_state_ff"}


def files(*suffixes):
    """The tree's files with these suffixes, as (path below the root, text)."""
    for path in sorted(ROOT.rglob("*")):
        below = path.relative_to(ROOT)
        if below.parts[0] not in ("build", ".git") and path.is_file() and path.suffix in suffixes:
            yield below, path.read_text()


def forbidden_includes(deps, sees):
    """Which objects of a layer were compiled from headers of which other layers that the table does not let it see, and the layers that were
    looked at. `deps` is what `ninja -t deps` prints."""
    found, looked_at, layer, target = set(), set(), None, ""
    for line in deps.splitlines():
        if line and not line.startswith(" "):
            target = line.split(":")[0]
            layer = target.split("/")[0] if target.split("/")[0] in LAYERS else None
        elif layer and (include := re.match(r" +(?:\S*/)?layers/(\w+)/", line)):
            looked_at.add(layer)
            if include.group(1) not in sees[layer]:
                found.add(f"{target}: {line.strip()}")
    return found, looked_at


class Tidy(unittest.TestCase):
    def assert_none(self, found, rule):
        self.assertFalse(found, f"{rule}:\n  " + "\n  ".join(str(path) for path in found))

    def test_no_open_ends(self):
        ends = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")) + r")\b")
        self.assert_none([path for path, text in files(*CPP, ".py", ".sh", ".cmake", ".txt", ".md") if ends.search(text)],
                         "a note of work left undone belongs into an issue")

    def test_no_sleeping_as_synchronisation(self):
        sleep = re.compile(r"\b(sleep_(?:for|until)|usleep|nanosleep)\b")
        self.assert_none([path for path, text in files(*CPP) if path.parts[0] in ("actors", "tests") and sleep.search(text)],
                         "wait for what happens, not for time")

    def test_headers(self):
        headers = list(files(".hpp"))
        self.assert_none([path for path, text in headers if not text.startswith("#pragma once\n")],
                         "a header begins with #pragma once")
        self.assert_none([path for path, text in headers if re.search(r"^\s*using namespace", text, re.MULTILINE)],
                         "no using namespace in a header")

    def test_the_thread_sanitizer_sees_no_actors(self):
        programs = re.search(r"^sanitize tsan (.*)$", (ROOT / ".ci/run").read_text(), re.MULTILINE).group(1).split()
        folders = [path.parent for path, text in files(".txt") if any(f"hicache_add_test({each} " in text for each in programs)]
        self.assertEqual(len(set(folders)), 5, programs)
        self.assert_none([path for path, text in files(*CPP) if path.parent in folders and "caf/actor_system.hpp" in text],
                         "CAF is not instrumented, so races are found there that are none")

    def test_files_are_short(self):
        self.assert_none([path for path, text in files(*CPP, ".py", ".sh") if text.count("\n") > MAX_LINES],
                         f"a file has at most {MAX_LINES} lines")

    def test_functions_are_short(self):
        begin = re.compile(r"(?!namespace|struct|class|enum|extern|union|using|template)\S.*\{$")
        long = []
        for path, text in files(*CPP):
            if path.parts[0] not in (*LAYERS, "bench"):
                continue
            start = 0
            for number, line in enumerate(text.splitlines(), 1):
                if begin.match(line):
                    start = number
                elif line == "}" and start:
                    if number - start - 1 > MAX_FUNCTION_LINES:
                        long.append(f"{path}:{start}")
                    start = 0
                elif line.startswith("}"):
                    start = 0
        self.assert_none(long, f"a function has at most {MAX_FUNCTION_LINES} lines")

    def test_layers_include_only_what_they_may(self):
        """By the compiler's own list. The table is that of layering_test.sh."""
        sees = {layer: seen.split() for layer, seen in re.findall(r'\[(\w+)\]="([^"]+)"', (ROOT / "tests/system/layering_test.sh").read_text())}
        deps = subprocess.run(["ninja", "-C", BUILD, "-t", "deps"], capture_output=True, text=True, check=True).stdout
        found, looked_at = forbidden_includes(deps, sees)
        self.assertEqual(looked_at, set(LAYERS), "build first")
        self.assert_none(sorted(found), "a layer includes only what its link line names")
        upwards = "cache/CMakeFiles/x.o: #deps 2, deps mtime 1 (VALID)\n    ../../cache/x.cpp\n    layers/actors/actors/tree.hpp\n"
        self.assertEqual(forbidden_includes(upwards, sees), ({"cache/CMakeFiles/x.o: layers/actors/actors/tree.hpp"}, {"cache"}))

    def test_docs_name_what_exists(self):
        """Paths, flags, and names of functions, settings and metrics between backticks."""
        sources = "\n".join(text for path, text in files(*CPP, ".h", ".py", ".sh", ".txt", ".capnp", ".json", ".cmake", ".in", ".service", ".socket"))
        words, flags = set(re.findall(r"[A-Za-z_]\w*", sources)), set(re.findall(r"--[a-z][\w-]*", sources))
        # Those of the tables of settings.
        flags |= {"--" + name for name in re.findall(r'^ *\{+"([a-z][a-z-]*)",', sources, re.MULTILINE)}
        folders, names = {path.parts[0] for path, _ in files(*CPP, ".py")}, {path.name for path in ROOT.rglob("*")}
        found = []
        for page, text in files(".md"):
            # The glossary says what others call it.
            if page.parts[0] not in ("docs", "README.md") or page.name == "glossary.md":
                continue
            for quoted in set(re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))):
                missing = {flag for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", quoted) if flag not in flags}
                if re.fullmatch(r"[A-Za-z]\w*(::\w+)*(\(\))?", quoted) and re.search(r"_|::|\(\)", quoted):
                    missing |= {word for word in re.findall(r"\w+", quoted) if word not in words}
                elif re.fullmatch(r"([\w.-]+/)+[\w.*-]*", quoted) and quoted.split("/")[0] in folders:
                    missing |= set() if any(ROOT.glob(quoted)) or any(ROOT.glob(quoted + ".*")) else {quoted}
                elif re.fullmatch(r"[\w-]+\.(hpp|cpp|cu|py|sh|md|capnp)", quoted) and quoted not in names:
                    missing.add(quoted)
                found += [f"{page}: {each}" for each in sorted(missing - FOREIGN)]
        self.assert_none(found, "docs name something that is not there")

    def test_sources_name_documents_that_exist(self):
        documents = re.compile(r"\b(?:docs/)?[\w-]+(?:/[\w-]+)*\.md\b")
        missing = [f"{path}: {named}" for path, text in files(*CPP, ".h", ".py", ".sh") for named in documents.findall(text)
                   if not (ROOT / named).exists() and not (ROOT / "docs" / named).exists() and not (path.parent / named).exists()]
        self.assert_none(missing, "a comment refers to a document that is not there")

    def test_every_source_is_built(self):
        lists = [set(re.split(r"[\s()/]+", text)) for path, text in files(".txt") if path.name == "CMakeLists.txt"]
        compiled = {pathlib.Path(entry["file"]).resolve()
                    for entry in json.loads((BUILD / "compile_commands.json").read_text())}

        def listed(path):
            return (ROOT / path) in compiled or any(path.name in words for words in lists)

        self.assert_none([path for path, _ in files(".cpp", ".cu", ".capnp") if not listed(path)],
                         "no CMakeLists.txt names this source")
        self.assert_none([path for path, _ in files(".hpp") if path.parts[0] in LAYERS and not listed(path)],
                         "no CMakeLists.txt names this header")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
