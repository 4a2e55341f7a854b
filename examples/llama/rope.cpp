#include "examples/llama/model_config.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace llama {

std::vector<float> rope_frequencies(const rope_settings& rope, uint32_t head_dim) {
  constexpr auto full_turn = 2 * std::numbers::pi;
  auto frequencies = std::vector<float>(head_dim / 2);
  // yarn: pairs below `low` turn often within the trained length and are unchanged, pairs above
  // `high` are interpolated, pairs between are blended.
  const auto pair_that_turns = [&](double times) {
    return head_dim * std::log(rope.original_positions / (times * full_turn))
           / (2 * std::log(rope.theta));
  };
  auto low = 0.0;
  auto high = 0.0;
  if (rope.kind == rope_kind::yarn) {
    low = std::max(std::floor(pair_that_turns(rope.beta_fast)), 0.0);
    high = std::min(std::ceil(pair_that_turns(rope.beta_slow)), head_dim - 1.0);
    if (low == high)
      high += 0.001;
  }
  for (auto i = size_t{0}; i < frequencies.size(); ++i) {
    const auto plain = std::pow(rope.theta, -2.0 * static_cast<double>(i) / head_dim);
    const auto slow = plain / rope.factor;
    auto share_of_slow = 0.0;
    if (rope.kind == rope_kind::linear) {
      share_of_slow = 1;
    } else if (rope.kind == rope_kind::llama3) {
      const auto turns = rope.original_positions * plain / full_turn;
      share_of_slow = (rope.high_frequency_factor - turns)
                      / (rope.high_frequency_factor - rope.low_frequency_factor);
    } else if (rope.kind == rope_kind::yarn) {
      share_of_slow = (static_cast<double>(i) - low) / (high - low);
    }
    share_of_slow = std::clamp(share_of_slow, 0.0, 1.0);
    frequencies[i] = static_cast<float>(share_of_slow * slow + (1 - share_of_slow) * plain);
  }
  return frequencies;
}

float rope_amplitude(const rope_settings& rope) {
  if (rope.kind != rope_kind::yarn)
    return 1;
  if (rope.attention_factor > 0)
    return static_cast<float>(rope.attention_factor);
  return static_cast<float>(rope.factor > 1 ? 0.1 * std::log(rope.factor) + 1 : 1);
}

} // namespace llama
