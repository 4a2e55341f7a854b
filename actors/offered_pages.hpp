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

/// All that a member offers: the published pages of its segment, and those that are exported from
/// L2. A page is in one of both. Part of the segment actor.
class offered_pages {
public:
  /// @param table Must outlive this.
  explicit offered_pages(const segment_table& table) : table_(table) {}

  /// Enters a exported page.
  /// @returns the one of that key so far
  /// @pre its header lies behind the segment, where no other page is exported
  std::optional<stored_page> export_page(const stored_page& page);

  /// Forgets a exported page.
  /// @returns what it was
  std::optional<stored_page> revoke(const page_key& key);

  /// The exported page.
  std::optional<stored_page> find_exported(const page_key& key) const;

  std::optional<stored_page> find(const page_key& key) const;

  /// As segment_table::published, exported pages last.
  std::vector<stored_page> published(uint64_t offset, size_t count) const;

  /// As segment_table::of_namespace.
  std::vector<page_key> of_namespace(uint64_t fingerprint) const;

  uint64_t count() const noexcept { return table_.counters().pages + exported_.size(); }

private:
  const segment_table& table_;
  /// Lent pages by the place of their header, and that by key.
  std::map<uint64_t, stored_page> exported_;
  std::unordered_map<page_key, uint64_t> places_;
};

} // namespace hicache
