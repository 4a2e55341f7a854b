#pragma once

#include "examples/llama/checkpoint.hpp"
#include "hicache/geometry.hpp"

#include <cstdint>
#include <vector>

namespace llama {

/// y = x * weights^T + bias. Row-major: one row of weights for each output.
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
  /// Its outputs are partial sums; the bias is that of the sum.
  linear_layer output;
  std::vector<float> mlp_norm;
  /// The gate, then what it is multiplied with.
  linear_layer gate_up;
  /// As `output`.
  linear_layer down;
};

/// One rank's part of a model, as tensor parallelism cuts it: by heads, by the inner dimension of
/// the MLP, by the vocabulary at the end. Norms and the embedding are whole.
struct model_weights {
  /// Heads of Q and of KV on this rank.
  uint32_t heads = 0;
  uint32_t kv_heads = 0;
  std::vector<float> embedding;
  std::vector<layer_weights> layers;
  std::vector<float> final_norm;
  /// Scores of the tokens from `first_token` on.
  linear_layer head;
  uint32_t first_token = 0;
};

/// Reads the part of rank `rank` of `ranks`.
/// @returns invalid_argument with one sentence: a tensor that is missing or has another shape than
/// config.json says, or dimensions that the ranks do not divide
result<model_weights> load_weights(const model_config& config, const checkpoint& from,
                                   uint32_t rank, uint32_t ranks);

} // namespace llama
