#pragma once

#include "base/immovable.hpp"
#include "hicache/device.hpp"
#include "hicache/error.hpp"
#include "hicache/geometry.hpp"
#include "hicache/ids.hpp"
#include "messages/commands.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hicache {

/// Pending use of L1 pages by an engine's kernels. Copies of these pages wait for it on the device.
class page_fences : immovable {
public:
  virtual ~page_fences() = default;

  /// Makes later copies that read or write these pages wait for `event`, a recorded native event.
  /// The event may be recorded again or destroyed when this returns. Any thread.
  /// @returns copy_failed if the device refuses.
  virtual result<void> add(std::span<const page_index> l1_pages, void* event) = 0;
};

/// Copies whole pages between one L1 pool and one L2 pool. Stores (L1 -> L2) and loads (L2 -> L1)
/// are two independent FIFO queues; a store and a load of the same pages are not ordered. The
/// callers bound the queues: with one copy per page at a time, no more wait than there are pages.
///
/// The commands of one call form one submission to the device. If it fails, each command is retried
/// alone, unless native events of its layers were handed out, which are irrevocable: then all fail.
///
/// The destructor finishes submitted copies. Both memories must outlive the engine.
class copy_engine : immovable {
public:
  /// Called once per command, in issue order per direction, on a thread of the engine (with
  /// copy_options::inline_copies: the caller's, during the call). Must not throw or call drain().
  using callback = std::function<void(operation_id, const result<void>&)>;

  virtual ~copy_engine() = default;

  /// Copies l1_pages[i] to l2_pages[i]. Any thread.
  /// @pre the lists of each command have equal length, all their pages exist, and each is in one
  /// command of the call
  virtual void store(std::vector<write_command> commands, callback done) = 0;

  /// Copies l2_pages[i] to l1_pages[i], layer by layer. Each command's `progress` counts the
  /// complete layers and fails with the copy. `done` comes after the last layer. Any thread.
  /// @pre as for store; progress is not null
  virtual void load(std::vector<load_command> commands, callback done) = 0;

  /// Blocks until everything submitted so far has finished and its callbacks have returned.
  virtual void drain() = 0;

  /// The fences that copies wait for; null (the default) if the device has no events.
  virtual std::shared_ptr<page_fences> fences() const { return nullptr; }

  /// Native events, one per layer, fixed for the engine's lifetime: each is recorded when a load of
  /// its layer is queued, so waiting for it waits for all loads queued before. For CUDA graphs,
  /// which fix their events at capture. Empty (the default) if the device has no events.
  virtual std::vector<void*> layer_events() const { return {}; }
};

struct copy_options {
  io_backend io = io_backend::direct;
  /// SMs that io_backend::kernel may occupy, per direction.
  uint32_t sms = 4;
  /// Copy threads of the host device, per direction.
  uint32_t host_threads = 1;
  /// Everything runs on the caller's thread (deterministic tests); host device only.
  bool inline_copies = false;
};

/// How to allocate L2 memory.
struct host_memory_options {
  /// Ranks on this machine that allocate concurrently; each may take an equal share.
  uint32_t ranks_on_host = 1;
  /// Called with the bytes ready, on the calling thread, at most every 100 ms; may be empty.
  std::function<void(uint64_t ready, uint64_t total)> progress;
};

/// A compute device with L1 memory, or host memory in place of one. Any thread.
class device : immovable {
public:
  virtual ~device() = default;

  /// For reports: "host memory", or the name of the GPU.
  virtual std::string name() const = 0;

  /// Whether the CPU can access L1 memory through data().
  virtual bool host_addressable() const noexcept = 0;

  /// Allocates zeroed L1 memory.
  /// @returns io_failure with the bytes requested and available.
  virtual result<std::unique_ptr<device_memory>> allocate(uint64_t bytes) = 0;

  /// Opens L1 memory of another process by the text of its share().
  /// @returns invalid_argument if the text is not of this device, io_failure if unreachable.
  virtual result<std::unique_ptr<device_memory>> open(std::string_view shared) = 0;

  /// Allocates L2 memory: zeroed, resident, on the device's NUMA node, in the largest pages
  /// available, and pinned where that applies. Errors as for allocate.
  virtual result<std::unique_ptr<device_memory>> allocate_host(uint64_t bytes,
                                                               const host_memory_options& options)
    = 0;

  /// Makes memory mapped by the caller, which may share it, usable as L2: resident, on the device's
  /// NUMA node, and pinned like that of allocate_host. Errors as for allocate.
  /// @param memory Not owned; must outlive the result.
  /// @pre zeroed, untouched, and aligned to a plain page
  virtual result<std::unique_ptr<device_memory>> adopt_host(std::span<std::byte> memory,
                                                            const host_memory_options& options)
    = 0;

  /// Makes an engine between an L1 pool of any owner and an L2 pool at the start of l2_memory.
  /// @pre l1.check() succeeds, both pools have the same shape, and l2_memory holds its pool
  /// @returns unsupported or copy_failed with a sentence
  virtual result<std::unique_ptr<copy_engine>>
  make_copy_engine(const device_layers& l1, const pool_geometry& l2, device_memory& l2_memory,
                   const copy_options& options)
    = 0;

  /// Makes work queued on `stream` from now on wait until layer `layer` of a load is in L1. The
  /// stream waits, not the caller, which may block for some microseconds until the load is queued.
  /// A device without streams blocks the caller.
  /// @param stream A native stream of the engine's, not being captured.
  /// @returns copy_failed if the load is known to have failed.
  virtual result<void> wait_for_layer(const layer_progress& progress, void* stream, uint32_t layer);
};

/// Opens a device. A CUDA device without a number is the one that holds the engine's pool; without
/// a pool the one of the rank's number on this machine (OMPI_COMM_WORLD_LOCAL_RANK, else
/// LOCAL_RANK) modulo the visible devices; without that number the calling thread's current one. No
/// call changes the caller's current device.
/// @param pool An address in the L1 pool that the engine registered, or 0.
/// @returns unsupported, with a sentence, if `cuda` is requested and this build or machine has
/// none; invalid_argument if the number does not exist or the pool is elsewhere.
result<std::unique_ptr<device>> make_device(const device_choice& choice, uint64_t pool = 0);

} // namespace hicache
