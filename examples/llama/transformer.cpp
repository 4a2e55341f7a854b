#include "examples/llama/transformer.hpp"

#include "base/try.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace llama {

transformer::transformer(model_config config, model_weights weights, hicache::device_layers pool,
                         element_type type, std::unique_ptr<processor> device, rank_sum sum)
  : config_(std::move(config)), weights_(std::move(weights)), pool_(std::move(pool)), type_(type),
    device_(std::move(device)),
    sum_(std::move(sum)), shape_{weights_.heads, weights_.kv_heads, config_.head_dim} {}

result<pass_result> transformer::compute(std::span<const slice> slices, pass_watch* watch) {
  // Nobody waited for the last pass if it had no scores; its rows are overwritten now.
  HICACHE_TRY(device_->finish());
  begin(slices);
  auto done = pass_result{};
  for (auto layer = uint32_t{0}; layer < config_.layers; ++layer) {
    const auto& weights = weights_.layers[layer];
    normalise(weights.attention_norm);
    apply(weights.qkv, normed_, qkv_);
    attend(layer, slices, watch, done);
    add_to_hidden(weights.output, attended_); // Sums over the ranks: each has stored its part.
    if (watch != nullptr)
      watch->stored_everywhere(layer);
    normalise(weights.mlp_norm);
    apply(weights.gate_up, normed_, partial_);
    device_->run(gate_kernel{partial_.data(), weights.down.inputs, inner_.data()}, rows_);
    add_to_hidden(weights.down, inner_);
  }
  done.after = device_->mark();
  done.is_loaded = all_loaded(slices);
  HICACHE_TRY(score(slices, done));
  return done;
}

void transformer::begin(std::span<const slice> slices) {
  pages_.clear();
  places_.clear();
  hidden_.clear();
  for (const auto& each : slices)
    pages_.insert(pages_.end(), each.pages.begin(), each.pages.end());
  const auto* pages = pages_.data();
  for (const auto& each : slices) {
    for (auto i = size_t{0}; i < each.tokens.size(); ++i) {
      places_.push_back({each.first + i, pages});
      const auto* row = weights_.embedding.data() + size_t{each.tokens[i]} * config_.hidden;
      hidden_.insert(hidden_.end(), row, row + config_.hidden);
    }
    pages += each.pages.size();
  }
  rows_ = places_.size();
  const auto& layer = weights_.layers.front();
  normed_.resize(hidden_.size());
  qkv_.resize(rows_ * layer.qkv.outputs);
  attended_.resize(rows_ * layer.output.inputs);
  partial_.resize(rows_ * std::max(layer.gate_up.outputs, config_.hidden));
  inner_.resize(rows_ * layer.down.inputs);
}

void transformer::normalise(const std::vector<float>& gain) {
  device_->run(norm_kernel{hidden_.data(), device_->place(gain), config_.hidden,
                           config_.norm_epsilon, normed_.data()},
               rows_);
}

void transformer::apply(const linear_layer& layer, const floats& input, floats& output) {
  device_->multiply(layer, rows_, input.data(), output.data(), layer.outputs);
  add_bias(layer, output);
}

void transformer::add_bias(const linear_layer& layer, floats& rows) {
  if (!layer.bias.empty())
    device_->run(add_kernel{rows.data(), device_->place(layer.bias), layer.outputs, 0}, rows_);
}

void transformer::add_to_hidden(const linear_layer& layer, const floats& input) {
  device_->multiply(layer, rows_, input.data(), partial_.data(), layer.outputs);
  sum(std::span{partial_}.first(hidden_.size()));
  add_bias(layer, partial_);
  device_->run(add_kernel{hidden_.data(), partial_.data(), config_.hidden, config_.hidden}, rows_);
}

void transformer::attend(uint32_t layer, std::span<const slice> slices, pass_watch* watch,
                         pass_result& done) {
  const auto& weights = weights_.layers[layer];
  // The order of parts_of(mha).
  const auto pages = layer_pages{pool_.buffers[layer], pool_.buffers[config_.layers + layer],
                                 pool_.shape.page_size, type_};
  device_->run(store_kernel{qkv_.data(), places_.data(), shape_, pages,
                            device_->place(weights.q_norm), device_->place(weights.k_norm),
                            config_.norm_epsilon, device_->place(config_.rope.frequencies),
                            config_.rope.amplitude},
               rows_ * (shape_.heads + 2 * shape_.kv_heads));
  // The cached pages are needed only now. A rank whose load failed continues with invalid data,
  // because the others wait for its sums; the engine discards the result.
  for (const auto& each : slices)
    if (each.loading != nullptr) {
      const auto begin = std::chrono::steady_clock::now();
      device_->wait_for(*each.loading, layer);
      done.load_wait += std::chrono::steady_clock::now() - begin;
    }
  if (watch != nullptr)
    watch->stored(layer);
  device_->run(attention_kernel{qkv_.data(), places_.data(), shape_, pages, attended_.data()},
               rows_ * shape_.heads);
}

bool transformer::all_loaded(std::span<const slice> slices) const {
  auto is_loading = false;
  auto failures = std::array{0.0F};
  for (const auto& each : slices) {
    is_loading |= each.loading != nullptr;
    if (each.loading != nullptr && !each.loading->wait(config_.layers - 1))
      failures.front() = 1;
  }
  if (is_loading && sum_)
    sum_(failures);
  return failures.front() == 0;
}

void transformer::sum(std::span<float> values) {
  if (!sum_)
    return;
  static_cast<void>(device_->finish()); // Keeps what failed for the next call.
  sum_(values);
}

result<void> transformer::score(std::span<const slice> slices, pass_result& done) {
  const auto wanted = static_cast<size_t>(std::ranges::count_if(slices, &slice::wants_scores));
  if (wanted == 0)
    return {};
  normalise(weights_.final_norm);
  static_cast<void>(device_->finish());
  // The rows with scores come first then; the CPU moves them.
  auto row = size_t{0};
  auto target = normed_.begin();
  for (const auto& each : slices) {
    row += each.tokens.size();
    if (each.wants_scores)
      target = std::copy_n(normed_.data() + (row - 1) * config_.hidden, config_.hidden, target);
  }
  scores_.assign(wanted * config_.vocabulary, 0);
  device_->multiply(weights_.head, wanted, normed_.data(), scores_.data() + weights_.first_token,
                    config_.vocabulary);
  // Each rank has its own part of the vocabulary, and zeros elsewhere.
  sum(scores_);
  auto finished = device_->finish();
  done.scores.assign(scores_.begin(), scores_.end());
  return finished;
}

} // namespace llama
