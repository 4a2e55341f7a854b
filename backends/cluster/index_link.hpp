#pragma once

#include "hicache/error.hpp"
#include "messages/interfaces.hpp"
#include "messages/shard_map.hpp"

#include <caf/actor_system.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace hicache {

class index_addresses;

/// The shards of the index as this process reaches them at a moment: all that are in use; none
/// until a directory has answered.
struct index_view : shard_set {
  index_view() = default;

  /// One of the shards.
  struct entry {
    uint32_t number = 0;
    /// Null while it cannot be reached.
    index_actor shard;
    /// HOST:PORT of its process.
    std::string address;
  };

  /// @param entries In order of their numbers.
  explicit index_view(const std::vector<entry>& entries);

  /// The shard of each number; null while it cannot be reached.
  std::vector<index_actor> shards;
  /// HOST:PORT of the process of each, for people.
  std::vector<std::string> addresses;

  /// True if there are shards and each can be reached.
  bool is_whole() const noexcept;

  /// True if each key has a keeper that can be reached.
  bool serves_all() const noexcept;
};

using index_view_ptr = std::shared_ptr<const index_view>;

/// What the actor behind a link tells the threads that use the link.
struct index_link_board;

/// This process's connections to the shards of the index. An actor of its own finds them, keeps
/// watch over them and connects again what was lost; no call but connect() and the constructor
/// blocks. Any thread.
class index_link {
public:
  /// @param system Must outlive the link.
  /// @param addresses Directories to ask first. All are asked at once, and again, as they are by
  /// then, when none of those that they named can be reached any more.
  index_link(caf::actor_system& system, const connector_actor& connector,
             std::shared_ptr<const index_addresses> addresses);

  ~index_link();

  index_link(const index_link&) = delete;

  index_link& operator=(const index_link&) = delete;

  /// Waits until a shard can be reached, and then up to a second for all of them; `patience` in
  /// all.
  /// @returns peer_unreachable with a sentence that names the addresses if there is no shard by
  /// then
  result<void> connect(std::chrono::nanoseconds patience);

  /// The shards as last seen; never null.
  index_view_ptr view() const;

  /// Says that a request to a shard failed: it counts as lost until it was found again.
  void lost(const index_actor& shard);

  /// Notes the digest in a shard's answer, and asks for the shards again if it is of another map.
  void heard(uint64_t shards_digest);

private:
  const std::shared_ptr<const index_addresses> addresses_;
  caf::actor_system& system_;
  std::shared_ptr<index_link_board> board_;
  caf::actor link_;
};

} // namespace hicache
