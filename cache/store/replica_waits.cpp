#include "cache/store/replica_waits.hpp"

namespace hicache {

uint64_t replica_waits::add(std::vector<page_key> keys) {
  ++last_;
  for (const auto& key : keys)
    by_key_.emplace(key, last_);
  keys_.emplace(last_, std::move(keys));
  return last_;
}

std::vector<uint64_t> replica_waits::take(const page_key& key) {
  auto numbers = std::vector<uint64_t>{};
  for (auto at = by_key_.lower_bound({key, 0}); at != by_key_.end() && at->first == key; ++at)
    numbers.push_back(at->second);
  for (const auto number : numbers)
    remove(number);
  return numbers;
}

void replica_waits::remove(uint64_t number) {
  if (const auto found = keys_.extract(number))
    for (const auto& key : found.mapped())
      by_key_.erase({key, number});
}

} // namespace hicache
