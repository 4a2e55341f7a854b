"""A node of another machine, as far as the client can tell: over TLS."""

import re
import subprocess

import pytest
from conftest import PAGE, page_of, until

import hicache


@pytest.fixture(scope="module")
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


def test_pages_are_shared_with_clients_of_the_nodes_machine(remote):
    node, address, files = remote
    keys = [f"page {i}" for i in range(4)]
    pages = [page_of(i, PAGE * (i + 1)) for i in range(4)]
    with node.store("shared") as here, hicache.Store(namespace="shared", address=address, **files) as there:
        there.put(keys, pages).check()
        for store in (here, there):
            back = [bytearray(len(page)) for page in pages]
            store.get(keys, back).check()
            assert back == pages
        assert there.exists([*keys, "missing"]).ok == [True] * 4 + [False]
        assert there.node_status()["pages_written"] == 4
        assert address in repr(there)


def test_pinned_pages_are_copies_that_stay(remote):
    _, address, files = remote
    with hicache.Store(namespace="pinned", address=address, **files) as store:
        store.put(["one"], [page_of(1)]).check()
        with store.pin(["one"], in_place=True) as lease:
            store.remove(["one"]).check()
            assert lease[0] == page_of(1)
            back = bytearray(PAGE)
            store.get(["one"], [back], lease=lease).check()
            assert back == page_of(1)
        assert store.exists(["one"]).ok == [False]


def test_a_client_names_its_node_in_one_way():
    for settings in ({}, {"socket": "/x", "address": "127.0.0.1:1"}, {"address": "nowhere"}, {"address": "127.0.0.1:1", "tls_ca": "/nowhere"}):
        with pytest.raises(hicache.InvalidArgument, match="address|tls_cert"):
            hicache.Store(namespace="x", **settings)
