#pragma once

#include "hicache/ids.hpp"

#include <vector>

namespace hicache {

/// The keys of pages, in order.
/// @param pages A sized range of things with a member `key`.
template <class Pages>
std::vector<page_key> keys_of(const Pages& pages) {
  auto keys = std::vector<page_key>{};
  keys.reserve(pages.size());
  for (const auto& page : pages)
    keys.push_back(page.key);
  return keys;
}

} // namespace hicache
