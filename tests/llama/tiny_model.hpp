#pragma once

#include "examples/llama/transformer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

/// A model of random weights, and the plainest processor, which others are compared with.
namespace llama::test {

/// One thread and loops.
class plain_processor final : public processor {
public:
  std::pmr::memory_resource* memory() noexcept override { return std::pmr::new_delete_resource(); }

  const float* place(const std::vector<float>& constants) override {
    return constants.empty() ? nullptr : constants.data();
  }

  void multiply(const linear_layer& layer, size_t rows, const float* input, float* output,
                size_t stride) override {
    for (auto row = size_t{0}; row < rows; ++row)
      for (auto i = size_t{0}; i < layer.outputs; ++i)
        output[row * stride + i]
          = std::inner_product(input + row * layer.inputs, input + (row + 1) * layer.inputs,
                               layer.weights.data() + i * layer.inputs, 0.0F);
  }

  void run(const kernel& what, size_t count) override {
    auto scratch = std::vector<float>(4096);
    std::visit(
      [&](const auto& each) {
        for (auto index = size_t{0}; index < count; ++index)
          each(single_thread{scratch.data()}, index);
      },
      what);
  }

  void wait_for(const hicache::layer_progress& loading, uint32_t layer) override {
    loading.wait(layer);
  }

  void* mark() override { return nullptr; }

  result<void> finish() override { return {}; }
};

/// Heads that share K and V, a norm of Q and K, and every bias.
inline model_config tiny_config() {
  auto config = model_config{};
  config.vocabulary = 96;
  config.hidden = 32;
  config.intermediate = 48;
  config.layers = 3;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 16;
  config.positions = 512;
  config.qk_norm = true;
  for (auto pair = 0.0F; pair < 8; ++pair)
    config.rope.frequencies.push_back(std::pow(10000.0F, -pair / 8));
  return config;
}

inline model_weights tiny_weights(const model_config& config) {
  auto random = std::mt19937_64{7};
  const auto numbers = [&](size_t count, float width) {
    auto spread = std::normal_distribution<float>{0, width};
    auto list = std::vector<float>(count);
    std::ranges::generate(list, [&] { return spread(random); });
    return list;
  };
  const auto layer = [&](uint32_t inputs, uint32_t outputs) {
    const auto width = 2 / std::sqrt(static_cast<float>(inputs));
    return linear_layer{inputs, outputs, numbers(size_t{inputs} * outputs, width),
                        numbers(outputs, 0.1F)};
  };
  auto weights = model_weights{};
  weights.heads = config.heads;
  weights.kv_heads = config.kv_heads;
  weights.embedding = numbers(size_t{config.vocabulary} * config.hidden, 1);
  const auto q = config.heads * config.head_dim;
  const auto kv = config.kv_heads * config.head_dim;
  for (auto i = uint32_t{0}; i < config.layers; ++i)
    weights.layers.push_back(
      {numbers(config.hidden, 1), layer(config.hidden, q + 2 * kv), numbers(config.head_dim, 1),
       numbers(config.head_dim, 1), layer(q, config.hidden), numbers(config.hidden, 1),
       layer(config.hidden, 2 * config.intermediate), layer(config.intermediate, config.hidden)});
  weights.final_norm = numbers(config.hidden, 1);
  weights.head = layer(config.hidden, config.vocabulary);
  return weights;
}

/// The pool of the tiny model.
inline hicache::pool_geometry tiny_pool(const model_config& config, element_type format,
                                        uint32_t page_size, hicache::host_layout layout,
                                        uint32_t pages) {
  const auto shape = hicache::pool_shape{hicache::attention_kind::mha,
                                         config.layers,
                                         config.kv_heads,
                                         config.head_dim,
                                         config.head_dim,
                                         size_of(format),
                                         page_size};
  return {shape, layout, pages};
}

inline std::vector<hicache::token_id> random_tokens(const model_config& config, size_t count,
                                                    uint64_t seed) {
  auto random = std::mt19937_64{seed};
  auto tokens = std::vector<hicache::token_id>(count);
  std::ranges::generate(
    tokens, [&] { return static_cast<hicache::token_id>(random() % config.vocabulary); });
  return tokens;
}

/// A sequence that is computed, and the scores after its tokens from the last of its prompt on.
struct tiny_sequence {
  std::vector<hicache::token_id> tokens;
  std::vector<hicache::page_index> pages;
  uint64_t computed = 0;
  std::vector<float> scores{};
};

/// Computes at most `most` tokens of each sequence, and appends the likeliest token to those that
/// are complete.
inline pass_result compute(transformer& model, std::vector<tiny_sequence*> all, size_t most,
                           const hicache::layer_progress* loading = nullptr,
                           pass_watch* watch = nullptr) {
  auto slices = std::vector<slice>{};
  for (auto* each : all) {
    const auto count = std::min<size_t>(most, each->tokens.size() - each->computed);
    slices.push_back({std::span{each->tokens}.subspan(each->computed, count), each->computed,
                      each->pages, loading, each->computed + count == each->tokens.size()});
    each->computed += count;
  }
  auto done = model.compute(slices, watch);
  if (!done) {
    ADD_FAILURE() << done.error().detail;
    return {};
  }
  const auto vocabulary = model.config().vocabulary;
  auto scores = done->scores.begin();
  for (auto* each : all)
    if (each->computed == each->tokens.size()) {
      each->scores.insert(each->scores.end(), scores, scores + vocabulary);
      each->tokens.push_back(
        static_cast<hicache::token_id>(std::max_element(scores, scores + vocabulary) - scores));
      scores += vocabulary;
    }
  return std::move(*done);
}

/// Three prompts of different lengths, side by side and in parts, and ten tokens of each.
inline std::vector<tiny_sequence> complete_three(transformer& model, uint32_t page_size) {
  auto all = std::vector<tiny_sequence>{};
  auto next_page = hicache::page_index{1};
  for (const auto length : {5U, 150U, 33U}) {
    auto& added = all.emplace_back();
    added.tokens = random_tokens(model.config(), length, length);
    added.pages.resize((added.tokens.size() + 10) / page_size + 1);
    std::iota(added.pages.rbegin(), added.pages.rend(), next_page);
    next_page += static_cast<hicache::page_index>(added.pages.size());
  }
  for (auto& each : all)
    while (each.computed + 40 < each.tokens.size())
      compute(model, {&each}, 40);
  for (auto step = 0; step < 10; ++step)
    compute(model, {&all[0], &all[1], &all[2]}, 40);
  return all;
}

/// Pages that complete_three() needs, the padding page included.
inline uint32_t pages_of_three(uint32_t page_size) {
  return (5 + 150 + 33 + 3 * 10) / page_size + 4;
}

inline void expect_close(const std::vector<tiny_sequence>& computed,
                         const std::vector<tiny_sequence>& expected, float tolerance) {
  for (auto i = size_t{0}; i < expected.size(); ++i) {
    const auto& scores = expected[i].scores;
    ASSERT_EQ(computed[i].scores.size(), scores.size());
    const auto largest
      = std::abs(*std::ranges::max_element(scores, {}, [](float x) { return std::abs(x); }));
    for (auto at = size_t{0}; at < scores.size(); ++at)
      ASSERT_NEAR(computed[i].scores[at], scores[at], tolerance * largest);
  }
}

/// The same with KV in the CPU's memory.
inline std::vector<tiny_sequence> complete_on_cpu(element_type format, uint32_t page_size,
                                                  std::unique_ptr<processor> cpu) {
  const auto config = tiny_config();
  const auto pool = tiny_pool(config, format, page_size, hicache::host_layout::layer_first,
                              pages_of_three(page_size));
  auto memory = std::vector<uint64_t>(pool.total_bytes() / sizeof(uint64_t) + 1);
  auto model
    = transformer{config,
                  tiny_weights(config),
                  hicache::device_layers::of(pool, reinterpret_cast<uint64_t>(memory.data())),
                  format,
                  std::move(cpu),
                  {}};
  return complete_three(model, page_size);
}

inline std::vector<tiny_sequence> complete_plainly(element_type format, uint32_t page_size) {
  return complete_on_cpu(format, page_size, std::make_unique<plain_processor>());
}

/// Compares with the plain processor.
/// @param complete Called with a format and a page size; returns what complete_three() does.
template <class Complete>
void expect_what_the_plain_one_computes(Complete complete) {
  for (const auto format : {element_type::fp32, element_type::fp16, element_type::bf16})
    for (const auto page_size : {1U, 4U, 16U}) {
      SCOPED_TRACE(testing::Message()
                   << "format " << static_cast<int>(format) << ", page size " << page_size);
      const auto computed = complete(format, page_size);
      const auto expected = complete_plainly(format, page_size);
      // KV that is rounded the other way differs by 2^-11 or 2^-8 of itself, and the tokens with
      // it.
      if (format != element_type::fp32) {
        expect_close(computed, expected, 0.05F);
        continue;
      }
      expect_close(computed, expected, 1e-4F);
      for (auto i = size_t{0}; i < expected.size(); ++i)
        EXPECT_EQ(computed[i].tokens, expected[i].tokens);
    }
}

} // namespace llama::test
