#pragma once

#include "base/host_device.hpp"
#include "base/narrow_floats.hpp"
#include "hicache/config.hpp"
#include "hicache/geometry.hpp"
#include "hicache/ids.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <variant>

/// The arithmetic of a pass apart from matrix products: once for all processors. A kernel computes
/// its part `index` with a team: one thread on the CPU, a block of threads on a GPU. A team has
/// - each(count, body): calls body(i) for all i below `count`, and waits until all is done;
/// - combine(count, neutral, value, with): all value(i) combined by `with`, the same for every
///   thread;
/// - scratch: floats that its threads share, as many as the kernel's scratch() says, if it has one.
namespace llama {

using hicache::element_type;

/// Bytes of a number.
/// @pre type != fp8, here and below
HICACHE_DEVICE constexpr uint32_t size_of(element_type type) {
  return type == element_type::fp32 ? 4 : 2;
}

template <class Team, class Value>
HICACHE_DEVICE auto sum_of(const Team& team, size_t count, Value value) {
  using number = decltype(value(size_t{0}));
  return team.combine(count, number{0}, value, [](number a, number b) { return a + b; });
}

template <class Team, class Value>
HICACHE_DEVICE float largest_of(const Team& team, size_t count, Value value) {
  return team.combine(count, -INFINITY, value, [](float a, float b) { return std::fmax(a, b); });
}

/// Number `index` of a row in memory.
HICACHE_DEVICE inline float number_at(element_type type, const std::byte* row, size_t index) {
  if (type == element_type::fp32)
    return reinterpret_cast<const float*>(row)[index];
  const auto number = reinterpret_cast<const uint16_t*>(row)[index];
  return type == element_type::fp16 ? hicache::widen_fp16(number) : hicache::widen_bf16(number);
}

HICACHE_DEVICE inline void set_number(element_type type, std::byte* row, size_t index,
                                      float value) {
  if (type == element_type::fp32)
    reinterpret_cast<float*>(row)[index] = value;
  else
    reinterpret_cast<uint16_t*>(row)[index] = type == element_type::fp16
                                                ? hicache::narrow_to_fp16(value)
                                                : hicache::narrow_to_bf16(value);
}

/// Where a row of a pass belongs: its position in its sequence, and the pages of that.
struct row_place {
  uint64_t position = 0;
  const hicache::page_index* pages = nullptr;
};

/// Heads of this rank, and a row of their Q, K and V.
struct head_shape {
  uint32_t heads = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;

  HICACHE_DEVICE size_t q_width() const { return size_t{heads} * head_dim; }

  HICACHE_DEVICE size_t row_width() const { return q_width() + 2 * size_t{kv_heads} * head_dim; }
};

/// K and V of a layer in L1's pages, located by hicache's geometry.
struct layer_pages {
  hicache::layer_buffer keys;
  hicache::layer_buffer values;
  uint32_t page_size = 0;
  element_type type = element_type::fp32;

  /// A head of the token at a position.
  HICACHE_DEVICE std::byte* head_at(const hicache::layer_buffer& part,
                                    const hicache::page_index* pages, uint64_t position,
                                    size_t offset) const {
    return reinterpret_cast<std::byte*>(part.address
                                        + pages[position / page_size] * part.page_stride
                                        + position % page_size * part.token_stride)
           + offset * size_of(type);
  }
};

/// RMS norm of a row.
template <class Team>
HICACHE_DEVICE void normalise(const Team& team, const float* row, const float* gain, size_t width,
                              float epsilon, float* target) {
  const auto squares
    = sum_of(team, width, [&](size_t i) { return static_cast<double>(row[i]) * row[i]; });
  const auto scale = static_cast<float>(
    1 / std::sqrt(squares / static_cast<double>(width) + static_cast<double>(epsilon)));
  team.each(width, [&](size_t i) { target[i] = row[i] * scale * gain[i]; });
}

/// RMS norm; a part is a row.
struct norm_kernel {
  const float* rows;
  const float* gain;
  size_t width;
  float epsilon;
  float* target;

  template <class Team>
  HICACHE_DEVICE void operator()(const Team& team, size_t index) const {
    normalise(team, rows + index * width, gain, width, epsilon, target + index * width);
  }
};

/// Adds rows to rows, or with stride 0 one row to all; a part is a row.
struct add_kernel {
  float* rows;
  const float* addend;
  size_t width;
  size_t stride;

  template <class Team>
  HICACHE_DEVICE void operator()(const Team& team, size_t index) const {
    team.each(width, [&](size_t i) { rows[index * width + i] += addend[index * stride + i]; });
  }
};

/// SiLU of the gate projection, times the up projection that follows it; a part is a row.
struct gate_kernel {
  const float* gate_up;
  size_t width;
  float* target;

  template <class Team>
  HICACHE_DEVICE void operator()(const Team& team, size_t index) const {
    const auto* const row = gate_up + 2 * index * width;
    team.each(width, [&](size_t i) {
      target[index * width + i] = row[i] / (1 + std::exp(-row[i])) * row[width + i];
    });
  }
};

/// Normalises and rotates Q and K, and writes K and V to the pages; a part is a head of a row.
struct store_kernel {
  float* qkv;
  const row_place* places;
  head_shape shape;
  layer_pages pages;
  /// Null: Q and K are not normalised.
  const float* q_norm;
  const float* k_norm;
  float epsilon;
  const float* frequencies;
  float amplitude;

  template <class Team>
  HICACHE_DEVICE void operator()(const Team& team, size_t index) const {
    const auto all = shape.heads + 2 * size_t{shape.kv_heads};
    const auto head = index % all;
    const auto place = places[index / all];
    const auto width = size_t{shape.head_dim};
    auto* const row = qkv + index * width;
    const auto is_query = head < shape.heads;
    const auto is_value = head >= shape.heads + shape.kv_heads;
    if (!is_value) {
      if (q_norm != nullptr)
        normalise(team, row, is_query ? q_norm : k_norm, width, epsilon, row);
      rotate(team, row, place.position);
    }
    if (is_query)
      return;
    const auto kv_head = (head - shape.heads) % shape.kv_heads;
    auto* const target = pages.head_at(is_value ? pages.values : pages.keys, place.pages,
                                       place.position, kv_head * width);
    team.each(width, [&](size_t i) { set_number(pages.type, target, i, row[i]); });
  }

  template <class Team>
  HICACHE_DEVICE void rotate(const Team& team, float* row, uint64_t position) const {
    const auto half = size_t{shape.head_dim / 2};
    team.each(half, [&](size_t i) {
      const auto angle = static_cast<float>(position) * frequencies[i];
      const auto cosine = std::cos(angle) * amplitude;
      const auto sine = std::sin(angle) * amplitude;
      const auto a = row[i];
      const auto b = row[i + half];
      row[i] = a * cosine - b * sine;
      row[i + half] = b * cosine + a * sine;
    });
  }
};

/// Attention on the pages; a part is a Q head of a row. Goes over the tokens once, some at a time:
/// whenever a larger score comes, it shrinks what it has summed (online softmax).
struct attention_kernel {
  static constexpr auto tokens_at_once = size_t{128};

  const float* qkv;
  const row_place* places;
  head_shape shape;
  layer_pages pages;
  float* target;

  size_t scratch() const { return shape.head_dim + tokens_at_once; }

  template <class Team>
  HICACHE_DEVICE void operator()(const Team& team, size_t index) const {
    const auto row = index / shape.heads;
    const auto head = index % shape.heads;
    const auto place = places[row];
    const auto width = size_t{shape.head_dim};
    const auto offset = head / (shape.heads / shape.kv_heads) * width;
    const auto* const q = qkv + row * shape.row_width() + head * width;
    const auto scale = 1 / std::sqrt(static_cast<float>(width));
    auto* const sums = team.scratch;
    auto* const weights = sums + width;
    auto largest = -INFINITY;
    auto total = 0.0F;
    team.each(width, [&](size_t i) { sums[i] = 0; });
    for (auto first = uint64_t{0}; first <= place.position; first += tokens_at_once) {
      const auto left = size_t{place.position + 1 - first};
      const auto count = left < tokens_at_once ? left : tokens_at_once;
      const auto most = largest_of(team, count, [&](size_t token) {
        const auto* const key = pages.head_at(pages.keys, place.pages, first + token, offset);
        auto product = 0.0F;
        for (auto i = size_t{0}; i < width; ++i)
          product += q[i] * number_at(pages.type, key, i);
        return weights[token] = product * scale;
      });
      const auto before = largest;
      largest = most > largest ? most : largest;
      const auto shrink = std::exp(before - largest);
      const auto added = sum_of(team, count, [&](size_t token) {
        return weights[token] = std::exp(weights[token] - largest);
      });
      total = total * shrink + added;
      team.each(width, [&](size_t i) {
        auto sum = sums[i] * shrink;
        for (auto token = size_t{0}; token < count; ++token)
          sum += weights[token]
                 * number_at(pages.type,
                             pages.head_at(pages.values, place.pages, first + token, offset), i);
        sums[i] = sum;
      });
    }
    team.each(width, [&](size_t i) { target[index * width + i] = sums[i] / total; });
  }
};

using kernel = std::variant<norm_kernel, add_kernel, gate_kernel, store_kernel, attention_kernel>;

/// A team of one thread.
struct single_thread {
  float* scratch = nullptr;

  template <class Body>
  void each(size_t count, Body body) const {
    for (auto i = size_t{0}; i < count; ++i)
      body(i);
  }

  template <class Number, class Value, class Operation>
  Number combine(size_t count, Number all, Value value, Operation with) const {
    for (auto i = size_t{0}; i < count; ++i)
      all = with(all, value(i));
    return all;
  }
};

} // namespace llama
