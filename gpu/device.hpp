#pragma once

#include "base/error.hpp"
#include "cache/geometry.hpp"
#include "messages/ids.hpp"
#include "messages/operations.hpp"

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

/// A block of device memory (L1) or host memory (L2), freed with the object. Not copyable.
class device_memory {
public:
  device_memory() = default;
  device_memory(const device_memory&) = delete;
  device_memory& operator=(const device_memory&) = delete;
  virtual ~device_memory() = default;

  /// The first byte. L1 may be dereferenced by the CPU only if the device is host_addressable(); L2
  /// always.
  virtual std::byte* data() noexcept = 0;

  /// Bytes.
  virtual uint64_t size() const noexcept = 0;

  /// For people: what kind of memory was got ("2 MiB huge pages on NUMA node 0, pinned").
  virtual std::string description() const = 0;

  /// Copies `bytes` to `offset` and returns when they are there. For set-up, tests and checks, not
  /// for the hot path. Any thread.
  /// @pre offset + bytes.size() <= size()
  virtual result<void> write(uint64_t offset, std::span<const std::byte> bytes) = 0;

  /// The other way round.
  /// @pre offset + bytes.size() <= size()
  virtual result<void> read(uint64_t offset, std::span<std::byte> bytes) const = 0;

  /// A line of text by which another process of the same user on this machine can open the memory
  /// (device::open) while this object lives.
  /// @returns unsupported for memory that cannot be shared: L2, and what was itself opened.
  virtual result<std::string> share() const = 0;
};

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
  virtual result<void> add(std::span<const page_index> device_pages, void* event) = 0;
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

  /// Copies device_pages[i] to host_pages[i]. Any thread.
  /// @pre the lists of each command are equally long and all their pages exist
  virtual void store(std::vector<write_command> commands, callback done) = 0;

  /// Copies host_pages[i] to device_pages[i], layer by layer. Each command's `progress` counts the
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

/// How pages are copied.
/// - direct: the copy hardware of the GPU (memcpy on the host device) moves runs of bytes.
/// - kernel: a kernel on a few SMs (the threads of the host device) gathers and scatters pieces.
enum class io_backend : uint8_t { direct, kernel };

/// @relates io_backend
const char* to_string(io_backend io) noexcept;

/// @returns invalid_argument with the allowed names.
/// @relates io_backend
result<io_backend> parse_io_backend(std::string_view name);

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

/// Which device to use. `automatic` is cuda if this build has it and a GPU answers, else host.
enum class device_kind : uint8_t { automatic, cuda, host };

/// "auto", "cuda" or "host".
/// @relates device_kind
const char* to_string(device_kind kind) noexcept;

/// @returns invalid_argument with the allowed names.
/// @relates device_kind
result<device_kind> parse_device_kind(std::string_view name);

/// A kind of device, and which one of these.
struct device_choice {
  // Not explicit: a kind is a choice.
  device_choice(device_kind which = device_kind::automatic, std::optional<uint32_t> n = {})
    : kind(which), number(n) {}

  device_kind kind;
  /// In the numbering of the CUDA runtime; nothing leaves it to the rules of make_device().
  std::optional<uint32_t> number;

  friend bool operator==(const device_choice&, const device_choice&) = default;
};

/// What parse_device_kind() reads, or "cuda:N".
/// @returns invalid_argument with what is allowed.
/// @relates device_choice
result<device_choice> parse_device_choice(std::string_view text);

/// A CUDA device without a number is the one on which the engine's pool lies; without a pool that
/// of the rank's number on this machine (OMPI_COMM_WORLD_LOCAL_RANK, else LOCAL_RANK), modulo the
/// visible devices; without that number the calling thread's current one. No call changes the
/// current device of its caller.
/// @param pool An address in the L1 pool that the engine registered, or 0.
/// @returns unsupported, with a sentence, if `cuda` is asked for and this build or machine has
/// none; invalid_argument if there is no such number or the pool lies elsewhere.
result<std::unique_ptr<device>> make_device(const device_choice& choice, uint64_t pool = 0);

} // namespace hicache
