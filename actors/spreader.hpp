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

/// How a spreader gets on. Written by it alone.
struct spread_figures {
  std::atomic<uint64_t> pages = 0;
  std::atomic<uint64_t> tried = 0;
  /// Of these: others have them now.
  std::atomic<uint64_t> copied = 0;
};

/// What a spreader has copied, and where it finds the others.
struct spreader_options {
  /// The member that has the pages.
  copy_source source;
  std::function<index_view_ptr()> index;
  /// A member itself.
  std::function<member_actor(const member_info&)> reach;
  /// What one request to the index may take.
  caf::timespan timeout{};
  /// How many bytes a second others may be asked to read; 0: as many as they can.
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

  /// Asks for the next part of the list of members; then begins.
  void list_members(const index_actor& shard, uint64_t from);

  /// Looks for the pages of the next batch, or ends.
  void next_batch();

  void find_holders();

  /// Enters what a shard said of the pages at these positions of the batch.
  void enter(std::span<const size_t> positions, const placements& found);

  /// Asks the members that the plan names; ends the batch when it names none.
  void next_round();

  void ask(uint64_t member, const std::vector<size_t>& positions);

  /// A member was asked for these pages, and has not the keys left out.
  void take_answer(uint64_t member, const std::vector<size_t>& positions,
                   const std::vector<page_key>& left_out);

  void end_batch();

  void finish();

  // -- data -------------------------------------------------------------------

  spreader_actor::pointer self;
  spreader_options options;
  std::vector<member_info> members;
  /// Of these, those that are drained: what they have goes.
  std::set<uint64_t> closed;
  std::map<uint64_t, member_actor> known;
  /// Where the batch begins among the pages.
  size_t begin = 0;
  std::vector<wanted_copies> batch;
  /// Requests whose answers the batch waits for.
  size_t open = 0;
  /// Bytes that the batch had copied.
  uint64_t bytes = 0;
  page_totals totals;
  caf::typed_response_promise<page_totals> promise;
};

/// Has other members copy pages of a member, a batch after the other, as plan_copies says, and
/// ends.
spreader_actor::behavior_type spreader(spreader_actor::stateful_pointer<spreader_state> self,
                                       spreader_options options);

/// A page as others are asked to copy it.
copied_page copy_of(const kept_page& kept, time_point now);

} // namespace hicache
