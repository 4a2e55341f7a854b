#pragma once

#include "hicache/ids.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace hicache {

/// What a member knows of what one shard of the index has heard of it: where the block report
/// stands, and which keys the shard has to be told of again. So a member that was lost to a shard
/// and is back resumes instead of reporting all pages. Pure: the caller sends the messages. Not
/// thread-safe.
class mount_progress {
public:
  /// The member has asked the shard to mount it, and has not lost it since.
  bool is_mounted() const noexcept { return is_mounted_; }

  /// The block report is under way.
  bool is_reporting() const noexcept { return is_reporting_; }

  /// The shard is told at once what happens.
  bool is_told() const noexcept { return is_mounted_ && !is_reporting_; }

  uint64_t epoch() const noexcept { return epoch_; }

  /// The member asks to be mounted under a new epoch, and reports when that is confirmed.
  /// @returns the epoch that it resumes; 0: none
  uint64_t mount(uint64_t epoch) noexcept;

  /// The shard has mounted the member; `resumed` says whether it knows what it was told before.
  /// @returns false, and changes nothing, if the shard was lost or asked again since
  bool confirm(uint64_t epoch, bool resumed) noexcept;

  /// Where the report goes on, in the member's own places.
  uint64_t reported_to() const noexcept { return reported_to_; }

  /// The shard has taken the report up to there.
  /// @returns whether the report goes on: the shard was neither lost nor asked again since
  bool advance(uint64_t epoch, uint64_t reported_to) noexcept;

  /// The report has come to its end: what is published from now on is told at once.
  void complete() noexcept;

  /// The shard may not have heard of a change to these keys. More than limits::unsettled_keys are
  /// not noted while it is lost: then it will hear of everything.
  void unsettle(std::span<const page_key> keys);

  /// The keys that the shard has to be told of again, each once, in order. @pre is_told()
  std::vector<page_key> take_unsettled();

  /// The shard does not answer, or the connection has ended.
  void lose() noexcept;

private:
  uint64_t epoch_ = 0;
  bool is_mounted_ = false;
  bool is_reporting_ = false;
  /// The last epoch that the shard confirmed, if it may resume; else 0.
  uint64_t confirmed_epoch_ = 0;
  /// Under that epoch, the shard knows of the pages up to this place.
  uint64_t reported_to_ = 0;
  /// But for these, which changed behind the report's back or while the shard was lost.
  std::vector<page_key> unsettled_;
};

} // namespace hicache
