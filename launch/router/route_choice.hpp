#pragma once

#include "hicache/error.hpp"
#include "launch/router/prefix_index.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace hicache {

/// What an instance does of a completion.
enum class instance_role : uint8_t {
  /// All of it.
  both,
  /// Computes prompts for instances that decode.
  prefill,
  /// Has prompts computed by instances that prefill, and generates.
  decode,
};

/// @returns invalid_argument with the expected names
result<instance_role> parse_role(std::string_view name);

/// @relates instance_role
const char* to_string(instance_role role) noexcept;

/// What the choice weighs, in tokens of a prompt that are computed.
struct route_weights {
  /// For each completion under way at an instance: it takes a place in every pass.
  uint32_t running_request = 256;
  /// For a token that is loaded from L2, and from L3.
  double l2_token = 0.02;
  double l3_token = 0.1;
};

/// An instance that takes requests.
struct route_candidate {
  instance_slot slot = 0;
  instance_role role = instance_role::both;
  cached_prefix cached;
  /// Completions under way, and tokens of their prompts that it has still to compute.
  uint32_t running = 0;
  uint64_t waiting_tokens = 0;
  /// Number of the last choice that fell on it.
  uint64_t last_chosen = 0;
};

/// Who completes a prompt.
struct route_choice {
  instance_slot target = 0;
  /// Instances that the target shall ask to compute the prompt, in this order; empty: it does so
  /// itself.
  std::vector<instance_slot> prefill;
};

/// Tokens that would be computed before the prompt's first token: what waits at the instance, what
/// is not cached, and what loads take.
double route_cost(const route_candidate& candidate, uint64_t prompt_tokens,
                  const route_weights& weights);

/// The cheapest instance; among equals the one with fewest completions under way, then the one that
/// was chosen longest ago. An instance that only prefills completes a prompt if no other is there.
/// @returns nothing if there are no candidates
std::optional<route_choice> choose_route(std::span<const route_candidate> candidates,
                                         uint64_t prompt_tokens, const route_weights& weights);

} // namespace hicache
