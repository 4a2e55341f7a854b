#include "runtime/rank_agreement.hpp"

#include "base/limits.hpp"
#include "base/try.hpp"
#include "cache/hash/page_hash.hpp"
#include "runtime/network_flags.hpp"
#include "transport/gather.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <optional>
#include <thread>

namespace hicache {

result<std::vector<int64_t>> reduce_now(rank_reducer& ranks, std::vector<int64_t> values) {
  // Shared with the callback, which may run after this function has timed out.
  auto minimum = std::make_shared<std::optional<result<std::vector<int64_t>>>>();
  ranks.reduce_min(reduction_channel::engine, std::move(values),
                   [minimum](auto outcome) { *minimum = std::move(outcome); });
  const auto give_up = std::chrono::steady_clock::now() + limits::step_timeout;
  for (;;) {
    ranks.progress();
    if (*minimum)
      return std::move(**minimum);
    if (std::chrono::steady_clock::now() > give_up)
      return fail(ec::rank_unresponsive, "not all ranks of the instance have started: "
                                           + ranks.missing(reduction_channel::engine));
    std::this_thread::sleep_for(std::chrono::microseconds{200});
  }
}

result<void> agree_on_settings(rank_reducer& ranks,
                               const std::vector<std::pair<std::string, std::string>>& fields) {
  // A hash and its complement: their minima are complementary exactly if all values are equal.
  auto values = std::vector<int64_t>{};
  for (const auto& [name, value] : fields) {
    const auto hash = static_cast<int64_t>(fingerprint_of(name + "=" + value));
    values.push_back(hash);
    values.push_back(~hash);
  }
  auto minimum = HICACHE_TRY(reduce_now(ranks, std::move(values)));
  auto different = std::string{};
  for (auto i = size_t{0}; i < fields.size(); ++i)
    if (minimum[2 * i] != ~minimum[2 * i + 1])
      different += (different.empty() ? "--" : ", --") + fields[i].first;
  if (!different.empty() && ranks.rank() > 0)
    return fail(ec::stopping); // Rank 0 reports the reason.
  if (!different.empty())
    return fail(ec::configuration_mismatch, "the ranks were started with different values of "
                                              + different + "; expected the same on every rank");
  return {};
}

result<uint32_t> count_ranks_on_host(rank_reducer& ranks) {
  // Positive, because the largest integers stand for "no value" in the reduction.
  const auto mine = static_cast<int64_t>(fingerprint_of(machine_name()) >> 2);
  const auto values
    = HICACHE_TRY(reduce_now(ranks, gather_offer(ranks.rank(), ranks.size(), {&mine, 1})));
  return static_cast<uint32_t>(std::ranges::count(values, mine));
}

result<void> agree_on_outcome(rank_reducer& ranks, const result<void>& mine) {
  const auto nobody = std::numeric_limits<int64_t>::max();
  auto first = HICACHE_TRY(reduce_now(ranks, {mine ? nobody : int64_t{ranks.rank()}}));
  if (first.front() == nobody)
    return {};
  if (first.front() == int64_t{ranks.rank()})
    return mine;
  return fail(ec::stopping);
}

} // namespace hicache
