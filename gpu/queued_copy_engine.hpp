#pragma once

#include "base/immovable.hpp"
#include "gpu/device.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace hicache {

enum class copy_direction : uint8_t { store, load };

/// Maximum submissions in flight per direction; each has its own events and page lists. Three: one
/// queued, one running, one being reported.
inline constexpr uint32_t copy_sets = 3;

/// The device-specific part of a copy engine: runs submissions. Page numbers are already checked.
/// Per direction, one thread calls begin() and one (perhaps the same) finish_layer(), in the same
/// order except for retries.
class page_mover : immovable {
public:
  virtual ~page_mover() = default;

  /// Queues the copy of l1_pages[i] and l2_pages[i], all layers, without waiting for it.
  /// @param set From 0 to copy_sets - 1; no submission of this direction is in flight in it.
  /// @pre the lists have equal length, are not empty, and live until the submission is finished
  /// @returns device_lost if the device accepts no more copies, else copy_failed; so does
  /// finish_layer()
  virtual result<void> begin(copy_direction direction, uint32_t set,
                             std::span<const page_index> l1_pages,
                             std::span<const page_index> l2_pages)
    = 0;

  /// Blocks until layer `layer` of a submission has arrived. Called with 0 to layers - 1 for a
  /// load, with layers - 1 only for a store (then all layers have arrived). Not called again after
  /// a failure: then nothing of the submission writes to a page any more.
  virtual result<void> finish_layer(copy_direction direction, uint32_t set, uint32_t layer) = 0;

  /// The native events of the loads in `set`, one per layer; empty by default.
  virtual std::vector<void*> layer_events([[maybe_unused]] uint32_t set) const { return {}; }

  /// As copy_engine::layer_events(): events of all loads.
  virtual std::vector<void*> layer_events() const { return {}; }

  /// The fences that begin() makes copies wait for; null (the default) for none.
  virtual std::shared_ptr<page_fences> fences() const { return nullptr; }
};

/// A copy engine that queues commands for a mover.
/// @param l1_pages, l2_pages Sizes of the pools, to check commands.
/// @param inline_copies Everything runs on the caller's thread.
std::unique_ptr<copy_engine> make_queued_copy_engine(uint32_t l1_pages, uint32_t l2_pages,
                                                     uint32_t layers,
                                                     std::unique_ptr<page_mover> mover,
                                                     bool inline_copies);

} // namespace hicache
