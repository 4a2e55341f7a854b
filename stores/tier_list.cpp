#include "stores/tier_list.hpp"

#include "base/numbers.hpp"
#include "base/try.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>

namespace hicache {

namespace {

using json = nlohmann::json;

/// Parses an extra configuration that has tiers.
result<json> parse_tiers(const std::string& extra_config) {
  auto object = json::parse(extra_config, nullptr, false);
  if (!object.is_object() || !object.contains("tiers") || !object["tiers"].is_array())
    return fail(ec::invalid_argument, "L3 has no tiers; expected it to be attached as tiered");
  return object;
}

tl::unexpected<error> no_tier(std::string_view tier, const std::string& expected) {
  return fail(ec::invalid_argument,
              "L3 has no tier '" + std::string{tier} + "'; expected " + expected);
}

/// Finds a tier by its number or its backend.
result<size_t> find_tier(const json& tiers, std::string_view tier) {
  const auto all
    = "the name of a tier's store, or a number from 1 to " + std::to_string(tiers.size());
  if (const auto number = parse_number<size_t>(tier)) {
    if (*number < 1 || *number > tiers.size())
      return no_tier(tier, all);
    return *number - 1;
  }
  const auto has_name = [tier](const json& x) { return x.value("backend", "") == tier; };
  const auto found = std::find_if(tiers.begin(), tiers.end(), has_name);
  if (found == tiers.end())
    return no_tier(tier, all);
  if (std::count_if(tiers.begin(), tiers.end(), has_name) > 1)
    return fail(ec::invalid_argument,
                "several tiers are " + std::string{tier} + "; expected the number of one");
  return static_cast<size_t>(found - tiers.begin());
}

} // namespace

result<std::string> with_tier(const std::string& extra_config, const std::string& backend,
                              const std::string& tier, std::optional<size_t> number) {
  auto config = HICACHE_TRY(parse_tiers(extra_config));
  auto fresh = tier.empty() ? json::object() : json::parse(tier, nullptr, false);
  if (!fresh.is_object() || fresh.contains("backend"))
    return fail(ec::invalid_argument,
                "the keys of the tier are no JSON object, or name its store; expected others than "
                "'backend'");
  fresh["backend"] = backend;
  auto& tiers = config["tiers"];
  const auto at = number.value_or(tiers.size() + 1);
  if (at < 1 || at > tiers.size() + 1)
    return no_tier(std::to_string(at), "a number from 1 to " + std::to_string(tiers.size() + 1));
  tiers.insert(tiers.begin() + static_cast<ptrdiff_t>(at - 1), std::move(fresh));
  return config.dump();
}

result<std::string> without_tier(const std::string& extra_config, std::string_view tier) {
  auto config = HICACHE_TRY(parse_tiers(extra_config));
  auto& tiers = config["tiers"];
  const auto at = HICACHE_TRY(find_tier(tiers, tier));
  if (tiers.size() == 1)
    return fail(ec::invalid_argument,
                "L3 has no other tier; expected all of L3 to be detached instead");
  tiers.erase(at);
  return config.dump();
}

result<tier_difference> compare_tiers(const std::string& before, const std::string& after) {
  auto old_config = HICACHE_TRY(parse_tiers(before));
  auto new_config = HICACHE_TRY(parse_tiers(after));
  const auto old_tiers = std::exchange(old_config["tiers"], {});
  const auto new_tiers = std::exchange(new_config["tiers"], {});
  const auto is_new = new_tiers.size() > old_tiers.size();
  const auto& longer = is_new ? new_tiers : old_tiers;
  const auto& shorter = is_new ? old_tiers : new_tiers;
  const auto [extra, same]
    = std::mismatch(longer.begin(), longer.end(), shorter.begin(), shorter.end());
  if (old_config == new_config && longer.size() == shorter.size() + 1
      && std::equal(extra + 1, longer.end(), same, shorter.end()))
    return tier_difference{static_cast<size_t>(extra - longer.begin()), is_new};
  return fail(ec::invalid_argument,
              "tiered is attached; expected the same configuration with one tier more or one "
              "less, or L3 to be detached first");
}

} // namespace hicache
