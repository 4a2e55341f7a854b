#include "launch/router/route_choice.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <tuple>

namespace hicache {

namespace {

constexpr auto role_names = std::array{"both", "prefill", "decode"};

/// Instances that a target is told to ask. One is enough unless it dies.
constexpr auto prefill_max = size_t{3};

} // namespace

result<instance_role> parse_role(std::string_view name) {
  const auto found = std::ranges::find(role_names, name);
  if (found == role_names.end())
    return fail(ec::invalid_argument,
                "role '" + std::string{name} + "' is not known; expected both, prefill or decode");
  return static_cast<instance_role>(found - role_names.begin());
}

const char* to_string(instance_role role) noexcept {
  return role_names[static_cast<size_t>(role)];
}

double route_cost(const route_candidate& candidate, uint64_t prompt_tokens,
                  const route_weights& weights) {
  const auto& cached = candidate.cached;
  const auto computed = prompt_tokens - std::min(prompt_tokens, cached.total());
  return static_cast<double>(computed + candidate.waiting_tokens)
         + static_cast<double>(candidate.running) * weights.running_request
         + static_cast<double>(cached.l2) * weights.l2_token
         + static_cast<double>(cached.l3) * weights.l3_token;
}

std::optional<route_choice> choose_route(std::span<const route_candidate> candidates,
                                         uint64_t prompt_tokens, const route_weights& weights) {
  auto order = std::vector<route_candidate>{candidates.begin(), candidates.end()};
  std::ranges::sort(order, {}, [&](const route_candidate& each) {
    return std::tuple{route_cost(each, prompt_tokens, weights), each.running, each.last_chosen,
                      each.slot};
  });
  auto choice = std::optional<route_choice>{};
  auto has_prefill = false;
  for (const auto& each : order)
    if (!choice && each.role != instance_role::prefill) {
      choice = route_choice{each.slot, {}};
      has_prefill = each.role == instance_role::decode;
    }
  if (!choice && !order.empty())
    return route_choice{order.front().slot, {}};
  for (const auto& each : order)
    if (has_prefill && each.role == instance_role::prefill && choice->prefill.size() < prefill_max)
      choice->prefill.push_back(each.slot);
  return choice;
}

} // namespace hicache
