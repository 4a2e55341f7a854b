#pragma once

#include "cache/step/time_estimate.hpp"
#include "hicache/clock.hpp"
#include "hicache/ids.hpp"

#include <cstdint>
#include <map>

namespace hicache {

/// Measures how fast an engine computes prompts: from the allocation of a request's pages to its
/// next insert, and from there to the one after it while pages are left. Attention makes tokens
/// take longer the more come before them, so the estimate is a line over the position. Inserts that
/// include decoded tokens do not count. A value; single-threaded.
class prefill_watch {
public:
  /// @param tokens_per_second The engine's own statement; 0: measure.
  explicit prefill_watch(double tokens_per_second = 0);

  /// A request has pages to compute in.
  /// @param cached Tokens of it that need not be computed.
  /// @param room Tokens that it has pages for, cached ones included.
  void allocated(request_id request, uint64_t cached, uint64_t room, time_point now);

  /// A request has inserted its first `tokens` tokens, of a prompt of `prompt`.
  void inserted(request_id request, uint64_t tokens, uint64_t prompt, time_point now);

  void released(request_id request) { computing_.erase(request); }

  /// Time to compute the token at a position, in nanoseconds; 0: not known.
  double token_ns(double position = 0) const;

  /// Time to compute one of `pages` pages behind `first` others, on average; 0: not known.
  duration page_time(uint64_t first, uint64_t pages, uint32_t page_size) const;

private:
  struct computation {
    uint64_t from = 0;
    uint64_t room = 0;
    time_point begun{};
  };

  double stated_ns_;
  std::map<request_id, computation> computing_;
  /// Time of one token over the position in the middle of those that a sample is of.
  time_estimate measured_;
};

} // namespace hicache
