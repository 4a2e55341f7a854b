#pragma once

#include "backends/node_client.hpp"
#include "base/batch_copier.hpp"
#include "base/immovable.hpp"
#include "c_abi/batch.hpp"
#include "c_abi/block_device.hpp"
#include "c_abi/block_table.hpp"
#include "hicache/clock.hpp"
#include "hicache/error.hpp"
#include "hicache/ids.hpp"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace hicache {

/// Progress of a load by layers. Any thread.
class load_progress {
public:
  /// @param layers Number of layers, from 0, that are in the blocks of all pages of the load.
  void advance(uint32_t layers);

  /// Records that the copies of all layers are queued on a device.
  /// @param marks One per layer.
  void queue(std::vector<device_mark> marks);

  /// Waits until the copies are queued and returns the mark that a stream must wait for before it
  /// uses a layer.
  /// @returns null if the layer is there; not_found if the load ended without it; deadline_exceeded
  result<device_mark> mark(uint32_t layer, time_point deadline) const;

  /// Records that no further layer follows.
  void end();

  /// @returns not_found if the load ended without that layer; deadline_exceeded
  result<void> wait(uint32_t layer, time_point deadline) const;

private:
  mutable std::mutex mutex_; // Guards what follows.
  mutable std::condition_variable changed_;
  uint32_t layers_ = 0;
  std::vector<device_mark> marks_;
  bool is_over_ = false;
};

/// The blocks of an offload and how to copy them. Any thread.
class block_memory {
public:
  /// @param device Null if the CPU can reach the blocks.
  block_memory(block_table table, std::unique_ptr<block_device> device)
    : table_(std::move(table)), device_(std::move(device)) {}

  const block_table& table() const noexcept { return table_; }

  block_device* device() const noexcept { return device_.get(); }

  batch_copier& copier() noexcept { return copier_; }

  /// Registers a user: the memory must stay valid until leave().
  void enter();

  void leave();

  /// Waits until the memory has no users.
  void wait_for_users();

private:
  const block_table table_;
  const std::unique_ptr<block_device> device_;
  batch_copier copier_;
  std::mutex mutex_; // Guards what follows.
  std::condition_variable changed_;
  size_t users_ = 0;
};

/// The work of one offload batch. Uses the memory during its lifetime.
class block_copy : immovable {
public:
  /// @param parents One per page; only for a store.
  /// @param blocks Of all pages, page by page; already checked.
  /// @param progress Only for a load.
  block_copy(std::shared_ptr<block_memory> memory, std::vector<page_key> parents,
             std::vector<uint32_t> blocks, std::shared_ptr<load_progress> progress);

  /// Ends the wait for layers that did not arrive.
  ~block_copy();

  uint64_t page_bytes() const noexcept { return memory_->table().page_bytes(); }

  /// Copies the blocks of a batch's keys. Call it once.
  /// @returns one outcome per page
  std::vector<result<void>> run(const batch& what, node_client& node, const clock_source& clock);

private:
  std::span<const uint32_t> blocks_of(size_t page) const;

  std::vector<result<void>> store(const batch& what, node_client& node) const;

  std::vector<result<void>> load(const batch& what, node_client& node, const clock_source& clock);

  /// Verifies pages.
  /// @param positions Positions of the pages in the view; the view's size for a page it lacks.
  std::vector<result<void>> check(const leased_view& view, std::span<const size_t> positions,
                                  page_check done) const;

  /// Copies the pages whose outcome is good, until the lease of the view expires.
  void copy(const leased_view& view, std::span<const size_t> positions, const clock_source& clock,
            std::vector<result<void>>& outcome);

  /// Copies a layer of `pages`.
  void copy_layer(uint32_t layer, const leased_view& view, std::span<const size_t> positions,
                  std::span<const size_t> pages);

  /// Queues the copies of all layers of `pages` on the device.
  /// @returns one mark per layer
  result<std::vector<device_mark>> queue(const leased_view& view, std::span<const size_t> positions,
                                         std::span<const size_t> pages);

  const std::shared_ptr<block_memory> memory_;
  const std::vector<page_key> parents_;
  const std::vector<uint32_t> blocks_;
  const std::shared_ptr<load_progress> progress_;
};

} // namespace hicache
