"""What a page's name says, by SGLang's own settings and configuration: also for what a CPU does not run. No engine, no node."""

import json
import logging
import os
import shutil
import sys
import time

import pytest
from engines import ENGINE, HERE, MODEL
from tiny_model import LONGROPE, changed, hub_at, replace_a_tensor

sys.path.insert(0, str(HERE / "cpu_shim"))
import hicache_cpu_shim  # noqa: E402

hicache_cpu_shim.activate()

from sglang.srt import runtime_context  # noqa: E402
from sglang.srt.server_args import ServerArgs  # noqa: E402

from hicache import sglang_identity  # noqa: E402
from hicache.identity import Identity, canonical  # noqa: E402

pytestmark = pytest.mark.short


def name(with_draft=False, **options):
    """What pages of an engine with these options are called, as far as it does not depend on the pool."""
    settings = ServerArgs(**{**ENGINE, "dtype": "bfloat16", **options})
    runtime_context.get_context().set_server_args(settings)
    facts, models = sglang_identity.engine_facts()
    if with_draft:
        drafts = sglang_identity.draft_facts()
        facts.update(drafts[0])
        models.update(drafts[1])
    identity = Identity(facts, models, logging.getLogger("test"), since_ns=time.time_ns() + 10**15)
    assert identity.wait(60)
    assert "private" not in canonical(identity.facts), identity.facts
    return identity.namespace


@pytest.mark.parametrize("options", [
    {"served_model_name": "another"}, {"random_seed": 7}, {"max_running_requests": 3}, {"mem_fraction_static": 0.5}, {"context_length": 512}, {"revision": "main"},
    {"load_format": "safetensors"}, {"tokenizer_path": MODEL}, {"model_path": f"{MODEL}/"}, {"model_path": os.path.relpath(MODEL)}, {"log_level": "warning"},
    {"port": 12345}, {"dtype": "auto"}, {"chunked_prefill_size": 512}], ids=str)
def test_what_changes_no_page_changes_no_name(options):
    assert name(**options) == name()


@pytest.mark.parametrize("options", [
    {"json_model_override_args": json.dumps({"rope_parameters": {"rope_theta": 20000.0, "rope_type": "default"}})}, {"dtype": "float32"},
    {"quantization": "fp8"}, {"load_format": "dummy"}, {"enable_fp32_lm_head": True}, {"mm_process_config": {"image": {"max_pixels": 1}}}], ids=str)
def test_what_changes_a_page_changes_its_name(options):
    assert name(served_model_name="the same", **options) != name(served_model_name="the same")


@pytest.mark.parametrize("one, other, are_same", [
    ({}, {"kv_cache_dtype": "bf16"}, True),
    ({"kv_cache_dtype": "bfloat16"}, {"kv_cache_dtype": "bf16"}, True),
    # Both are stored as torch.uint8.
    ({"kv_cache_dtype": "fp8_e5m2"}, {"kv_cache_dtype": "fp8_e4m3"}, False),
    # Keys and values are computed in the model's type, and kept in another one.
    ({"kv_cache_dtype": "fp8_e4m3", "dtype": "float32"}, {"kv_cache_dtype": "fp8_e4m3", "dtype": "bfloat16"}, False)], ids=str)
def test_the_type_of_kv_is_the_logical_one(one, other, are_same):
    assert (name(**one) == name(**other)) == are_same


def test_scales_are_known_by_content(tmp_path):
    scales = tmp_path / "scales.json"
    names = []
    for value in (1.0, 1.0, 2.0):
        scales.write_text(json.dumps({"model_type": "llama", "kv_cache": {"dtype": "float8_e4m3fn", "scaling_factor": {"0": {"0": value}}}}))
        names.append(name(quantization_param_path=str(scales)))
    assert names[0] == names[1] != names[2] and names[0] != name()


def test_a_longer_context_counts_where_it_chooses_other_factors(tmp_path):
    longrope = changed(MODEL, tmp_path / "m", rope_parameters=LONGROPE)
    assert name(model_path=longrope, context_length=2048) != name(model_path=longrope, context_length=4096)


def test_a_path_is_what_is_there(tmp_path, monkeypatch):
    mine = shutil.copytree(MODEL, tmp_path / "mine")
    assert name(model_path=str(mine)) == name()
    # Size and time kept.
    replace_a_tensor(mine)
    assert name(model_path=str(mine)) != name()
    # A link that leads elsewhere, and one relative path from two folders.
    (tmp_path / "link").symlink_to(MODEL)
    before = name(model_path=str(tmp_path / "link"))
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to(mine)
    assert before == name() and name(model_path=str(tmp_path / "link")) == name(model_path=str(mine)) != name()
    for folder, of in (("a", MODEL), ("b", mine)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "m").symlink_to(of)
        monkeypatch.chdir(tmp_path / folder)
        assert name(model_path="m") == name(model_path=str(of))
    assert name(model_path=changed(MODEL, tmp_path / "edited", rms_norm_eps=1e-3)) != name()


def test_a_hubs_branch_is_the_commit_that_was_loaded(tmp_path, monkeypatch):
    names = []
    for commit, snapshot in hub_at(tmp_path, MODEL, monkeypatch):
        names.append(name(model_path="some/model"))
        assert names[-1] == name(model_path=snapshot) == name(model_path="some/model", revision=commit)
    assert names[0] == name() != names[1]


def test_drafts_are_known_by_content_for_their_own_pages(tmp_path):
    draft = shutil.copytree(MODEL, tmp_path / "draft")

    def with_draft(path, **more):
        return name(with_draft=True, speculative_algorithm="STANDALONE", speculative_draft_model_path=str(path), speculative_num_steps=2, speculative_eagle_topk=1,
                    speculative_num_draft_tokens=3, **more)

    before = with_draft(draft)
    assert before == with_draft(MODEL) != name()
    replace_a_tensor(draft)
    assert with_draft(draft) != before
