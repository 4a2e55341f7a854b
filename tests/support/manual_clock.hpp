#pragma once

#include "hicache/clock.hpp"

#include <atomic>

namespace hicache::test {

/// A clock that only the test moves. Starts at one hour, so that a deadline can lie before it. Any
/// thread.
class manual_clock final : public clock_source {
public:
  time_point now() const noexcept override { return time_point{duration{nanoseconds_.load()}}; }

  void advance(duration by) noexcept { nanoseconds_.fetch_add(by.count()); }

private:
  std::atomic<int64_t> nanoseconds_{duration{std::chrono::hours{1}}.count()};
};

} // namespace hicache::test
