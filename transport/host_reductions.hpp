#pragma once

#include "base/unique_fd.hpp"
#include "base/unique_mapping.hpp"
#include "hicache/error.hpp"
#include "hicache/ids.hpp"
#include "transport/rank_process.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace hicache {

/// The merged contribution of some ranks to a reduction: the minima of their values.
struct reduction_offer {
  /// Smallest and largest number of values that a rank offered.
  uint32_t shortest = 0;
  uint32_t longest = 0;
  /// Empty unless both are equal and within rank_limits::values.
  std::vector<int64_t> values;

  void merge(uint32_t their_shortest, uint32_t their_longest, std::span<const int64_t> theirs);

  /// The result for the callbacks of the reduction.
  /// @returns configuration_mismatch if lengths differ, limit_reached if they exceed the bound
  result<std::vector<int64_t>> outcome() &&;
};

/// Reductions among the ranks of one host in shared memory: entering one and polling for its end
/// take no system call. The memory is a memfd and vanishes with the last rank. Move-only; used by
/// one thread per process. Trusts the other ranks.
class host_reductions {
public:
  /// Creates memory for up to `ranks` ranks; only the used part becomes resident.
  /// @returns io_failure with a sentence
  static result<host_reductions> create(uint32_t ranks);

  /// Maps memory created by another process of this host and user for equally many ranks.
  /// @param fd Value of fd() in that process.
  /// @returns io_failure with a sentence
  static result<host_reductions> attach(const rank_process& owner, int fd, uint32_t ranks);

  /// Makes the memory of this many ranks resident, so that a shortage fails here.
  /// @pre this process created the memory
  /// @returns io_failure with a sentence
  result<void> reserve(uint32_t ranks);

  /// -1 if another process created the memory.
  int fd() const noexcept { return fd_.get(); }

  /// Enters a reduction. The reductions of a channel are numbered 1, 2, 3, ...; a rank enters one
  /// after the previous one was published.
  /// @param place Index of this rank on the host, from 0.
  /// @param ranks Ranks of the host, the same in each call.
  /// @returns for the last rank that enters: the host's merged offer
  std::optional<reduction_offer> enter(reduction_channel channel, uint64_t number, uint32_t place,
                                       uint32_t ranks, std::span<const int64_t> values);

  bool has_entered(reduction_channel channel, uint64_t number, uint32_t place) const;

  /// Publishes the result to the ranks of this host. Called once, by the last rank that entered.
  void publish(reduction_channel channel, uint64_t number, const reduction_offer& minima);

  /// The result of the reduction, if published.
  std::optional<reduction_offer> published(reduction_channel channel, uint64_t number) const;

private:
  struct channel_head;
  struct slot;

  host_reductions(unique_fd fd, unique_mapping memory) noexcept
    : fd_(std::move(fd)), memory_(std::move(memory)) {}

  static result<host_reductions> map(unique_fd fd, size_t bytes);

  channel_head& head(reduction_channel channel) const;

  /// Slot 0 holds the minima, slot 1 + place belongs to a rank.
  slot& slot_at(reduction_channel channel, uint32_t index) const;

  unique_fd fd_;
  unique_mapping memory_;
};

} // namespace hicache
