#pragma once

#include "hicache/clock.hpp"
#include "hicache/error.hpp"
#include "hicache/storage_backend.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace hicache {

/// Which store to open, and for whom.
struct store_options {
  /// As --hicache-storage-backend: "disk", "redis", "tiered" and so on (docs/backends.md); not
  /// "cluster" and "node", which need the actors of a rank.
  std::string backend = {};
  /// As --hicache-storage-backend-extra-config: JSON, or '@' and a JSON, TOML or YAML file. Keys
  /// about prefetching have no effect, and codec fp8 has nothing to convert.
  std::string extra_config = {};
  /// Says whose KV the objects are: rank_config::fingerprint(), or any text. Objects that were
  /// written with another identity do not verify.
  std::string identity = {};
  /// This process's number among those that share `max_bytes`, and how many these are.
  uint32_t rank = 0;
  uint32_t ranks = 1;
};

/// A store of objects without ranks: what L3 is kept in, for programs of their own. Calls take a
/// batch, wait for its end, and answer per object, in order, with the errors of storage_backend.
/// Any thread; several may call at a time.
///
/// `find_package(hicache COMPONENTS store)` defines hicache::store, which links neither MPI nor
/// CUDA.
class store {
public:
  /// Opens the store of a configuration, with its threads, codecs and tiers. Blocks.
  /// @returns invalid_argument with a sentence, or why the store cannot be opened
  static result<std::unique_ptr<store>> open(const store_options& options);

  /// Waits for batches of any store.
  /// @param batches Opened, with the machine's clock (monotonic_clock).
  explicit store(std::unique_ptr<storage_backend> batches) : batches_(std::move(batches)) {}

  /// The same store without waiting: batches that answer by a function, memory to register, and
  /// what the store is capable of.
  storage_backend& batches() noexcept { return *batches_; }

  std::vector<result<store_place>> lookup(std::vector<page_key> keys, duration timeout);

  /// Returns when the store does not touch the objects' parts any more, which is after the timeout
  /// if it hangs; so does `write`.
  std::vector<result<void>> read(std::vector<page_read> pages, duration timeout);

  std::vector<result<void>> write(std::vector<page_write> pages, duration timeout);

  std::vector<result<void>> remove(std::vector<page_key> keys, duration timeout);

  /// A part of the list of all objects: storage_backend::list.
  /// @returns unsupported if the store cannot list its objects
  result<object_list> list(std::string from, duration timeout);

  backend_health health();

private:
  std::unique_ptr<storage_backend> batches_;
};

} // namespace hicache
