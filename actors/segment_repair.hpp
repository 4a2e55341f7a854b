#pragma once

#include "actors/offered_pages.hpp"
#include "actors/segment_mounts.hpp"
#include "actors/spreader.hpp"
#include "backends/cluster/member_figures.hpp"
#include "cache/store/repair_queue.hpp"
#include "cache/store/segment_table.hpp"
#include "hicache/clock.hpp"
#include "messages/interfaces.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace hicache {

struct segment_repair_options {
  repair_policy policy;
  /// Copies wanted of each exported page.
  uint8_t copies = 1;
  /// Not null.
  std::shared_ptr<member_figures> figures;
  /// Must outlive the repair.
  const clock_source* clock = nullptr;
};

/// Replaces copies of a segment's pages that other members have lost. A page on disk is no copy,
/// and gets none. Part of the segment actor.
class segment_repair {
public:
  /// @param self, table, offered, mounts Must outlive this.
  segment_repair(segment_actor::pointer self, segment_repair_options options,
                 const segment_table& table, const offered_pages& offered,
                 const segment_mounts& mounts);

  /// Notes pages that lost copies on other members.
  void note(const std::vector<page_key>& keys);

  /// Starts replacing lost copies if that is due.
  void run();

private:
  /// Ends a repair; pages in `lacking` are retried later.
  void end(const std::vector<page_key>& tried, const std::vector<page_key>& lacking);

  /// The request to copy a page; nullopt unless it should have more than one copy.
  std::optional<copied_page> replicated(const page_key& key, time_point now) const;

  segment_actor::pointer self_;
  segment_repair_options options_;
  const segment_table& table_;
  const offered_pages& offered_;
  const segment_mounts& mounts_;
  /// Pages that lost copies on other members.
  repair_queue losses_;
  bool is_running_ = false;
};

/// Settings of a spreader for a member's pages; `pages` is empty.
spreader_options spread_settings(const segment_mounts_options& member);

} // namespace hicache
