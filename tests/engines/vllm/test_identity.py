"""Whose pages are whose: engines that differ in one thing, at one node. What an engine does not find it computes, and so answers right."""

import pathlib
import shutil

import pytest
from conftest import CACHED, MODEL, PROMPTS, Engine, cached, same, transfer, until
from node_fixtures import settled
from test_tier import transfer as tier_transfer
from tiny_model import LONGROPE, changed, replace_a_tensor, write_adapter

import hicache

NONE = [0] * len(PROMPTS)
WAYS = {"connector": transfer, "tier": tier_transfer}


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
        settled(pathlib.Path(options.get("model", model)).resolve())
        return Engine(tmp_path_factory.mktemp("engine") / "log", together=True, transfer=way(node), **{"model": str(model), **options})

    return begin


@pytest.fixture(scope="module")
def filled(start):
    """What the first engine has answered, and left at the node."""
    with start() as engine:
        outputs = engine.generate()
        assert cached(outputs) == NONE
        until_stored(engine)
    return outputs


def until_stored(engine, **more):
    """Until an engine finds all that it has computed, in the node alone."""
    until(lambda: engine.do("reset", connector=True) and cached(engine.generate(**more)) == CACHED, "the last page")


@pytest.mark.short
def test_the_same_model_by_another_path_and_name_finds_everything(start, filled, model, tmp_path):
    (tmp_path / "link").symlink_to(model)
    copy = shutil.copytree(model, tmp_path / "copy")
    (copy / "README.md").write_text("a copy")
    for options in ({"model": f"{tmp_path}/./link/", "served_model_name": "another"}, {"model": str(copy), "seed": 7, "gpu_memory_utilization": 0.5}):
        with start(**options) as engine:
            outputs = engine.generate()
            assert cached(outputs) == CACHED and same(outputs, filled), options


def test_n_grams_have_no_kv(start, filled):
    with start(speculative_config={"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}) as engine:
        assert cached(engine.generate()) == CACHED


@pytest.mark.parametrize("options", [{"hf_overrides": {"rope_parameters": {"rope_theta": 20000.0, "rope_type": "default"}}}, {"dtype": "bfloat16"},
                                     {"load_format": "dummy"}], ids=str)
def test_another_configuration_finds_nothing(start, filled, options):
    with start(**options) as engine:
        assert cached(engine.generate()) == NONE


def test_a_longer_context_that_takes_other_factors_finds_nothing(start, model, tmp_path):
    longrope = changed(MODEL, tmp_path / "longrope", rope_parameters=LONGROPE)
    with start(model=longrope, max_model_len=2048) as engine:
        answers = engine.generate()
        assert cached(answers) == NONE
        until_stored(engine)
    with start(model=longrope, max_model_len=4096) as engine:
        outputs = engine.generate()
        assert cached(outputs) == NONE and outputs[0]["tokens"] != answers[0]["tokens"]
    with start(model=longrope, max_model_len=2016) as engine:
        outputs = engine.generate()
        assert cached(outputs) == CACHED and same(outputs, answers)


def test_a_draft_model_finds_its_own_kv_and_no_others(start, filled, model, tmp_path):
    """Of a draft that is the model itself all tokens are right, unless it goes on with KV of another draft."""
    other = shutil.copytree(MODEL, tmp_path / "other")
    replace_a_tensor(other)

    def drafting(draft):
        return start(disable_log_stats=False, speculative_config={"method": "draft_model", "model": str(draft), "num_speculative_tokens": 3})

    with drafting(other) as engine:
        engine.generate()
        until_stored(engine)
        drafted, accepted = engine.do("drafted")
        assert accepted < drafted / 2
    for found in (NONE, CACHED):
        with drafting(model) as engine:
            outputs = engine.generate(tokens=40)
            assert cached(outputs) == found
            drafted, accepted = engine.do("drafted")
            assert accepted > 0.9 * drafted > 0
            until_stored(engine, tokens=40)


def test_a_configuration_file_edited_in_place_finds_nothing(start, filled, model, tmp_path):
    edited = shutil.copytree(model, tmp_path / "edited")
    text = (edited / "config.json").read_text()
    (edited / "config.json").write_text(text.replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": 1e-03'))
    assert (edited / "config.json").read_text() != text
    with start(model=str(edited)) as engine:
        assert cached(engine.generate()) == NONE


def test_weights_that_change_in_memory_poison_nobody(start, filled):
    with start() as engine:
        engine.do("change", factor=-1.0)
        assert engine.do("reset", connector=False)
        changed = engine.generate()
        assert changed != filled and all(output["tokens"] != right["tokens"] for output, right in zip(changed, filled, strict=True))
        # With the connector's own memory emptied as well, pages are kept under the name of these weights.
        until_stored(engine)
        assert "weights of this engine are others now" in engine.log
        assert [output["tokens"] for output in engine.generate()] == [output["tokens"] for output in changed]
    with start() as engine:
        outputs = engine.generate()
        assert cached(outputs) == CACHED and same(outputs, filled)


def test_adapters_are_known_by_content(start, filled, tmp_path):
    first, copy = write_adapter(tmp_path / "first", 1), write_adapter(tmp_path / "copy", 1)
    lora = {"enable_lora": True, "max_lora_rank": 8}
    with start(**lora) as engine:
        assert cached(engine.generate()) == CACHED  # Of the base model.
        answers = engine.generate(adapter=("a", 1, first))
        assert cached(answers) == NONE and answers[0]["tokens"] != filled[0]["tokens"]
        until_stored(engine, adapter=("a", 1, first))
        # Retrained, and loaded again in place.
        write_adapter(tmp_path / "first", 2)
        assert engine.do("load_adapter", adapter=("a", 1, first))
        engine.do("reset", connector=True)
        retrained = engine.generate(adapter=("a", 1, first))
        assert cached(retrained) == NONE and retrained[0]["tokens"] != answers[0]["tokens"]
        until_stored(engine, adapter=("a", 1, first))
    with start(**lora) as engine:
        outputs = engine.generate(adapter=("another name", 5, copy))
        assert cached(outputs) == CACHED and [output["tokens"] for output in outputs] == [output["tokens"] for output in answers]
        outputs = engine.generate(adapter=("a", 1, first))
        assert cached(outputs) == CACHED and [output["tokens"] for output in outputs] == [output["tokens"] for output in retrained]
        # Another factor of the same tensors.
        outputs = engine.generate(adapter=("b", 2, write_adapter(tmp_path / "scaled", 1, scale=4)))
        assert cached(outputs) == NONE


def test_a_tensor_replaced_in_place_finds_nothing(start, filled, model):
    replace_a_tensor(model)
    with start() as engine:
        outputs = engine.generate()
        assert cached(outputs) == NONE and outputs[0]["tokens"] != filled[0]["tokens"]
    replace_a_tensor(model)
    with start() as engine:
        outputs = engine.generate()
        assert cached(outputs) == CACHED and same(outputs, filled)
