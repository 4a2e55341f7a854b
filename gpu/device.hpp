#pragma once

#include "hicache/device.hpp"
#include "hicache/error.hpp"
#include "hicache/geometry.hpp"
#include "hicache/ids.hpp"
#include "messages/commands.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hicache {

/// What an engine's kernels still do with pages of L1. Copies of these pages wait for it on the
/// device; no thread waits.
class page_fences {
public:
  page_fences() = default;
  page_fences(const page_fences&) = delete;
  page_fences& operator=(const page_fences&) = delete;
  virtual ~page_fences() = default;

  /// Copies that begin later and read or write one of these pages wait for `event`, a native event
  /// that was recorded before. The event may be recorded again, or destroyed, when this returns.
  /// Any thread.
  /// @returns copy_failed if the device refuses.
  virtual result<void> add(std::span<const page_index> l1_pages, void* event) = 0;
};

/// Copies whole pages between one L1 pool and one L2 pool. Stores (L1 -> L2) and loads (L2 -> L1)
/// are two independent queues, each first in, first out; a store and a load that name the same
/// pages are not ordered. Its callers bound the queues: a page takes part in one copy at a time, so
/// no more can wait than there are pages.
///
/// The commands of one call become one submission to the device. If it fails, each is tried again
/// by itself, unless native events of its layers were given out, which cannot be taken back: all
/// fail.
///
/// Destroying the engine first finishes what was submitted. Both memories must outlive it.
class copy_engine {
public:
  /// Called once per command, in issue order per direction, on a thread of the engine (on the
  /// caller's, before store or load returns, with copy_options::inline_copies). Must not throw and
  /// must not call drain().
  using callback = std::function<void(operation_id, const result<void>&)>;

  copy_engine() = default;
  copy_engine(const copy_engine&) = delete;
  copy_engine& operator=(const copy_engine&) = delete;
  virtual ~copy_engine() = default;

  /// Copies l1_pages[i] to l2_pages[i]. Any thread.
  /// @pre the lists of each command are equally long and all their pages exist
  virtual void store(std::vector<write_command> commands, callback done) = 0;

  /// Copies l2_pages[i] to l1_pages[i], layer by layer. Each command's `progress` counts the
  /// complete layers; it fails if the copy fails. `done` is called after the last layer. Any
  /// thread.
  /// @pre as for store; progress is not null
  virtual void load(std::vector<load_command> commands, callback done) = 0;

  /// Returns when everything submitted so far has finished and its callbacks have returned.
  virtual void drain() = 0;

  /// Where an engine says what copies have to wait for; null (the default) where the device has no
  /// events.
  virtual std::shared_ptr<page_fences> fences() const;

  /// Native events, one for each layer, the same as long as the engine lives: each is recorded when
  /// a load of that layer is queued. What waits for one waits for all loads queued before. For CUDA
  /// graphs, which name their events when they are captured. Empty (the default) where the device
  /// has no events.
  virtual std::vector<void*> layer_events() const;
};

/// Settings of a copy engine.
struct copy_options {
  io_backend io = io_backend::direct;
  /// SMs of the GPU that io_backend::kernel may occupy, each direction for itself.
  uint32_t sms = 4;
  /// Threads that copy on the host device, each direction for itself.
  uint32_t host_threads = 1;
  /// The caller's thread does everything (deterministic tests); host device only.
  bool inline_copies = false;
};

/// How L2 memory is to be got.
struct host_memory_options {
  /// Ranks on this machine that allocate at the same time: each may take its share of what is
  /// available.
  uint32_t ranks_on_host = 1;
  /// Told of the bytes that are ready, from 0 to the size, on the calling thread, at most every 100
  /// ms; may be empty.
  std::function<void(uint64_t ready, uint64_t total)> progress;
};

/// A place where KV is computed, or host memory that stands in for one. Any thread.
class device {
public:
  device() = default;
  device(const device&) = delete;
  device& operator=(const device&) = delete;
  virtual ~device() = default;

  /// For reports: "host memory", or the name of the GPU.
  virtual std::string name() const = 0;

  /// Whether the CPU can read and write L1 memory through data().
  virtual bool host_addressable() const noexcept = 0;

  /// Memory for L1. Zeroed.
  /// @returns io_failure that says what was asked for and what is available.
  virtual result<std::unique_ptr<device_memory>> allocate(uint64_t bytes) = 0;

  /// L1 memory of another process, by the text that its share() gave.
  /// @returns invalid_argument if the text is none of this device's, io_failure if the memory
  /// cannot be reached.
  virtual result<std::unique_ptr<device_memory>> open(std::string_view shared) = 0;

  /// Memory for L2: zeroed, resident, on the NUMA node of the device, in the largest pages that the
  /// machine gives, and pinned where that means something. Errors as for allocate.
  virtual result<std::unique_ptr<device_memory>> allocate_host(uint64_t bytes,
                                                               const host_memory_options& options)
    = 0;

  /// Makes memory that the caller mapped, and may share, serve as L2: resident, on the NUMA node of
  /// the device, and pinned like that of allocate_host. Errors as for allocate.
  /// @param memory Not owned; must outlive what is returned.
  /// @pre zeroed, none of it touched yet, and at the start of a plain page
  virtual result<std::unique_ptr<device_memory>> adopt_host(std::span<std::byte> memory,
                                                            const host_memory_options& options)
    = 0;

  /// An engine between an L1 pool, whoever owns it, and an L2 pool at the start of a memory of this
  /// device.
  /// @pre l1.check() succeeds, both pools have the same shape, and l2_memory holds its pool
  /// @returns unsupported or copy_failed with a sentence
  virtual result<std::unique_ptr<copy_engine>>
  make_copy_engine(const device_layers& l1, const pool_geometry& l2, device_memory& l2_memory,
                   const copy_options& options)
    = 0;

  /// Has what is queued on `stream` from now on wait until layer `layer` of a load is in L1. The
  /// stream waits, not the caller (who may wait some microseconds until the load is queued). A
  /// device without streams waits itself.
  /// @param stream A native stream of the engine's, not being captured.
  /// @returns copy_failed if the load failed, as far as that is known yet.
  virtual result<void> wait_for_layer(const layer_progress& progress, void* stream, uint32_t layer);
};

/// A CUDA device without a number is the one on which the engine's pool lies; without a pool that
/// of the rank's number on this machine (OMPI_COMM_WORLD_LOCAL_RANK, else LOCAL_RANK), modulo the
/// visible devices; without that number the calling thread's current one. No call changes the
/// current device of its caller.
/// @param pool An address in the L1 pool that the engine registered, or 0.
/// @returns unsupported, with a sentence, if `cuda` is asked for and this build or machine has
/// none; invalid_argument if there is no such number or the pool lies elsewhere.
result<std::unique_ptr<device>> make_device(const device_choice& choice, uint64_t pool = 0);

} // namespace hicache
