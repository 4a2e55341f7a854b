#pragma once

#include "hicache/error.hpp"
#include "hicache/operations.hpp"
#include "messages/storage_batch.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace hicache {

/// The pages of one fetch from L3: which are read next, which have arrived, and which are free
/// again. Values in, values out: the owner carries the reads. The prefix that arrived without a gap
/// is the tree's, all other pages go back to the reserve once the store does not touch them any
/// more.
class fetch_reads {
public:
  /// Pages [first, first + count) of the fetch.
  struct part {
    uint64_t first = 0;
    uint64_t count = 0;
  };

  /// @param pages Where to read to, in the order of the keys.
  void begin(std::vector<page_index> pages);

  /// @returns what the owner reads now; nothing if enough reads are under way, or if no more are
  /// wanted
  std::optional<part> next();

  /// What a read that ended leaves.
  struct outcome {
    uint64_t read = 0;
    uint64_t failures = 0;
    /// Free from now on.
    std::vector<page_index> free;
    /// The store may still write to these: it has not finished the read.
    std::vector<page_index> quarantined;
  };

  /// Takes the end of a read.
  outcome finish(const part& sent, const storage_outcome& result);

  /// What a fetch that ends has.
  struct answer {
    page_list arrived;
    /// Pages that a read under way has brought already.
    uint64_t read = 0;
    std::vector<page_index> free;
  };

  /// Ends the fetch with what has arrived. Once.
  answer end();

  /// Notes why no more arrives: the reason that comes first in `give_up` counts.
  void stop(miss_reason reason) noexcept { why_ = std::min(why_, reason); }

  miss_reason why() const noexcept { return why_; }

  bool is_ended() const noexcept { return is_ended_; }

  uint64_t reads_in_flight() const noexcept { return reads_in_flight_; }

  const page_list& pages() const noexcept { return pages_; }

  const std::shared_ptr<read_marks>& marks() const noexcept { return marks_; }

private:
  /// pending: not read, or its read is under way; quarantined: the owner of the quarantine has it.
  enum class page_state : uint8_t { pending, read, failed, quarantined };

  page_list pages_ = std::make_shared<const std::vector<page_index>>();
  std::shared_ptr<read_marks> marks_;
  /// Of each page.
  std::vector<page_state> states_;
  /// Pages asked for so far.
  uint64_t asked_ = 0;
  uint64_t reads_in_flight_ = 0;
  miss_reason why_ = miss_reason::none;
  bool is_ended_ = false;
};

/// Why a page whose read ended so was not there.
miss_reason reason_of(ec code);

/// Whether a page that was not read is a failure of its own. One that left the store is an ordinary
/// miss; a store that is left out is reported elsewhere.
bool is_failed_read(ec code);

} // namespace hicache
