#pragma once

#include "hicache/clock.hpp"
#include "hicache/storage_backend.hpp"
#include "messages/interfaces.hpp"

#include <caf/scoped_actor.hpp>
#include <caf/timespan.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace hicache {

struct publication_options {
  segment_actor segment;
  /// This process, the `fingerprint_of` its namespace, and the copies wanted of each page, with the
  /// one in its segment.
  uint64_t member = 0;
  uint64_t fingerprint = 0;
  uint32_t copies = 1;
  /// Chooses the members for the other copies; with the first page, so that the pages of a prefix
  /// stay together. Called at most once. May block.
  std::function<std::vector<member_actor>(const page_key&)> choose_targets;
  /// Must outlive the publication.
  const clock_source* clock = nullptr;
  time_point deadline;
};

/// Publishes the pages of one put in parts, and makes other hosts copy each part as soon as the
/// index has taken it, while the caller writes the next one. Waits for nothing before finish().
class publication {
public:
  /// @param self Sends the requests. Must outlive this.
  publication(caf::scoped_actor& self, publication_options options)
    : self_(self), options_(std::move(options)) {}

  /// Adds a page whose slot is written; sends the part if it is large enough.
  /// @param position Of the page in the put.
  void add(size_t position, const page_write& page, const segment_slot& slot);

  /// Sends the last part.
  void send();

  /// Waits for all answers, until the deadline. Pages that other members have need no copies. Logs
  /// missing copies. Withdraws pages whose publication failed.
  /// @param outcome Per page of the put; set for those that failed.
  void finish(std::vector<result<void>>& outcome);

private:
  template <class Handle, class Verb, class Request>
  using response = decltype(std::declval<caf::scoped_actor&>()->request(
    std::declval<const Handle&>(), caf::infinite, std::declval<Verb>(), std::declval<Request>()));

  struct published_part {
    std::vector<size_t> positions;
    segment_slots slots;
    std::vector<copied_page> copies;
    /// The segment's answer so far.
    result<void> end;
  };

  using publish_response = response<segment_actor, atom::publish, segment_slots>;

  /// Takes the answers to the parts in order, until one is late, and requests the copies of what
  /// the index has taken.
  /// @param patience Returns how long to wait for the next answer.
  void take_answers(const std::function<caf::timespan()>& patience);

  /// @param refused Pages that need no copies.
  void request_copies(std::vector<copied_page> pages, const std::vector<page_key>& refused);

  caf::scoped_actor& self_;
  const publication_options options_;
  /// The part to be sent next, and its bytes.
  published_part next_;
  uint64_t bytes_ = 0;
  /// The parts sent, their requests, and how many have been answered.
  std::vector<published_part> sent_;
  std::vector<publish_response> publishing_;
  size_t answered_ = 0;
  std::optional<std::vector<member_actor>> targets_;
  std::vector<response<member_actor, atom::copy, page_copies>> copying_;
  uint64_t copies_wanted_ = 0;
};

} // namespace hicache
