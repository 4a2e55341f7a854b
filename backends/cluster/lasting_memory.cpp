#include "backends/cluster/lasting_memory.hpp"

#include "backends/cluster/segment_memory.hpp"
#include "base/check.hpp"
#include "base/limits.hpp"
#include "base/page_checksum.hpp"
#include "messages/page_header.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace hicache {

namespace {

constexpr auto label_magic = std::array{'h', 'i', 'c', 'a', 'c', 'h', 'e', 'M'};

/// Version of the label and of slot notes.
constexpr auto label_version = uint32_t{1};

/// Slots are aligned to cache lines.
constexpr auto slot_step = uint64_t{64};

struct encoded_label {
  std::array<char, 8> magic = label_magic;
  uint32_t version = label_version;
  uint32_t unused = 0;
  uint64_t bytes = 0;
  uint64_t seed = 0;
  uint64_t check = 0;

  uint64_t expected_check() const {
    const auto own = std::as_bytes(std::span{this, 1});
    return page_checksum(
      std::array<std::span<const std::byte>, 1>{own.first(offsetof(encoded_label, check))});
  }
};

/// Stored behind a header.
struct slot_note {
  page_key parent;
  uint64_t tenant = 0;
};

static_assert(page_header_bytes + sizeof(slot_note) == slot_object_offset);

using header_bytes = std::array<std::byte, page_header_bytes>;

uint32_t check_of(page_header header, const slot_note& note, uint64_t offset, uint64_t seed) {
  header.kept_check = 0;
  header.held = 0;
  auto encoded = header_bytes{};
  encode_page_header(header, encoded);
  const auto place = std::array{offset, seed};
  const auto parts = std::array<std::span<const std::byte>, 3>{
    std::as_bytes(std::span{place}), encoded, std::as_bytes(std::span{&note, 1})};
  const auto check = static_cast<uint32_t>(page_checksum(parts));
  return check == 0 ? 1 : check; // 0 stands for none.
}

/// A page as described by its slot, unverified.
struct slot_claim {
  found_page page;
  uint64_t checksum = 0;
};

/// Decodes a header, if it is as keep_slot wrote it.
std::optional<slot_claim> read_claim(std::span<const std::byte> memory, uint64_t offset,
                                     const page_header& header, uint64_t seed) {
  auto note = slot_note{};
  std::memcpy(&note, memory.data() + offset + page_header_bytes, sizeof(note));
  if (header.kept_check != check_of(header, note, offset, seed) || header.generation == 0
      || header.key == page_key{} || header.key == note.parent || header.length == 0
      || header.length > limits::page_bytes
      || header.length > memory.size() - offset - slot_object_offset)
    return std::nullopt;
  const auto page = segment_page{.key = header.key,
                                 .parent = note.parent,
                                 .length = static_cast<uint32_t>(header.length),
                                 .fingerprint = header.fingerprint,
                                 .tenant = note.tenant,
                                 .copies = std::max<uint8_t>(header.copies, 1)};
  return slot_claim{{page, offset, header.generation, header.held != 0}, header.checksum};
}

/// Examines a possible slot.
/// @returns where to look next
uint64_t look_at(std::span<const std::byte> memory, uint64_t offset, uint64_t seed,
                 found_pages& part) {
  const auto slot = memory.subspan(offset);
  if (slot.size() <= slot_object_offset)
    return memory.size();
  const auto header = may_be_page_header(slot) ? decode_page_header(slot) : fail(ec::corrupt_page);
  if (!header || header->kept_check == 0)
    return offset + slot_step;
  const auto claim = read_claim(memory, offset, *header, seed);
  if (!claim) {
    part.damaged.push_back(offset);
    return offset + slot_step;
  }
  const auto length = claim->page.page.length;
  if (page_checksum(std::array{slot.subspan(slot_object_offset, length)}) == claim->checksum)
    part.list.push_back(claim->page);
  else
    part.damaged.push_back(offset);
  return std::min<uint64_t>(offset + slot_bytes_for(length), memory.size());
}

} // namespace

// -- label --------------------------------------------------------------------

void write_label(std::span<std::byte> target, const memory_label& label) {
  HICACHE_CHECK(target.size() >= memory_label_bytes);
  auto encoded = encoded_label{.bytes = label.bytes, .seed = label.seed};
  encoded.check = encoded.expected_check();
  clear_label(target);
  std::memcpy(target.data(), &encoded, sizeof(encoded));
}

void clear_label(std::span<std::byte> target) {
  HICACHE_CHECK(target.size() >= memory_label_bytes);
  std::memset(target.data(), 0, memory_label_bytes);
}

found_label read_label(std::span<const std::byte> source) {
  auto encoded = encoded_label{};
  if (source.size() < sizeof(encoded))
    return {};
  std::memcpy(&encoded, source.data(), sizeof(encoded));
  if (encoded.magic != label_magic)
    return {};
  if (encoded.version != label_version || encoded.check != encoded.expected_check())
    return {memory_owner::unreadable, {}};
  return {memory_owner::known, {encoded.bytes, encoded.seed}};
}

// -- slots --------------------------------------------------------------------

void keep_slot(std::span<std::byte> memory, const found_page& kept, uint64_t seed) {
  HICACHE_CHECK(slot_object_offset <= memory.size()
                && kept.offset <= memory.size() - slot_object_offset);
  const auto& page = kept.page;
  auto header = decode_page_header(memory.subspan(kept.offset));
  if (!header || header->key != page.key || header->generation != kept.generation
      || header->length != page.length || header->fingerprint != page.fingerprint)
    return;
  const auto note = slot_note{page.parent, page.tenant};
  std::memcpy(memory.data() + kept.offset + page_header_bytes, &note, sizeof(note));
  header->copies = page.copies;
  header->held = kept.was_held ? 1 : 0;
  header->kept_check = check_of(*header, note, kept.offset, seed);
  write_header(memory, kept.offset, *header);
}

void set_held(std::span<std::byte> memory, uint64_t offset, bool is_held) noexcept {
  memory[offset + page_header_held_offset] = is_held ? std::byte{1} : std::byte{0};
}

found_pages scan_pages(std::span<const std::byte> memory, uint64_t begin, uint64_t seed,
                       const scan_bounds& bounds) {
  HICACHE_CHECK(begin <= memory.size() && memory.size() % slot_step == 0);
  const auto end = begin + std::min<uint64_t>(bounds.bytes, memory.size() - begin);
  auto part = found_pages{};
  part.end = begin;
  while (part.end < end && part.list.size() + part.damaged.size() < bounds.pages)
    part.end = look_at(memory, part.end, seed, part);
  return part;
}

} // namespace hicache
