#pragma once

#include "hicache/clock.hpp"
#include "messages/interfaces.hpp"
#include "messages/shard_map.hpp"

#include <caf/typed_event_based_actor.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace hicache {

struct directory_options {
  /// This process's shards by number.
  std::map<uint32_t, index_actor> shards;
  /// Returns HOST:PORT of the directories to join at present; one reachable directory suffices to
  /// learn all others. Called before each exchange, must not block. May be empty.
  std::function<std::vector<std::string>()> others;
  /// Interval between exchanges with the other directories.
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

  /// Adds directories that the settings name now; drops those named neither there nor in the map.
  void look_around();

  /// Claims a shard for this process, with an epoch above all known ones.
  void claim(uint32_t number);

  /// Checks a peer's claim to one of this process's shards.
  void look_at(const index_shard& claimed);

  /// Handles the reply of the process at this address. @param news Null if it is unreachable.
  void settle(const std::string& where, const shard_map* news);

  void ask(const std::string& where);

  void connect(const std::string& where);

  void tell(const std::string& where);

  /// Notifies this process's shards of a changed map.
  void after_change();

  // -- data -------------------------------------------------------------------

  directory_actor::pointer self;
  directory_options options;
  /// HOST:PORT at which other processes reach this one; empty before the start.
  std::string address;
  shard_map map;
  /// Epochs of this process's shards; empty until the configured directories have been queried.
  std::map<uint32_t, uint64_t> claims;
  /// Claims that were given up, or that a living process superseded with a later one.
  std::set<uint32_t> superseded;
  /// Directories to hear from before this process claims its shards.
  std::set<std::string> unheard;
  /// Addresses that claim shards of this process, pending verification.
  std::map<std::string, std::set<uint32_t>> contenders;
  /// Other directories by address; null while not connected.
  std::map<std::string, directory_actor> others;
};

/// The entry point for clients and other index processes. A process claims its shards with epochs
/// above all it has learned from the processes it joins and from clients. So of two claims to a
/// number the later one wins, whatever the clocks say. Claims of an unreachable process are taken
/// over.
directory_actor::behavior_type directory(directory_actor::stateful_pointer<directory_state> self,
                                         directory_options options);

} // namespace hicache
