#pragma once

#include "base/clock.hpp"
#include "messages/interfaces.hpp"
#include "messages/shard_map.hpp"

#include <caf/typed_event_based_actor.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace hicache {

/// Fixed settings of a directory.
struct directory_options {
  /// The shards of this process by number.
  std::map<uint32_t, index_actor> shards;
  /// When they began, in milliseconds since 1970.
  uint64_t since_ms = 0;
  /// HOST:PORT of directories to begin with. One that is known tells of all others.
  std::vector<std::string> others;
  /// Between two exchanges with the other directories.
  duration pause = std::chrono::seconds{2};
  connector_actor connector;
};

/// @relates directory
struct directory_state {
  static inline constexpr auto name = "directory";

  explicit directory_state(directory_actor::pointer owner) : self(owner) {}

  // -- request handling -------------------------------------------------------

  shard_map exchange(const shard_map& news);

  caf::result<caf::strong_actor_ptr> locate(uint32_t number) const;

  void start(const std::string& where);

  void poll();

  // -- internal steps ---------------------------------------------------------

  void connect(const std::string& where);

  void tell(const std::string& where);

  /// Tells the own shards of a map that changed.
  void after_change();

  // -- data -------------------------------------------------------------------

  directory_actor::pointer self;
  directory_options options;
  /// HOST:PORT under which other processes reach this one; empty before the start.
  std::string address;
  shard_map map;
  /// Other directories by address; null while there is no connection.
  std::map<std::string, directory_actor> others;
};

/// What clients and other index processes connect to.
directory_actor::behavior_type directory(directory_actor::stateful_pointer<directory_state> self,
                                         directory_options options);

} // namespace hicache
