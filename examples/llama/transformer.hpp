#pragma once

#include "examples/llama/processor.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
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

/// Follows a pass on the CPU, layer by layer.
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
  /// As processor::mark(): the pages are complete then. Valid until the next pass.
  void* after = nullptr;
};

/// Replaces values with their sums over all ranks; collective. Empty: there is one rank.
using rank_sum = std::function<void(std::span<float>)>;

/// This rank's part of Llama, Qwen2 and Qwen3. Computes attention in place on the pages of L1. One
/// thread at a time.
class transformer {
public:
  /// @param pool rank_runtime::device_buffers().
  /// @param type Of the KV: fp32, fp16 or bf16.
  /// @param device Can address the pool.
  transformer(model_config config, model_weights weights, hicache::device_layers pool,
              element_type type, std::unique_ptr<processor> device, rank_sum sum);

  const model_config& config() const noexcept { return config_; }

  /// Computes the slices together and writes their K and V to their pages. Each layer comes after
  /// the load of that layer of the cached pages only. Collective.
  /// @param watch May be null, and is on a GPU.
  /// @pre every token is below the vocabulary's size, and no slice is empty
  /// @returns device_lost with a sentence
  result<pass_result> compute(std::span<const slice> slices, pass_watch* watch = nullptr);

private:
  using floats = std::pmr::vector<float>;

  /// Prepares a row for each token.
  void begin(std::span<const slice> slices);

  void normalise(const std::vector<float>& gain);

  void apply(const linear_layer& layer, const floats& input, floats& output);

  void add_bias(const linear_layer& layer, floats& rows);

  /// Adds a layer's output for `input`, summed over all ranks, to the hidden state.
  void add_to_hidden(const linear_layer& layer, const floats& input);

  /// Attention of a layer, from `qkv_` to `attended_`.
  void attend(uint32_t layer, std::span<const slice> slices, pass_watch* watch, pass_result& done);

  /// Whether no rank had a load that failed.
  bool all_loaded(std::span<const slice> slices) const;

  void sum(std::span<float> values);

  result<void> score(std::span<const slice> slices, pass_result& done);

  const model_config config_;
  const model_weights weights_;
  const hicache::device_layers pool_;
  const element_type type_;
  const std::unique_ptr<processor> device_;
  const rank_sum sum_;
  const head_shape shape_;
  // One row per token of the pass.
  size_t rows_ = 0;
  std::pmr::vector<hicache::page_index> pages_{device_->memory()};
  std::pmr::vector<row_place> places_{device_->memory()};
  floats hidden_{device_->memory()};
  floats normed_{device_->memory()};
  floats qkv_{device_->memory()};
  floats attended_{device_->memory()};
  floats partial_{device_->memory()};
  floats inner_{device_->memory()};
  floats scores_{device_->memory()};
};

} // namespace llama
