#pragma once

#include "cache/tiers/tier_rules.hpp"
#include "hicache/clock.hpp"
#include "hicache/error.hpp"
#include "hicache/storage_backend.hpp"
#include "hicache/storage_policies.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace hicache {

/// A store in an order of stores.
struct store_tier {
  /// Opened, and not used before.
  std::unique_ptr<storage_backend> store;
  tier_rules rules;
};

struct tiered_options {
  /// Fastest first: 1 to 8. At least one takes all writes.
  std::vector<store_tier> tiers;
  /// A lookup asks all tiers at once, not each for what those above it lack.
  bool looks_up_in_parallel = false;
  /// Of each tier.
  breaker_policy breaker;
  /// Memory for objects on their way from one tier to another. What finds none is not copied.
  uint64_t copy_bytes = uint64_t{64} << 20;
  /// Time limit of a write of such copies.
  duration copy_time = std::chrono::seconds{10};
  /// Called from any thread when reads of a tier, or writes to it, begin to be left out or work
  /// again, with a sentence; may be empty.
  std::function<void(const std::string&)> notice;
};

/// A store whose tiers can be changed. One change at a time, on a thread that may block; batches
/// that are in progress keep the tiers that they began with, and miss in those that have left.
class tiered_store : public storage_backend {
public:
  /// Puts a tier into the order, suspended.
  /// @param at Its index; the number of tiers: the last one.
  /// @returns as make_tiered_backend, for the order with it
  virtual result<void> add_tier(store_tier tier, size_t at) = 0;

  /// Gives a tier no more calls, and waits until its calls in progress have ended.
  /// @returns as make_tiered_backend, for the order without it, or deadline_exceeded; the tier goes
  /// on then
  virtual result<void> suspend_tier(size_t at, std::chrono::nanoseconds time) = 0;

  /// Uses a suspended tier.
  virtual void resume_tier(size_t at) = 0;

  /// Takes a suspended tier out of the order and closes it.
  /// @returns as close
  virtual bool remove_tier(size_t at, std::chrono::nanoseconds grace) = 0;

  /// Whether another tier than that takes all writes and is shared, as capabilities() may say.
  virtual bool is_shared_without(size_t at) = 0;
};

/// A store made of stores. An object is read from the first tier that has it, and if it fails there
/// from the next one; tiers are read side by side. Writes go to the tiers whose rules say so, side
/// by side, and succeed if one of them stored the object. What was read is then copied to other
/// tiers by their rules, in the background, from memory of the store.
///
/// It lists each object once, of the first tier that has it; a list of which a tier has failed goes
/// on with the next ones, and fails at its end. It tells of an evicted object, without its bytes,
/// when no tier has it any more.
///
/// A tier whose calls fail is left out for a while (`store_breaker`): its objects are misses there,
/// and the other tiers go on. Its name is "tiered"; its health sums up the tiers'. Its capabilities
/// are those of the tiers that it begins with.
///
/// @param clock Must outlive the result.
/// @returns invalid_argument if there are too few or too many tiers, none takes all writes, or one
/// takes what the tier above evicts and that one does not tell
result<std::unique_ptr<tiered_store>> make_tiered_backend(tiered_options options,
                                                          const clock_source& clock);

} // namespace hicache
