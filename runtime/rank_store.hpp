#pragma once

#include "actors/attachment.hpp"
#include "backends/blocking_store.hpp"
#include "hicache/clock.hpp"
#include "hicache/geometry.hpp"
#include "hicache/storage_backend.hpp"
#include "runtime/cluster_member.hpp"
#include "runtime/rank_config.hpp"
#include "runtime/shared_pools.hpp"

#include <caf/actor_system.hpp>
#include <caf/duration.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace hicache {

/// The store that is open, as a rank sees it.
struct attached_store {
  std::string backend;
  /// Whether it can be used: by its own account, and by what became of the last calls.
  bool ok = true;
  storage_status status;

  /// What the rank accounts for there.
  struct contents {
    uint64_t objects = 0;
    uint64_t bytes = 0;
    /// 0 is without bound.
    uint64_t capacity_bytes = 0;
  };

  /// Nothing if the store cannot tell.
  std::optional<contents> held;
};

/// What L3 did on one rank since it started, closed stores included, and what it is now.
struct store_figures {
  /// Objects dropped to make room.
  uint64_t evicted = 0;
  /// Bytes that this rank exports to the cluster now.
  uint64_t exported_bytes = 0;
  /// Bytes of it that were sent to readers on other machines.
  uint64_t sent_bytes = 0;
  /// Pages of exported memory whose lost copies were made anew, and times that too few members took
  /// one.
  uint64_t repaired_pages = 0;
  uint64_t repair_failures = 0;
  /// Pages of it that lack copies now.
  uint64_t unrepaired_pages = 0;
  /// By the backend's name.
  std::map<std::string, backend_counters> counters;
  std::optional<attached_store> attached;
};

/// L3 as one rank has it: opens the backend that the settings name, with its actor, and counts over
/// all that were open. Any thread.
class rank_store {
public:
  /// @param system All references must outlive the store, and so must L2.
  /// @param shared What holds L2, if it can be exported; else null. Must outlive the store.
  /// @param wrap Around each backend; may be empty.
  /// @param notice Told when a store is left alone because its calls fail; any thread.
  rank_store(caf::actor_system& system, const rank_config& settings, uint32_t rank, uint32_t ranks,
             const pool_geometry& l2, std::byte* l2_memory, const shared_pools* shared,
             const clock_source& clock, backend_wrapper wrap = {},
             std::function<void(const error&)> notice = {});

  /// Ends what is open.
  ~rank_store();

  rank_store(const rank_store&) = delete;

  rank_store& operator=(const rank_store&) = delete;

  /// Opens what the settings name, with the backend of `wanted`. Blocks.
  /// @pre nothing is open
  /// @returns invalid_argument with a sentence that names the setting, or why it cannot be opened
  result<open_store> open(const storage_attachment& wanted);

  /// What L3 did so far. Blocks.
  rank_counters counters();

  /// The same for people, and more.
  /// @returns nothing if L3 is being opened or closed, or does not answer, for longer than
  /// `timeout`
  std::optional<store_figures> figures(std::chrono::nanoseconds timeout);

  /// Bytes that this rank exports to the cluster now.
  uint64_t exported_bytes();

  /// Which calls go to the store that is open; nothing if none is.
  std::optional<storage_status> status();

  /// Ends what is open; waits for calls that have not returned for the settings' shutdown_grace.
  /// @returns false if some have not returned even then, now or earlier. They may go on using L2
  /// and the clock, which must not be destroyed, and so must not the actor system.
  bool close();

private:
  result<std::unique_ptr<blocking_store>> open_backend(const rank_config& settings);

  /// What the store that is open says of itself, or said last.
  result<backend_health> ask_health(std::chrono::nanoseconds timeout);

  result<storage_status> ask_status(std::chrono::nanoseconds timeout);

  caf::actor_system& system_;
  const rank_config settings_;
  const uint32_t rank_;
  const uint32_t ranks_;
  const pool_geometry& l2_;
  std::byte* const l2_memory_;
  const shared_pools* const shared_;
  const clock_source& clock_;
  const backend_wrapper wrap_;
  const std::function<void(const error&)> notice_;
  std::timed_mutex mutex_; // Guards what follows.
  std::unique_ptr<cluster_member> member_;
  storage_actor actor_;
  std::shared_ptr<storage_backend> store_;
  /// True after calls were left behind that have not returned.
  bool has_abandoned_ = false;
  /// Counted by stores that are closed.
  store_figures closed_;
};

} // namespace hicache
