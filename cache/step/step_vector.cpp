#include "cache/step/step_vector.hpp"

#include "base/check.hpp"

#include <algorithm>

namespace hicache {

namespace {

// The digest comes first. The minima of a value and of its complement are complementary exactly if
// all ranks offered the same value; otherwise the other slots are meaningless, because ranks may
// have different operations in the same slot. A flag is 0 or -1: one rank raises it for all.
enum slot : size_t {
  digest,
  digest_complement,
  lost,
  writes,
  loads,
  failed_write,
  failed_load,
  now,
  next_fetch,
  loss_age,
  backups
};

/// Values per prefetch.
constexpr auto fetch_values = 2 + limits::storage_tiers;

constexpr auto fetches = backups + limits::step_backups;

static_assert(step_values == fetches + fetch_values * limits::step_fetches);

/// The minimum over the ranks is the oldest failure, so "none" is the largest number.
int64_t encode_failure(operation_id id) {
  return id == 0 ? INT64_MAX : static_cast<int64_t>(id);
}

/// Limits the count to the oldest failure. @returns whether that one is included.
bool end_with(int64_t failure, uint64_t& done) {
  if (static_cast<uint64_t>(failure) > done)
    return false;
  done = static_cast<uint64_t>(failure);
  return true;
}

} // namespace

std::vector<int64_t> encode_step(const step_offer& offer) {
  const auto& facts = offer.facts;
  HICACHE_CHECK(facts.backups.size() <= limits::step_backups
                && facts.fetches.size() <= limits::step_fetches);
  auto values = std::vector<int64_t>(step_values);
  values[digest] = static_cast<int64_t>(offer.digest);
  values[digest_complement] = static_cast<int64_t>(~offer.digest);
  values[lost] = offer.device_lost ? -1 : 0;
  values[writes] = static_cast<int64_t>(facts.writes_done);
  values[loads] = static_cast<int64_t>(facts.loads_done);
  values[failed_write] = encode_failure(offer.failed_write);
  values[failed_load] = encode_failure(offer.failed_load);
  values[now] = facts.now_ns;
  values[next_fetch] = facts.next_fetch;
  values[loss_age] = facts.loss_age_ns;
  std::ranges::copy(facts.backups, values.begin() + backups);
  auto next = values.begin() + fetches;
  for (const auto& fetch : facts.fetches) {
    for (const auto value : {fetch.arrived, fetch.found, static_cast<int64_t>(fetch.why)})
      *next++ = value;
    next = std::ranges::copy(fetch.from_above, next).out;
  }
  return values;
}

step_minima decode_step(std::span<const int64_t> minimum, const step_openings& open) {
  HICACHE_CHECK(minimum.size() == step_values);
  auto agreed = step_minima{};
  agreed.digests_agree = minimum[digest] == ~minimum[digest_complement];
  agreed.device_lost = minimum[lost] != 0;
  agreed.facts.writes_done = static_cast<uint64_t>(minimum[writes]);
  agreed.facts.loads_done = static_cast<uint64_t>(minimum[loads]);
  agreed.facts.now_ns = minimum[now];
  agreed.facts.write_failed = end_with(minimum[failed_write], agreed.facts.writes_done);
  agreed.facts.load_failed = end_with(minimum[failed_load], agreed.facts.loads_done);
  agreed.facts.next_fetch = minimum[next_fetch];
  agreed.facts.loss_age_ns = minimum[loss_age];
  const auto stored = minimum.subspan(backups, open.backups.size());
  agreed.facts.backups.assign(stored.begin(), stored.end());
  auto rest = minimum.subspan(fetches, fetch_values * open.fetches.size());
  for (; !rest.empty(); rest = rest.subspan(fetch_values)) {
    auto& fetch = agreed.facts.fetches.emplace_back(
      fetch_fact{rest[0], rest[1], static_cast<miss_reason>(rest[2])});
    std::copy_n(rest.begin() + 3, fetch.from_above.size(), fetch.from_above.begin());
  }
  return agreed;
}

} // namespace hicache
