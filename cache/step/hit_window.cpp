#include "cache/step/hit_window.hpp"

#include "base/check.hpp"
#include "base/limits.hpp"

#include <algorithm>

namespace hicache {

namespace {

constexpr auto unknown = int64_t{-1};

} // namespace

void hit_window::issue(fetch_id id) {
  HICACHE_CHECK(id == oldest_ + lengths_.size());
  lengths_.push_back(unknown);
}

void hit_window::known(fetch_id id, int64_t pages) {
  HICACHE_CHECK(pages >= 0);
  HICACHE_CHECK(id >= oldest_ && id - oldest_ < lengths_.size());
  auto& length = lengths_[id - oldest_];
  HICACHE_CHECK(length == unknown);
  length = pages;
}

std::optional<std::vector<int64_t>> hit_window::next() {
  if (in_flight_ || lengths_.empty() || lengths_.front() == unknown)
    return std::nullopt;
  auto window = std::vector<int64_t>(limits::hit_window_size, unknown);
  const auto count = std::min(window.size(), lengths_.size());
  std::copy_n(lengths_.begin(), count, window.begin());
  in_flight_ = true;
  return window;
}

std::vector<std::pair<fetch_id, int64_t>> hit_window::agreed(std::span<const int64_t> minimum) {
  HICACHE_CHECK(in_flight_);
  HICACHE_CHECK(minimum.size() == limits::hit_window_size && minimum.front() >= 0);
  in_flight_ = false;
  auto resolved = std::vector<std::pair<fetch_id, int64_t>>{};
  // Known lengths behind a gap stay: the next window must begin at the same place on all ranks.
  for (auto i = size_t{0}; i < minimum.size() && minimum[i] >= 0; ++i) {
    HICACHE_CHECK(!lengths_.empty() && lengths_.front() >= minimum[i]);
    resolved.emplace_back(oldest_, minimum[i]);
    lengths_.pop_front();
    ++oldest_;
  }
  return resolved;
}

} // namespace hicache
