#pragma once

#include "base/error.hpp"
#include "messages/ids.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace hicache {

/// How the ranks of an instance agree: element-wise minima over all ranks. The k-th reduction of a
/// channel is the same one on every rank, so the ranks need no other coordination.
///
/// One thread at a time may call a given object. Its callbacks run inside its functions only, on
/// the caller's thread.
class agreement {
public:
  /// Receives the minima, in the order of the values offered, or the error that prevented them.
  using callback = std::function<void(result<std::vector<int64_t>>)>;

  /// Says that `progress` has something to do; see on_news.
  using news_callback = std::function<void()>;

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
  /// @param done Called exactly once, by this function, by `progress` or by the destructor. It may
  /// begin the channel's next reduction.
  virtual void reduce_min(reduction_channel channel, std::vector<int64_t> values, callback done)
    = 0;

  /// Moves the outstanding reductions forward and calls the callbacks of finished ones. Never
  /// blocks.
  /// @returns true if it has to be called again, although there was no news, for a reduction that
  /// is outstanding on this rank to end
  virtual bool progress() = 0;

  /// From now on calls `news` when another rank in this process ended a reduction of this one,
  /// which `progress` will find. On any thread, also while this object is being called; `news` must
  /// not call it.
  virtual void on_news(news_callback news) = 0;

  /// Which ranks have not entered the outstanding reduction of a channel, as far as this rank can
  /// tell, for people: "rank 2 (process 1234) is stopped; rank 3 (process 1235) is gone".
  virtual std::string missing(reduction_channel channel) = 0;
};

} // namespace hicache
