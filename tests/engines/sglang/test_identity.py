"""Whose pages are whose: engines that differ in one thing, at one node. What an engine does not find it computes, and so answers right."""

import json
import shutil

import pytest
from engines import HAS_LINKERS, MODEL, PAGE, PROMPT_PAGES, PROMPTS, Engine, tokens, until
from node_fixtures import settled
from test_linker import linked
from test_storage import storage
from tiny_model import replace_a_tensor, write_adapter

import hicache

NONE = [0] * len(PROMPTS)
HITS = [count * PAGE for count in PROMPT_PAGES]
WAYS = {**({"linker": linked} if HAS_LINKERS else {}), "storage": storage}


@pytest.fixture(scope="module", params=list(WAYS))
def way(request):
    return WAYS[request.param]


@pytest.fixture(scope="module")
def node(way):
    with hicache.node("512MiB") as made:
        yield made


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model that tests may change."""
    return shutil.copytree(MODEL, tmp_path_factory.mktemp("model") / "m")


@pytest.fixture(scope="module")
def start(way, node, model, tmp_path_factory):
    """Starts an engine at the node."""

    def begin(**options):
        arguments = {"model_path": str(model), "dtype": "float32", **options}
        settled(model.parent / model.name)
        return Engine(tmp_path_factory.mktemp("engine") / "log", **way(node, **arguments))

    return begin


def cached(outputs):
    return [output["cached"] for output in outputs]


def until_stored(engine, **more):
    """Until an engine finds all that it has computed, in the node alone."""

    def finds_all():
        engine.flush()
        return cached(engine.generate(**more)) == HITS

    until(finds_all, "the last page")


@pytest.fixture(scope="module")
def filled(start):
    """What the first engine has answered, and left at the node."""
    with start() as engine:
        outputs = engine.generate()
        assert cached(outputs) == NONE
        until_stored(engine)
    return tokens(outputs)


@pytest.mark.short
def test_the_same_model_by_another_path_and_name_finds_everything(start, filled, model, tmp_path):
    (tmp_path / "link").symlink_to(model)
    copy = shutil.copytree(model, tmp_path / "copy")
    settled(tmp_path)
    for options in ({"model_path": f"{tmp_path}/./link/", "served_model_name": "another"}, {"model_path": str(copy), "random_seed": 7, "log_level": "warning"}):
        with start(**options) as engine:
            outputs = engine.generate()
            assert cached(outputs) == HITS and tokens(outputs) == filled, options


@pytest.mark.parametrize("options", [{"json_model_override_args": json.dumps({"rope_parameters": {"rope_theta": 20000.0, "rope_type": "default"}})},
                                     {"dtype": "bfloat16"}, {"load_format": "dummy"}], ids=str)
def test_another_configuration_finds_nothing(start, filled, options):
    with start(served_model_name="the same", **options) as engine:
        assert cached(engine.generate()) == NONE


def test_a_configuration_file_edited_in_place_finds_nothing(start, filled, model, tmp_path):
    edited = shutil.copytree(model, tmp_path / "edited")
    text = (edited / "config.json").read_text()
    (edited / "config.json").write_text(text.replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": 1e-03'))
    settled(edited)
    with start(model_path=str(edited)) as engine:
        assert cached(engine.generate()) == NONE


def test_weights_that_change_while_the_engine_runs_poison_nobody(start, filled, model, tmp_path):
    other = shutil.copytree(model, tmp_path / "other")
    replace_a_tensor(other)
    with start() as engine:
        engine.ask({"update": str(other)})
        assert engine.answer() is True
        changed = engine.generate()
        assert cached(changed) == NONE and tokens(changed)[0] != filled[0]
        until_stored(engine)
        assert "weights of this engine are others now" in engine.log
        engine.ask({"update": str(model)})
        assert engine.answer() is True
        outputs = engine.generate()
        assert cached(outputs) == HITS and tokens(outputs) == filled
    with start() as engine:
        outputs = engine.generate()
        assert cached(outputs) == HITS and tokens(outputs) == filled


def test_adapters_are_known_by_content(start, filled, tmp_path):
    first = write_adapter(tmp_path / "first", 1)
    settled(tmp_path / "first")
    lora = {"enable_lora": True, "max_loras_per_batch": 2, "lora_backend": "torch_native"}
    with start(lora_paths=[f"a={first}"], **lora) as engine:
        assert cached(engine.generate()) == HITS  # Of the base model.
        answers = engine.generate(adapter="a")
        assert cached(answers) == NONE and tokens(answers)[0] != filled[0]
        until_stored(engine, adapter="a")
    # Retrained at its path.
    write_adapter(tmp_path / "first", 2)
    copy = write_adapter(tmp_path / "copy", 1)
    settled(tmp_path)
    with start(lora_paths=[f"a={first}", f"b={copy}"], **lora) as engine:
        retrained = engine.generate(adapter="a")
        assert cached(retrained) == NONE and tokens(retrained)[0] != tokens(answers)[0]
        outputs = engine.generate(adapter="b")
        assert cached(outputs) == HITS and tokens(outputs) == tokens(answers)


def test_a_tensor_replaced_in_place_finds_nothing(start, filled, model):
    replace_a_tensor(model)
    with start() as engine:
        outputs = engine.generate()
        assert cached(outputs) == NONE and tokens(outputs)[0] != filled[0]
    replace_a_tensor(model)
    with start() as engine:
        outputs = engine.generate()
        assert cached(outputs) == HITS and tokens(outputs) == filled
