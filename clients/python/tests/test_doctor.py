"""python -m hicache doctor, as people run it."""

import json
import os
import subprocess
import sys

import hicache


def doctor(*flags, **environment):
    """What it says, and its exit status."""
    done = subprocess.run([sys.executable, "-m", "hicache", "doctor", *flags], capture_output=True, text=True, timeout=200,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment})
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout, done.returncode


def findings(*flags, **environment):
    said, status = doctor("--json", *flags, **environment)
    report = json.loads(said)
    assert report["ok"] == (status == 0)
    return {each["what"]: each for each in report["findings"]}, status


def test_everything_that_is_built_works(shared_node):
    found, status = findings("--socket", shared_node.socket)
    assert status == 0, found
    for what in ("library", "hicache-node", "hicache-index", "hicachectl", "memfd", "socket", "a prefix cache", "your node",
                 "a node of its own", "two nodes and an index"):
        assert found[what]["state"] == "ok", found[what]
    assert found["library"]["sentence"].startswith(os.environ.get("HICACHE_LIBRARY", ""))
    with shared_node.store("n") as store:
        assert store.node_status()["clients"] == 1, "the doctor left a client"


def test_without_the_library_of_the_prefix_cache_the_rest_is_tried(tmp_path):
    found, status = findings(HICACHE_TREE_LIBRARY=str(tmp_path / "libhicache_tree.so.1"))
    assert status == 0, found
    assert found["a prefix cache"]["state"] == "note" and str(tmp_path) in found["a prefix cache"]["sentence"]


def test_without_programs_it_tries_nothing_and_says_so(tmp_path):
    said, status = doctor(HICACHE_BIN=str(tmp_path), PATH=str(tmp_path))
    assert status == 0 and "not possible without hicache-node" in said and "Everything that is here works." in said


def test_a_program_that_does_not_run_is_a_failure(tmp_path):
    (tmp_path / "hicache-node").write_bytes(b"\x7fELF but no program")
    (tmp_path / "hicache-node").chmod(0o755)
    found, status = findings(HICACHE_BIN=str(tmp_path), PATH=str(tmp_path))
    assert status == 1 and found["hicache-node"]["state"] == "failure" and found["a node of its own"]["state"] == "failure"


def test_a_library_that_cannot_be_loaded_is_a_failure(tmp_path):
    for text in (b"nonsense", None):
        library = tmp_path / "libhicache.so"
        if text is not None:
            library.write_bytes(text)
        found, status = findings(HICACHE_LIBRARY=str(library) if text else str(tmp_path / "nowhere.so"))
        assert status == 1 and found["library"]["state"] == "failure"


def test_a_socket_that_nobody_serves_is_a_failure(tmp_path, node):
    found, status = findings("--socket", str(tmp_path / "nobody"), PATH=str(tmp_path), HICACHE_BIN=str(tmp_path))
    assert status == 1 and found["socket"]["state"] == "failure" and "No such file" in found["socket"]["sentence"]
    node.kill()
    found, status = findings("--socket", node.socket, PATH=str(tmp_path), HICACHE_BIN=str(tmp_path))
    assert status == 1 and found["your node"]["state"] == "failure" and "peer_unreachable" in found["your node"]["sentence"]


def test_the_programs_are_scripts_of_the_package(tmp_path):
    done = subprocess.run([sys.executable, "-c", "from hicache._files import ctl_main; ctl_main()", "--version"], capture_output=True,
                          text=True, timeout=60, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert done.returncode == 0 and done.stdout.startswith(f"hicache {hicache._abi.library().version}"), done
