"""What a page of SGLang's is: the facts of its engine, and when they change.

SGLang's own keys say which tokens a page is for, and name an adapter by a number that is made of its name and path. This module runs in each scheduler's
process: it reads the configuration that the engine holds, watches the calls by which weights and adapters change, and has adapters named by content.
"""

from __future__ import annotations

import functools
import logging
import uuid
import weakref
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.constants import GPU_MEMORY_TYPE_WEIGHTS
from sglang.srt.lora.lora_manager import LoRAManager
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager
from sglang.srt.runtime_context import get_lora, get_model, get_server_args, process_model_config

from hicache._plugin import Settings, changed_functions
from hicache.identity import (Adapters, Fields, Identity, Memory, Source, canonical, configuration, defaults_of, digest_of, folder_of, hub_commit, scales_of, started_ns,
                              weights_digest)

logger = logging.getLogger(__name__)

#: Grows when SGLang puts the bytes of a page together in another way.
FORMAT = 2

#: Of SGLang's ServerArgs.
SETTINGS = Fields(
    {"quantization": "the quantization of weights, as chosen", "modelopt_quant": "another word for it", "quantize_and_serve": "whether weights are quantized when loaded",
     "rl_quant_profile": "their scales", "enable_fp32_lm_head": "the type of the last layer", "custom_weight_loader": "another loader of weights",
     "model_loader_extra_config": "options of the loader", "disable_hybrid_swa_memory": "whether windows keep all tokens", "mamba_ssm_dtype": "the type of recurrent state",
     "enable_int8_mamba_checkpoint": "the type of kept recurrent state", "enable_mamba_cache_stochastic_rounding": "how it is rounded",
     "mm_process_config": "options of the processor of pictures and sounds", "image_processor_backend": "which processor", "enable_precise_embedding_interpolation": "how it scales",
     "disable_fast_image_processor": "which processor", "language_model_only": "whether the encoder is left out", "dllm_algorithm": "how a diffusion model attends",
     "dllm_algorithm_config": "options of that", "swa_prefix_tails": "which tokens of a window are kept", "enable_page_major_kv_layout": "the order of bytes",
     "enable_dsa_cache_layer_split": "which layers keep index keys", "enable_kv_cache_sharding": "which rank keeps which tokens", "enable_deepseek_v4_fp4_indexer": "the type of index keys",
     "qsa_indexer_dtype": "the type of index keys", "enable_linear_replayssm": "another form of recurrent state", "c128_page_size": "pages of compressed KV",
     "prefill_kv_cache_dequant_dtype": "the type in which KV is read back", "rl_on_policy_target": "bits as in training", "kt_weight_path": "weights of experts elsewhere",
     "kt_method": "their type", "decrypted_config_file": "another configuration file"},
    # Their effect is in the configuration that the engine holds, in the weights, in the pool's type, or in a fact of another name; or they are about texts,
    # sampling, memory, speed, processes and the network.
    "model_path|model_impl|model_config_parser|json_model_override_args|dtype|quantization_param_path|kv_cache_dtype|load_format|revision|context_length|trust_remote_code"
    "|modelopt_(checkpoint|export)_.*|tokenizer_.*|detokenizer_.*|skip_.*|is_embedding|enable_multimodal|enable_tf32_matmul|mem_fraction_static|max_.*|chunked_prefill_size|prefill_.*"
    "|enable_dynamic_.*|schedule.*|enable_priority_.*|disable_priority_.*|default_.*|abort_.*|priority_.*|retraction_policy|page_size|swa_full_tokens_ratio|_.*|radix_.*"
    "|disable_radix_cache|enable_unified_memory|disable_chunked_prefix_cache|disable_overlap_schedule|num_.*|enable_mixed_chunk|nccl_port|dist_.*|gated_launch_port|nnodes|node_rank"
    "|tp_size|dcp_.*|pp_.*|dp_size|attn_.*|load_balance_method|moe_.*|dwdp_size|enable_prefill_cp|cp_strategy|enable_cp_.*|enable_dp_.*|enable_tp_.*|enable_attn_.*"
    "|enable_shared_experts_attn_tp|shared_experts_tp_size|enable_dense_.*|enable_layernorm_sp|disable_attn_.*|enable_p2p_check|device|base_gpu_id|gpu_id_step|random_seed|mlx_.*"
    "|(soft_)?watchdog_timeout|sleep_on_idle|use_ray|custom_sigquit_handler|numa_node|gc_.*|host|port|fastapi_.*|smg_.*|grpc_.*|sidecar.*|warmups|enable_http.*|http2_.*|ssl_.*"
    "|enable_ssl_refresh|(admin_)?api_key|served_model_name|weight_version|.*chat_template.*|completion_template|file_storage_path|enable_cache_report|return_.*|reasoning_parser"
    "|strip_.*|enable_strict_thinking|tool_.*|sampling_.*|asr_.*|preferred_sampling_params|allow(ed)?_.*|stream_.*|batch_notify_size|incremental_streaming_output|enable_streaming_session"
    "|enable_session_radix_cache|log_.*|uvicorn_.*|crash_dump_folder|show_time_cost|enable_metrics.*|enable_mfu_metrics|load_snapshot_.*|load_publish_.*|extra_metric_labels|bucket_.*"
    "|prompt_tokens_buckets|generation_tokens_buckets|decode_log_interval|enable_request_.*|kv_events_config|.*forward_pass_.*|enable_trace|trace_modules|otlp_.*|export_metrics_.*"
    "|stat_loggers|constrained_.*|.*attention_backend|enable_lean_attention|grammar_backend|fp[48]_gemm_.*|bf16_gemm_backend|dsa_.*|dsv4_.*|.*flashinfer.*|mamba_(backend|max_.*|full_.*|radix_.*|track_.*|cache_philox_.*)"
    "|cuda_graph_.*|disable_.*cuda_graph.*|enable_profile_cuda_graph|enable_cudagraph_gc|debug_.*|enable_layerwise_.*|enable_nccl_nvls|enable_symm_mem|triton_.*|enable_fused_.*"
    "|disable_custom_all_reduce|enable_mscclpp|enable_torch_.*|enable_scattered_sconv|pre_warm_nccl|boundary_reduction|enable_quant_communications|.*aiter.*|torch_compile_.*"
    "|speculative_.*|uno_lora_path|enable_multi_layer_eagle|decoupled_.*|spec_trace_dir|ep_.*|enable_w4a4_.*|deepep_.*|fuseep_mode|init_expert_location|enable_eplb|eplb_.*|expert_.*"
    "|elastic_.*|enable_elastic_.*|mooncake_.*|enable_waterfill|disable_shared_experts_fusion|enforce_shared_experts_fusion|uses_mamba_radix_cache|int8_mamba_ckpt_size|linear_.*"
    "|enable_linear_replayssm_spec|enable_hierarchical_cache|hicache_.*|enable_unified_cache_.*|unified_cache_.*|enable_hisparse|hisparse_config|enable_broadcast_mm_.*|enable_prefix_mm_cache"
    "|mm_(enable_.*|processor_.*|io_.*|preprocess_.*|global_.*|feature_.*)|media_.*|trust_mm_content_hashes|limit_mm_.*|enable_mm_.*|enable_lora.*|lora_.*|experts_shared_.*"
    "|enable_(two|single)_batch_overlap|tbo_.*|cpu_offload_gb|offload_.*|enable_lmcache|lmcache_.*|enable_flexkv|flexkv_.*|kt_(cpuinfer|threadpool_.*|num_.*|max_.*)|dllm_fdfo|disaggregation_.*"
    "|optimistic_.*|encoder_.*|language_only|enable_adaptive_.*|enable_pdmux|pdmux_.*|sm_group_num|startup_weight_load_mode|weight_(loader|cache)_.*|remote_instance_.*|engine_info_.*"
    "|modelexpress_config|download_dir|model_checksum|delete_ckpt_.*|decrypted_draft_config_file|checkpoint_engine_.*|enable_prefill_delayer|min_free_.*|enable_deterministic_inference"
    "|kv_canary.*|dynamic_batch_.*|enable_tokenizer_.*|enable_memory_saver|enable_weights_cpu_backup|enable_draft_weights_.*|enable_custom_logit_processor|enable_return_.*"
    "|disable_outlines_.*|disable_tokenizer_.*|enable_mis|forward_hooks|msprobe_.*|ple_.*|enable_pd_role_switch|enable_linker_mla_dedup|enable_(en|de)coder_swa_.*|enable_response_store"
    "|disable_.*_in_(prefill|decode)|enable_amd_monokernel|enable_dsa_.*|enable_cp_tp_.*|.*watermark.*|enable_paged_experts|paged_.*|enable_nvidia_megakernel|enable_megamoe_.*"
    "|scheduler_recv_interval|aux_hidden_.*|fp8_gemm.*|enable_draft_.*")

# Weights that are in files; others are made up, or come from elsewhere.
_FILES = ("auto", "safetensors", "pt", "npcache", "gguf", "bitsandbytes", "mistral", "layered", "fastsafetensors", "flash_rl")
# Calls that may change weights.
_UPDATES = ("update_weights_from_disk", "update_weights_from_distributed", "update_weights_from_tensor", "update_weights_from_ipc", "end_weight_update",
            "release_memory_occupation", "resume_memory_occupation")


def model_facts(model: Any) -> dict[str, Any]:
    """Of a ModelConfig, but for the weights."""
    config = configuration(model.hf_config)
    facts: dict[str, Any] = {"configuration": config, "type": str(model.dtype).removeprefix("torch."), "quantization": model.quantization}
    # Beyond the original length such a model takes other factors for all positions.
    if "longrope" in canonical(config) or "dynamic" in canonical(config.get("rope_scaling") or config.get("rope_parameters") or {}):
        facts["length"] = model.context_len
    return facts


def source_of(path: str, revision: str | None, load_format: str, config: Any) -> Source:
    if load_format == "dummy":
        return Source(called="made by the loader dummy")
    if load_format not in _FILES:
        return Source(unknown=f"the loader {load_format} does not take them from files of the model")
    return folder_of(path, revision, hub_commit(config))


def engine_facts() -> tuple[dict[str, Any], dict[str, Source]]:
    """Everything of an engine's configuration that changes a page, and where its weights are."""
    settings, model = get_server_args(), process_model_config()
    facts: dict[str, Any] = {
        "format": {"engine": "sglang", "version": FORMAT},
        "model": model_facts(model),
        "kv": {"type": _logical_type(get_model().kv_cache_dtype, model.dtype), "scales": scales_of(settings.quantization_param_path)},
        "settings": SETTINGS.of(settings, defaults_of(settings)),
    }
    return facts, {"model": source_of(model.model_path, model.revision, str(settings.load_format), model.hf_config)}


def draft_facts() -> tuple[dict[str, Any], dict[str, Source]]:
    """The same of a draft model, whose pages are its own; nothing if there is none."""
    settings = get_server_args()
    path = settings.speculative_draft_model_path
    if not settings.speculative_algorithm or path is None:
        return {}, {}
    facts = {"algorithm": settings.speculative_algorithm, "quantization": settings.speculative_draft_model_quantization,
             "kv": settings.speculative_draft_kv_cache_dtype}
    load_format = settings.speculative_draft_load_format or settings.load_format
    return {"draft": facts}, {"draft": source_of(path, settings.speculative_draft_model_revision, str(load_format), None)}


def _logical_type(chosen: str, dtype: Any) -> str:
    """What KV is meant to be: pools in host memory know only as what it is stored, and different ones are stored alike.

    Where it is chosen by a checkpoint ("auto" with FP8 scales in it), what it is stored as tells that from the model's type.
    """
    name = str(dtype).removeprefix("torch.") if chosen == "auto" else chosen
    return {"bf16": "bfloat16"}.get(name, name)


def kv_type(pool: Any) -> str:
    """The type of a pool's elements, the logical one where the pool knows it."""
    of = getattr(pool, "device_pool", pool)
    return str(getattr(of, "dtype", getattr(pool, "dtype", ""))).removeprefix("torch.")


def identify(settings: Settings, more: dict[str, Any], has_draft: bool = False) -> Identity:
    """Whose pages an engine's are, from now on.

    @param more Facts of the plug-in; by part.
    @param has_draft Whether pages of a draft model are among them.
    """
    facts, models = engine_facts()
    if has_draft:
        drafts = draft_facts()
        facts.update(drafts[0])
        models.update(drafts[1])
    for part, some in more.items():
        facts[part] = {**facts.get(part, {}), **some}
    if settings.operator:
        facts["operator"] = settings.operator
    if settings.model_id:
        models["model"] = Source(called=settings.model_id)
    identity = Identity(facts, models, logger)
    _install()
    _watch.add(identity)
    return identity


# What changes while an engine runs.


class _Watch:
    """Knows when the weights of a process are others, and what its adapters are."""

    def __init__(self) -> None:
        self._identities: weakref.WeakSet[Identity] = weakref.WeakSet()
        self.adapters = Adapters(logger)
        self.memory = Memory(("pools",))

    def add(self, identity: Identity) -> None:
        self._identities.add(identity)
        identity.weights_are(self.memory.name(("pools",)))

    def before(self, updater: Any) -> None:
        if not self.memory.is_begun and GPU_MEMORY_TYPE_WEIGHTS not in updater.offload_tags:
            self.memory.loaded(self._now(updater))

    def after(self, updater: Any) -> None:
        if GPU_MEMORY_TYPE_WEIGHTS not in updater.offload_tags:  # Else they cannot be read now; what brings them back looks again.
            self.memory.are(self._now(updater))
            self.tell()

    def flushed(self) -> None:
        self.memory.emptied(("pools",))
        self.tell()

    def tell(self) -> None:
        name = self.memory.name(("pools",))
        if any([identity.weights_are(name) for identity in self._identities]):
            logger.info("hicache: the weights of this engine are %s", "those that it was started with again" if name is None else f"others now: {name}")

    def _now(self, updater: Any) -> str:
        """Of all ranks, so that they agree; each of them is asked at the same time."""
        try:
            tensors = [(role + "." + name, tensor) for role, runner in updater._select_runners()
                       for name, tensor in (*runner.model.named_parameters(), *runner.model.named_buffers())]
            own = weights_digest(tensors)
        except Exception as trouble:
            logger.warning("hicache: what weights the engine has cannot be read: %s; its pages are not shared from here on", trouble)
            own = f"private {uuid.uuid4()}"
        size = torch.distributed.get_world_size(group=updater.tp_cpu_group)
        if size == 1:
            return own
        all_ranks: list[Any] = [None] * size
        torch.distributed.all_gather_object(all_ranks, own, group=updater.tp_cpu_group)
        private = [each for each in all_ranks if each.startswith("private")]
        return private[0] if private else digest_of(all_ranks)


_watch = _Watch()


@functools.cache
def _install() -> None:
    """Sees calls of the scheduler's parts, those that run already as well."""
    for name in _UPDATES:
        _around(name)
    Scheduler.flush_cache = _flushing(Scheduler.flush_cache)
    load = LoRAManager.load_lora_adapter

    @functools.wraps(load)
    def loaded(manager: LoRAManager, lora_ref: Any) -> Any:
        return _watch.adapters.load(lora_ref.lora_id, lora_ref.lora_path, lambda: load(manager, lora_ref), lambda result: result.success)

    LoRAManager.load_lora_adapter = loaded
    from_tensors = LoRAManager.load_lora_adapter_from_tensors

    @functools.wraps(from_tensors)
    def loaded_from_tensors(manager: LoRAManager, lora_ref: Any, tensors: Any, *more: Any, **named: Any) -> Any:
        result = from_tensors(manager, lora_ref, tensors, *more, **named)
        config = more[0] if more else named.get("config_dict")
        _watch.adapters.note(lora_ref.lora_id, digest_of([weights_digest(tensors.items()), config]), lora_ref.lora_path)
        return result

    LoRAManager.load_lora_adapter_from_tensors = loaded_from_tensors
    since = started_ns()
    for ref in get_lora().lora_paths or []:
        _watch.adapters.note(ref.lora_id, _watch.adapters.content_before(ref.lora_path, since), ref.lora_path)
    begin = Req.__init__

    @functools.wraps(begin)
    def begun(req: Req, *arguments: Any, **named: Any) -> None:
        begin(req, *arguments, **named)
        _watch.memory.use()
        if req.lora_id is not None:
            req.extra_key = f"{req.extra_key.removesuffix(req.lora_id)}|adapter {_watch.adapters.loaded(req.lora_id)}"

    Req.__init__ = begun


def _flushing(flush: Callable[..., bool]) -> Callable[..., bool]:

    @functools.wraps(flush)
    def flushed(*arguments: Any, **named: Any) -> bool:
        is_done = flush(*arguments, **named)
        if is_done:
            _watch.flushed()
        return is_done

    return flushed


def _around(name: str) -> None:
    method = getattr(SchedulerWeightUpdaterManager, name)

    @functools.wraps(method)
    def seen(updater: Any, *arguments: Any, **named: Any) -> Any:
        _watch.before(updater)
        # The scheduler's method as it was when the updater was made.
        if not hasattr(updater.flush_cache, "__wrapped__"):
            updater.flush_cache = _flushing(updater.flush_cache)
        try:
            return method(updater, *arguments, **named)
        finally:
            _watch.after(updater)

    setattr(SchedulerWeightUpdaterManager, name, seen)


#: What this module needs of SGLang, with the arguments that it counts on.
SEAMS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    **{f"SchedulerWeightUpdaterManager.{name}": (getattr(SchedulerWeightUpdaterManager, name), ("self", "recv_req")) for name in _UPDATES},
    "SchedulerWeightUpdaterManager._select_runners": (SchedulerWeightUpdaterManager._select_runners, ("self", "selector")),
    "LoRAManager.load_lora_adapter": (LoRAManager.load_lora_adapter, ("self", "lora_ref")),
    "LoRAManager.load_lora_adapter_from_tensors": (LoRAManager.load_lora_adapter_from_tensors, ("self", "lora_ref", "tensors", "config_dict", "added_tokens_config")),
}


def changed_seams() -> list[str]:
    """What this release of SGLang has changed of what hicache needs, a sentence each."""
    return changed_functions(SEAMS)
