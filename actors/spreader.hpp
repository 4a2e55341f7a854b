#pragma once

#include "backends/cluster/index_link.hpp"
#include "cache/store/copy_plan.hpp"
#include "cache/store/segment_table.hpp"
#include "messages/interfaces.hpp"

#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

namespace hicache {

/// Progress of a spreader. Written by it alone.
struct spread_figures {
  std::atomic<uint64_t> pages = 0;
  std::atomic<uint64_t> tried = 0;
  /// Pages of `tried` that other members have now.
  std::atomic<uint64_t> copied = 0;
};

/// The pages to copy, and how to reach the other members.
struct spreader_options {
  /// The member that has the pages.
  copy_source source;
  std::function<index_view_ptr()> index;
  /// Resolves a member to its actor.
  std::function<member_actor(const member_info&)> reach;
  /// Timeout of one index request.
  caf::timespan timeout{};
  /// Limit on the bytes copied per second; 0: unlimited.
  uint64_t bytes_per_second = 0;
  /// Parents first.
  std::vector<copied_page> pages;
  /// Not null.
  std::shared_ptr<spread_figures> figures;
};

/// @relates spreader
struct spreader_state {
  static inline constexpr auto name = "spreader";

  explicit spreader_state(spreader_actor::pointer owner) : self(owner) {}

  caf::result<page_totals> spread();

  // -- internal steps ---------------------------------------------------------

  /// Requests the next part of the member list; starts after the last.
  void list_members(const index_actor& shard, uint64_t from);

  /// Starts the next batch, or finishes.
  void next_batch();

  void find_holders();

  /// Records a shard's reply for the pages at these positions of the batch.
  void enter(std::span<const size_t> positions, const placements& found);

  /// Sends the requests of the plan's next round; ends the batch if there are none.
  void next_round();

  void ask(uint64_t member, const std::vector<size_t>& positions);

  /// Records that a member copied these pages, except the keys left out.
  void take_answer(uint64_t member, const std::vector<size_t>& positions,
                   const std::vector<page_key>& left_out);

  void end_batch();

  // -- data -------------------------------------------------------------------

  spreader_actor::pointer self;
  spreader_options options;
  std::vector<member_info> members;
  /// Draining members: their copies will vanish.
  std::set<uint64_t> closed;
  std::map<uint64_t, member_actor> known;
  /// Index of the batch's first page.
  size_t begin = 0;
  std::vector<wanted_copies> batch;
  /// Outstanding requests of the batch.
  size_t open = 0;
  /// Bytes that the batch copied.
  uint64_t bytes = 0;
  page_totals totals;
  caf::typed_response_promise<page_totals> promise;
};

/// Has other members copy a member's pages batch by batch, as plan_copies decides, then ends.
spreader_actor::behavior_type spreader(spreader_actor::stateful_pointer<spreader_state> self,
                                       spreader_options options);

/// The request to copy a page.
copied_page copy_of(const kept_page& kept, time_point now);

} // namespace hicache
