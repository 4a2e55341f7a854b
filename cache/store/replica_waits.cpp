#include "cache/store/replica_waits.hpp"

#include <algorithm>
#include <utility>

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
  const auto [begin, end] = by_key_.equal_range(key);
  for (auto at = begin; at != end; ++at)
    numbers.push_back(at->second);
  // A wait may name a key twice.
  std::ranges::sort(numbers);
  numbers.erase(std::ranges::unique(numbers).begin(), numbers.end());
  for (const auto number : numbers)
    remove(number);
  return numbers;
}

void replica_waits::remove(uint64_t number) {
  const auto found = keys_.extract(number);
  if (!found)
    return;
  for (const auto& key : found.mapped()) {
    const auto [begin, end] = by_key_.equal_range(key);
    const auto at
      = std::find_if(begin, end, [number](const auto& x) { return x.second == number; });
    by_key_.erase(at);
  }
}

} // namespace hicache
