"""A real node for all tests, and a store for each of them."""

import os
import pathlib
import random
import re
import subprocess
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import hicache  # noqa: E402

PAGE = 4096


def until(is_so):
    """Waits for something that this process cannot be told of."""
    end = time.monotonic() + 90
    while not is_so():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.001)


def page_of(number, size=PAGE):
    """Bytes that belong to one number and no other."""
    return random.Random(number).randbytes(size)


@pytest.fixture(scope="session")
def shared_node():
    with hicache.node("64MiB") as node:
        yield node


@pytest.fixture
def node():
    """A node that the test may end."""
    with hicache.node("16MiB") as node:
        yield node


@pytest.fixture
def store(shared_node, request):
    """A store with a namespace of its own."""
    with shared_node.store(request.node.nodeid, timeout=60) as store:
        yield store


@pytest.fixture
def descriptors():
    """How many descriptors this process has."""
    return lambda: len(os.listdir("/proc/self/fd"))


@pytest.fixture(scope="session")
def remote(tmp_path_factory):
    """A node that listens at a port; where, and the files of a client."""
    folder = tmp_path_factory.mktemp("certificates")
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj"]

    def openssl(*arguments):
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)

    openssl("req", "-x509", *new_key, "/CN=ca", "-keyout", folder / "ca.key", "-out", folder / "ca.crt", "-days", "2")
    openssl("req", *new_key, "/CN=client", "-keyout", folder / "client.key", "-out", folder / "client.csr")
    openssl("x509", "-req", "-in", folder / "client.csr", "-CA", folder / "ca.crt", "-CAkey", folder / "ca.key", "-CAcreateserial",
            "-out", folder / "client.crt", "-days", "2")
    files = {"tls_cert": folder / "client.crt", "tls_key": folder / "client.key", "tls_ca": folder / "ca.crt"}
    flags = ["--listen", "127.0.0.1:0"]
    for name, file in files.items():
        flags += ["--" + name.replace("_", "-"), str(file)]
    with hicache.node("64MiB", flags=flags) as node:
        def address():
            return re.search(r"other machines at (127\.0\.0\.1:\d+)", node.log.read_text())

        until(address)
        yield node, address().group(1), files
