"""SGLang's extra configuration for the stores `nixl` and `mooncake`, without their packages: what is taken, and what a warning names."""

import importlib
import logging
import sys
import types

import pytest

# What NIXL's plug-ins say they know.
KNOWN = {"POSIX": {"use_aio": "false", "use_uring": "false", "use_posix_aio": "false", "ios_pool_size": "65536"},
         "GDS": {"batch_pool_size": "128", "batch_limit": "128"}, "HF3FS": {"mount_point": "", "mem_config": "auto"}, "OBJ": {"bucket": ""}}


class Agent:
    def __init__(self, name, config):
        self.made = None

    def get_plugin_list(self):
        return list(KNOWN)

    def get_plugin_params(self, plugin):
        return KNOWN[plugin]

    def create_backend(self, plugin, parameters):
        self.made = (plugin, parameters)


class Mooncake:
    def setup(self, *arguments):
        self.arguments = arguments
        return 0


def stub(monkeypatch, package, module, store, **names):
    """A store of the package, with a module that has these names in place of the one it needs."""
    made = types.ModuleType(module)
    vars(made).update(names)
    monkeypatch.setitem(sys.modules, module.partition(".")[0], types.ModuleType(module.partition(".")[0]))
    monkeypatch.setitem(sys.modules, module, made)
    monkeypatch.delitem(sys.modules, package, raising=False)
    yield getattr(importlib.import_module(package), store)
    # The next one gets the real module.
    sys.modules.pop(package, None)


@pytest.fixture
def nixl(monkeypatch, tmp_path, caplog):
    """What becomes of options: the plug-in and its parameters, and the warnings."""
    def made_of(options):
        caplog.clear()
        store = made({"path": str(tmp_path), **options})
        return *store._agent.made, [each.getMessage() for each in caplog.records]

    fixture = stub(monkeypatch, "hicache.nixl_store", "nixl._api", "NixlStore", nixl_agent=Agent, nixl_agent_config=lambda **settings: None)
    made = next(fixture)
    with caplog.at_level(logging.WARNING):
        yield made_of
    next(fixture, None)


@pytest.fixture
def mooncake(monkeypatch):
    monkeypatch.delenv("MOONCAKE_MASTER", raising=False)
    yield from stub(monkeypatch, "hicache.mooncake_store", "mooncake.store", "MooncakeStore", MooncakeDistributedStore=Mooncake)


def nothing_means(*keys):
    return ["nixl: these keys mean nothing here: " + ", ".join(keys)]


@pytest.mark.parametrize("options, plugin, parameters, warnings", [
    ({}, "POSIX", {}, []),
    # hicache's own form, for which NIXL judges the parameters.
    ({"plugin": "GDS", "plugin_parameters": {"batch_limit": 8, "new": True}}, "GDS", {"batch_limit": "8", "new": "true"}, []),
    # SGLang's: in full, as its documentation has it, and flat.
    ({"plugin": {"posix": {"active": True, "use_uring": "true"}}}, "POSIX", {"use_uring": "true"}, []),
    ({"plugin": {"posix": {"use_uring": "true", "active": "true"}, "gds": {"batch_limit": 8}, "gds_mt": {"active": False}}, "use_direct_io": True},
     "POSIX", {"use_uring": "true"}, nothing_means("use_direct_io")),
    ({"plugin": {"3fs": {"active": True, "mount_point": "/3fs", "iopool_size": 64}}}, "HF3FS", {"mount_point": "/3fs"},
     nothing_means("plugin.3fs.iopool_size")),
    ({"plugin": {"gds": {"active": True}, "obj": {"active": True, "bucket": "b"}, "posix": {"active": True}}}, "GDS", {},
     nothing_means("plugin.obj", "plugin.posix")),
    ({"plugin": {"obj": {"active": True}, "posix": {"active": True}}, "use_uring": "true"}, "POSIX", {}, nothing_means("plugin.obj", "use_uring")),
    ({"use_uring": "true"}, "POSIX", {"use_uring": "true"}, []),
    ({"use_uring": True, "l3_cleaner_enabled": False, "l3_cleaner_capacity_gb": 5, "hicache_storage_pass_prefix_keys": True}, "POSIX", {"use_uring": "true"},
     nothing_means("hicache_storage_pass_prefix_keys", "l3_cleaner_capacity_gb", "l3_cleaner_enabled")),
    ({"plugin": "gds", "batch_limit": 8, "use_uring": "true"}, "GDS", {"batch_limit": "8"}, nothing_means("use_uring")),
])
def test_what_sglang_says_to_nixl_reaches_it_or_is_named(nixl, options, plugin, parameters, warnings):
    assert nixl(options) == (plugin, parameters, warnings)


@pytest.mark.parametrize("options, sentence", [
    ({"plugin": {"posix": {"use_uring": "true"}}}, "expected one plug-in with \"active\": true"),
    ({"plugin": {}}, "expected one plug-in with \"active\": true"),
    ({"plugin": {"obj": {"active": True, "bucket": "b"}}}, "expected --hicache-storage-backend s3 for a bucket"),
    ({"plugin": "OBJ"}, "expected --hicache-storage-backend s3 for a bucket"),
    ({"plugin": {"gusli": {"active": True}}}, "key 'plugin' is 'GUSLI'; expected one that has files: POSIX, GDS, GDS_MT, HF3FS"),
    ({"plugin": 7}, "key 'plugin' is '7'"),
    ({"plugin": {"gds_mt": {"active": True}}}, "there is no plug-in GDS_MT"),
    ({"plugin_parameters": ["use_uring"]}, "expected an object"),
    ({"path": ""}, "key 'path' is missing; expected the folder, which SGLang has in SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR"),
])
def test_what_nixl_cannot_do_is_refused_with_a_sentence(nixl, options, sentence):
    with pytest.raises(ValueError) as trouble:
        nixl(options)
    assert sentence in str(trouble.value) and "\n" not in str(trouble.value)


def test_a_standalone_client_of_mooncake_is_refused_with_a_sentence(mooncake):
    with pytest.raises(ValueError, match="'client_server_address' names a client of its own.*; expected 'master_server_address'"):
        mooncake({"client_server_address": "127.0.0.1:50052", "standalone_storage": True})
    with pytest.raises(ValueError, match="key 'master_server_address' is missing; expected HOST:PORT"):
        mooncake({})


def test_keys_of_sglang_that_mean_nothing_to_mooncake_are_named(mooncake, caplog):
    with caplog.at_level(logging.WARNING):
        store = mooncake({"master_server_address": "127.0.0.1:50051", "client_server_address": "127.0.0.1:50052", "standalone_storage": True,
                          "check_server": True, "protocol": "rdma"})
    assert store._store.arguments[4] == "rdma" and store._store.arguments[6] == "127.0.0.1:50051"
    assert [each.getMessage() for each in caplog.records] == [
        "mooncake: these keys mean nothing here: check_server, client_server_address, standalone_storage"]
