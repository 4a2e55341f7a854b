#pragma once

#include "hicache/ids.hpp"

#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>

namespace hicache {

/// Pages that were removed before they were found in memory of an earlier process: they must not
/// come back. Bounded: beyond that, no page may.
class unwanted_pages {
public:
  /// @param most Pages that are noted one by one.
  explicit unwanted_pages(size_t most) : most_(most) {}

  void add(uint64_t fingerprint, const page_key& key);

  /// All pages of that namespace.
  void add(uint64_t fingerprint);

  bool contains(uint64_t fingerprint, const page_key& key) const;

  /// Nothing is left to be found.
  void clear();

private:
  size_t most_;
  bool has_all_ = false;
  std::set<std::pair<uint64_t, page_key>> pages_;
  std::set<uint64_t> namespaces_;
};

} // namespace hicache
