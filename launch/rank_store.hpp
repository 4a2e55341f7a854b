#pragma once

#include "actors/attachment.hpp"
#include "base/clock.hpp"
#include "cache/geometry.hpp"
#include "launch/cluster_member.hpp"
#include "launch/rank_config.hpp"

#include <caf/actor_system.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

namespace hicache {

/// L3 as one rank has it: opens the backend that the settings name, with its actor, and counts over
/// all that were open. Any thread.
class rank_store {
public:
  /// @param system Networking loaded if the backend `cluster` is to be opened. All references must
  /// outlive the store, and so must L2.
  /// @param wrap Around each backend; may be empty.
  rank_store(caf::actor_system& system, const rank_config& settings, uint32_t rank, uint32_t ranks,
             const pool_geometry& l2, std::byte* l2_memory, const clock_source& clock,
             backend_wrapper wrap = {});

  /// Ends what is open.
  ~rank_store();

  rank_store(const rank_store&) = delete;

  rank_store& operator=(const rank_store&) = delete;

  /// Opens what the settings name, with the backend of `wanted`. Blocks.
  /// @pre nothing is open
  /// @returns invalid_argument with a sentence that names the setting, or why it cannot be opened
  result<open_store> open(const storage_attachment& wanted);

  /// What L3 did so far. Blocks.
  rank_counters counters();

  /// Bytes that this rank lends to the cluster now.
  uint64_t lent_bytes();

private:
  result<std::unique_ptr<storage_backend>> open_backend(const rank_config& settings);

  rank_counters open_counters();

  void close();

  caf::actor_system& system_;
  const rank_config settings_;
  const uint32_t rank_;
  const uint32_t ranks_;
  const pool_geometry& l2_;
  std::byte* const l2_memory_;
  const clock_source& clock_;
  const backend_wrapper wrap_;
  std::mutex mutex_; // Guards what follows.
  std::unique_ptr<cluster_member> member_;
  storage_actor actor_;
  /// Of stores that are closed.
  rank_counters closed_;
};

} // namespace hicache
