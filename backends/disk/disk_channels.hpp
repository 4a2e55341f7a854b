#pragma once

#include "backends/disk/disk_device.hpp"
#include "backends/disk/disk_transfers.hpp"
#include "hicache/error.hpp"

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace hicache {

/// Channels of a device, for as many threads as ask at the same time. Any thread.
class disk_channels {
public:
  /// @param device Must outlive the channels.
  explicit disk_channels(disk_device& device) : device_(device) {}

  /// @returns as disk_device::open_channel
  result<std::unique_ptr<disk_channel>> borrow() {
    {
      const auto lock = std::scoped_lock{mutex_};
      if (!free_.empty()) {
        auto channel = std::move(free_.back());
        free_.pop_back();
        return channel;
      }
    }
    return device_.open_channel(disk_channel_bytes);
  }

  void give_back(std::unique_ptr<disk_channel> channel) {
    const auto lock = std::scoped_lock{mutex_};
    free_.push_back(std::move(channel));
  }

private:
  disk_device& device_;
  std::mutex mutex_; // Guards the channels that nobody uses.
  std::vector<std::unique_ptr<disk_channel>> free_;
};

} // namespace hicache
