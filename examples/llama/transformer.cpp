#include "examples/llama/transformer.hpp"

#include <cblas.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace llama {

namespace {

using hicache::kv_part;

/// Rows of Q multiplied with a page at once; bounds the buffer of scores.
constexpr auto block_rows = size_t{64};

/// c (m x n) = a (m x k) * b^T, with b as n rows of k; strides in floats from a row to the next.
void multiply_transposed(size_t m, size_t n, size_t k, const float* a, size_t a_stride,
                         const float* b, size_t b_stride, float* c, size_t c_stride) {
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<int>(m), static_cast<int>(n),
              static_cast<int>(k), 1, a, static_cast<int>(a_stride), b, static_cast<int>(b_stride),
              0, c, static_cast<int>(c_stride));
}

/// c (m x n) += a (m x k) * b (k x n).
void add_product(size_t m, size_t n, size_t k, const float* a, size_t a_stride, const float* b,
                 size_t b_stride, float* c, size_t c_stride) {
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, static_cast<int>(m), static_cast<int>(n),
              static_cast<int>(k), 1, a, static_cast<int>(a_stride), b, static_cast<int>(b_stride),
              1, c, static_cast<int>(c_stride));
}

void add_bias(std::span<float> rows, std::span<const float> bias) {
  for (auto i = size_t{0}; !bias.empty() && i < rows.size(); ++i)
    rows[i] += bias[i % bias.size()];
}

void apply(const linear_layer& layer, size_t rows, const float* input, std::vector<float>& output) {
  output.resize(rows * layer.outputs);
  multiply_transposed(rows, layer.outputs, layer.inputs, input, layer.inputs, layer.weights.data(),
                      layer.inputs, output.data(), layer.outputs);
}

/// RMS norm of one row.
void normalise(const float* row, std::span<const float> gain, float epsilon, float* target) {
  auto squares = 0.0;
  for (auto i = size_t{0}; i < gain.size(); ++i)
    squares += static_cast<double>(row[i]) * row[i];
  const auto scale = static_cast<float>(
    1 / std::sqrt(squares / static_cast<double>(gain.size()) + static_cast<double>(epsilon)));
  for (auto i = size_t{0}; i < gain.size(); ++i)
    target[i] = row[i] * scale * gain[i];
}

void softmax(std::span<float> values) {
  const auto largest = *std::max_element(values.begin(), values.end());
  auto sum = 0.0F;
  for (auto& each : values)
    sum += each = std::exp(each - largest);
  for (auto& each : values)
    each /= sum;
}

} // namespace

transformer::transformer(model_config config, model_weights weights, paged_kv kv,
                         const peers& ranks)
  : config_(std::move(config)), weights_(std::move(weights)), kv_(std::move(kv)), ranks_(ranks),
    frequencies_(rope_frequencies(config_.rope, config_.head_dim)),
    amplitude_(rope_amplitude(config_.rope)) {}

pass_result transformer::compute(std::span<const slice> slices, pass_watch* watch) {
  auto done = pass_result{};
  hidden_.clear();
  for (const auto& each : slices)
    for (const auto token : each.tokens) {
      const auto* row = weights_.embedding.data() + size_t{token} * config_.hidden;
      hidden_.insert(hidden_.end(), row, row + config_.hidden);
    }
  rows_ = hidden_.size() / config_.hidden;
  normed_.resize(hidden_.size());
  const auto norm_rows = [&](std::span<const float> gain) {
    for (auto row = size_t{0}; row < rows_; ++row)
      normalise(hidden_.data() + row * config_.hidden, gain, config_.norm_epsilon,
                normed_.data() + row * config_.hidden);
  };
  for (auto layer = uint32_t{0}; layer < config_.layers; ++layer) {
    const auto& weights = weights_.layers[layer];
    norm_rows(weights.attention_norm);
    apply(weights.qkv, rows_, normed_.data(), qkv_);
    add_bias(qkv_, weights.qkv.bias);
    store_kv(layer, slices);
    // The cached pages are needed only now. A rank whose load failed continues with invalid data,
    // because the others wait for its sums; the engine discards the result.
    const auto begin = std::chrono::steady_clock::now();
    for (const auto& each : slices)
      if (each.loading != nullptr && !each.loading->wait(layer))
        done.is_loaded = false;
    done.load_wait += std::chrono::steady_clock::now() - begin;
    if (watch != nullptr)
      watch->stored(layer);
    attend(layer, slices);
    add_to_hidden(weights.output, attended_); // Sums over the ranks: each has stored its part.
    if (watch != nullptr)
      watch->stored_everywhere(layer);
    norm_rows(weights.mlp_norm);
    apply(weights.gate_up, rows_, normed_.data(), partial_);
    add_bias(partial_, weights.gate_up.bias);
    const auto width = size_t{weights.down.inputs};
    inner_.resize(rows_ * width);
    for (auto i = size_t{0}; i < inner_.size(); ++i) {
      const auto gate = partial_[i / width * 2 * width + i % width];
      const auto up = partial_[i / width * 2 * width + width + i % width];
      inner_[i] = gate / (1 + std::exp(-gate)) * up;
    }
    add_to_hidden(weights.down, inner_);
  }
  done.is_loaded = all_loaded(slices, done.is_loaded);
  done.scores = score(slices);
  return done;
}

bool transformer::all_loaded(std::span<const slice> slices, bool mine) const {
  if (std::ranges::none_of(slices, [](const auto& x) { return x.loading != nullptr; }))
    return true;
  auto failures = std::array{mine ? 0.0F : 1.0F};
  ranks_.sum(failures);
  return failures.front() == 0;
}

void transformer::add_to_hidden(const linear_layer& layer, const std::vector<float>& input) {
  apply(layer, rows_, input.data(), partial_);
  ranks_.sum(partial_);
  add_bias(partial_, layer.bias);
  for (auto i = size_t{0}; i < hidden_.size(); ++i)
    hidden_[i] += partial_[i];
}

void transformer::rotate(float* head, uint64_t position) const {
  const auto half = frequencies_.size();
  for (auto i = size_t{0}; i < half; ++i) {
    const auto angle = static_cast<float>(position) * frequencies_[i];
    const auto cosine = std::cos(angle) * amplitude_;
    const auto sine = std::sin(angle) * amplitude_;
    const auto a = head[i];
    const auto b = head[i + half];
    head[i] = a * cosine - b * sine;
    head[i + half] = b * cosine + a * sine;
  }
}

void transformer::store_kv(uint32_t layer, std::span<const slice> slices) {
  const auto& weights = weights_.layers[layer];
  const auto width = size_t{config_.head_dim};
  auto* row = qkv_.data();
  for (const auto& each : slices)
    for (auto i = size_t{0}; i < each.tokens.size(); ++i, row += weights.qkv.outputs) {
      const auto position = each.first + i;
      for (auto head = uint32_t{0}; head < weights_.heads + weights_.kv_heads; ++head) {
        auto* const elements = row + head * width;
        if (config_.qk_norm)
          normalise(elements, head < weights_.heads ? weights.q_norm : weights.k_norm,
                    config_.norm_epsilon, elements);
        rotate(elements, position);
      }
      const auto page = each.pages[position / kv_.page_size()];
      const auto place = static_cast<uint32_t>(position % kv_.page_size());
      const auto* const keys = row + weights_.heads * width;
      kv_.write(layer, kv_part::key, page, place, keys);
      kv_.write(layer, kv_part::value, page, place, keys + weights_.kv_heads * width);
    }
}

void transformer::attend(uint32_t layer, std::span<const slice> slices) {
  attended_.assign(rows_ * weights_.heads * config_.head_dim, 0);
  auto row = size_t{0};
  for (const auto& each : slices) {
    for (auto head = uint32_t{0}; head < weights_.heads; ++head)
      attend_head(layer, each, row, head);
    row += each.tokens.size();
  }
}

void transformer::attend_head(uint32_t layer, const slice& each, size_t first_row, uint32_t head) {
  const auto width = size_t{config_.head_dim};
  const auto q_stride = size_t{weights_.layers[layer].qkv.outputs};
  const auto out_stride = weights_.heads * width;
  const auto kv_head = head / (weights_.heads / weights_.kv_heads);
  const auto page_size = size_t{kv_.page_size()};
  const auto scale = 1 / std::sqrt(static_cast<float>(width));
  for (auto block = size_t{0}; block < each.tokens.size(); block += block_rows) {
    const auto rows = std::min(block_rows, each.tokens.size() - block);
    const auto seen = each.first + block + rows; // Tokens that the last row attends to.
    const auto* const q = qkv_.data() + (first_row + block) * q_stride + head * width;
    auto* const out = attended_.data() + (first_row + block) * out_stride + head * width;
    auto& scores = weights_of_tokens_;
    scores.resize(rows * seen);
    for (auto begin = size_t{0}; begin < seen; begin += page_size) {
      const auto count = std::min(page_size, seen - begin);
      const auto keys = kv_.read(layer, kv_part::key, each.pages[begin / page_size], kv_head,
                                 static_cast<uint32_t>(count));
      multiply_transposed(rows, count, width, q, q_stride, keys.data, keys.stride,
                          scores.data() + begin, seen);
    }
    for (auto row = size_t{0}; row < rows; ++row) {
      const auto line = std::span{scores}.subspan(row * seen, seen);
      const auto visible = each.first + block + row + 1;
      for (auto& score : line.first(visible))
        score *= scale;
      softmax(line.first(visible));
      std::ranges::fill(line.subspan(visible), 0.0F);
    }
    for (auto begin = size_t{0}; begin < seen; begin += page_size) {
      const auto count = std::min(page_size, seen - begin);
      const auto values = kv_.read(layer, kv_part::value, each.pages[begin / page_size], kv_head,
                                   static_cast<uint32_t>(count));
      add_product(rows, width, count, scores.data() + begin, seen, values.data, values.stride, out,
                  out_stride);
    }
  }
}

std::vector<float> transformer::score(std::span<const slice> slices) {
  auto last = std::vector<float>{};
  auto row = size_t{0};
  for (const auto& each : slices) {
    row += each.tokens.size();
    if (!each.wants_scores)
      continue;
    last.resize(last.size() + config_.hidden);
    normalise(hidden_.data() + (row - 1) * config_.hidden, weights_.final_norm,
              config_.norm_epsilon, last.data() + last.size() - config_.hidden);
  }
  const auto wanted = last.size() / config_.hidden;
  auto scores = std::vector<float>(wanted * config_.vocabulary);
  if (wanted == 0)
    return scores;
  multiply_transposed(wanted, weights_.head.outputs, config_.hidden, last.data(), config_.hidden,
                      weights_.head.weights.data(), config_.hidden,
                      scores.data() + weights_.first_token, config_.vocabulary);
  // Each rank has its own part of the vocabulary, and zeros elsewhere.
  ranks_.sum(scores);
  return scores;
}

} // namespace llama
