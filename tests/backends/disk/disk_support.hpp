#pragma once

#include "backends/disk/disk_backend.hpp"
#include "backends/disk/disk_log.hpp"
#include "tests/backends/backend_support.hpp"
#include "tests/backends/disk/losing_disk.hpp"

#include <gtest/gtest.h>

#include <memory>

namespace hicache::test {

/// Options of a store for exactly so many bytes of objects.
inline disk_options options_for(uint64_t live_bytes, uint64_t segment_bytes) {
  auto options = disk_options{};
  options.name = "disk";
  options.segment_bytes = segment_bytes;
  options.live_bytes = live_bytes;
  options.segments = static_cast<uint32_t>(static_cast<double>(live_bytes) / disk_log::live_share
                                           / static_cast<double>(segment_bytes))
                     + disk_log::segments_min;
  return options;
}

inline std::unique_ptr<blocking_store> open_store(disk_options options, disk_image& image,
                                                  const clock_source& clock) {
  auto store = make_disk_backend(std::move(options), std::make_unique<losing_disk>(image), clock);
  EXPECT_TRUE(store) << store.error().detail;
  return std::move(store.value());
}

} // namespace hicache::test
