#pragma once

#include "hicache/ids.hpp"

#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>

namespace hicache {

/// Pages that were removed before they were found in the memory of an earlier process, and must not
/// come back. Bounded: beyond the bound, no page may.
class unwanted_pages {
public:
  /// @param most Bound on individually recorded pages.
  explicit unwanted_pages(size_t most) : most_(most) {}

  void add(uint64_t fingerprint, const page_key& key);

  /// Adds all pages of a namespace.
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
