#pragma once

#include "hicache/error.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace hicache {

/// A handoff as its receiver sees it: which pages were announced, are being read, and have arrived.
/// Layers are read in order as far as they are announced; one read at a time. Not thread-safe.
class handoff_arrival {
public:
  handoff_arrival(uint32_t layers, uint64_t pages);

  /// The first `pages` pages of a layer can be read. Says that come late or twice have no effect.
  /// @pre layer is one of the layers, and pages at most their number
  void announce(uint32_t layer, uint64_t pages);

  /// Pages [first, end) of a layer.
  struct part {
    uint32_t layer = 0;
    uint64_t first = 0;
    uint64_t end = 0;

    friend bool operator==(const part&, const part&) = default;
  };

  /// What to read now; nothing while a read is in progress, nothing is announced, or all is over.
  /// @param most Pages of one read.
  std::optional<part> next(uint64_t most);

  /// The read in progress has ended.
  /// @param why Code `none` if all of it arrived; deadline_exceeded reads it again; anything else
  /// fails the handoff.
  void finish(const error& why);

  /// The handoff cannot complete. The first reason counts.
  void fail(const error& why);

  bool is_reading() const noexcept { return reading_.has_value(); }

  /// Pages times layers that have not arrived.
  uint64_t missing() const noexcept { return missing_; }

  /// Code `none` unless the handoff failed.
  const error& failure() const noexcept { return failure_; }

  bool is_over() const noexcept { return missing_ == 0 || failure_.code != ec::none; }

private:
  struct layer_pages {
    uint64_t announced = 0;
    uint64_t arrived = 0;
  };

  std::vector<layer_pages> layers_;
  std::optional<part> reading_;
  uint64_t missing_;
  error failure_;
};

} // namespace hicache
