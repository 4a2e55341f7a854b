#pragma once

#include "examples/llama/paged_kv.hpp"
#include "examples/llama/peers.hpp"
#include "examples/llama/weights.hpp"
#include "hicache/operations.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace llama {

/// Tokens of one sequence computed in a pass: a prompt, a part of one, or the last token.
struct slice {
  std::span<const hicache::token_id> tokens;
  /// Position of the first token in its sequence. The KV before it is in the pages or being loaded.
  uint64_t first = 0;
  /// Pages of the whole sequence, including these tokens.
  std::span<const hicache::page_index> pages;
  /// The load of cached pages, or null.
  const hicache::layer_progress* loading = nullptr;
  /// Whether to compute the scores of the token after the last.
  bool wants_scores = false;
};

/// Follows a pass, layer by layer.
class pass_watch {
public:
  virtual ~pass_watch() = default;

  /// The K and V of a layer are in the pages of this rank, cached ones included.
  virtual void stored(uint32_t layer) = 0;

  /// Every rank has returned from stored(layer).
  virtual void stored_everywhere(uint32_t layer) = 0;
};

struct pass_result {
  /// One row of vocabulary size for each slice with wants_scores, in order; equal on all ranks.
  std::vector<float> scores;
  /// False if a load failed on some rank: the results are invalid. Equal on all ranks.
  bool is_loaded = true;
  /// How long layers waited for the loads of the slices, on this rank.
  std::chrono::nanoseconds load_wait{};
};

/// This rank's part of Llama, Qwen2 and Qwen3 on the CPU. Computes attention in place on the pages
/// of L1. One thread at a time.
class transformer {
public:
  /// @param ranks Must outlive the object.
  transformer(model_config config, model_weights weights, paged_kv kv, const peers& ranks);

  const model_config& config() const noexcept { return config_; }

  /// Computes the slices together and writes their K and V to their pages. Before each layer it
  /// waits only until that layer of the cached pages is in L1. Collective.
  /// @param watch May be null.
  /// @pre every token is below the vocabulary's size, and no slice is empty
  pass_result compute(std::span<const slice> slices, pass_watch* watch = nullptr);

private:
  /// Attention of one layer for all rows, from `qkv_` to `attended_`.
  void attend(uint32_t layer, std::span<const slice> slices);

  void attend_head(uint32_t layer, const slice& each, size_t first_row, uint32_t head);

  /// Normalises and rotates Q and K, and writes K and V to the pages.
  void store_kv(uint32_t layer, std::span<const slice> slices);

  /// Whether no rank had a load that failed.
  bool all_loaded(std::span<const slice> slices, bool mine) const;

  void rotate(float* head, uint64_t position) const;

  /// Adds a layer's output for `input`, summed over all ranks, to the hidden state.
  void add_to_hidden(const linear_layer& layer, const std::vector<float>& input);

  std::vector<float> score(std::span<const slice> slices);

  const model_config config_;
  const model_weights weights_;
  paged_kv kv_;
  const peers& ranks_;
  const std::vector<float> frequencies_;
  const float amplitude_;
  // One row per token of the pass.
  size_t rows_ = 0;
  std::vector<float> hidden_;
  std::vector<float> normed_;
  std::vector<float> qkv_;
  std::vector<float> attended_;
  std::vector<float> inner_;
  std::vector<float> partial_;
  std::vector<float> weights_of_tokens_;
};

} // namespace llama
