#pragma once

#include "base/unique_fd.hpp"
#include "hicache/error.hpp"
#include "hicache/ids.hpp"
#include "transport/rank_process.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace hicache {

/// What some ranks bring to a reduction: the minima of their values.
struct reduction_offer {
  /// Values that a rank offered, the fewest and the most.
  uint32_t shortest = 0;
  uint32_t longest = 0;
  /// Empty unless these are equal and within rank_limits::values.
  std::vector<int64_t> values;

  /// Adds what other ranks bring.
  void merge(uint32_t their_shortest, uint32_t their_longest, std::span<const int64_t> theirs);

  /// What the callbacks of a reduction get that ended with this.
  /// @returns configuration_mismatch if lengths differ, limit_reached if they exceed the bound
  result<std::vector<int64_t>> outcome() &&;
};

/// The reductions of the ranks of one host, in memory that they share: entering one and looking for
/// its end take no system call. The memory is a memfd, so nothing is left of it when the last rank
/// is gone. Move-only; one thread of each process uses it. It trusts the other ranks.
class host_reductions {
public:
  /// Makes memory for up to `ranks` ranks; only what is used becomes resident.
  /// @returns io_failure with a sentence
  static result<host_reductions> create(uint32_t ranks);

  /// Maps what another process of this host and user has made for equally many ranks.
  /// @param fd What fd() is in that process.
  /// @returns io_failure with a sentence
  static result<host_reductions> attach(const rank_process& owner, int fd, uint32_t ranks);

  host_reductions(host_reductions&& other) noexcept;

  host_reductions& operator=(host_reductions&& other) noexcept;

  ~host_reductions();

  /// Makes the memory of this many ranks resident, so that a lack of it shows now.
  /// @pre this process has created the memory
  /// @returns io_failure with a sentence
  result<void> reserve(uint32_t ranks);

  /// -1 if another process has created the memory.
  int fd() const noexcept { return fd_.get(); }

  /// Enters a reduction. Reductions of a channel have the numbers 1, 2, 3, ...; a rank enters one
  /// after the one before was published.
  /// @param place This rank among those of the host, from 0.
  /// @param ranks Ranks of the host, the same in each call.
  /// @returns what the host offers, to the last rank that enters
  std::optional<reduction_offer> enter(reduction_channel channel, uint64_t number, uint32_t place,
                                       uint32_t ranks, std::span<const int64_t> values);

  bool has_entered(reduction_channel channel, uint64_t number, uint32_t place) const;

  /// Ends a reduction for the ranks of this host. The last one that entered may call it, once.
  void publish(reduction_channel channel, uint64_t number, const reduction_offer& minima);

  /// What the reduction ended with, if it has.
  std::optional<reduction_offer> published(reduction_channel channel, uint64_t number) const;

private:
  struct channel_head;
  struct slot;

  host_reductions(unique_fd fd, std::byte* memory, size_t bytes) noexcept
    : fd_(std::move(fd)), memory_(memory), bytes_(bytes) {}

  static result<host_reductions> map(unique_fd fd, size_t bytes);

  channel_head& head(reduction_channel channel) const;

  /// Slot 0 is that of the minima; slot 1 + place is a rank's.
  slot& slot_at(reduction_channel channel, uint32_t index) const;

  unique_fd fd_;
  std::byte* memory_ = nullptr;
  size_t bytes_ = 0;
};

} // namespace hicache
