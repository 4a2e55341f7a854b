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

/// Fixed settings of a directory.
struct directory_options {
  /// The shards of this process by number.
  std::map<uint32_t, index_actor> shards;
  /// HOST:PORT of directories to begin with, as they are at the moment: called before each
  /// exchange, must not block. One that is known tells of all others. Empty: there are none.
  std::function<std::vector<std::string>()> others;
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

  /// Learns of directories that the settings name now, and forgets those that neither they nor the
  /// map names any more.
  void look_around();

  /// Takes a shard for this process: under an epoch beyond all that are known.
  void claim(uint32_t number);

  /// Somebody says who has one of this process's shards.
  void look_at(const index_shard& claimed);

  /// The process at this address has answered, or cannot be reached. @param news Nothing then.
  void settle(const std::string& where, const shard_map* news);

  void ask(const std::string& where);

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
  /// Epochs of the own shards; empty until the others that are named were asked.
  std::map<uint32_t, uint64_t> claims;
  /// Of these, those that were given up, or that a living process claimed later.
  std::set<uint32_t> superseded;
  /// Others that have yet to be heard of before the own shards are claimed.
  std::set<std::string> unheard;
  /// Own shards that these are said to have; they are asked.
  std::map<std::string, std::set<uint32_t>> contenders;
  /// Other directories by address; null while there is no connection.
  std::map<std::string, directory_actor> others;
};

/// What clients and other index processes connect to. A process claims its shards under epochs
/// beyond all that it hears of, from the processes that it joins and from clients; so of two that
/// claim a number the later one has it, whatever their clocks say. A claim of a process that cannot
/// be reached any more is taken over.
directory_actor::behavior_type directory(directory_actor::stateful_pointer<directory_state> self,
                                         directory_options options);

} // namespace hicache
