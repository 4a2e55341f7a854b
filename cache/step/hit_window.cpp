#include "cache/step/hit_window.hpp"

#include "base/check.hpp"
#include "base/limits.hpp"

#include <algorithm>
#include <array>

namespace hicache {

namespace {

constexpr auto unknown = int64_t{-1};

/// Times are offered as what is left to the longest, so that the minimum is that of the slowest
/// rank. Its own inverse.
int64_t left_to_longest(int64_t ns) {
  return INT64_MAX - ns;
}

} // namespace

void hit_window::issue(fetch_id id) {
  HICACHE_CHECK(id == oldest_ + lengths_.size());
  lengths_.emplace_back();
}

void hit_window::known(fetch_id id, const hit_length& length) {
  HICACHE_CHECK(length.found >= 0 && length.wanted >= 0 && length.load_ns >= 0
                && length.compute_ns >= 0);
  HICACHE_CHECK(id >= oldest_ && id - oldest_ < lengths_.size());
  auto& known = lengths_[id - oldest_];
  HICACHE_CHECK(!known);
  known = length;
}

std::optional<std::vector<int64_t>> hit_window::next() {
  if (in_flight_ || lengths_.empty() || !lengths_.front())
    return std::nullopt;
  auto window = std::vector<int64_t>(limits::hit_window_size * entry_values, unknown);
  const auto count = std::min(limits::hit_window_size, lengths_.size());
  for (auto i = size_t{0}; i < count; ++i)
    if (const auto& length = lengths_[i])
      std::ranges::copy(std::array{length->found, length->wanted, left_to_longest(length->load_ns),
                                   left_to_longest(length->compute_ns)},
                        window.begin() + static_cast<ptrdiff_t>(i * entry_values));
  in_flight_ = true;
  return window;
}

std::vector<std::pair<fetch_id, hit_length>> hit_window::agreed(std::span<const int64_t> minimum) {
  HICACHE_CHECK(in_flight_);
  HICACHE_CHECK(minimum.size() == limits::hit_window_size * entry_values && minimum.front() >= 0);
  in_flight_ = false;
  auto resolved = std::vector<std::pair<fetch_id, hit_length>>{};
  // Known lengths behind a gap stay: the next window must begin at the same place on all ranks.
  for (; !minimum.empty() && minimum[0] >= 0; minimum = minimum.subspan(entry_values)) {
    HICACHE_CHECK(!lengths_.empty() && lengths_.front() && lengths_.front()->found >= minimum[0]);
    resolved.emplace_back(oldest_, hit_length{minimum[0], minimum[1], left_to_longest(minimum[2]),
                                              left_to_longest(minimum[3])});
    lengths_.pop_front();
    ++oldest_;
  }
  return resolved;
}

} // namespace hicache
