#pragma once

#include "hicache/policies.hpp"

#include <chrono>
#include <cstdint>
#include <string>

/// L3 at run time: what it is called, how it is read, and how it comes and goes. Plain values.
namespace hicache {

/// How L3 is read. The defaults are SGLang's.
struct prefetch_settings {
  prefetch_policy policy = prefetch_policy::wait_complete;
  /// A prefetch that would bring fewer tokens is not worth a query.
  uint32_t threshold_tokens = 256;
  /// Policy timeout: base + per_ki_token * tokens / 1024, at most `timeout_max`.
  std::chrono::nanoseconds timeout_base = std::chrono::seconds{1};
  std::chrono::nanoseconds timeout_per_ki_token = std::chrono::milliseconds{250};
  std::chrono::nanoseconds timeout_max = std::chrono::seconds{30};

  friend bool operator==(const prefetch_settings&, const prefetch_settings&) = default;
};

/// An L3 backend as people name it.
struct storage_attachment {
  /// "file", "cluster", "memory"; empty: none.
  std::string backend;
  /// JSON text as of --hicache-storage-backend-extra-config; may be empty.
  std::string extra_config;
  /// As of --hicache-storage-prefetch-policy; empty in a request: leave it as it is.
  std::string prefetch_policy;

  friend bool operator==(const storage_attachment&, const storage_attachment&) = default;
};

/// A change of L3. Every rank's tree applies it before the same step.
struct storage_change {
  enum class action : uint8_t {
    /// From now on pages are named, backed up and prefetched.
    attach,
    /// Nothing new is begun, and what is under way is ended. Can be taken back by `attach`.
    detach,
    /// After `detach`, when nothing reads or writes the pages set aside for prefetches any more:
    /// they go back to L2.
    release,
  };

  action what = action::attach;
  /// attach: the name of the backend, and how it is read.
  std::string backend{};
  prefetch_settings prefetch{};
  /// attach: true if the store offers pages of L2 where they lie, so that it has none that L2 lost.
  bool exports_l2 = false;

  friend bool operator==(const storage_change&, const storage_change&) = default;
};

/// How a store is, without asking it anything that may block.
struct storage_status {
  /// What goes to the store: reads or writes.
  struct direction {
    /// Names of `breaker_state` and `breaker_cause`.
    std::string state = "closed";
    std::string cause = "none";
    /// Since when, in seconds since 1970; 0: from the start.
    int64_t since_s = 0;
    uint64_t openings = 0;

    friend bool operator==(const direction&, const direction&) = default;
  };

  std::string backend;
  /// As in store_capabilities.
  bool orders_writes = false;
  direction reads;
  direction writes;
  /// Calls that have passed their deadline and not returned, and L2 pages that they keep.
  uint64_t stuck_calls = 0;
  uint64_t quarantined_pages = 0;

  bool is_up() const { return reads.state == "closed" && writes.state == "closed"; }

  friend bool operator==(const storage_status&, const storage_status&) = default;
};

} // namespace hicache
