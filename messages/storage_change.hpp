#pragma once

#include "hicache/policies.hpp"

#include <chrono>
#include <cstdint>
#include <string>

/// L3 at run time: its name, its prefetch settings, and its attachment and detachment. Plain
/// values.
namespace hicache {

/// How pages are prefetched from L3. The defaults are SGLang's.
struct prefetch_settings {
  prefetch_policy policy = prefetch_policy::wait_complete;
  /// Shorter prefetches are not worth a query.
  uint32_t threshold_tokens = 256;
  /// Policy timeout: base + per_ki_token * tokens / 1024, at most `timeout_max`.
  std::chrono::nanoseconds timeout_base = std::chrono::seconds{1};
  std::chrono::nanoseconds timeout_per_ki_token = std::chrono::milliseconds{250};
  std::chrono::nanoseconds timeout_max = std::chrono::seconds{30};

  friend bool operator==(const prefetch_settings&, const prefetch_settings&) = default;
};

/// An L3 backend as configured by users.
struct storage_attachment {
  /// "file", "cluster", "memory"; empty: none.
  std::string backend;
  /// JSON as in --hicache-storage-backend-extra-config; may be empty.
  std::string extra_config;
  /// As in --hicache-storage-prefetch-policy; empty in a request: unchanged.
  std::string prefetch_policy;

  friend bool operator==(const storage_attachment&, const storage_attachment&) = default;
};

/// A change of L3. Every rank's tree applies it before the same step.
struct storage_change {
  enum class action : uint8_t {
    /// Pages are named, backed up and prefetched from now on.
    attach,
    /// No new work begins, and running work is ended. `attach` undoes it.
    detach,
    /// After `detach`, once nothing reads or writes the prefetchers' staging pages: returns them to
    /// L2.
    release,
  };

  action what = action::attach;
  /// attach: the backend's name and its prefetch settings.
  std::string backend{};
  prefetch_settings prefetch{};
  /// attach: true if the store exports pages of L2 in place, so that it loses pages that L2 loses.
  bool exports_l2 = false;

  friend bool operator==(const storage_change&, const storage_change&) = default;
};

/// State of a store, available without a blocking call.
struct storage_status {
  /// State of reads from or writes to the store.
  struct direction {
    /// Names of `breaker_state` and `breaker_cause`.
    std::string state = "closed";
    std::string cause = "none";
    /// Time of the last state change, in seconds since 1970; 0: unchanged since the start.
    int64_t since_s = 0;
    uint64_t openings = 0;

    friend bool operator==(const direction&, const direction&) = default;
  };

  std::string backend;
  /// As in store_capabilities.
  bool orders_writes = false;
  direction reads;
  direction writes;
  /// Calls past their deadline that have not returned, and the L2 pages they keep.
  uint64_t stuck_calls = 0;
  uint64_t quarantined_pages = 0;

  bool is_up() const { return reads.state == "closed" && writes.state == "closed"; }

  friend bool operator==(const storage_status&, const storage_status&) = default;
};

} // namespace hicache
