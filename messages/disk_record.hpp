#pragma once

#include "hicache/error.hpp"
#include "hicache/ids.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

/// Format of a segment of the disk store: records, one behind the other from the segment's start. A
/// record is a header and the bytes of its objects; header and objects begin at whole blocks.
namespace hicache {

/// Unit of disk I/O: what every disk can write directly.
inline constexpr size_t disk_block_bytes = 4096;

/// Version of the format in which records are written. Those of version 2, without tenants, are
/// read as well.
inline constexpr uint16_t disk_record_version = 3;

/// Objects in one record at most.
inline constexpr size_t disk_record_objects = 1024;

/// Bytes that so many bytes take: whole blocks.
constexpr uint64_t disk_blocks_for(uint64_t bytes) {
  return (bytes + disk_block_bytes - 1) / disk_block_bytes * disk_block_bytes;
}

/// The header of a record (schema: disk_record.capnp).
struct disk_record {
  /// An object; its bytes follow those of the object before.
  struct object {
    page_key key;
    /// As page_write::parent.
    page_key parent;
    uint64_t length = 0;
    /// XXH3-64 of the bytes.
    uint64_t checksum = 0;
    /// `fingerprint_of` its namespace.
    uint64_t fingerprint = 0;
    /// As page_write::tenant.
    uint64_t tenant = 0;

    friend bool operator==(const object&, const object&) = default;
  };

  /// An object of an earlier record that was removed or evicted.
  struct removal {
    page_key key;
    /// Which copy of it: the segment's generation, which says that it still exists, and the offset.
    uint64_t generation = 0;
    uint64_t offset = 0;

    friend bool operator==(const removal&, const removal&) = default;
  };

  /// Counts the uses of all segments: equal in all records of one use, and in no other. Records of
  /// earlier uses may follow the last one.
  uint64_t generation = 0;
  /// Counts the records of the store.
  uint64_t sequence = 0;
  /// All records up to this one were on the disk before this one was written.
  uint64_t durable = 0;
  std::vector<object> objects;
  std::vector<removal> removals;
  /// Of the format; it says how long the header is.
  uint16_t version = disk_record_version;

  friend bool operator==(const disk_record&, const disk_record&) = default;
};

/// Whole blocks that the header of a new record takes.
/// @relates disk_record
size_t disk_header_bytes(size_t objects, size_t removals) noexcept;

/// The same of an existing record, which may be of an earlier version.
/// @relates disk_record
size_t disk_header_bytes(const disk_record& record) noexcept;

/// Blocks of the header and of the objects.
/// @relates disk_record
uint64_t disk_record_bytes(const disk_record& record) noexcept;

/// @pre target.size() is disk_header_bytes of the record, which is of the current version
/// @relates disk_record
void encode_disk_record(const disk_record& record, std::span<std::byte> target);

/// Length of the header that begins with this block, which is untrusted; empty if none does.
/// @relates disk_record
std::optional<size_t> disk_header_at(std::span<const std::byte> block) noexcept;

/// Whether a header of a version that is not read begins with this block, which is untrusted.
/// @relates disk_record
bool is_disk_header_of_other_version(std::span<const std::byte> block) noexcept;

/// Decodes a header from untrusted bytes.
/// @returns corrupt_page
/// @relates disk_record
result<disk_record> decode_disk_record(std::span<const std::byte> header);

} // namespace hicache
