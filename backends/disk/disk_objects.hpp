#pragma once

#include "backends/disk/disk_device.hpp"
#include "backends/disk/disk_log.hpp"
#include "base/system_message.hpp"
#include "hicache/error.hpp"
#include "hicache/ids.hpp"
#include "messages/disk_record.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <span>
#include <string>
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

/// For read_objects.
inline std::vector<disk_read*> pointers_to(std::vector<disk_read>& objects) {
  auto pointers = std::vector<disk_read*>{};
  for (auto& object : objects)
    pointers.push_back(&object);
  return pointers;
}

inline bool is_among(std::span<const written_object> objects, const page_key& key) {
  return std::ranges::any_of(objects, [&](const auto& x) { return x.entry.key == key; });
}

/// The error of a record that could not be written.
/// @param where The store, for the sentence.
inline tl::unexpected<error> write_failure(const std::string& where, int error_number) {
  return fail(error_number == ENOSPC ? ec::store_full : ec::io_failure,
              "cannot write to " + where + ": " + system_message(error_number));
}

} // namespace hicache
