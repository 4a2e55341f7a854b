#pragma once

#include "examples/llama/model_config.hpp"
#include "hicache/geometry.hpp"

#include <cstdint>
#include <filesystem>
#include <vector>

namespace llama {

/// y = x * weights^T + bias. Row-major: one row of weights per output.
struct linear_layer {
  uint32_t inputs = 0;
  uint32_t outputs = 0;
  std::vector<float> weights;
  /// Empty: none.
  std::vector<float> bias;
};

/// One rank's part of a layer.
struct layer_weights {
  std::vector<float> attention_norm;
  /// All heads of Q, then of K, then of V.
  linear_layer qkv;
  /// Qwen3; else empty.
  std::vector<float> q_norm;
  std::vector<float> k_norm;
  /// Its outputs are partial sums; the bias applies to the sum.
  linear_layer output;
  std::vector<float> mlp_norm;
  /// The gate projection, then the up projection.
  linear_layer gate_up;
  /// As `output`.
  linear_layer down;
};

/// One rank's part of a model under tensor parallelism: split by heads, by the inner dimension of
/// the MLP, and by the vocabulary of the output layer. Norms and the embedding are not split.
struct model_weights {
  /// Heads of Q, and of K and V, on this rank.
  uint32_t heads = 0;
  uint32_t kv_heads = 0;
  std::vector<float> embedding;
  std::vector<layer_weights> layers;
  std::vector<float> final_norm;
  /// Scores of the tokens from `first_token` on.
  linear_layer head;
  uint32_t first_token = 0;
};

/// Loads the part of rank `rank` of `ranks` from the safetensors files of a folder: F32, F16 and
/// BF16 numbers, as floats.
/// @returns invalid_argument with a sentence: a missing tensor, a shape other than config.json
/// says, or dimensions not divisible by the ranks
result<model_weights> load_weights(const model_config& config, const std::filesystem::path& folder,
                                   uint32_t rank, uint32_t ranks);

} // namespace llama
