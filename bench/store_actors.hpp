#pragma once

#include "backends/index_link.hpp"
#include "bench/store_parts.hpp"
#include "messages/system_config.hpp"

#include <caf/actor.hpp>
#include <caf/actor_system.hpp>

#include <memory>
#include <vector>

namespace hicache::bench {

/// An actor system with networking, connected to a shard of an index, or to what stands in for one.
class index_client {
public:
  static result<std::unique_ptr<index_client>> connect(const index_address& to);

  ~index_client();

  index_client(const index_client&) = delete;

  index_client& operator=(const index_client&) = delete;

  caf::actor_system& system() noexcept { return system_; }

  /// Null while there is no connection.
  caf::actor shard() const;

private:
  index_client();

  system_config config_;
  caf::actor_system system_;
  caf::actor bare_;
  std::unique_ptr<index_link> link_;
};

/// Batches of the keys `first` to `first + count - 1` of `hicache-bench store`, `batch` at a time.
std::vector<std::vector<page_key>> key_batches(uint64_t first, uint64_t count, uint64_t batch);

} // namespace hicache::bench
