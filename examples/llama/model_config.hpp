#pragma once

#include "hicache/error.hpp"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace llama {

using hicache::ec;
using hicache::fail;
using hicache::result;

/// How positions are scaled for RoPE. `plain` does not scale.
enum class rope_kind : uint8_t { plain, linear, llama3, yarn };

struct rope_settings {
  rope_kind kind = rope_kind::plain;
  double theta = 10000;
  double factor = 1;
  /// llama3 and yarn: sequence length that the model was trained on, in tokens.
  double original_positions = 0;
  /// llama3.
  double low_frequency_factor = 1;
  double high_frequency_factor = 4;
  /// yarn.
  double beta_fast = 32;
  double beta_slow = 1;
  /// Multiplies sine and cosine; 1 except for yarn.
  double amplitude = 1;
};

/// Contents of a model's config.json. read_model_config checks the bounds of all numbers.
struct model_config {
  uint32_t vocabulary = 0;
  uint32_t hidden = 0;
  uint32_t intermediate = 0;
  uint32_t layers = 0;
  uint32_t heads = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  /// Longest sequence, in tokens.
  uint32_t positions = 0;
  float norm_epsilon = 1e-6F;
  /// The output layer shares the embedding's weights.
  bool tied_embeddings = false;
  bool qkv_bias = false;
  bool output_bias = false;
  bool mlp_bias = false;
  /// Q and K are normalised per head (Qwen3).
  bool qk_norm = false;
  rope_settings rope;
  /// Tokens that end a completion.
  std::vector<uint32_t> end_tokens;
};

/// Reads FOLDER/config.json as transformers writes it.
/// @returns invalid_argument with a sentence that names the file and the problem.
result<model_config> read_model_config(const std::filesystem::path& folder);

} // namespace llama
