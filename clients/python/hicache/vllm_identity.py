"""What a page of vLLM's is: the facts of its engine, and when they change.

vLLM's own keys say which tokens a block is for. They name adapters by path and pictures by what a client calls them, and nothing says which weights the
engine has. This module runs in the process of the engine's core: it reads the configuration that the engine holds, watches the calls by which weights and
adapters change, and has adapters and pictures named by content.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import uuid
import weakref
from collections.abc import Callable
from typing import Any

from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.v1.core import kv_cache_utils
from vllm.v1.engine.core import EngineCore

from hicache._errors import Code, error_of
from hicache._plugin import Settings, changed_functions
from hicache.identity import (Adapters, Fields, Identity, Memory, Source, canonical, configuration, defaults_of, digest_of, folder_of, hub_commit,
                              weights_digest)

# A child of vLLM's own logger, whose lines the user sees.
logger = init_logger(f"vllm.{__name__}")

#: Grows when vLLM puts the bytes of a block together in another way.
FORMAT = 3

#: Of vLLM's ModelConfig.
MODEL = Fields(
    {"dtype": "the type in which the model computes", "quantization": "the quantization of weights, as chosen", "quantization_config": "its settings",
     "disable_sliding_window": "whether windows are switched off", "model_class_overrides": "another program for a model",
     "code_revision": "the revision of a model's program in a hub", "override_attention_dtype": "the type of attention"},
    # Their effect is in the configuration that the engine holds, in the weights, or in the input's hash; or they are about texts, sampling, memory and speed.
    "model|model_weights|runner|convert|tokenizer.*|trust_remote_code|seed|hf_.*|is_submodel_config|word_embeddings_untied_by_checkpoint|allowed_.*|revision"
    "|max_model_len|original_max_model_len|spec_target_max_model_len|allow_deprecated_quantization|enforce_eager|return_sampling_mask|max_logprobs|logprobs_mode"
    "|use_fp64_gumbel|enable_trace_replay|disable_cascade_attn|skip_tokenizer_init|enable_prompt_embeds|served_model_name|config_format|generation_config"
    "|override_generation_config|.*sleep_mode.*|sleep_preserve_parameter_names|enable_nccl_comm_suspend|enable_cumem_allocator|model_impl|logits_processors"
    "|io_processor_plugin|renderer_num_workers|pooler_config|multimodal_config|encoder_config|attention_chunk_size|model_arch_config|architecture.*"
    "|language_model_only|limit_mm_per_prompt|enable_mm_embeds|media_io_kwargs|mm_.*|interleave_mm_strings|skip_mm_profiling|video_pruning_.*"
    "|enable_return_routed_experts|_.*")
#: Of vLLM's CacheConfig; the type of the KV is a fact of its own.
CACHE = Fields(
    {"kv_cache_dtype_skip_layers": "layers whose KV keeps the model's type", "prefix_caching_hash_algo": "the hash of tokens", "sliding_window": "the window",
     "mamba_block_size": "tokens of a block of recurrent state", "mamba_cache_dtype": "the type of recurrent state",
     "mamba_ssm_cache_dtype": "the type of recurrent state (SSM)", "mamba_cache_mode": "where recurrent state is kept", "use_replayssm": "another form of that state",
     "calculate_kv_scales": "scales that an engine finds by itself"},
    "block_size|user_specified_block_size|kv_cache_layout|prefix_match_unit|gpu_memory_utilization|cache_dtype|is_attention_free|num_gpu_blocks_override"
    "|enable_prefix_caching|prefix_cache_retention_interval|mamba_page_size_padded|skip_page_size_padded|enable_mamba_shared_prefix_checkpoint"
    "|replayssm_buffer_len|use_kda_recoverssm|num_[cg]pu_blocks|effective_attention_block_size|kv_cache_size_tokens|kv_cache_max_concurrency|hash_block_size"
    "|cache_hit_alignment_tokens|user_specified_mamba_block_size|simple_cpu_offload_num_blocks|kv_sharing_fast_prefill|swa_bounded_replay|kv_cache_memory_bytes|kv_offloading_.*|_block_size_resolved")
#: Of vLLM's MultiModalConfig.
INPUTS = Fields(
    {"mm_processor_kwargs": "options of the processor of pictures and sounds", "media_io_kwargs": "how media are read", "mm_encoder_attn_dtype": "the encoder's type",
     "mm_encoder_fp8_scale_path": "its scales", "mm_device_do_normalize": "where pictures are normalised", "video_pruning_rate": "how many tokens of a video are kept",
     "video_pruning_method": "which of them", "language_model_only": "whether the encoder is left out"},
    "limit_per_prompt|limit_mm_per_prompt|enable_mm_embeds|mm_processor_cache_.*|mm_hasher_algorithm|mm_shm_cache_.*|mm_encoder_only|mm_encoder_tp_mode"
    "|mm_encoder_attn_backend|mm_encoder_fp8_scale_save_.*|interleave_mm_strings|skip_mm_profiling|mm_tensor_ipc|allow_missing_mm_embeddings"
    "|mm_ipc_gpu_memory_gb|mm_processor_device")
#: Of vLLM's LoadConfig.
LOADING = Fields({"load_format": "where the weights come from, if not from their files", "model_loader_extra_config": "options of that"},
                 "download_dir|safetensors_.*|device|ignore_patterns|use_tqdm_on_load|pt_load_map_location")
#: Of vLLM's AttentionConfig.
ATTENTION = Fields({"indexer_kv_dtype": "the type of index keys", "hisparse_config": "the form of sparse KV", "use_non_causal": "whether attention looks ahead"},
                   "(.*_)?backend|backend_per_kind|flash_attn_.*|tokenspeed_.*|tq_.*|use_trtllm_attention|disable_flashinfer_.*|mla_prefill_backend|use_prefill_.*"
                   "|indexer_sparse_logits|indexer_tp_shard_min_rows|minimax_m3_indexer_cp|sparse_mla_.*|flex_attn_.*|flashinfer_.*|use_cudnn_prefill|use_fp4_indexer_cache")
#: Of vLLM's SpeculativeConfig, where a draft model has KV of its own.
DRAFT = Fields({"method": "how tokens are drafted", "kv_cache_dtype": "the type of the draft's KV", "quantization": "the quantization of the draft"},
               "enforce_eager|num_speculative_tokens.*|model|draft_tensor_parallel_size|tensor_parallel_size|moe_backend|attention_backend|max_model_len|revision"
               "|code_revision|index_share_for_mtp_iteration|disable_.*|use_local_argmax_reduction|use_heterogeneous_vocab|prompt_lookup_.*|parallel_drafting"
               "|target_.*_config|draft_.*|suffix_.*|rejection_sample_method|synthetic_.*|enable_adaptive_verification|fly_.*|xpress_topc|dspark_.*|speculative_token_tree|_.*")
#: Of vLLM's LoRAConfig: a fact of an adapter's pages alone.
LORA = Fields({"lora_dtype": "the type of adapters", "enable_tower_connector_lora": "whether adapters reach an encoder", "target_modules": "which modules take them"},
              "max_.*|fully_sharded_loras|default_mm_loras|specialize_active_lora|enable_mixed_moe_lora_format|enable_moe_shared_loras")

# Ways to draft tokens that need no KV of a draft model.
_NO_DRAFT_KV = re.compile("ngram.*|suffix|medusa|mlp_speculator|extract_hidden_states")
# Weights that are in files; others are made up, or come from elsewhere.
_FILES = ("auto", "hf", "safetensors", "fastsafetensors", "instanttensor", "runai_streamer", "mistral", "pt", "npcache", "gguf", "bitsandbytes")
# Calls of workers that change no weights.
_HARMLESS = re.compile("synchronize_device|compute_weight_checksums|check_health|profile|execute_dummy_batch|(add|remove|list|pin)_loras?|get_.*|save_.*|reset_.*_cache")
# What a picture is called by its content; anything else is a client's word.
_CONTENT = re.compile(r"(?:.*[:-])?(?:[0-9a-f]{64}|[0-9a-f]{128})")


def kv_type(cache_dtype: str, dtype: Any) -> str:
    """The logical type of KV: one word for one type."""
    name = str(dtype).removeprefix("torch.") if cache_dtype == "auto" else cache_dtype
    return {"fp8": "fp8_e4m3", "half": "float16", "float": "float32", "bf16": "bfloat16"}.get(name, name)


def model_facts(model: Any) -> dict[str, Any]:
    """Of a ModelConfig, but for the weights."""
    config = configuration(model.hf_config)
    facts = {"configuration": config, "options": MODEL.of(model, defaults_of(model))}
    # Beyond the original length such a model takes other factors for all positions.
    if "longrope" in canonical(config):
        original = getattr(model.hf_text_config, "original_max_position_embeddings", None) or _of_rope(config, "original_max_position_embeddings")
        facts["long factors"] = original is None or model.max_model_len > original
    if "dynamic" in canonical(config.get("rope_scaling") or config.get("rope_parameters") or {}):
        facts["length"] = model.max_model_len
    return facts


def _of_rope(config: dict[str, Any], name: str) -> Any:
    for value in config.values():
        if isinstance(value, dict):
            found = value.get(name) or _of_rope(value, name)
            if found is not None:
                return found
    return None


def source_of(model: Any, loading: Any) -> Source:
    """The weights of a ModelConfig."""
    if str(loading.load_format) not in _FILES:
        return Source(called=f"made by the loader {loading.load_format}") if str(loading.load_format) == "dummy" else Source(
            unknown=f"the loader {loading.load_format} does not take them from files of the model")
    return folder_of(model.model_weights or model.model, model.revision, hub_commit(model.hf_config))


def engine_facts(vllm_config: Any) -> tuple[dict[str, Any], dict[str, Source]]:
    """Everything of an engine's configuration that changes a page, and where its weights are."""
    model, cache, parallel = vllm_config.model_config, vllm_config.cache_config, vllm_config.parallel_config
    facts: dict[str, Any] = {
        "format": {"engine": "vllm", "version": FORMAT, "device": current_platform.device_type, "tp": parallel.tensor_parallel_size,
                   "pp": parallel.pipeline_parallel_size, "dcp": getattr(parallel, "decode_context_parallel_size", 1),
                   "pcp": getattr(parallel, "prefill_context_parallel_size", 1)},
        "model": model_facts(model),
        "kv": {"type": kv_type(cache.cache_dtype, model.dtype), **CACHE.of(cache, defaults_of(cache)),
               **ATTENTION.of(vllm_config.attention_config, defaults_of(vllm_config.attention_config))},
    }
    loading = LOADING.of(vllm_config.load_config, defaults_of(vllm_config.load_config))
    if loading.get("load_format") in _FILES:
        del loading["load_format"]
    if any(loading.values()):
        facts["loading"] = loading
    if model.multimodal_config is not None:
        facts["inputs"] = INPUTS.of(model.multimodal_config, defaults_of(model.multimodal_config))
    models = {"model": source_of(model, vllm_config.load_config)}
    draft = vllm_config.speculative_config
    if draft is not None and not _NO_DRAFT_KV.fullmatch(str(draft.method)):
        of = draft.draft_model_config or model
        facts["draft"] = {**model_facts(of), "drafting": DRAFT.of(draft, defaults_of(draft))}
        models["draft"] = source_of(of, draft.draft_load_config or vllm_config.load_config)
    return facts, models


def engine_core() -> EngineCore:
    """The core in whose construction this runs.

    @raises Error(UNSUPPORTED) there is none: vLLM builds its scheduler in another place
    """
    frame = sys._getframe()
    while frame is not None:
        found = frame.f_locals.get("self")
        if isinstance(found, EngineCore):
            return found
        frame = frame.f_back
    raise error_of(Code.UNSUPPORTED, "this release of vLLM makes its scheduler outside of an EngineCore: hicache cannot see there when weights change")


def identify(core: EngineCore, settings: Settings, more: dict[str, Any], caches: tuple[str, ...]) -> Identity:
    """Whose pages an engine's are, from now on.

    @param more Facts of the plug-in; by part.
    @param caches What pages come from: "blocks" of the engine, or also what its "connector" keeps.
    """
    facts, models = engine_facts(core.vllm_config)
    for part, some in more.items():
        facts[part] = {**facts.get(part, {}), **some}
    if settings.operator:
        facts["operator"] = settings.operator
    if settings.model_id:
        models["model"] = Source(called=settings.model_id)
    identity = Identity(facts, models, logger)
    _watch(core, identity, caches)
    return identity


# What changes while an engine runs.

_watched: weakref.WeakKeyDictionary[EngineCore, _Watch] = weakref.WeakKeyDictionary()


class _Watch:
    """Knows when the weights of an engine in its memory are others."""

    def __init__(self, core: EngineCore) -> None:
        self._core = weakref.ref(core)
        # With the caches that their pages come from.
        self._identities: weakref.WeakKeyDictionary[Identity, tuple[str, ...]] = weakref.WeakKeyDictionary()
        lora = core.vllm_config.lora_config
        self.adapters = Adapters(logger)
        self.adapter_facts = canonical(LORA.of(lora, defaults_of(lora))) if lora is not None else ""
        # Names of a client for pictures mean nothing to another engine.
        self.clients = uuid.uuid4().hex
        self.memory = Memory(("blocks", "connector"))
        # Whether some weights cannot be read, and what makes them others than those of before.
        self._hides, self._hidden = False, ""
        self.memory.loaded(self._digest())

    def add(self, identity: Identity, caches: tuple[str, ...]) -> None:
        self._identities[identity] = caches
        self._tell()

    def look(self, was_called: bool = False) -> None:
        """After a call that may have changed weights.

        @param was_called By a user's own call: weights that cannot be read may be others now.
        """
        if not self._core().model_executor.is_sleeping:  # Else they cannot be read now; waking up looks again.
            digest = self._digest()
            if was_called and self._hides:
                self._hidden = f" {uuid.uuid4()}"
            self.memory.are(f"private {digest}{self._hidden}" if self._hidden else digest)
            self._tell()

    def _digest(self) -> str:
        try:
            found = self._core().model_executor.collective_rpc(_weights_in_memory)
            self._hides = any(hides for _, hides in found)
            return digest_of([digest for digest, _ in found])
        except Exception as trouble:
            logger.warning("hicache: what weights the engine has cannot be read: %s; its pages are not shared after a call that may have changed them", trouble)
            return f"private {uuid.uuid4()}"

    def _tell(self) -> None:
        for identity, caches in self._identities.items():
            name = self.memory.name(caches)
            if identity.weights_are(name):
                logger.info("hicache: the weights of this engine are %s", "those that it was started with again" if name is None else f"others now: {name}")


def _weights_in_memory(worker: Any) -> tuple[str, bool]:
    """Runs in each worker: a digest, and whether weights are kept where it does not see them, as those that a CPU's library has packed."""
    runner = worker.model_runner
    models = {"": runner.get_model()}
    draft = getattr(getattr(runner, "drafter", None), "model", None)
    if hasattr(draft, "named_parameters"):
        models["draft."] = draft
    tensors = [(prefix + name, tensor) for prefix, model in models.items() for name, tensor in (*model.named_parameters(), *model.named_buffers())]
    return weights_digest(tensors), any(tensor.numel() == 0 for _, tensor in tensors)


def _watch(core: EngineCore, identity: Identity, caches: tuple[str, ...]) -> None:
    if core not in _watched:
        _install()
        _watched[core] = _Watch(core)
    _watched[core].add(identity, caches)


@functools.cache
def _install() -> None:
    """Sees calls of the core's methods, those of engines that run already as well."""
    _after("collective_rpc", _after_a_call)
    _after("wake_up", lambda watch, *_: watch.look())
    _after("reset_prefix_cache", _after_a_reset)
    _after("add_request", lambda watch, *_: watch.memory.use())
    add_lora = EngineCore.add_lora

    @functools.wraps(add_lora)
    def added(core: EngineCore, lora_request: Any) -> bool:
        watch = _watched.get(core)
        if watch is None or not (lora_request.load_inplace or lora_request.lora_int_id not in core.list_loras()):
            return add_lora(core, lora_request)
        return watch.adapters.load((lora_request.lora_int_id, lora_request.lora_path), lora_request.lora_path, lambda: add_lora(core, lora_request), bool)

    EngineCore.add_lora = added
    kv_cache_utils._gen_lora_extra_hash_keys = _adapter_keys
    pictures = kv_cache_utils._gen_mm_extra_hash_keys

    @functools.wraps(pictures)
    def named(request: Any, start: int, end: int, first: int) -> tuple[list[Any], int]:
        keys, next_one = pictures(request, start, end, first)
        watch = _any_watch()
        if watch is not None:
            keys = [key if _CONTENT.fullmatch(str(key[1])) else (key[0], f"{watch.clients}:{key[1]}", *key[2:]) for key in keys]
        return keys, next_one

    kv_cache_utils._gen_mm_extra_hash_keys = named


def _after(name: str, do: Callable[[_Watch, Any, dict[str, Any]], None]) -> None:
    """@param do Gets what the method returned, None if it failed, and its arguments by name."""
    method = getattr(EngineCore, name)
    signature = inspect.signature(method)

    @functools.wraps(method)
    def seen(core: EngineCore, *arguments: Any, **named: Any) -> Any:
        result = None
        try:
            result = method(core, *arguments, **named)
            return result
        finally:
            watch = _watched.get(core)
            if watch is not None:
                do(watch, result, signature.bind(core, *arguments, **named).arguments)

    setattr(EngineCore, name, seen)


def _after_a_call(watch: _Watch, _: Any, arguments: dict[str, Any]) -> None:
    if not (isinstance(arguments["method"], str) and _HARMLESS.fullmatch(arguments["method"])):
        watch.look(was_called=True)


def _after_a_reset(watch: _Watch, is_done: Any, arguments: dict[str, Any]) -> None:
    if is_done:
        watch.memory.emptied(("blocks", "connector") if arguments.get("reset_connector") else ("blocks",))
    watch.look()


def _any_watch() -> _Watch | None:
    """A process has one engine's core."""
    return next(iter(_watched.values()), None)


_vllms_adapter_keys = kv_cache_utils._gen_lora_extra_hash_keys


def _adapter_keys(request: Any) -> list[tuple[str, str, str]]:
    """In place of vLLM's, which names an adapter and its path. Asked for each block of a prompt, and answered alike for all of a request."""
    adapter, watch = request.lora_request, _any_watch()
    if not adapter or watch is None:
        return _vllms_adapter_keys(request)
    keys = getattr(request, "hicache_adapter_keys", None)
    if keys is None:
        name = watch.adapters.name_of((adapter.lora_int_id, adapter.lora_path), adapter.lora_path, adapter.load_inplace)
        keys = request.hicache_adapter_keys = [("lora", name, f"{watch.adapter_facts} {adapter.is_3d_lora_weight}")]
    return keys


#: What this module needs of vLLM, with the arguments that it counts on.
SEAMS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "EngineCore.collective_rpc": (EngineCore.collective_rpc, ("self", "method", "timeout", "args", "kwargs")),
    "EngineCore.reset_prefix_cache": (EngineCore.reset_prefix_cache, ("self", "reset_running_requests", "reset_connector")),
    "EngineCore.wake_up": (EngineCore.wake_up, ("self", "tags")),
    "EngineCore.add_request": (EngineCore.add_request, ("self", "request", "request_wave")),
    "EngineCore.add_lora": (EngineCore.add_lora, ("self", "lora_request")),
    "EngineCore.list_loras": (EngineCore.list_loras, ("self",)),
    "_gen_lora_extra_hash_keys": (kv_cache_utils._gen_lora_extra_hash_keys, ("request",)),
    "_gen_mm_extra_hash_keys": (kv_cache_utils._gen_mm_extra_hash_keys, ("request", "start_token_idx", "end_token_idx", "start_mm_idx")),
}


def changed_seams() -> list[str]:
    """What this release of vLLM has changed of what hicache needs, a sentence each."""
    return changed_functions(SEAMS)
