#include "cache/step_vector.hpp"

namespace hicache {

namespace {

// A value and its complement: their minima are complementary exactly if all ranks offered the same
// value. A flag is 0 or -1, so that one rank that raises it raises it for all.
enum slot : size_t { writes, loads, now, digest, digest_complement, failed, lists_begin };

/// Values per prefetch.
constexpr auto fetch_values = size_t{3};

} // namespace

std::vector<int64_t> encode_step(const step_offer& offer) {
  const auto& facts = offer.facts;
  auto values = std::vector<int64_t>(lists_begin);
  values.reserve(lists_begin + facts.backups.size() + fetch_values * facts.fetches.size());
  values[writes] = static_cast<int64_t>(facts.writes_done);
  values[loads] = static_cast<int64_t>(facts.loads_done);
  values[now] = facts.now_ns;
  values[digest] = static_cast<int64_t>(offer.digest);
  values[digest_complement] = static_cast<int64_t>(~offer.digest);
  values[failed] = offer.failed ? -1 : 0;
  values.insert(values.end(), facts.backups.begin(), facts.backups.end());
  for (const auto& fetch : facts.fetches)
    values.insert(values.end(), {fetch.arrived, fetch.found, static_cast<int64_t>(fetch.why)});
  return values;
}

result<step_agreement> decode_step(std::span<const int64_t> minimum, const step_facts& offered) {
  const auto backups = offered.backups.size();
  const auto fetches = offered.fetches.size();
  if (minimum.size() != lists_begin + backups + fetch_values * fetches)
    return fail(ec::configuration_mismatch, "a step vector of another length");
  auto agreed = step_agreement{};
  agreed.facts.writes_done = static_cast<uint64_t>(minimum[writes]);
  agreed.facts.loads_done = static_cast<uint64_t>(minimum[loads]);
  agreed.facts.now_ns = minimum[now];
  agreed.digests_agree = minimum[digest] == ~minimum[digest_complement];
  agreed.failed = minimum[failed] != 0;
  auto rest = minimum.subspan(lists_begin);
  agreed.facts.backups.assign(rest.begin(), rest.begin() + static_cast<ptrdiff_t>(backups));
  for (rest = rest.subspan(backups); !rest.empty(); rest = rest.subspan(fetch_values))
    agreed.facts.fetches.push_back({rest[0], rest[1], static_cast<give_up>(rest[2])});
  return agreed;
}

} // namespace hicache
