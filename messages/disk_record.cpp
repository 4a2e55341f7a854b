#include "messages/disk_record.hpp"

#include "base/check.hpp"
#include "base/page_checksum.hpp"
#include "messages/disk_record.capnp.h"
#include "messages/wire_parts.hpp"

#include <cstring>

namespace hicache {

namespace wire {

void fields(auto side, like<disk_record::object> auto& x) {
  HICACHE_FIELD(key, Key);
  HICACHE_FIELD(parent, Parent);
  HICACHE_FIELD(length, Length);
  HICACHE_FIELD(checksum, Checksum);
  HICACHE_FIELD(fingerprint, Fingerprint);
  HICACHE_FIELD(tenant, Tenant);
}

void fields(auto side, like<disk_record::removal> auto& x) {
  HICACHE_FIELD(key, Key);
  HICACHE_FIELD(generation, Generation);
  HICACHE_FIELD(offset, Offset);
}

void fields(auto side, like<disk_record> auto& x) {
  HICACHE_FIELD(generation, Generation);
  HICACHE_FIELD(sequence, Sequence);
  HICACHE_FIELD(durable, Durable);
  HICACHE_FIELD(objects, Objects, disk_record_objects);
  HICACHE_FIELD(removals, Removals, disk_record_objects);
}

} // namespace wire

namespace {

/// "HKVD" read as a little-endian number, and the version.
constexpr auto magic = uint32_t{0x44564b48};
/// The oldest version that is read.
constexpr auto oldest_version = uint16_t{2};

/// Precedes the Cap'n Proto message in the first block.
struct preamble {
  uint32_t magic = 0;
  uint16_t version = 0;
  uint16_t blocks = 0;
  uint32_t message_bytes = 0;
  uint32_t padding = 0;
  /// XXH3-64 of the message.
  uint64_t checksum = 0;
};

static_assert(sizeof(preamble) == 24);

/// Words of a message without objects: framing, root pointer, the record, and two lists' tags.
constexpr auto fixed_words = size_t{1 + 1 + 5 + 2};

constexpr auto key_words = size_t{4};
/// Each with a pointer for each key, and the keys.
constexpr auto object_words = size_t{4 + 2 * (1 + key_words)};
constexpr auto removal_words = size_t{2 + 1 + key_words};

/// The tenant, which an object of version 2 lacks.
constexpr auto tenant_words = size_t{1};

size_t message_words(size_t objects, size_t removals) noexcept {
  return fixed_words + objects * object_words + removals * removal_words;
}

size_t header_bytes(size_t words) noexcept {
  return disk_blocks_for(sizeof(preamble) + words * sizeof(capnp::word));
}

bool is_read(uint16_t version) noexcept {
  return version >= oldest_version && version <= disk_record_version;
}

uint64_t checksum_of(std::span<const std::byte> message) {
  return page_checksum({&message, 1});
}

preamble preamble_of(std::span<const std::byte> block) noexcept {
  auto found = preamble{};
  std::memcpy(&found, block.data(), sizeof(found));
  return found;
}

} // namespace

size_t disk_header_bytes(size_t objects, size_t removals) noexcept {
  return header_bytes(message_words(objects, removals));
}

size_t disk_header_bytes(const disk_record& record) noexcept {
  const auto words = message_words(record.objects.size(), record.removals.size());
  const auto lacks_tenants = record.version == oldest_version;
  return header_bytes(words - (lacks_tenants ? record.objects.size() * tenant_words : 0));
}

uint64_t disk_record_bytes(const disk_record& record) noexcept {
  auto bytes = uint64_t{disk_header_bytes(record)};
  for (const auto& object : record.objects)
    bytes += disk_blocks_for(object.length);
  return bytes;
}

void encode_disk_record(const disk_record& record, std::span<std::byte> target) {
  HICACHE_CHECK(record.version == disk_record_version);
  HICACHE_CHECK(target.size() == disk_header_bytes(record));
  const auto words = message_words(record.objects.size(), record.removals.size());
  auto builder = capnp::MallocMessageBuilder{static_cast<unsigned>(words)};
  wire::put(record, builder.initRoot<schema::DiskRecord>());
  const auto flat = capnp::messageToFlatArray(builder);
  const auto message = std::as_bytes(std::span{flat.begin(), flat.size()});
  HICACHE_CHECK(sizeof(preamble) + message.size() <= target.size());
  const auto first = preamble{magic,
                              disk_record_version,
                              static_cast<uint16_t>(target.size() / disk_block_bytes),
                              static_cast<uint32_t>(message.size()),
                              0,
                              checksum_of(message)};
  std::memcpy(target.data(), &first, sizeof(first));
  std::memcpy(&target[sizeof(first)], message.data(), message.size());
  const auto used = sizeof(first) + message.size();
  std::memset(target.data() + used, 0, target.size() - used);
}

std::optional<size_t> disk_header_at(std::span<const std::byte> block) noexcept {
  if (block.size() < sizeof(preamble))
    return std::nullopt;
  const auto first = preamble_of(block);
  constexpr auto message_max
    = (fixed_words + disk_record_objects * (object_words + removal_words)) * sizeof(capnp::word);
  if (first.magic != magic || !is_read(first.version) || first.message_bytes == 0
      || first.message_bytes > message_max || first.message_bytes % sizeof(capnp::word) != 0
      || first.blocks > disk_blocks_for(sizeof(preamble) + message_max) / disk_block_bytes
      || first.blocks * disk_block_bytes < sizeof(preamble) + first.message_bytes)
    return std::nullopt;
  return first.blocks * disk_block_bytes;
}

bool is_disk_header_of_other_version(std::span<const std::byte> block) noexcept {
  if (block.size() < sizeof(preamble))
    return false;
  const auto first = preamble_of(block);
  return first.magic == magic && !is_read(first.version);
}

result<disk_record> decode_disk_record(std::span<const std::byte> header) {
  const auto size = disk_header_at(header);
  if (!size || header.size() < *size)
    return fail(ec::corrupt_page, "no header of a record");
  const auto first = preamble_of(header);
  const auto message = header.subspan(sizeof(first), first.message_bytes);
  if (checksum_of(message) != first.checksum)
    return fail(ec::corrupt_page, "the checksum of a record's header does not match");
  auto words = std::vector<capnp::word>(message.size() / sizeof(capnp::word));
  std::memcpy(words.data(), message.data(), message.size());
  try {
    auto reader = capnp::FlatArrayMessageReader{kj::arrayPtr(words.data(), words.size())};
    auto record = disk_record{};
    wire::get(reader.getRoot<schema::DiskRecord>(), record);
    record.version = first.version;
    constexpr auto length_max = uint64_t{1} << 40;
    for (const auto& object : record.objects)
      if (object.length > length_max)
        return fail(ec::corrupt_page, "an object longer than any segment");
    return record;
  } catch (const kj::Exception&) {
    return fail(ec::corrupt_page, "broken header of a record");
  }
}

} // namespace hicache
