#pragma once

#include "backends/object_parts.hpp"
#include "backends/store_outcomes.hpp"
#include "base/page_checksum.hpp"
#include "base/try.hpp"
#include "hicache/storage_backend.hpp"
#include "messages/page_header.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

/// An object of a store as one string of bytes: the page header, then the object's bytes.
namespace hicache {

using encoded_page_header = std::array<std::byte, page_header_bytes>;

/// The header of an object to write.
inline encoded_page_header header_of(const page_write& page, uint64_t fingerprint) {
  auto encoded = encoded_page_header{};
  encode_page_header({.fingerprint = fingerprint,
                      .key = page.key,
                      .length = total_bytes(page.parts),
                      .checksum = page_checksum(page.parts)},
                     encoded);
  return encoded;
}

/// Puts the untrusted bytes of one object into the parts of a read, in any order, and verifies
/// them.
class headed_object_reader {
public:
  /// @param page Must outlive this.
  /// @param fingerprint Empty: the object may be of any namespace.
  headed_object_reader(const page_read& page, std::optional<uint64_t> fingerprint,
                       part_lengths rule)
    : page_(page), fingerprint_(fingerprint), rule_(rule), room_(total_bytes(page.parts)) {}

  /// Most bytes that the stored object may have.
  uint64_t capacity() const noexcept { return page_header_bytes + room_; }

  /// Takes bytes from byte `at` of the stored object on.
  /// @returns false if the object is longer than it may be
  bool take(uint64_t at, std::span<const std::byte> bytes) {
    if (at < page_header_bytes) {
      const auto count = std::min<size_t>(page_header_bytes - at, bytes.size());
      std::ranges::copy(bytes.first(count), header_.begin() + static_cast<ptrdiff_t>(at));
      bytes = bytes.subspan(count);
      at += count;
    }
    const auto first = at - std::min<uint64_t>(at, page_header_bytes);
    if (bytes.empty())
      return true;
    if (first > room_ || bytes.size() > room_ - first)
      return false;
    scatter(bytes.data(), part_of<std::byte>(page_.parts, first, bytes.size()));
    return true;
  }

  /// The object's length.
  /// @param stored Bytes of the stored object, all of which were taken unless they are more than
  /// `capacity`.
  /// @returns corrupt_page; invalid_argument
  result<uint64_t> outcome(uint64_t stored) const {
    if (stored < page_header_bytes)
      return fail(ec::corrupt_page, "the object is short");
    const auto header = HICACHE_TRY(decode_page_header(header_));
    if (header.key != page_.key)
      return fail(ec::corrupt_page, "the header is of another object");
    if (fingerprint_ && header.fingerprint != *fingerprint_)
      return tl::unexpected{other_namespace()};
    if (stored - page_header_bytes != header.length)
      return fail(ec::corrupt_page, "the object has another length than its header says");
    HICACHE_TRY(check_room(header.length, room_, rule_));
    // Of the copy: the bytes taken may have been in memory that others write to.
    const auto parts = part_of<std::byte>(page_.parts, 0, header.length);
    if (page_checksum(std::span<const std::span<std::byte>>{parts}) != header.checksum)
      return fail(ec::corrupt_page, "the checksum of the object does not match");
    return header.length;
  }

private:
  const page_read& page_;
  std::optional<uint64_t> fingerprint_;
  part_lengths rule_;
  uint64_t room_;
  encoded_page_header header_{};
};

} // namespace hicache
