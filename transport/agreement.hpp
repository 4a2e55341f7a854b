#pragma once

#include "base/error.hpp"
#include "messages/ids.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace hicache {

/// How the ranks of an instance agree: element-wise minima over all ranks. The k-th reduction of a
/// channel is the same one on every rank, so the ranks need no other coordination.
///
/// One thread at a time may call a given object. What is said of threads under `progress` holds
/// unless an implementation says otherwise.
class agreement {
public:
  /// Receives the minima, in the order of the values offered, or the error that prevented them.
  using callback = std::function<void(result<std::vector<int64_t>>)>;

  agreement() = default;

  agreement(const agreement&) = delete;

  agreement& operator=(const agreement&) = delete;

  /// Does not wait for the other ranks. Reductions that are still outstanding here are answered
  /// with `stopping`.
  virtual ~agreement();

  /// This rank, from 0.
  virtual uint32_t rank() const noexcept = 0;

  /// Number of ranks.
  virtual uint32_t size() const noexcept = 0;

  /// Begins the element-wise minimum of `values` over all ranks. All ranks pass vectors of equal
  /// length.
  /// @pre no reduction of this channel is outstanding on this rank
  /// @param done Called exactly once. It may begin the channel's next reduction.
  virtual void reduce_min(reduction_channel channel, std::vector<int64_t> values, callback done)
    = 0;

  /// Moves the outstanding reductions forward and calls the callbacks of finished ones on this
  /// thread. Never blocks.
  /// @returns true while any reduction is outstanding on this rank
  virtual bool progress() = 0;
};

} // namespace hicache
