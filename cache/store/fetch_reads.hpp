#pragma once

#include "hicache/error.hpp"
#include "hicache/operations.hpp"
#include "hicache/storage_policies.hpp"
#include "messages/storage_batch.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace hicache {

/// The pages of one fetch from L3: which are read next, have arrived, or are free again. Values in,
/// values out: the owner performs the reads. The prefix that arrived without a gap goes to the
/// tree; other pages return to the staging pool once the store no longer accesses them.
class fetch_reads {
public:
  /// Pages [first, first + count) of the fetch.
  struct part {
    uint64_t first = 0;
    uint64_t count = 0;
  };

  /// @param pages Destination pages, in the order of the keys.
  void begin(std::vector<page_index> pages);

  /// @returns the part to read now; nothing if enough reads are in flight or none is left
  std::optional<part> next(const storage_traffic& traffic = {});

  /// Result of a finished read.
  struct outcome {
    uint64_t read = 0;
    uint64_t failures = 0;
    /// Free from now on.
    std::vector<page_index> free;
    /// The store has not finished the read and may still write to these.
    std::vector<page_index> quarantined;
  };

  /// Handles the end of a read.
  outcome finish(const part& sent, const storage_outcome& result);

  /// Final result of a fetch.
  struct answer {
    page_list arrived;
    /// Pages already read by a read that is still in flight.
    uint64_t read = 0;
    std::vector<page_index> free;
  };

  /// Ends the fetch with what has arrived. Call once.
  answer end();

  /// Stops further reads; the miss reason that comes first in the enumeration wins.
  void stop(miss_reason reason) noexcept { why_ = std::min(why_, reason); }

  miss_reason why() const noexcept { return why_; }

  bool is_ended() const noexcept { return is_ended_; }

  uint64_t reads_in_flight() const noexcept { return reads_in_flight_; }

  const page_list& pages() const noexcept { return pages_; }

  const std::shared_ptr<read_marks>& marks() const noexcept { return marks_; }

private:
  /// pending: not read, or its read is in flight; quarantined: handed over to the quarantine.
  enum class page_state : uint8_t { pending, read, failed, quarantined };

  page_list pages_ = std::make_shared<const std::vector<page_index>>();
  std::shared_ptr<read_marks> marks_;
  /// Per page.
  std::vector<page_state> states_;
  /// Pages requested so far.
  uint64_t asked_ = 0;
  uint64_t reads_in_flight_ = 0;
  miss_reason why_ = miss_reason::none;
  bool is_ended_ = false;
};

/// The miss reason of a page whose read ended with this code.
miss_reason reason_of(ec code);

/// Whether a failed read counts as a failure. A page that left the store is an ordinary miss, and
/// an unavailable store is reported elsewhere.
bool is_failed_read(ec code);

} // namespace hicache
