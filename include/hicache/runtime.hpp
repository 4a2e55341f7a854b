#pragma once

#include "hicache/config.hpp"
#include "hicache/device.hpp"
#include "hicache/error.hpp"
#include "hicache/eviction_policy.hpp"
#include "hicache/geometry.hpp"
#include "hicache/interfaces.hpp"
#include "hicache/rank_reducer.hpp"
#include "hicache/storage_backend.hpp"

#include <caf/fwd.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace prometheus {
class Collectable;
} // namespace prometheus

namespace hicache {

/// Extensions that only a program linking hicache can supply.
struct rank_extensions {
  /// Wraps each L3 store that this rank opens; may be empty.
  backend_wrapper wrap{};
  /// Replaces --radix-eviction-policy unless null. Must have the same name on every rank.
  eviction_policy_ptr eviction{};
  /// Sends the engine events of what L1 and L2 can serve, as (atom::events, cache_events_ptr).
  bool events = false;
};

/// A running rank of hicache: its pools, its actors, and its part of L3. An engine starts one per
/// rank, in the same order on every rank.
///
///     auto config = rank_config{};
///     auto valid = config.finish(ranks);
///     auto peers = make_mpi_reducer(MPI_Comm_c2f(MPI_COMM_WORLD));
///     auto runtime = rank_runtime::start(config, std::move(*peers));
///     ... send messages to (*runtime)->tree() ...
///
/// Destroying it stops the actors in order and frees all memory; close all requests before. Start
/// and destroy it on one thread; other functions may be called from any thread.
class rank_runtime {
public:
  /// Allocates the pools and starts the actors. Collective: all ranks call it, and all succeed or
  /// all fail.
  /// @param config Checked by rank_config::finish.
  /// @param ranks The reducer of this rank.
  /// @param engine Receives the runtime's reports; may be null.
  /// @param registered The engine's own L1 pool, which must outlive the runtime; null lets hicache
  /// allocate one. Its shape must be that of the settings, and it must hold --device-pages pages
  /// plus the padding page.
  /// @returns an error with a sentence, such as too little memory, an unreachable index, or
  /// settings that differ between ranks. A rank that fails because another rank failed returns
  /// ec::stopping.
  static result<std::unique_ptr<rank_runtime>> start(const rank_config& config,
                                                     std::unique_ptr<rank_reducer> ranks,
                                                     const engine_actor& engine = {},
                                                     const device_layers* registered = nullptr,
                                                     const rank_extensions& extensions = {});

  virtual ~rank_runtime() = default;

  /// The actor to which the engine sends its operations.
  virtual tree_actor tree() const = 0;

  /// Reduces the engine's own vectors over its ranks, on reduction_channel::engine.
  virtual rank_reduction_actor rank_reduction() const = 0;

  virtual caf::actor_system& system() = 0;

  virtual uint32_t rank() const = 0;

  virtual uint32_t ranks() const = 0;

  /// Locations of L1's pages, as device addresses.
  virtual const device_layers& device_buffers() const = 0;

  /// Locations of L1's pages in l1_pool(), and that memory.
  /// @pre the engine did not register a pool of its own
  virtual const pool_geometry& device_geometry() const = 0;

  virtual device_memory& l1_pool() = 0;

  /// Whether the CPU may read and write L1 at its addresses.
  virtual bool device_is_host_addressable() const = 0;

  /// Makes work queued on the engine's stream from now on wait until layer `layer` of a load is in
  /// L1, without blocking the caller: device::wait_for_layer().
  virtual result<void> wait_for_layer(const layer_progress& progress, void* stream, uint32_t layer)
    = 0;

  /// For CUDA graphs: copy_engine::layer_events(). Empty on the host device.
  virtual const std::vector<void*>& layer_events() const = 0;

  /// One human-readable line: device, pools, L3.
  virtual std::string description() const = 0;

  /// Counters of this rank over all its actors. Blocks for their answers.
  virtual rank_counters counters() = 0;

  /// Adds the engine's own metrics to those at --metrics-port. Does nothing without that flag.
  /// @param source As for metrics_server::add, for example a prometheus::Registry.
  virtual void add_metrics(std::shared_ptr<const prometheus::Collectable> source) = 0;
};

} // namespace hicache
