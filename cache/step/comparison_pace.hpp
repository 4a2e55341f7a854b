#pragma once

#include "base/limits.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>

namespace hicache {

/// Decides in which steps the ranks reduce although nothing is in flight, so that pins end and
/// digests are compared. The decision depends only on operations, step counts and agreed times, so
/// all ranks choose the same steps without communication.
///
/// Ranks learn the time only in a reduction. So the steps between two reductions are counted, and
/// the next distance is the number that took half of limits::comparison_time then. The engine may
/// become slower meanwhile, so it is at most limits::steps_uncompared.
class comparison_pace {
public:
  /// An operation was applied that may have changed the cache.
  void note_change() noexcept { has_changed_ = true; }

  /// A step begins, with or without a reduction.
  void note_step() noexcept { ++steps_; }

  /// True if the latest step needs a reduction.
  /// @param has_pins As the cache says.
  bool is_due(bool has_pins) const noexcept {
    return (has_changed_ || has_pins) && steps_ >= distance_;
  }

  /// The latest step ended with a reduction.
  /// @param now_ns The agreed time; it never goes back.
  void note_agreement(int64_t now_ns) noexcept {
    if (last_ns_) {
      const auto taken = static_cast<uint64_t>(std::max<int64_t>(now_ns - *last_ns_, 1));
      const auto steps = std::min(steps_, most_steps);
      distance_ = std::clamp<uint64_t>(steps * target_ns / taken, 1, limits::steps_uncompared);
    }
    last_ns_ = now_ns;
    steps_ = 0;
    has_changed_ = false;
  }

private:
  static constexpr auto target_ns
    = static_cast<uint64_t>(std::chrono::nanoseconds{limits::comparison_time}.count() / 2);
  /// Keeps the product with target_ns within 64 bits.
  static constexpr auto most_steps = uint64_t{1} << 32;

  /// Since the last reduction.
  uint64_t steps_ = 0;
  bool has_changed_ = false;
  /// Steps from one reduction to the next.
  uint64_t distance_ = 1;
  std::optional<int64_t> last_ns_;
};

} // namespace hicache
