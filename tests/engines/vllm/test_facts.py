"""What a page's name says, by vLLM's own configuration objects: also for what a CPU does not run. No engine, no node."""

import logging
import os
import shutil
import time
import types

import pytest
from conftest import MODEL
from tiny_model import LONGROPE, changed, hub_at, replace_a_tensor
from vllm.config import LoRAConfig, MultiModalConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.core import kv_cache_utils

from hicache import vllm_identity
from hicache.identity import Identity, canonical, defaults_of

pytestmark = pytest.mark.short


def facts_of(**options):
    config = EngineArgs(**{"model": MODEL, "enable_prefix_caching": True, **options}).create_engine_config()
    return vllm_identity.engine_facts(config)


def name(**options):
    """What pages of an engine with these options are called, as far as it does not depend on the plug-in."""
    identity = Identity(*facts_of(**options), logging.getLogger("test"), since_ns=time.time_ns() + 10**15)
    assert identity.wait(60)
    assert "private" not in canonical(identity.facts), identity.facts
    return identity.namespace


@pytest.mark.parametrize("options", [
    {"served_model_name": "another"}, {"seed": 7}, {"max_num_seqs": 3}, {"gpu_memory_utilization": 0.5}, {"max_model_len": 512}, {"enforce_eager": True},
    {"dtype": "bfloat16"}, {"dtype": "auto"}, {"kv_cache_dtype": "bfloat16"}, {"revision": "main"}, {"load_format": "safetensors"}, {"tokenizer": MODEL},
    {"model": f"{MODEL}/"}, {"model": os.path.relpath(MODEL)}, {"block_size": 64}, {"disable_log_stats": True}, {"generation_config": "vllm"},
    {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}}], ids=str)
def test_what_changes_no_page_changes_no_name(options):
    assert name(**options) == name()


@pytest.mark.parametrize("options", [
    {"hf_overrides": {"rope_parameters": {"rope_theta": 20000.0, "rope_type": "default"}}}, {"dtype": "float32"}, {"kv_cache_dtype": "fp8"},
    {"quantization": "fp8"}, {"load_format": "dummy"}, {"tensor_parallel_size": 2},
    {"speculative_config": {"method": "draft_model", "model": MODEL, "num_speculative_tokens": 2}},
    {"prefix_caching_hash_algo": "sha256_cbor"}], ids=str)
def test_what_changes_a_page_changes_its_name(options):
    assert name(**options) != name()


@pytest.mark.parametrize("one, other, are_same", [
    ({"kv_cache_dtype": "fp8"}, {"kv_cache_dtype": "fp8_e4m3"}, True),
    ({"kv_cache_dtype": "fp8_e5m2"}, {"kv_cache_dtype": "fp8_e4m3"}, False),
    # Keys and values are computed in the model's type, and kept in another one.
    ({"kv_cache_dtype": "fp8", "dtype": "float32"}, {"kv_cache_dtype": "fp8", "dtype": "bfloat16"}, False),
    ({"kv_cache_dtype": "fp8", "kv_cache_dtype_skip_layers": ["0"]}, {"kv_cache_dtype": "fp8"}, False)], ids=str)
def test_the_type_of_kv_is_the_logical_one(one, other, are_same):
    assert (name(**one) == name(**other)) == are_same


def test_a_longer_context_counts_where_it_chooses_other_factors(tmp_path):
    longrope = changed(MODEL, tmp_path / "m", rope_parameters=LONGROPE)
    assert name(model=longrope, max_model_len=2048) == name(model=longrope, max_model_len=1024) != name(model=longrope, max_model_len=4096)
    dynamic = changed(MODEL, tmp_path / "d", rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0})
    assert name(model=dynamic, max_model_len=2048) != name(model=dynamic, max_model_len=4096)


def test_a_path_is_what_is_there(tmp_path, monkeypatch):
    mine = shutil.copytree(MODEL, tmp_path / "mine")
    assert name(model=str(mine)) == name()
    # Size and time kept.
    replace_a_tensor(mine)
    assert name(model=str(mine)) != name()
    # A link that leads elsewhere, and one relative path from two folders.
    (tmp_path / "link").symlink_to(MODEL)
    before = name(model=str(tmp_path / "link"))
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to(mine)
    assert before == name() and name(model=str(tmp_path / "link")) == name(model=str(mine)) != name()
    for folder, of in (("a", MODEL), ("b", mine)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "m").symlink_to(of)
        monkeypatch.chdir(tmp_path / folder)
        assert name(model="m") == name(model=str(of))
    # Another shard, and a processor that was edited.
    shards = [shutil.copytree(MODEL, tmp_path / f"shards{i}") for i in range(2)]
    for i, folder in enumerate(shards):
        shutil.copy(MODEL + "/model.safetensors", folder / "extra.safetensors")
        if i:
            replace_a_tensor(folder, "extra.safetensors")
    assert name(model=str(shards[0])) != name(model=str(shards[1]))
    processors = [changed(MODEL, tmp_path / f"processor{i}", "processor_config.json", size=i) for i in range(2)]
    assert name(model=processors[0]) != name(model=processors[1])
    assert name(model=changed(MODEL, tmp_path / "edited", rms_norm_eps=1e-3)) != name()


def test_a_hubs_branch_is_the_commit_that_was_loaded(tmp_path, monkeypatch):
    names = []
    for commit, snapshot in hub_at(tmp_path, MODEL, monkeypatch):
        names.append(name(model="some/model"))
        assert names[-1] == name(model=snapshot) == name(model="some/model", revision=commit)
    assert names[0] == name() != names[1]


def test_drafts_are_known_by_content(tmp_path):
    draft = shutil.copytree(MODEL, tmp_path / "draft")

    def with_draft(path):
        return name(speculative_config={"method": "draft_model", "model": str(path), "num_speculative_tokens": 2})

    before = with_draft(draft)
    assert before == with_draft(MODEL) != name()
    replace_a_tensor(draft)
    assert with_draft(draft) != before


@pytest.mark.parametrize("fields, kind, base, others, same", [
    (vllm_identity.LORA, LoRAConfig, {"max_lora_rank": 8, "lora_dtype": "bfloat16"}, [{"lora_dtype": "float16"}], {"max_loras": 3}),
    (vllm_identity.INPUTS, MultiModalConfig, {}, [{"mm_processor_kwargs": {"size": {"height": 14}}}, {"media_io_kwargs": {"image": {"mode": "L"}}},
                                                  {"video_pruning_rate": 0.5}], {"limit_per_prompt": {"image": 2}})], ids=lambda each: getattr(each, "__name__", ""))
def test_adapters_and_pictures_are_as_their_settings_make_them(fields, kind, base, others, same):

    def facts(more):
        config = kind(**{**base, **more})
        return canonical(fields.of(config, defaults_of(config)))

    assert facts(same) == facts({}) and all(facts(other) != facts({}) for other in others)


def picture(identifier):
    where = types.SimpleNamespace(offset=4, length=8)
    return types.SimpleNamespace(mm_features=[types.SimpleNamespace(identifier=identifier, mm_position=where)])


def test_pictures_that_a_client_names_are_nobody_elses(monkeypatch):
    vllm_identity._install()
    keys = {}
    for engine in ("one", "other"):
        monkeypatch.setattr(vllm_identity, "_any_watch", lambda engine=engine: types.SimpleNamespace(clients=engine))
        for identifier in ("mine", "f" * 64, "lora:" + "0" * 64):
            keys[engine, identifier] = kv_cache_utils._gen_mm_extra_hash_keys(picture(identifier), 0, 32, 0)[0]
    assert keys["one", "mine"] != keys["other", "mine"]
    assert all(keys["one", same] == keys["other", same] for same in ("f" * 64, "lora:" + "0" * 64))
