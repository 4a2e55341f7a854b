#pragma once

#include <chrono>

namespace hicache {

/// A moment on the monotonic clock. Only differences have a meaning.
using time_point = std::chrono::steady_clock::time_point;

using duration = std::chrono::nanoseconds;

/// Where time comes from. Code that measures or waits takes one of these, so that tests can hand in
/// a clock that only they move. Implementations may be called from any thread.
class clock_source {
public:
  virtual ~clock_source() = default;

  virtual time_point now() const noexcept = 0;
};

/// The machine's monotonic clock.
class monotonic_clock final : public clock_source {
public:
  time_point now() const noexcept override;
};

} // namespace hicache
