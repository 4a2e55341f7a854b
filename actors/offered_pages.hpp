#pragma once

#include "cache/store/segment_table.hpp"
#include "hicache/ids.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

namespace hicache {

/// All pages a member offers: the published pages of its segment and those exported from L2. Each
/// page is in only one of the two. Part of the segment actor.
class offered_pages {
public:
  /// @param table Must outlive this.
  explicit offered_pages(const segment_table& table) : table_(table) {}

  /// Adds an exported page.
  /// @returns the previously exported page of the same key
  /// @pre its header lies behind the segment, where no other page is exported
  std::optional<stored_page> export_page(const stored_page& page);

  /// Removes an exported page.
  /// @returns the page removed
  std::optional<stored_page> revoke(const page_key& key);

  std::optional<stored_page> find_exported(const page_key& key) const;

  std::optional<stored_page> find(const page_key& key) const;

  /// Like segment_table::published, exported pages last.
  std::vector<stored_page> published(uint64_t offset, size_t count) const;

  /// Like segment_table::of_namespace.
  std::vector<page_key> of_namespace(uint64_t fingerprint) const;

  uint64_t count() const noexcept { return table_.counters().pages + exported_.size(); }

private:
  const segment_table& table_;
  /// Exported pages by the offset of their header, and that offset by key.
  std::map<uint64_t, stored_page> exported_;
  std::unordered_map<page_key, uint64_t> places_;
};

} // namespace hicache
