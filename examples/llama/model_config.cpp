#include "examples/llama/model_config.hpp"

#include "base/names.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <iterator>
#include <string_view>

namespace llama {

namespace {

using nlohmann::json;

/// Reads fields of one JSON object. Keeps the first error and ignores later ones.
class field_reader {
public:
  field_reader(const json& object, std::string& complaint)
    : object_(object), complaint_(complaint) {}

  bool has(const char* name) const { return object_.contains(name) && !object_[name].is_null(); }

  /// @param fallback Value of an absent field; below `least` if the field is required.
  double number(const char* name, double least, double most, double fallback) {
    if (!has(name)) {
      if (fallback < least)
        complain(name, "is missing");
      return fallback;
    }
    const auto& field = object_[name];
    const auto value = field.is_number() ? field.get<double>() : std::nan("");
    if (value >= least && value <= most)
      return value;
    complain(name, "is " + field.dump() + "; expected a number from " + json(least).dump() + " to "
                     + json(most).dump());
    return least;
  }

  uint32_t count(const char* name, uint32_t most, uint32_t fallback = 0) {
    const auto value = number(name, 1, most, fallback);
    if (value != std::floor(value))
      complain(name, "is no whole number");
    return static_cast<uint32_t>(value);
  }

  bool flag(const char* name, bool fallback) {
    if (!has(name))
      return fallback;
    if (!object_[name].is_boolean())
      complain(name, "is " + object_[name].dump() + "; expected true or false");
    return object_[name] == true;
  }

  std::string text(const char* name, const std::string& fallback) {
    if (!has(name))
      return fallback;
    if (object_[name].is_string())
      return object_[name].get<std::string>();
    complain(name, "is no text");
    return fallback;
  }

  void complain(const char* name, const std::string& what) {
    if (complaint_.empty())
      complaint_ = "\"" + std::string{name} + "\" " + what;
  }

private:
  const json& object_;
  std::string& complaint_;
};

constexpr double any_size = 1e9;
/// In the order of model_family.
constexpr auto family_names = std::to_array<std::string_view>({"llama", "qwen2", "qwen3"});

rope_settings read_rope(const json& object, double theta, double positions,
                        std::string& complaint) {
  auto rope = rope_settings{};
  auto fields = field_reader{object, complaint};
  rope.theta = fields.number("rope_theta", 1, 1e12, theta);
  // Older files say "type".
  const auto kind = fields.text("rope_type", fields.text("type", "default"));
  if (kind == "default")
    return rope;
  rope.factor = fields.number("factor", 1, any_size, 0);
  rope.original_positions
    = fields.number("original_max_position_embeddings", 1, any_size, positions);
  if (kind == "linear") {
    rope.kind = rope_kind::linear;
  } else if (kind == "llama3") {
    rope.kind = rope_kind::llama3;
    rope.low_frequency_factor = fields.number("low_freq_factor", 1e-6, any_size, 0);
    rope.high_frequency_factor = fields.number("high_freq_factor", 1e-6, any_size, 0);
    if (rope.high_frequency_factor <= rope.low_frequency_factor)
      fields.complain("high_freq_factor", "is not above low_freq_factor");
  } else if (kind == "yarn") {
    rope.kind = rope_kind::yarn;
    rope.beta_fast = fields.number("beta_fast", 1e-6, any_size, 32);
    rope.beta_slow = fields.number("beta_slow", 1e-6, any_size, 1);
    rope.attention_factor
      = fields.has("attention_factor") ? fields.number("attention_factor", 1e-6, any_size, 0) : 0;
    for (const auto* name : {"mscale", "mscale_all_dim"})
      if (fields.has(name))
        fields.complain(name, "is not supported");
  } else {
    fields.complain("rope_type", "is \"" + kind + "\"; expected default, linear, llama3 or yarn");
  }
  return rope;
}

std::vector<uint32_t> read_end_tokens(const json& object, std::string& complaint) {
  auto found = std::vector<uint32_t>{};
  if (!object.contains("eos_token_id") || object["eos_token_id"].is_null())
    return found;
  const auto& field = object["eos_token_id"];
  for (const auto& each : field.is_array() ? field : json::array({field})) {
    if (!each.is_number_unsigned() || each.get<uint64_t>() > UINT32_MAX)
      complaint = "\"eos_token_id\" is no token or list of tokens";
    else
      found.push_back(each.get<uint32_t>());
  }
  return found;
}

/// Rejects features of these model families that this engine does not support.
void refuse_unsupported(const json& object, field_reader& fields) {
  if (const auto act = fields.text("hidden_act", "silu"); act != "silu")
    fields.complain("hidden_act", "is \"" + act + "\"; expected silu");
  if (fields.has("quantization_config"))
    fields.complain("quantization_config", "is not supported; expected F32, BF16 or F16 weights");
  auto windows = fields.flag("use_sliding_window", false);
  if (fields.has("layer_types"))
    for (const auto& each : object["layer_types"])
      windows = windows || each != "full_attention";
  if (windows)
    fields.complain("layer_types", "has layers without full attention, which are not supported");
}

void read_family(model_config& config, field_reader& fields) {
  const auto family = hicache::find_name<model_family>(family_names, fields.text("model_type", ""),
                                                       "a family of this engine");
  if (!family)
    fields.complain("model_type", "is wrong: " + family.error().detail);
  config.family = family.value_or(model_family::llama);
  const auto bias = fields.flag("attention_bias", false);
  config.qkv_bias = bias || config.family == model_family::qwen2;
  config.output_bias = bias && config.family != model_family::qwen2;
  config.mlp_bias = fields.flag("mlp_bias", false);
  config.qk_norm = config.family == model_family::qwen3;
}

model_config interpret(const json& object, std::string& complaint) {
  auto config = model_config{};
  auto fields = field_reader{object, complaint};
  read_family(config, fields);
  config.vocabulary = fields.count("vocab_size", 1 << 22);
  config.hidden = fields.count("hidden_size", 1 << 17);
  config.intermediate = fields.count("intermediate_size", 1 << 20);
  config.layers = fields.count("num_hidden_layers", 1024);
  config.heads = fields.count("num_attention_heads", 1024);
  config.kv_heads = fields.count("num_key_value_heads", 1024, std::max(config.heads, 1U));
  config.head_dim
    = fields.count("head_dim", 1024, std::max(config.hidden / std::max(config.heads, 1U), 1U));
  config.positions = fields.count("max_position_embeddings", 1 << 24, 2048);
  config.norm_epsilon = static_cast<float>(fields.number("rms_norm_eps", 0, 1, 1e-6));
  config.tied_embeddings = fields.flag("tie_word_embeddings", false);
  if (config.head_dim % 2 != 0)
    fields.complain("head_dim", "is odd");
  if (config.kv_heads == 0 || config.heads % config.kv_heads != 0)
    fields.complain("num_attention_heads", "is no multiple of num_key_value_heads");
  refuse_unsupported(object, fields);
  const auto theta = fields.number("rope_theta", 1, 1e12, 10000);
  // transformers 5 writes rope_parameters, earlier ones rope_scaling.
  auto rope = json::object();
  for (const auto* name : {"rope_scaling", "rope_parameters"})
    if (fields.has(name))
      rope = object[name];
  if (rope.is_object())
    config.rope = read_rope(rope, theta, config.positions, complaint);
  else
    fields.complain("rope_parameters", "is no object");
  config.end_tokens = read_end_tokens(object, complaint);
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
