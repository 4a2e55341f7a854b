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

/// How RoPE rotates a head: each pair of its elements by the angle position * frequency.
struct rope_settings {
  std::vector<float> frequencies;
  /// Multiplies sine and cosine; 1 except for yarn.
  float amplitude = 1;
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
