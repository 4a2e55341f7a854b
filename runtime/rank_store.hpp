#pragma once

#include "actors/attachment.hpp"
#include "backends/blocking_store.hpp"
#include "base/immovable.hpp"
#include "hicache/clock.hpp"
#include "hicache/geometry.hpp"
#include "hicache/storage_backend.hpp"
#include "runtime/cluster_member.hpp"
#include "runtime/rank_config.hpp"
#include "runtime/shared_pools.hpp"
#include "stores/open_stores.hpp"

#include <caf/actor_system.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace hicache {

/// The open store of a rank.
struct attached_store {
  std::string backend;
  /// True if usable: the backend reports itself healthy and the circuit breaker is closed.
  bool ok = true;
  storage_status status;

  /// What this rank holds in the store.
  struct contents {
    uint64_t objects = 0;
    uint64_t bytes = 0;
    /// 0: unlimited.
    uint64_t capacity_bytes = 0;
  };

  /// Empty if the store does not report occupancy.
  std::optional<contents> held;
  /// Backend `tiered`: its stores, in its order.
  std::vector<tier_health> tiers;
};

/// L3 counters of one rank since it started, closed stores included, and the current state.
struct store_figures {
  /// Objects evicted.
  uint64_t evicted = 0;
  /// Bytes that this rank currently exports to the cluster.
  uint64_t exported_bytes = 0;
  /// Exported bytes sent to readers on other machines.
  uint64_t sent_bytes = 0;
  /// Exported pages whose lost replicas were recreated, and attempts with too few willing members.
  uint64_t repaired_pages = 0;
  uint64_t repair_failures = 0;
  /// Exported pages that currently lack replicas.
  uint64_t unrepaired_pages = 0;
  /// By backend name.
  std::map<std::string, backend_counters> counters;
  std::optional<attached_store> attached;
};

/// L3 of one rank: opens the configured backend with its actor, and accumulates counters over all
/// stores it has opened. Any thread.
class rank_store : immovable {
public:
  /// @param system All references must outlive the store, and so must L2.
  /// @param shared Memory that holds L2, if it can be exported; else null. Must outlive the store.
  /// @param wrap Decorates each backend; may be empty.
  /// @param notice Called from any thread when a store is no longer used because its calls fail.
  rank_store(caf::actor_system& system, const rank_config& settings, uint32_t rank, uint32_t ranks,
             const pool_geometry& l2, std::byte* l2_memory, const shared_pools* shared,
             const clock_source& clock, backend_wrapper wrap = {},
             std::function<void(const error&)> notice = {});

  /// Closes the open store.
  ~rank_store();

  /// Opens the backend named by `wanted` with the settings of the rank. Blocks.
  /// @pre nothing is open
  /// @returns invalid_argument with a sentence that names the setting, or why it cannot be opened
  result<open_store> open(const storage_attachment& wanted);

  /// Prepares the open store, if it is `tiered`, for one tier more or one less. Blocks for opening
  /// a store, or up to the time for calls of the tier that leaves. One change at a time, and no
  /// other call that opens or closes meanwhile.
  /// @pre a store is open
  /// @returns invalid_argument with a sentence, deadline_exceeded, or why a store cannot be opened
  result<store_change> change(const storage_attachment& wanted, std::chrono::nanoseconds time);

  /// L3 counters so far. Blocks.
  rank_counters counters();

  /// Detailed figures for metrics.
  /// @returns nothing if L3 is being opened or closed, or does not answer, for longer than that
  std::optional<store_figures> figures(std::chrono::nanoseconds timeout);

  /// Bytes that this rank currently exports to the cluster.
  uint64_t exported_bytes();

  /// Circuit-breaker state of the open store; nothing if none is open or it does not answer.
  std::optional<storage_status> status();

  /// Healths of the stores that the open store is made of; empty if it is one, or does not answer.
  std::vector<tier_health> tiers();

  /// Closes the open store; waits for outstanding calls for up to the settings' shutdown_grace.
  /// @returns false if calls were still outstanding after that, now or earlier. They may keep using
  /// L2 and the clock, so these and the actor system must not be destroyed.
  bool close();

private:
  /// The settings of the rank with those of an attachment.
  result<rank_config> settings_for(const storage_attachment& wanted) const;

  result<std::unique_ptr<storage_backend>> open_backend(const rank_config& settings);

  /// Opens a tier and adds it, suspended.
  result<void> add_tier(const rank_config& settings, size_t at);

  /// Suspends a tier, if L3 can do without it.
  result<void> suspend_tier(const rank_config& settings, size_t at, std::chrono::nanoseconds time);

  /// Closes a suspended tier.
  void remove_tier(size_t at, const std::string& backend);

  /// Leaves the cluster.
  /// @param has_returned No call of its store is in progress.
  void leave_cluster(bool has_returned);

  /// @pre settings.finish(ranks) succeeded; they outlive the result
  store_owner owner_of(const rank_config& settings);

  /// Joins the cluster.
  result<std::unique_ptr<blocking_store>> open_cluster(const rank_config& settings,
                                                       const storage_config& storage);

  /// Current or last known health of the open store.
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
  std::timed_mutex mutex_; // Guards the members below.
  std::unique_ptr<cluster_member> member_;
  storage_actor actor_;
  std::shared_ptr<storage_backend> store_;
  /// The store behind store_, if it is `tiered`; else null.
  tiered_store* tiers_ = nullptr;
  /// The open store, its extra config as JSON.
  storage_attachment attached_;
  /// True once outstanding calls have been abandoned.
  bool has_abandoned_ = false;
  /// Accumulated counters of closed stores.
  store_figures closed_;
};

} // namespace hicache
