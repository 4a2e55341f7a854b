#include "cache/step_vector.hpp"

namespace hicache {

namespace {

// A value and its complement: their minima are complementary exactly if all ranks offered the same
// value. A flag is 0 or -1, so that one rank that raises it raises it for all.
enum slot : size_t {
  writes,
  loads,
  backups,
  now,
  digest,
  digest_complement,
  failed,
  fetched_begin
};

} // namespace

std::vector<int64_t> encode_step(const step_offer& offer) {
  auto values = std::vector<int64_t>(fetched_begin);
  values[writes] = static_cast<int64_t>(offer.writes_done);
  values[loads] = static_cast<int64_t>(offer.loads_done);
  values[backups] = static_cast<int64_t>(offer.backups_done);
  values[now] = offer.now_ns;
  values[digest] = static_cast<int64_t>(offer.digest);
  values[digest_complement] = static_cast<int64_t>(~offer.digest);
  values[failed] = offer.failed ? -1 : 0;
  values.insert(values.end(), offer.fetched.begin(), offer.fetched.end());
  return values;
}

result<step_agreement> decode_step(std::span<const int64_t> minimum, size_t fetches) {
  if (minimum.size() != fetched_begin + fetches)
    return fail(ec::configuration_mismatch, "a step vector of another length");
  auto agreed = step_agreement{};
  agreed.facts.writes_done = static_cast<uint64_t>(minimum[writes]);
  agreed.facts.loads_done = static_cast<uint64_t>(minimum[loads]);
  agreed.facts.backups_done = static_cast<uint64_t>(minimum[backups]);
  agreed.facts.fetched.assign(minimum.begin() + fetched_begin, minimum.end());
  agreed.facts.now_ns = minimum[now];
  agreed.digests_agree = minimum[digest] == ~minimum[digest_complement];
  agreed.failed = minimum[failed] != 0;
  return agreed;
}

} // namespace hicache
