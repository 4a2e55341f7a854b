#include "cache/tiers/tier_rules.hpp"

#include "base/names.hpp"
#include "base/numbers.hpp"

#include <array>

namespace hicache {

namespace {

constexpr auto rule_names = std::to_array<std::string_view>({"all", "evict", "hits", "never"});
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
    const auto hits = parse_number<uint32_t>(text.substr(hits_prefix.size()));
    if (hits && *hits >= 1 && *hits <= hits_max)
      return tier_writes{rule::hits, *hits};
  }
  return fail(ec::invalid_argument,
              "expected all, evict, never, or hits:N with N from 1 to " + std::to_string(hits_max));
}

std::string to_string(const tier_writes& writes) {
  if (writes.which == tier_writes::rule::hits)
    return std::string{hits_prefix} + std::to_string(writes.hits);
  return name_of(rule_names, writes.which);
}

bool is_copied(const tier_rules& rules, uint32_t uses, bool is_above) noexcept {
  if (is_above && rules.promotes)
    return uses >= second_use;
  return rules.writes.which == tier_writes::rule::hits && uses == rules.writes.hits;
}

} // namespace hicache
