#include "cache/tiers/tier_rules.hpp"

#include <charconv>

namespace hicache {

namespace {

constexpr auto hits_prefix = std::string_view{"hits:"};
constexpr uint32_t hits_max = 1000;
constexpr uint32_t second_use = 2;

} // namespace

result<tier_writes> parse_tier_writes(std::string_view text) {
  using rule = tier_writes::rule;
  for (const auto which : {rule::all, rule::evict, rule::never})
    if (const auto writes = tier_writes{which, 0}; text == to_string(writes))
      return writes;
  if (text.starts_with(hits_prefix)) {
    const auto number = text.substr(hits_prefix.size());
    auto hits = uint32_t{0};
    const auto [end, failure] = std::from_chars(number.begin(), number.end(), hits);
    if (failure == std::errc{} && end == number.end() && hits >= 1 && hits <= hits_max)
      return tier_writes{tier_writes::rule::hits, hits};
  }
  return fail(ec::invalid_argument,
              "expected all, evict, never, or hits:N with N from 1 to " + std::to_string(hits_max));
}

std::string to_string(const tier_writes& writes) {
  switch (writes.which) {
    case tier_writes::rule::all:
      return "all";
    case tier_writes::rule::evict:
      return "evict";
    case tier_writes::rule::hits:
      return std::string{hits_prefix} + std::to_string(writes.hits);
    case tier_writes::rule::never:
      return "never";
  }
  return {};
}

bool is_copied(const tier_rules& rules, uint32_t uses, bool is_above) noexcept {
  if (is_above && rules.promotes)
    return uses >= second_use;
  return rules.writes.which == tier_writes::rule::hits && uses == rules.writes.hits;
}

} // namespace hicache
