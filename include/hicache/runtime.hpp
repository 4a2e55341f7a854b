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

/// What only a program that links hicache can bring along.
struct rank_extensions {
  /// Around each L3 store that this rank opens; may be empty.
  backend_wrapper wrap{};
  /// Who goes first when room is needed, in place of --radix-eviction-policy; null leaves it to
  /// that. Of the same name on every rank.
  eviction_policy_ptr eviction{};
  /// Tells the engine what L1 and L2 can serve, as (atom::events, cache_events_ptr).
  bool events = false;
};

/// One rank of hicache, running: its pools, its actors, and its part of L3. What an engine links
/// and starts once per rank, in the same order on every rank.
///
///     auto config = rank_config{};
///     auto valid = config.finish(ranks);
///     auto peers = make_mpi_reducer(MPI_Comm_c2f(MPI_COMM_WORLD));
///     auto runtime = rank_runtime::start(config, std::move(*peers));
///     ... send messages to (*runtime)->tree() ...
///
/// Destroying it ends the actors in order and gives all memory back; requests must be closed
/// before. Start and destroy on one thread; the rest may be called from any.
class rank_runtime {
public:
  /// Allocates the pools and starts the actors. Collective: all ranks call it, and either all
  /// succeed or all fail.
  /// @param config Checked by rank_config::finish.
  /// @param ranks How this rank agrees with the others.
  /// @param engine Told of failures; may be null.
  /// @param registered The engine's own L1 pool, which must outlive the runtime; null lets hicache
  /// allocate one. Its shape must be that of the settings, and it must hold --device-pages pages
  /// and the padding page.
  /// @returns one sentence: memory that is not there, an index that does not answer, settings in
  /// which the ranks differ. A rank that fails because another one did returns ec::stopping.
  static result<std::unique_ptr<rank_runtime>> start(const rank_config& config,
                                                     std::unique_ptr<rank_reducer> ranks,
                                                     const engine_actor& engine = {},
                                                     const device_layers* registered = nullptr,
                                                     const rank_extensions& extensions = {});

  virtual ~rank_runtime() = default;

  /// The actor to which the engine sends its operations.
  virtual tree_actor tree() const = 0;

  /// Reduces vectors of the engine's own over its ranks, on reduction_channel::engine.
  virtual rank_reduction_actor rank_reduction() const = 0;

  virtual caf::actor_system& system() = 0;

  virtual uint32_t rank() const = 0;

  virtual uint32_t ranks() const = 0;

  /// Where the pages of L1 lie: addresses of the device.
  virtual const device_layers& device_buffers() const = 0;

  /// Where they lie in l1_pool(), and that memory.
  /// @pre the engine did not register a pool of its own
  virtual const pool_geometry& device_geometry() const = 0;

  virtual device_memory& l1_pool() = 0;

  /// True if the CPU may read and write L1 at its addresses.
  virtual bool device_is_host_addressable() const = 0;

  /// Has what is queued on the engine's stream from now on wait until layer `layer` of a load is in
  /// L1, without waiting for it here: device::wait_for_layer().
  virtual result<void> wait_for_layer(const layer_progress& progress, void* stream, uint32_t layer)
    = 0;

  /// For CUDA graphs: copy_engine::layer_events(). Empty on the host device.
  virtual const std::vector<void*>& layer_events() const = 0;

  /// One line for people: device, pools, L3.
  virtual std::string description() const = 0;

  /// What this rank did so far, over all its actors. Blocks for their answers.
  virtual rank_counters counters() = 0;

  /// Shows more at --metrics-port: what the engine itself counts. Does nothing without that flag.
  /// @param source As for metrics_server::add; a prometheus::Registry, say.
  virtual void add_metrics(std::shared_ptr<const prometheus::Collectable> source) = 0;
};

} // namespace hicache
