#include "cache/store/mount_progress.hpp"

#include "base/check.hpp"
#include "base/limits.hpp"

#include <algorithm>
#include <utility>

namespace hicache {

uint64_t mount_progress::mount(uint64_t epoch) noexcept {
  epoch_ = epoch;
  is_mounted_ = true;
  is_reporting_ = true;
  return confirmed_epoch_;
}

bool mount_progress::confirm(uint64_t epoch, bool resumed) noexcept {
  if (!is_mounted_ || epoch != epoch_)
    return false;
  confirmed_epoch_ = epoch;
  const auto rewound_to = take_rewind();
  reported_to_ = resumed ? std::min(reported_to_, rewound_to) : 0;
  return true;
}

bool mount_progress::advance(uint64_t epoch, uint64_t reported_to) noexcept {
  if (epoch != epoch_)
    return false;
  reported_to_ = std::min(reported_to, take_rewind());
  return is_mounted_;
}

bool mount_progress::rewind(uint64_t place) noexcept {
  if (is_reporting_ || !is_mounted_) {
    rewound_to_ = std::min(rewound_to_, place);
    return false;
  }
  reported_to_ = std::min(reported_to_, place);
  is_reporting_ = true;
  return true;
}

uint64_t mount_progress::take_rewind() noexcept {
  return std::exchange(rewound_to_, std::numeric_limits<uint64_t>::max());
}

void mount_progress::complete() noexcept {
  reported_to_ = std::numeric_limits<uint64_t>::max();
  is_reporting_ = false;
}

void mount_progress::unsettle(std::span<const page_key> keys) {
  if (!is_mounted_ && confirmed_epoch_ == 0)
    return; // The next report covers all pages.
  unsettled_.insert(unsettled_.end(), keys.begin(), keys.end());
  if (!is_mounted_ && unsettled_.size() > limits::unsettled_keys) {
    confirmed_epoch_ = 0;
    unsettled_.clear();
  }
}

std::vector<page_key> mount_progress::take_unsettled() {
  HICACHE_CHECK(is_told());
  auto keys = std::exchange(unsettled_, {});
  std::ranges::sort(keys);
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

void mount_progress::lose() noexcept {
  is_mounted_ = false;
  is_reporting_ = false;
}

} // namespace hicache
