"""What a page's name says, without an engine: facts, digests, weights that change in memory, adapters."""

import abc
import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import re
import struct
import subprocess
import threading
import time

import fact_tables
import pytest

import hicache
from conftest import until
from hicache import identity
from hicache._files import find_program
from hicache._plugin import Space, changed_calls, changed_functions, own_settings
from hicache.identity import Adapters, Fields, Identity, Memory, Source, canonical, content_of, digest_of

LOGGER = logging.getLogger("test")


def write_model(folder, weights=b"weights", **files):
    folder.mkdir(exist_ok=True)
    header = json.dumps({"w": {"dtype": "U8", "shape": [len(weights)], "data_offsets": [0, len(weights)]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + weights)
    for name, text in {"config": '{"hidden_size": 8}', **files}.items():
        (folder / f"{name}.json").write_text(text)
    return folder


@pytest.fixture(autouse=True)
def record(tmp_path, monkeypatch):
    """Where contents are remembered."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def known(folder, since_ns=None, facts=None):
    made = Identity(facts or {"model": {"dtype": "bf16"}}, {"model": Source(str(folder))}, LOGGER, since_ns=since_ns or time.time_ns() + 10**12)
    assert made.wait(60)
    return made


def test_golden_values():
    """The same in every release: pages outlive it."""
    assert canonical({"b": [1, 2.5, None, True], "a": {"ü": "ß", "x": 1e-05}}) == '{"a":{"x":1e-05,"ü":"ß"},"b":[1,2.5,null,true]}'
    assert digest_of({"a": 1}) == "015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862"


def test_the_content_of_a_folder_is_what_counts(tmp_path):
    base = write_model(tmp_path / "base")
    content = content_of(base)
    assert content.weights.startswith("content:") and content.bytes == 7 and list(content.files) == ["config.json"]
    (tmp_path / "link").symlink_to(base)
    copy = write_model(tmp_path / "copy")
    for same in (tmp_path / "link", copy, f"{base}/", f"{tmp_path}/./base"):
        assert content_of(same)[:3] == content[:3]
    for other in (write_model(tmp_path / "tuned", b"weightz"), write_model(tmp_path / "longer", b"weights ")):
        assert content_of(other).weights != content.weights and content_of(other).files == content.files
    assert content_of(write_model(tmp_path / "processor", processor_config="{}")).digest != content.digest
    with pytest.raises(hicache.InvalidArgument, match="has no weights"):
        content_of(tmp_path)


def test_a_tensor_replaced_in_place_is_seen_though_size_and_time_are_kept(tmp_path):
    folder = write_model(tmp_path / "model")
    before, file = content_of(folder), folder / "model.safetensors"
    times = file.stat()
    with open(file, "r+b") as weights:
        weights.seek(-1, os.SEEK_END)
        weights.write(b"z")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert file.stat().st_size == times.st_size and content_of(folder).weights != before.weights


def test_facts_are_shared_by_content_and_nothing_else(tmp_path):
    one, other = known(write_model(tmp_path / "one")), known(write_model(tmp_path / "other"))
    assert one.namespace == other.namespace and re.fullmatch("identity-1:[0-9a-f]{64}", one.namespace)
    assert known(tmp_path / "one", facts={"model": {"dtype": "fp16"}}).namespace != one.namespace
    assert known(write_model(tmp_path / "tuned", b"weightz")).namespace != one.namespace
    # The engine tells its configuration itself, after overrides.
    assert known(write_model(tmp_path / "configured", config='{"hidden_size": 9}')).namespace == one.namespace
    assert known(write_model(tmp_path / "coded", processor_config="{}")).namespace != one.namespace


@pytest.mark.parametrize("source, why", [(Source(unknown="nobody knows"), "nobody knows"), (Source("/nowhere/at/all"), "/nowhere/at/all")])
def test_what_cannot_be_learnt_is_not_shared_and_said_once(source, why, caplog):
    one, other = (Identity({}, {"model": source}, LOGGER) for _ in range(2))
    assert one.wait(60) and other.wait(60) and one.namespace != other.namespace
    assert len([text for text in caplog.messages if "are not shared" in text and why in text]) == 2


def test_weights_that_changed_since_the_engine_began_are_not_taken_for_its_own(tmp_path, caplog):
    folder = write_model(tmp_path / "model")
    began_ns = folder.stat().st_ctime_ns - 1
    assert known(folder, began_ns).namespace != known(folder, began_ns).namespace and "has changed since" in caplog.text
    # A link that leads elsewhere now is such a change as well.
    other = write_model(tmp_path / "other")
    (tmp_path / "link").symlink_to(other)
    link_ns = os.lstat(tmp_path / "link").st_ctime_ns
    assert known(tmp_path / "link", link_ns).namespace != known(tmp_path / "link", link_ns).namespace
    assert known(tmp_path / "link", link_ns + 1).namespace == known(other, link_ns + 1).namespace


def test_an_operator_may_name_the_weights():
    one, other = (Identity({}, {"model": Source(called=name)}, LOGGER) for name in ("v1", "v2"))
    assert one.wait(60) and other.wait(60) and one.namespace != other.namespace and one.facts["model"] == {"weights": "called v1"}


def test_weights_in_memory_are_a_version_that_engines_agree_on(tmp_path):
    one, other = known(write_model(tmp_path / "one")), known(write_model(tmp_path / "other", b"weightz"))
    before = one.namespace
    assert one.weights_are("digest") and not one.weights_are("digest") and one.namespace != before
    assert other.weights_are("digest") and other.namespace == one.namespace
    assert one.weights_are(None) and one.namespace == before


def test_caches_that_have_kv_of_other_weights_are_nobody_elses():
    memory = Memory(("blocks", "tier"))
    memory.loaded("a")
    assert memory.name(("blocks",)) is None
    memory.are("b")  # Nothing was computed before.
    assert memory.name(("blocks", "tier")) == "b"
    memory.use()
    memory.are("c")
    mixed = memory.name(("blocks",))
    assert mixed.startswith("private") and memory.name(("blocks",)) == mixed
    memory.emptied(("blocks",))
    assert memory.name(("blocks",)) == "c" and memory.name(("blocks", "tier")).startswith("private")
    memory.emptied(("blocks", "tier"))
    assert memory.name(("blocks", "tier")) == "c"
    memory.are("a")
    assert memory.name(("blocks", "tier")) is None


def test_pages_of_weights_that_have_ended_leave_first(tmp_path):
    """After each update of an engine's weights pages of those before make room, and not pages of an engine whose weights are on a disk."""
    page = os.urandom(512 << 10)
    with hicache.node("8MiB") as node, contextlib.ExitStack() as opened:
        settings = own_settings({"socket": node.socket}, "test")
        lasting, training = (Space(known(write_model(tmp_path / name)), settings, LOGGER) for name in ("lasting", "training"))
        opened.callback(lasting.close)
        opened.callback(training.close)
        for name in (b"a", b"b"):
            lasting.store.put([name], [page]).check()
        for version in range(5):
            training.identity.weights_are(f"version {version}")
            # The name of before ends in a thread.
            until(lambda: training.store is not None and not [each for each in threading.enumerate() if each.name == "hicache-facts"])
            for i in range(4):
                training.store.put([f"page {i}"], [page]).check()
        assert lasting.store.exists([b"a", b"b"]).ok == [True, True]
        assert training.store.exists([f"page {i}" for i in range(4)]).prefix == 4 and node_status(node)["pages_evicted"] > 4


def node_status(node):
    with node.store("looks") as store:
        return store.node_status()


def test_adapters_are_called_by_their_content(tmp_path, caplog):
    first, copy = (write_model(tmp_path / name, adapter_config='{"lora_alpha": 8}') for name in ("first", "copy"))
    adapters = Adapters(LOGGER)
    name = adapters.name_of(1, str(first))
    assert adapters.name_of(2, str(copy)) == name and adapters.name_of(1, str(first)) == name
    # Retrained at its path: whether the engine has loaded it by now is not known, until it loads it before our eyes.
    write_model(first, b"weightz")
    assert adapters.name_of(1, str(first)).startswith("private") and "are not shared" in caplog.text
    assert adapters.load(1, str(first), lambda: "loaded") == "loaded"
    retrained = adapters.name_of(1, str(first))
    assert retrained not in (name, "") and not retrained.startswith("private")
    assert Adapters(LOGGER).name_of(7, str(first)) == retrained
    # An edited factor is another adapter.
    (first / "adapter_config.json").write_text('{"lora_alpha": 16}')
    assert Adapters(LOGGER).name_of(7, str(first)) != retrained
    # Replaced while it was being loaded.
    adapters.load(1, str(first), lambda: write_model(first, b"another"))
    assert adapters.name_of(1, str(first)).startswith("private")
    assert Adapters(LOGGER).name_of(1, "/nowhere/at/all").startswith("private")


def test_fields_that_nobody_knows_count_where_they_were_given():

    @dataclasses.dataclass
    class Settings:
        dtype: str = "bf16"
        port: int = 1
        new: str = "default"

    fields = Fields({"dtype": "the type"}, "port|host")
    defaults = identity.defaults_of(Settings())
    assert fields.of(Settings(port=2), defaults) == {"dtype": "bf16"}
    assert fields.of(Settings(new="given"), defaults) == {"dtype": "bf16", "new": "given"}
    assert fields.unknown(identity.names_of(Settings)) == ["new"]


def test_what_a_release_calls_otherwise_is_named():

    class Base(abc.ABC):
        @abc.abstractmethod
        def load(self, job, expedited=False): ...

        @abc.abstractmethod
        def flushed(self): ...

        def store(self, job, *more): ...

        def renamed(self, which): ...

    class Plugin(Base):
        def load(self, job): ...

        def store(self, job): ...

        def renamed(self, **named): ...

        def own(self): ...

    assert changed_calls(Plugin) == ["Plugin.flushed, which is not there", "Plugin.load with expedited", "Plugin.store with more"]
    assert changed_functions({"load": (Base.load, ("self", "job")), "store": (Base.store, ("self", "job", "more"))}) == [
        "load(self, job, expedited); expected (self, job)"]


def test_a_configuration_is_all_that_can_change_kv():
    config = {"hidden_size": 8, "rope_parameters": {"rope_theta": 1e6}, "_name_or_path": "/a", "transformers_version": "5", "bos_token_id": 1, "nothing": None,
              "text_config": {"sliding_window": 4, "torch_dtype": "bfloat16"}}
    assert identity.configuration(config) == {"hidden_size": 8, "rope_parameters": {"rope_theta": 1e6}, "text_config": {"sliding_window": 4}}


def test_the_start_of_this_process_is_a_time_of_files(tmp_path):
    (tmp_path / "now").touch()
    assert 0 < (tmp_path / "now").stat().st_ctime_ns - identity.started_ns() < 3600 * 10**9


def test_a_digest_of_tensors_sees_every_bit():
    torch = pytest.importorskip("torch")
    made = {"a": torch.arange(10, dtype=torch.bfloat16), "b": torch.zeros(3, 5), "odd": torch.zeros(7, dtype=torch.uint8), "none": torch.zeros(0)}
    base = identity.weights_digest(made.items())
    assert identity.weights_digest(reversed(made.items())) == base
    seen = {base}
    for name, tensor in made.items():
        for i in range(tensor.numel()):
            changed = {**made, name: tensor.clone()}
            changed[name].view(-1)[i] += 1
            seen.add(identity.weights_digest(changed.items()))
    seen.add(identity.weights_digest({**made, "b": torch.zeros(5, 3)}.items()))
    seen.add(identity.weights_digest({**made, "b": torch.zeros(3, 5, dtype=torch.int32)}.items()))
    assert len(seen) == 1 + sum(tensor.numel() for tensor in made.values()) + 2


@pytest.mark.parametrize("page", fact_tables.PAGES)
def test_the_docs_say_what_the_plug_ins_collect(page):
    wanted, found = fact_tables.page_with_table(page)
    assert fact_tables.BEGIN in found and wanted == found


def why(node, *of):
    done = subprocess.run([find_program("hicachectl"), "node", "why", *map(str, of), "--socket", node.socket], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout.splitlines(), done.stderr


def test_people_are_told_why_engines_share_or_do_not(shared_node, tmp_path):
    models = [write_model(tmp_path / "a"), write_model(tmp_path / "b", b"weightz"), write_model(tmp_path / "copy")]
    settings = own_settings({"socket": shared_node.socket}, "test")
    facts = {"kv": {"type": "fp8"}, "model": {"configuration": {"hidden_size": 8}}}
    with contextlib.ExitStack() as opened:
        spaces = []
        for model in models:
            spaces.append(Space(known(model, facts=facts), settings, LOGGER))
            opened.callback(spaces[-1].close)
            spaces[-1].store.put([model.name], [b"page of " + model.name.encode()]).check()
        # The facts are kept by a thread.
        fingerprints = [hashlib.sha256(space.store.namespace.encode()).hexdigest()[:16] for space in spaces]
        until(lambda: all(why(shared_node, each)[0] == 0 for each in fingerprints))
        weights = [content_of(model).weights for model in models]
        assert why(shared_node, fingerprints[0])[1] == ["kv.type: fp8", "model.configuration.hidden_size: 8", "model.files: {}", f"model.weights: {weights[0]}"]
        code, lines, _ = why(shared_node, fingerprints[0], fingerprints[1])
        assert code == 1 and lines == [f"model.weights: {weights[0]} in the first, {weights[1]} in the second"]
        assert fingerprints[0] == fingerprints[2] and why(shared_node, fingerprints[0], fingerprints[2])[1] == ["they share their pages: all facts are equal"]
        # By pages, and by clients.
        pages = [bytes(space.store.names([model.name])[0]).hex() for space, model in zip(spaces, models, strict=True)]
        assert why(shared_node, pages[0], pages[1]) == (1, lines, "")
        status = subprocess.run([find_program("hicachectl"), "node", "status", "--json", "--socket", shared_node.socket], capture_output=True, check=True)
        numbers = {each["fingerprint"]: each["client"] for each in json.loads(status.stdout)["clients"]}
        assert why(shared_node, numbers[fingerprints[0]], numbers[fingerprints[1]])[1] == lines
        # And an engine by a folder.
        assert why(shared_node, fingerprints[0], models[2])[:2] == (0, ["the engine has loaded what is in the folder"])
        code, lines, _ = why(shared_node, fingerprints[0], write_model(tmp_path / "edited", config='{"hidden_size": 9}'))
        assert code == 1 and lines == ["model.configuration.hidden_size: 8 in the first, 9 in the second"]
        # What has the same name goes as well, and nothing else.
        removed = subprocess.run([find_program("hicachectl"), "node", "clear", fingerprints[0], "--socket", shared_node.socket], capture_output=True, text=True)
        assert removed.returncode == 0 and removed.stdout.startswith("2 pages, ")
        assert [space.store.exists([model.name]).ok for space, model in zip(spaces, models, strict=True)] == [[False], [True], [False]]
        for unknown in ("0123456789abcdef", 999999, "f" * 64, "nonsense"):
            code, _, trouble = why(shared_node, unknown)
            assert code not in (0, 1) or "no" in trouble
