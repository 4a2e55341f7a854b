#pragma once

#include <chrono>

namespace hicache {

/// A moment on the monotonic clock. Only differences are meaningful.
using time_point = std::chrono::steady_clock::time_point;

using duration = std::chrono::nanoseconds;

/// Source of time, injected so that tests can supply a manual clock. Any thread.
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
