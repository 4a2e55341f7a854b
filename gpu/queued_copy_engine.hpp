#pragma once

#include "gpu/device.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace hicache {

/// Which way pages go.
enum class copy_direction : uint8_t { store, load };

/// Submissions that may be in flight in one direction; each has its own set of events and page
/// lists. Three, so that one can be queued while one runs and one is being reported.
inline constexpr uint32_t copy_sets = 3;

/// The part of a copy engine that differs between devices: runs submissions. Pages were checked
/// before. For each direction, one thread calls begin() and one (perhaps the same) calls
/// finish_layer(), in the same order but for what is tried again.
class page_mover {
public:
  page_mover() = default;
  page_mover(const page_mover&) = delete;
  page_mover& operator=(const page_mover&) = delete;
  virtual ~page_mover() = default;

  /// Queues the copy of l1_pages[i] and l2_pages[i], all layers, and returns without waiting
  /// for it.
  /// @returns device_lost if the device takes no copies any more, else copy_failed; as does
  /// finish_layer().
  /// @param set From 0 to copy_sets - 1; nothing of this direction is in flight in it.
  /// @pre the lists are equally long and not empty; they live until the submission is finished
  virtual result<void> begin(copy_direction direction, uint32_t set,
                             std::span<const page_index> l1_pages,
                             std::span<const page_index> l2_pages)
    = 0;

  /// Returns when layer `layer` of a submission has arrived. Called with 0 to layers - 1 for a
  /// load, with layers - 1 alone for a store (then all layers have arrived). Not called again after
  /// a failure: then nothing of the submission writes to a page any more.
  virtual result<void> finish_layer(copy_direction direction, uint32_t set, uint32_t layer) = 0;

  /// The native events of the loads in `set`, one for each layer, or none (the default).
  virtual std::vector<void*> layer_events(uint32_t set) const;

  /// As copy_engine::layer_events(): those of all loads.
  virtual std::vector<void*> layer_events() const;

  /// What begin() has the copies wait for; null (the default) for nothing.
  virtual std::shared_ptr<page_fences> fences() const;
};

/// A copy engine that queues commands in front of a mover.
/// @param l1_pages, l2_pages Pages of the pools, to check commands by.
/// @param inline_copies Everything happens on the caller's thread.
std::unique_ptr<copy_engine> make_queued_copy_engine(uint32_t l1_pages, uint32_t l2_pages,
                                                     uint32_t layers,
                                                     std::unique_ptr<page_mover> mover,
                                                     bool inline_copies);

} // namespace hicache
