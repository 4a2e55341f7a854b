#pragma once

#include "hicache/ids.hpp"

#include <absl/container/flat_hash_map.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

namespace hicache {

/// The pages in the store below a node's memory ("on disk"), some 80 bytes each. Written by the
/// disk tier, and read by the segment above. Any thread.
class disk_table {
public:
  struct page {
    /// `fingerprint_of` its namespace.
    uint64_t fingerprint = 0;
    /// Bytes of the object.
    uint32_t length = 0;
    /// Number of the list of the store that had the page last, or during or after which it was
    /// written.
    uint32_t listing = 0;

    friend bool operator==(const page&, const page&) = default;
  };

  struct listed_page {
    page_key key;
    page on_disk;
    /// Where the page is in the list; depends on the key alone.
    uint64_t position = 0;
  };

  disk_table() : parts_(size_t{1} << part_bits) {}

  /// Adds a page. If the table has the key, only its `listing` changes.
  /// @returns whether the table had not the key
  bool add(const page_key& key, const page& added);

  /// @returns whether the table had the page
  bool remove(const page_key& key);

  std::optional<page> find(const page_key& key) const;

  /// The pages from a position on, in the order of their positions.
  /// @param count How many, and all further ones of the last position.
  std::vector<listed_page> list(uint64_t from, size_t count) const;

  /// Removes those of the pages from a position on that this list of the store lacked.
  /// @param count As in `list`.
  /// @param removed Their keys are added.
  /// @returns the next position, or nothing after the last page
  std::optional<uint64_t> remove_unlisted(uint32_t listing, uint64_t from, size_t count,
                                          std::vector<page_key>& removed);

  uint64_t size() const;

  /// Bytes of the objects.
  uint64_t bytes() const;

private:
  /// Growing a hash table moves all entries, and listing sorts those of a part: with many parts
  /// each takes less than a millisecond.
  static constexpr auto part_bits = 12;

  /// So that there is a position behind each, and a bit is left for disk_offset.
  static constexpr auto position_bits = 62;

  using part = absl::flat_hash_map<page_key, page, std::hash<page_key>>;

  static uint64_t position_of(const page_key& key) noexcept {
    return std::hash<page_key>{}(key) >> (64 - position_bits);
  }

  static size_t part_at(uint64_t position) noexcept {
    return position >> (position_bits - part_bits);
  }

  part& part_of(const page_key& key) { return parts_[part_at(position_of(key))]; }

  mutable std::mutex mutex_; // Guards what follows.
  std::vector<part> parts_;
  uint64_t size_ = 0;
  uint64_t bytes_ = 0;
};

} // namespace hicache
