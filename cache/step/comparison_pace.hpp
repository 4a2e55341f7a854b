#pragma once

#include "base/limits.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>

namespace hicache {

/// Decides which steps the ranks agree in although nothing is in flight, so that pins end and
/// digests are compared. Which steps these are follows from the operations, the number of steps and
/// the times that the ranks agreed on, so each rank comes to the same steps without asking.
///
/// Ranks learn the time only when they agree. So the steps between two agreements are counted, and
/// the next distance is as many as took half of limits::comparison_time then. As the engine may
/// become slower meanwhile, it is limits::steps_uncompared at most.
class comparison_pace {
public:
  /// Something was applied that may change the state of the cache.
  void note_change() noexcept { has_changed_ = true; }

  /// A step begins, whether the ranks agree in it or not.
  void note_step() noexcept { ++steps_; }

  /// True if the ranks have to agree in the step that began last.
  /// @param has_pins As the cache says.
  bool is_due(bool has_pins) const noexcept {
    return (has_changed_ || has_pins) && steps_ >= distance_;
  }

  /// The ranks agreed in the step that began last.
  /// @param now_ns The time on which they agreed; it never goes back.
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

  /// Since the last agreement.
  uint64_t steps_ = 0;
  bool has_changed_ = false;
  /// Steps from one agreement to the next.
  uint64_t distance_ = 1;
  std::optional<int64_t> last_ns_;
};

} // namespace hicache
