#pragma once

#include "backends/disk/disk_device.hpp"
#include "backends/disk/disk_log.hpp"
#include "hicache/error.hpp"
#include "hicache/ids.hpp"
#include "messages/disk_record.hpp"

#include <cstdint>
#include <span>
#include <vector>

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

/// An object to write, and where its bytes are.
struct written_object {
  disk_record::object entry;
  std::vector<std::span<const std::byte>> parts;
};

/// Writes a record: the objects, and the header with their checksums. A header that gets to the
/// disk before its objects does no harm: a restart verifies what was not synced.
/// @param record Of these objects.
/// @returns an errno value, or 0
int write_record(disk_channel& channel, const disk_log::slot& where, disk_record& record,
                 std::span<const written_object> objects);

} // namespace hicache
