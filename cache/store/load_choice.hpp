#pragma once

#include "base/limits.hpp"
#include "cache/step/time_estimate.hpp"
#include "hicache/clock.hpp"
#include "messages/storage_batch.hpp"

#include <array>
#include <cstdint>
#include <optional>

namespace hicache {

/// Whether to load pages from L3 or to compute them.
struct load_choice {
  /// Pages, from the first on, to load: those behind them take longer to load than to compute.
  uint64_t pages = 0;
  /// Estimates for all pages; 0: not known.
  duration load{0};
  duration compute{0};

  friend bool operator==(const load_choice&, const load_choice&) = default;
};

/// What a rank estimates of its L3 from its own traffic: look-ups, and reads by tier. Tiers are
/// read side by side. A value; single-threaded.
class load_estimates {
public:
  /// @param page_bytes Bytes of a page on this rank.
  explicit load_estimates(uint64_t page_bytes = 1) : page_bytes_(page_bytes) {}

  /// Forgets everything if L3 has other tiers than before.
  void set_tiers(const tier_names& names);

  /// Another L3 is attached.
  void forget() { *this = load_estimates{page_bytes_}; }

  void add_lookup(uint64_t pages, duration time);

  /// @param time From the decision to read until the last page of the tier had arrived.
  void add_read(size_t tier, uint64_t pages, duration time);

  /// Chooses how much of a prefix to load: as much as saves most time.
  /// @param tiers Of each page; may be null: all in the first.
  /// @param page_compute Time to compute a page; 0: not known.
  load_choice choose(uint64_t pages, const tier_list* tiers, duration page_compute) const;

  /// Whether it can pay to wait for a look-up of a prefix: it takes a twentieth of the time to
  /// compute the pages, or, with the fastest tier's reads, less than that time. False if a time is
  /// not known.
  bool is_lookup_worth(uint64_t pages, duration page_compute) const;

  /// Estimated time to read pages from the slowest measured tier; 0: none is measured.
  duration slowest(uint64_t pages) const;

private:
  std::optional<duration> read_time(size_t tier, uint64_t pages) const;

  uint64_t page_bytes_;
  tier_names names_;
  time_estimate lookups_;
  /// By tier, of bytes.
  std::array<time_estimate, limits::storage_tiers> reads_;
};

/// Times the reads of one fetch by tier. A value.
class read_timer {
public:
  void begin(time_point now) noexcept { begun_ = now; }

  /// Pages of a tier have arrived.
  void add(size_t tier, uint64_t pages, time_point now) noexcept;

  /// Adds what was measured.
  void report(load_estimates& to) const;

private:
  struct share {
    uint64_t pages = 0;
    time_point last{};
  };

  time_point begun_{};
  std::array<share, limits::storage_tiers> shares_{};
};

} // namespace hicache
