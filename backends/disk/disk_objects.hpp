#pragma once

#include "backends/disk/disk_device.hpp"
#include "backends/disk/disk_log.hpp"
#include "hicache/error.hpp"
#include "hicache/ids.hpp"

#include <cstdint>
#include <span>

namespace hicache {

/// An object to read from its place.
struct disk_read {
  page_key key;
  disk_log::place where;
  /// May be longer than the object.
  std::span<const std::span<std::byte>> parts;
  /// Bytes of the parts.
  uint64_t room = 0;
  /// Its length; io_failure; corrupt_page: the bytes are others than those that were written.
  result<uint64_t> outcome = fail(ec::deadline_exceeded);
};

/// Reads objects, those that lie one behind the other together, and verifies them.
void read_objects(disk_channel& channel, std::span<disk_read* const> objects);

} // namespace hicache
