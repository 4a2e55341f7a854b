#pragma once

#include "c_abi/batch.hpp"
#include "c_abi/block_copy.hpp"
#include "c_abi/block_device.hpp"
#include "c_abi/block_table.hpp"
#include "hicache.h"
#include "hicache/clock.hpp"
#include "hicache/error.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>

/// An offload of the C ABI. Any thread.
struct hc_offload {
  hc_offload(hc_client& of, hicache::block_table table,
             std::unique_ptr<hicache::block_device> device);

  const hicache::block_table& table() const noexcept { return memory_->table(); }

  /// Submits a batch of this offload.
  /// @param event Null, or the event that a store waits for.
  hicache::result<hc_ticket> submit(hicache::batch what, std::span<const hc_offload_page> pages,
                                    void* event);

  /// @returns unknown_id, and as load_progress::wait()
  hicache::result<void> wait(hc_ticket ticket, uint32_t layer, hicache::time_point deadline);

  /// @returns unsupported, unknown_id, io_failure, and as load_progress::mark()
  hicache::result<void> have_wait(hc_ticket ticket, uint32_t layer, void* stream,
                                  hicache::time_point deadline);

  /// As hc_offload_close says.
  void close() { memory_->wait_for_users(); }

  hc_client& client;

private:
  /// @returns unknown_id
  hicache::result<std::shared_ptr<hicache::load_progress>> load_of(hc_ticket ticket);

  const std::shared_ptr<hicache::block_memory> memory_;
  std::mutex mutex_; // Guards what follows.
  /// Progress of loads; may include loads whose completions were taken.
  std::map<hc_ticket, std::shared_ptr<hicache::load_progress>> loads_;
  /// Size of `loads_` that triggers its next cleanup.
  size_t most_loads_ = 64;
};
