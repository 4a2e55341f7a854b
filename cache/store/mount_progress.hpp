#pragma once

#include "hicache/ids.hpp"

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace hicache {

/// What a member knows of one index shard's state: the progress of the block report, and the keys
/// to announce again. A member that a shard lost thus resumes instead of reporting all pages. Pure:
/// the caller sends the messages. Not thread-safe.
class mount_progress {
public:
  /// The member has requested a mount and has not lost the shard since.
  bool is_mounted() const noexcept { return is_mounted_; }

  /// The block report is in progress.
  bool is_reporting() const noexcept { return is_reporting_; }

  /// Changes are announced to the shard immediately.
  bool is_told() const noexcept { return is_mounted_ && !is_reporting_; }

  uint64_t epoch() const noexcept { return epoch_; }

  /// The member requests a mount under a new epoch, and reports once it is confirmed.
  /// @returns the epoch that it resumes; 0: none
  uint64_t mount(uint64_t epoch) noexcept;

  /// The shard has mounted the member; `resumed`: it still knows the earlier announcements.
  /// @returns false, without any change, if the shard was lost or mounted again since
  bool confirm(uint64_t epoch, bool resumed) noexcept;

  /// Where the report continues, in the member's own places.
  uint64_t reported_to() const noexcept { return reported_to_; }

  /// The shard has taken the report up to there.
  /// @returns whether the report continues: the shard was neither lost nor mounted again since
  bool advance(uint64_t epoch, uint64_t reported_to) noexcept;

  /// The pages from `place` on have to be reported, again if they were.
  /// @returns whether the caller has to go on with the report; otherwise a confirmation or an
  /// advance under way does
  bool rewind(uint64_t place) noexcept;

  /// The report is complete: from now on changes are announced immediately.
  void complete() noexcept;

  /// The shard may have missed a change to these keys. Beyond limits::unsettled_keys while it is
  /// lost, they are not recorded; the next report covers all pages.
  void unsettle(std::span<const page_key> keys);

  /// The keys to announce again, each once, in order.
  /// @pre is_told()
  std::vector<page_key> take_unsettled();

  /// The next mount resumes nothing: the shard drops what it knows of the member.
  void forget() noexcept { confirmed_epoch_ = 0; }

  /// The shard does not answer, or the connection has ended.
  void lose() noexcept;

private:
  uint64_t take_rewind() noexcept;

  uint64_t epoch_ = 0;
  bool is_mounted_ = false;
  bool is_reporting_ = false;
  /// The last epoch confirmed by the shard if the member may resume it, else 0.
  uint64_t confirmed_epoch_ = 0;
  /// Under that epoch, the shard knows the pages up to this place,
  uint64_t reported_to_ = 0;
  /// The place of a rewind during the report.
  uint64_t rewound_to_ = std::numeric_limits<uint64_t>::max();
  /// except these, which changed behind the report or while the shard was lost.
  std::vector<page_key> unsettled_;
};

} // namespace hicache
