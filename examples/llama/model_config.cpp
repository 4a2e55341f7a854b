#include "examples/llama/model_config.hpp"

#include "base/names.hpp"
#include "examples/llama/json_fields.hpp"

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <string_view>

namespace llama {

namespace {

using nlohmann::json;

constexpr double any_size = 1e9;
/// In the order of model_family.
constexpr auto family_names = std::to_array<std::string_view>({"llama", "qwen2", "qwen3"});
/// In the order of rope_kind.
constexpr auto rope_names
  = std::to_array<std::string_view>({"default", "linear", "llama3", "yarn"});

rope_settings read_rope(const json& object, double theta, double positions,
                        std::string& complaint) {
  auto rope = rope_settings{};
  auto fields = json_fields{object, complaint};
  rope.theta = fields.number("rope_theta", 1.0, 1e12).value_or(theta);
  // Older files say "type".
  const auto name = fields.text("rope_type", fields.text("type", "default"));
  const auto kind = hicache::find_name<rope_kind>(rope_names, name, "a scaling of this engine");
  if (!kind)
    fields.complain("rope_type", kind.error().detail);
  rope.kind = kind.value_or(rope_kind::plain);
  if (rope.kind == rope_kind::plain)
    return rope;
  rope.factor = fields.required("factor", 1.0, any_size);
  rope.original_positions
    = fields.number("original_max_position_embeddings", 1.0, any_size).value_or(positions);
  if (rope.kind == rope_kind::llama3) {
    rope.low_frequency_factor = fields.required("low_freq_factor", 1e-6, any_size);
    rope.high_frequency_factor = fields.required("high_freq_factor", 1e-6, any_size);
    if (rope.high_frequency_factor <= rope.low_frequency_factor)
      fields.complain("high_freq_factor", "expected more than low_freq_factor");
  } else if (rope.kind == rope_kind::yarn) {
    rope.beta_fast = fields.number("beta_fast", 1e-6, any_size).value_or(32);
    rope.beta_slow = fields.number("beta_slow", 1e-6, any_size).value_or(1);
    rope.attention_factor = fields.number("attention_factor", 1e-6, any_size).value_or(0);
    for (const auto* unsupported : {"mscale", "mscale_all_dim"})
      if (fields.has(unsupported))
        fields.complain(unsupported, "is not supported");
  }
  return rope;
}

std::vector<uint32_t> read_end_tokens(json_fields& fields) {
  auto found = std::vector<uint32_t>{};
  const auto field = fields.field("eos_token_id");
  // A single token, or several.
  for (const auto& each : field.is_number() ? json::array({field}) : field)
    if (each.is_number_unsigned() && each.get<uint64_t>() <= UINT32_MAX)
      found.push_back(each.get<uint32_t>());
    else
      fields.complain("eos_token_id", "expected a token or a list of tokens");
  return found;
}

/// Rejects features of these model families that this engine does not support.
void refuse_unsupported(json_fields& fields) {
  if (fields.text("hidden_act", "silu") != "silu")
    fields.complain("hidden_act", "expected silu");
  if (fields.has("quantization_config"))
    fields.complain("quantization_config", "is not supported; expected F32, BF16 or F16 weights");
  auto windows = fields.flag("use_sliding_window");
  for (const auto& each : fields.field("layer_types"))
    windows = windows || each != "full_attention";
  if (windows)
    fields.complain("layer_types", "has layers without full attention, which are not supported");
}

void read_family(model_config& config, json_fields& fields) {
  const auto family = hicache::find_name<model_family>(family_names, fields.text("model_type"),
                                                       "a family of this engine");
  if (!family)
    fields.complain("model_type", family.error().detail);
  config.family = family.value_or(model_family::llama);
  const auto bias = fields.flag("attention_bias");
  config.qkv_bias = bias || config.family == model_family::qwen2;
  config.output_bias = bias && config.family != model_family::qwen2;
  config.mlp_bias = fields.flag("mlp_bias");
  config.qk_norm = config.family == model_family::qwen3;
}

model_config interpret(const json& object, std::string& complaint) {
  auto config = model_config{};
  auto fields = json_fields{object, complaint};
  const auto required
    = [&](const char* name, uint32_t most) { return fields.required(name, uint32_t{1}, most); };
  const auto optional = [&](const char* name, uint32_t most, uint32_t otherwise) {
    return fields.number(name, uint32_t{1}, most).value_or(std::max(otherwise, 1U));
  };
  read_family(config, fields);
  config.vocabulary = required("vocab_size", 1 << 22);
  config.hidden = required("hidden_size", 1 << 17);
  config.intermediate = required("intermediate_size", 1 << 20);
  config.layers = required("num_hidden_layers", 1024);
  config.heads = required("num_attention_heads", 1024);
  config.kv_heads = optional("num_key_value_heads", 1024, config.heads);
  config.head_dim = optional("head_dim", 1024, config.hidden / config.heads);
  config.positions = optional("max_position_embeddings", 1 << 24, 2048);
  config.norm_epsilon = static_cast<float>(fields.number("rms_norm_eps", 0.0, 1.0).value_or(1e-6));
  config.tied_embeddings = fields.flag("tie_word_embeddings");
  if (config.head_dim % 2 != 0)
    fields.complain("head_dim", "expected an even number");
  if (config.heads % config.kv_heads != 0)
    fields.complain("num_attention_heads", "expected a multiple of num_key_value_heads");
  refuse_unsupported(fields);
  const auto theta = fields.number("rope_theta", 1.0, 1e12).value_or(10000);
  // transformers 5 writes rope_parameters, earlier ones rope_scaling.
  auto rope = json::object();
  for (const auto* name : {"rope_scaling", "rope_parameters"})
    if (fields.has(name))
      rope = fields.field(name);
  if (rope.is_object())
    config.rope = read_rope(rope, theta, config.positions, complaint);
  else
    fields.complain("rope_parameters", "expected an object");
  config.end_tokens = read_end_tokens(fields);
  return config;
}

} // namespace

result<model_config> read_model_config(const std::filesystem::path& folder) {
  const auto path = folder / "config.json";
  auto file = std::ifstream{path};
  if (!file)
    return fail(ec::invalid_argument, path.string() + " cannot be read");
  const auto text = std::string{std::istreambuf_iterator<char>{file}, {}};
  const auto object = json::parse(text, nullptr, false);
  if (!object.is_object())
    return fail(ec::invalid_argument, path.string() + " is no JSON object");
  auto complaint = std::string{};
  auto config = interpret(object, complaint);
  if (!complaint.empty())
    return fail(ec::invalid_argument, path.string() + ": " + complaint);
  return config;
}

} // namespace llama
