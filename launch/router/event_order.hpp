#pragma once

#include <cstdint>
#include <optional>

namespace hicache {

enum class event_verdict : uint8_t {
  /// Apply it.
  next,
  /// It was applied already.
  seen,
  /// Messages before it are missing.
  gap,
  /// It comes from another run of the publisher: what was applied counts no more.
  restarted,
};

/// Judges the numbers of a publisher's messages, which count from 0. A value.
class event_order {
public:
  /// A message that arrived as it was published; in that order, unless the publisher restarts.
  event_verdict judge(uint64_t number) {
    const auto is_restarted = last_heard_ && number <= *last_heard_;
    last_heard_ = number;
    if (is_restarted)
      return event_verdict::restarted;
    return compare(number);
  }

  /// Judges a number by what is applied alone.
  event_verdict compare(uint64_t number) const {
    return number == expected_  ? event_verdict::next
           : number < expected_ ? event_verdict::seen
                                : event_verdict::gap;
  }

  /// The number of the first message that has not been applied.
  uint64_t expected() const noexcept { return expected_; }

  /// Messages up to this one are applied, or lost.
  void advance(uint64_t number) noexcept { expected_ = number + 1; }

private:
  uint64_t expected_ = 0;
  std::optional<uint64_t> last_heard_;
};

} // namespace hicache
