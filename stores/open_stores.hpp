#pragma once

#include "backends/blocking_store.hpp"
#include "backends/serde/kv_object.hpp"
#include "backends/tiered/tiered_backend.hpp"
#include "hicache/clock.hpp"
#include "hicache/config.hpp"
#include "hicache/error.hpp"
#include "hicache/storage_backend.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

namespace hicache {

/// What a store must know of the process that opens it.
struct store_owner {
  /// `fingerprint_of` the namespace of the objects. Empty: it reads objects of all, and writes
  /// none, unless its objects have several.
  std::optional<uint64_t> fingerprint;
  /// Its objects are of several namespaces: store_capabilities::keeps_namespaces is needed.
  bool has_namespaces = false;
  /// Objects that do not verify stay where they are: they may be of another namespace.
  bool keeps_broken = false;
  /// Its number among those that share `max_bytes`, and how many these are.
  uint32_t rank = 0;
  uint32_t ranks = 1;
  /// What the objects are, for the codecs; empty: bytes of any meaning.
  std::optional<serde::kv_object_shape> objects;
  /// Time limit of copies between tiers.
  duration copy_time = std::chrono::seconds{10};
  /// Opens `cluster` and `node`, which need actors.
  std::function<result<std::unique_ptr<blocking_store>>(std::string_view name,
                                                        const storage_config& storage)>
    open_other;
};

/// Opens the store of that name, with its threads and codecs, or an order of stores. Blocks.
/// @param storage Checked by `missing_setting`.
/// @param clock Must outlive the result.
/// @returns invalid_argument with a sentence, or why the store cannot be opened
result<std::unique_ptr<storage_backend>> open_stores(std::string_view backend,
                                                     const storage_config& storage,
                                                     const store_owner& owner,
                                                     const clock_source& clock);

/// Opens the stores of storage_config::tiers as an order. As open_stores.
/// @pre there are tiers
result<std::unique_ptr<tiered_store>>
open_tiers(const storage_config& storage, const store_owner& owner, const clock_source& clock);

/// Opens one of storage_config::tiers. As open_stores.
/// @param at Its index.
result<store_tier> open_store_tier(const storage_config& storage, size_t at,
                                   const store_owner& owner, const clock_source& clock);

} // namespace hicache
