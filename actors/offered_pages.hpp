#pragma once

#include "cache/store/disk_table.hpp"
#include "cache/store/segment_table.hpp"
#include "hicache/ids.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

namespace hicache {

/// All pages a member offers: in memory, which are the published pages of its segment and those
/// exported from L2, and on the disk below. A page in memory is in only one of the two, and not
/// offered on disk. Part of the segment actor.
class offered_pages {
public:
  /// @param table Must outlive this.
  /// @param disk The pages on disk; null if there is none.
  explicit offered_pages(const segment_table& table, std::shared_ptr<const disk_table> disk = {})
    : table_(table), disk_(std::move(disk)) {}

  /// The pages on disk; null if they are not offered.
  const disk_table* disk() const noexcept { return is_disk_offered_ ? disk_.get() : nullptr; }

  /// Whether pages on disk are offered from now on.
  void offer_disk(bool offers) noexcept { is_disk_offered_ = offers; }

  /// Adds an exported page.
  /// @returns the previously exported page of the same key
  /// @pre its header lies behind the segment, where no other page is exported
  std::optional<stored_page> export_page(const stored_page& page);

  /// Removes an exported page.
  /// @returns the page removed
  std::optional<stored_page> revoke(const page_key& key);

  std::optional<stored_page> find_exported(const page_key& key) const;

  /// In memory.
  std::optional<stored_page> find(const page_key& key) const;

  /// In memory, else on disk: there `offset` is a position behind disk_offset.
  std::optional<stored_page> find_anywhere(const page_key& key) const;

  /// Like segment_table::published; then exported pages, then those on disk, in the order of their
  /// positions. Beyond `count` only if pages have the same position.
  std::vector<stored_page> published(uint64_t offset, size_t count) const;

  /// Like segment_table::of_namespace; in memory.
  std::vector<page_key> of_namespace(uint64_t fingerprint) const;

  /// In memory.
  uint64_t count() const noexcept { return table_.counters().pages + exported_.size(); }

private:
  const segment_table& table_;
  std::shared_ptr<const disk_table> disk_;
  bool is_disk_offered_ = true;
  /// Exported pages by the offset of their header, and that offset by key.
  std::map<uint64_t, stored_page> exported_;
  std::unordered_map<page_key, uint64_t> places_;
};

} // namespace hicache
