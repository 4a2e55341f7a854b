#pragma once

#include "hicache/storage_backend.hpp"

#include <span>
#include <vector>

namespace hicache::test {

/// The keys of the objects that a store evicts, in order. Must outlive the store's watch.
class told_keys {
public:
  /// Begins to listen, without bytes.
  /// @returns whether the store tells of all objects
  template <class Store>
  bool watch(Store& store) {
    return store.watch_evictions(
      [this](std::span<const evicted_object> objects) {
        for (const auto& object : objects)
          list.push_back(object.key);
      },
      false);
  }

  std::vector<page_key> list;
};

} // namespace hicache::test
