#pragma once

#include "backends/node_client.hpp"
#include "base/batch_copier.hpp"
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

/// How many layers of a load are in their blocks. Any thread.
class load_progress {
public:
  /// @param layers Those from 0 on that all pages of the load have.
  void advance(uint32_t layers);

  /// The copies of all layers are queued on a device.
  /// @param marks One for each layer.
  void queue(std::vector<device_mark> marks);

  /// What a stream has to wait for until a layer is there, once its copies are queued.
  /// @returns null if it is there; not_found; deadline_exceeded
  result<device_mark> mark(uint32_t layer, time_point deadline) const;

  /// No layer follows.
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

/// The blocks that the calls of an offload copy. Any thread.
class block_memory {
public:
  /// @param device Null if the CPU can reach the blocks.
  block_memory(block_table table, std::unique_ptr<block_device> device)
    : table_(std::move(table)), device_(std::move(device)) {}

  const block_table& table() const noexcept { return table_; }

  block_device* device() const noexcept { return device_.get(); }

  batch_copier& copier() noexcept { return copier_; }

  /// From now on the memory must stay, until leave().
  void enter();

  void leave();

  /// Returns when nobody uses the memory any more.
  void wait_for_users();

private:
  const block_table table_;
  const std::unique_ptr<block_device> device_;
  batch_copier copier_;
  std::mutex mutex_; // Guards what follows.
  std::condition_variable changed_;
  size_t users_ = 0;
};

/// What a batch of an offload does. Uses the memory as long as it lives.
class block_copy {
public:
  /// @param parents Of each page; for a store.
  /// @param blocks Of all pages, page by page. They were checked.
  /// @param progress For a load.
  block_copy(std::shared_ptr<block_memory> memory, std::vector<page_key> parents,
             std::vector<uint32_t> blocks, std::shared_ptr<load_progress> progress);

  block_copy(const block_copy&) = delete;

  block_copy& operator=(const block_copy&) = delete;

  /// Whoever waits for a layer that did not come is told.
  ~block_copy();

  uint64_t page_bytes() const noexcept { return memory_->table().page_bytes(); }

  /// Copies the blocks of a batch's keys. Once.
  /// @returns an outcome for each page
  std::vector<result<void>> run(const batch& what, node_client& node, const clock_source& clock);

private:
  std::span<const uint32_t> blocks_of(size_t page) const;

  std::vector<result<void>> store(const batch& what, node_client& node) const;

  std::vector<result<void>> load(const batch& what, node_client& node, const clock_source& clock);

  /// Verifies pages.
  /// @param positions Those of the pages in the view; its size for one that it does not have.
  std::vector<result<void>> check(const leased_view& view, std::span<const size_t> positions,
                                  page_check done) const;

  /// Copies those pages whose outcome is good, as long as the view lasts.
  void copy(const leased_view& view, std::span<const size_t> positions, const clock_source& clock,
            std::vector<result<void>>& outcome);

  /// Copies a layer of these pages.
  void copy_layer(uint32_t layer, const leased_view& view, std::span<const size_t> positions,
                  std::span<const size_t> pages);

  /// Queues the copies of all layers of these pages on the device.
  /// @returns a mark for each layer
  result<std::vector<device_mark>> queue(const leased_view& view, std::span<const size_t> positions,
                                         std::span<const size_t> pages);

  const std::shared_ptr<block_memory> memory_;
  const std::vector<page_key> parents_;
  const std::vector<uint32_t> blocks_;
  const std::shared_ptr<load_progress> progress_;
};

} // namespace hicache
