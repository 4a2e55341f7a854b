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

enum class model_family : uint8_t { llama, qwen2, qwen3 };

/// How positions become angles. `plain` has no scaling.
enum class rope_kind : uint8_t { plain, linear, llama3, yarn };

struct rope_settings {
  rope_kind kind = rope_kind::plain;
  double theta = 10000;
  double factor = 1;
  /// llama3 and yarn: tokens that the model was trained on.
  double original_positions = 0;
  /// llama3.
  double low_frequency_factor = 1;
  double high_frequency_factor = 4;
  /// yarn.
  double beta_fast = 32;
  double beta_slow = 1;
  /// yarn: multiplies sine and cosine; 0 means that the factor decides.
  double attention_factor = 0;
};

/// What config.json says of a model. All numbers are bounded by read_model_config.
struct model_config {
  model_family family = model_family::llama;
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
  /// The output layer uses the weights of the embedding.
  bool tied_embeddings = false;
  bool qkv_bias = false;
  bool output_bias = false;
  bool mlp_bias = false;
  /// Q and K are normalised head by head (Qwen3).
  bool qk_norm = false;
  rope_settings rope;
  /// Tokens that end a completion.
  std::vector<uint32_t> end_tokens;
  /// The whole file.
  std::string text;
};

/// Reads FOLDER/config.json as transformers writes it.
/// @returns invalid_argument with one sentence that names the file and what is wrong with it.
result<model_config> read_model_config(const std::filesystem::path& folder);

/// One factor for each pair of elements of a head: position * factor is the angle.
std::vector<float> rope_frequencies(const rope_settings& rope, uint32_t head_dim);

/// What sine and cosine are multiplied by; 1 but for yarn.
float rope_amplitude(const rope_settings& rope);

} // namespace llama
