#pragma once

#include "backends/index_link.hpp"
#include "cache/segment_table.hpp"
#include "messages/interfaces.hpp"

#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace hicache {

/// What a drainer moves, and where it finds the others.
struct drainer_options {
  /// The member that has the pages.
  uint64_t member = 0;
  std::string host;
  std::function<index_view_ptr()> index;
  /// A member itself.
  std::function<member_actor(const member_info&)> reach;
  /// What one request to the index, or one batch of copies, may take.
  caf::timespan timeout{};
  /// Parents first.
  std::vector<copied_page> pages;
};

/// @relates drainer
struct drainer_state {
  static inline constexpr auto name = "drainer";

  explicit drainer_state(drainer_actor::pointer owner) : self(owner) {}

  caf::result<drain_report> drain();

  // -- internal steps ---------------------------------------------------------

  /// Takes the members that may have the pages: those on other hosts, or else the others on this.
  void choose(const member_list& all);

  /// Has the next batch copied, or ends.
  void copy_next();

  void copy_to(const member_info& target);

  void finish();

  // -- data -------------------------------------------------------------------

  drainer_actor::pointer self;
  drainer_options options;
  std::vector<member_info> targets;
  std::map<uint64_t, member_actor> known;
  /// Pages that have been tried.
  size_t done = 0;
  drain_report report;
  caf::typed_response_promise<drain_report> promise;
};

/// Copies pages of a member to others, a batch after the other, and ends. Those that nobody takes
/// stay where they are.
drainer_actor::behavior_type drainer(drainer_actor::stateful_pointer<drainer_state> self,
                                     drainer_options options);

/// A page as others are asked to copy it.
copied_page copy_of(const kept_page& kept, time_point now);

} // namespace hicache
