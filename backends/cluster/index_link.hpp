#pragma once

#include "base/immovable.hpp"
#include "hicache/error.hpp"
#include "messages/interfaces.hpp"
#include "messages/shard_map.hpp"

#include <caf/actor_system.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace hicache {

class index_addresses;

/// A snapshot of the index's shards in use and their actors; empty until a directory answers.
struct index_view : shard_set {
  index_view() = default;

  struct entry {
    uint32_t number = 0;
    /// Null while unreachable.
    index_actor shard;
    /// HOST:PORT of its process.
    std::string address;
  };

  /// @param entries Sorted by number.
  explicit index_view(const std::vector<entry>& entries);

  /// The shard of each number; null while unreachable.
  std::vector<index_actor> shards;
  /// HOST:PORT of each one's process, for messages.
  std::vector<std::string> addresses;

  /// True if there are shards and all are reachable.
  bool is_whole() const noexcept;

  /// True if each key has a reachable keeper.
  bool serves_all() const noexcept;
};

using index_view_ptr = std::shared_ptr<const index_view>;

/// State shared between the link's actor and the threads that use the link.
struct index_link_board;

/// This process's connections to the shards of the index. An actor finds the shards, monitors them
/// and reconnects lost ones; only connect() and the constructor block. Any thread.
class index_link : immovable {
public:
  /// @param system Must outlive the link.
  /// @param addresses Directories to query first, all at once. Queried again, as they are by then,
  /// when none of the processes that they named is reachable any more.
  index_link(caf::actor_system& system, const connector_actor& connector,
             std::shared_ptr<const index_addresses> addresses);

  ~index_link();

  /// Waits for a shard, and then up to a second for all of them; at most `patience` in total.
  /// @returns peer_unreachable with a sentence that names the addresses if no shard is reachable
  result<void> connect(std::chrono::nanoseconds patience);

  /// The current view of the shards; never null.
  index_view_ptr view() const;

  /// Reports a failed request to a shard, which counts as lost until it is found again.
  void lost(const index_actor& shard);

  /// Compares the digest in a shard's answer, and queries the shard map again if it differs.
  void heard(uint64_t shards_digest);

private:
  const std::shared_ptr<const index_addresses> addresses_;
  caf::actor_system& system_;
  std::shared_ptr<index_link_board> board_;
  caf::actor link_;
};

} // namespace hicache
