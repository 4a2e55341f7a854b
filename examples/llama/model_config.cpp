#include "examples/llama/model_config.hpp"

#include "base/json_fields.hpp"
#include "base/try.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <functional>
#include <numbers>
#include <optional>
#include <string_view>

namespace llama {

namespace {

using hicache::json_fields;
using nlohmann::json;

constexpr double any_size = 1e9;

enum class model_family : uint8_t { llama, qwen2, qwen3 };

/// How RoPE scales positions. `plain` does not.
enum class rope_kind : uint8_t { plain, linear, llama3, yarn };

constexpr auto family_names = std::to_array<std::string_view>({"llama", "qwen2", "qwen3"});
/// In the order of rope_kind.
constexpr auto rope_names
  = std::to_array<std::string_view>({"default", "linear", "llama3", "yarn"});

rope_settings read_rope(const json& object, double theta, const model_config& config,
                        json_fields& around) {
  constexpr auto full_turn = 2 * std::numbers::pi;
  auto fields = json_fields{object, around};
  theta = fields.number("rope_theta", 1.0, 1e12, theta);
  // Older files say "type".
  const auto kind = fields.choice<rope_kind>(fields.has("rope_type") ? "rope_type" : "type",
                                             rope_names, "default");
  const auto factor = kind == rope_kind::plain ? 1 : fields.number("factor", 1.0, any_size);
  // Sequence length that the model was trained on.
  const auto trained
    = fields.number("original_max_position_embeddings", 1.0, any_size, config.positions);
  auto rope = rope_settings{};
  // How much of a pair's frequency is divided by `factor`.
  auto scaled_share = std::function<double(double pair, double frequency)>{};
  if (kind == rope_kind::linear) {
    scaled_share = [](double, double) { return 1.0; };
  } else if (kind == rope_kind::llama3) {
    const auto low = fields.number("low_freq_factor", 1e-6, any_size);
    const auto high = fields.number("high_freq_factor", 1e-6, any_size);
    if (high <= low)
      fields.complain("high_freq_factor", "expected more than low_freq_factor");
    scaled_share = [=](double, double frequency) {
      return (high - trained * frequency / full_turn) / (high - low);
    };
  } else if (kind == rope_kind::yarn) {
    // Pairs below `low` turn often within the trained length and are unchanged, pairs above `high`
    // are interpolated, pairs between are blended.
    const auto pair_that_turns = [&](double times) {
      return config.head_dim * std::log(trained / (times * full_turn)) / (2 * std::log(theta));
    };
    const auto fast = pair_that_turns(fields.number("beta_fast", 1e-6, any_size, 32));
    const auto slow = pair_that_turns(fields.number("beta_slow", 1e-6, any_size, 1));
    const auto low = std::max(std::floor(fast), 0.0);
    const auto high = std::min(std::ceil(slow), config.head_dim - 1.0);
    scaled_share
      = [=](double pair, double) { return (pair - low) / (low == high ? 0.001 : high - low); };
    rope.amplitude = static_cast<float>(
      fields.number("attention_factor", 1e-6, any_size, 0.1 * std::log(factor) + 1));
    for (const auto* unsupported : {"mscale", "mscale_all_dim"})
      if (fields.has(unsupported))
        fields.complain(unsupported, "is not supported");
  }
  for (auto pair = uint32_t{0}; pair < config.head_dim / 2; ++pair) {
    const auto plain = std::pow(theta, -2.0 * pair / config.head_dim);
    const auto share = scaled_share ? std::clamp(scaled_share(pair, plain), 0.0, 1.0) : 0;
    rope.frequencies.push_back(static_cast<float>(share * (plain / factor) + (1 - share) * plain));
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

model_config interpret(json_fields& fields) {
  auto config = model_config{};
  const auto size = [&](const char* name, uint32_t most, std::optional<uint32_t> otherwise = {}) {
    return fields.number(name, uint32_t{1}, most, otherwise);
  };
  const auto family = fields.choice<model_family>("model_type", family_names);
  const auto bias = fields.flag("attention_bias");
  config.qkv_bias = bias || family == model_family::qwen2;
  config.output_bias = bias && family != model_family::qwen2;
  config.mlp_bias = fields.flag("mlp_bias");
  config.qk_norm = family == model_family::qwen3;
  config.vocabulary = size("vocab_size", 1 << 22);
  config.hidden = size("hidden_size", 1 << 17);
  config.intermediate = size("intermediate_size", 1 << 20);
  config.layers = size("num_hidden_layers", 1024);
  config.heads = size("num_attention_heads", 1024);
  config.kv_heads = size("num_key_value_heads", 1024, config.heads);
  config.head_dim = size("head_dim", 1024, config.hidden / config.heads);
  config.positions = size("max_position_embeddings", 1 << 24, 2048);
  config.norm_epsilon = static_cast<float>(fields.number("rms_norm_eps", 0.0, 1.0, 1e-6));
  config.tied_embeddings = fields.flag("tie_word_embeddings");
  if (config.head_dim == 0 || config.head_dim % 2 != 0)
    fields.complain("head_dim", "expected an even number");
  if (config.heads % config.kv_heads != 0)
    fields.complain("num_attention_heads", "expected a multiple of num_key_value_heads");
  refuse_unsupported(fields);
  const auto theta = fields.number("rope_theta", 1.0, 1e12, 10000);
  // transformers 5 writes rope_parameters, earlier ones rope_scaling.
  auto rope = json::object();
  for (const auto* name : {"rope_scaling", "rope_parameters"})
    if (fields.has(name))
      rope = fields.field(name);
  if (rope.is_object())
    config.rope = read_rope(rope, theta, config, fields);
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
  const auto object = json::parse(file, nullptr, false);
  if (!object.is_object())
    return fail(ec::invalid_argument, path.string() + " is no JSON object");
  auto fields = json_fields{object};
  auto config = interpret(fields);
  HICACHE_TRY(fields.finish(path.string() + ": "));
  return config;
}

} // namespace llama
