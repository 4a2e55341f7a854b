#include "actors/spreader.hpp"

#include "actors/segment_mounts.hpp"
#include "base/check.hpp"
#include "base/limits.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

namespace hicache {

namespace {

/// Timeout of one batch of copies. A member copies one batch at a time, each within
/// limits::storage_timeout, and several members may send it batches at once. Dead members are
/// detected earlier.
constexpr auto copy_time = 3 * limits::storage_timeout;

} // namespace

caf::result<page_totals> spreader_state::spread() {
  self->monitor(self->current_sender()); // Before the promise takes the sender.
  promise = self->make_response_promise<page_totals>();
  options.figures->pages = options.pages.size();
  const auto view = options.index();
  const auto reached = std::ranges::find_if(view->shards, [](const auto& x) { return !!x; });
  if (reached == view->shards.end() || options.pages.empty())
    next_batch(); // No members to copy the pages.
  else
    list_members(*reached, 0);
  return promise;
}

void spreader_state::list_members(const index_actor& shard, uint64_t from) {
  auto on_members = [this, shard](const member_list& some) {
    members.insert(members.end(), some.members.begin(), some.members.end());
    for (const auto& member : some.members)
      if (member.is_closed)
        closed.insert(member.member);
    if (some.has_more && !some.members.empty())
      list_members(shard, some.members.back().member + 1);
    else
      next_batch();
  };
  auto on_error = [this](const caf::error& err) {
    spdlog::warn("the index does not say who could take pages: {}", to_string(from_caf(err)));
    next_batch();
  };
  self
    ->request(shard, options.timeout, atom::members_v,
              member_query{{}, from, limits::members_listed})
    .then(on_members, on_error);
}

void spreader_state::next_batch() {
  batch.clear();
  bytes = 0;
  if (begin == options.pages.size()) {
    promise.deliver(totals);
    return self->quit();
  }
  const auto count = std::min(limits::storage_batch_pages, options.pages.size() - begin);
  for (const auto& page : std::span{options.pages}.subspan(begin, count))
    batch.push_back({page.page.key, std::max<uint32_t>(page.copies, 1), page.pin != 0, {}, {}, {}});
  find_holders();
}

void spreader_state::find_holders() {
  const auto view = options.index();
  // Locate each key at its first keeper, or at the second if that is unreachable.
  auto positions = std::vector<std::vector<size_t>>(view->shards.size());
  const auto is_reached
    = [&view](size_t i) { return i != key_keepers::none && view->shards[i] != nullptr; };
  for (auto k = size_t{0}; k < batch.size() && !positions.empty(); ++k) {
    const auto [first, second] = view->keepers_of(batch[k].key);
    if (is_reached(first))
      positions[first].push_back(k);
    else if (is_reached(second))
      positions[second].push_back(k);
  }
  for (auto i = size_t{0}; i < positions.size(); ++i) {
    if (positions[i].empty())
      continue;
    auto query = key_batch{};
    for (const auto at : positions[i])
      query.keys.push_back(batch[at].key);
    ++open;
    auto go_on = [this] {
      if (--open == 0)
        next_round();
    };
    auto on_found = [this, go_on, here = positions[i]](const placements& found) {
      enter(here, found);
      go_on();
    };
    self->request(view->shards[i], options.timeout, atom::locate_v, std::move(query))
      .then(on_found, [go_on](const caf::error&) { go_on(); });
  }
  if (open == 0)
    next_round();
}

void spreader_state::enter(std::span<const size_t> positions, const placements& found) {
  if (found.replicas.size() != positions.size())
    return;
  for (auto k = size_t{0}; k < positions.size(); ++k)
    for (const auto& copy : found.replicas[k])
      if (!closed.contains(copy.member))
        batch[positions[k]].holders.push_back(copy.member);
}

void spreader_state::next_round() {
  const auto plan = plan_copies(batch, members, options.source);
  if (plan.empty())
    return end_batch();
  open = plan.size();
  for (const auto& [member, positions] : plan)
    ask(member, positions);
}

void spreader_state::ask(uint64_t member, const std::vector<size_t>& positions) {
  auto& actor = known[member];
  if (!actor)
    actor = options.reach(*std::ranges::find(members, member, &member_info::member));
  auto wanted = page_copies{options.source.member, {}};
  for (const auto i : positions)
    wanted.pages.push_back(options.pages[begin + i]);
  auto on_copied = [this, member, positions](const page_totals& copied) {
    bytes += copied.bytes;
    auto left_out = copied.left_out;
    // Older versions do not report which pages were left out.
    if (left_out.empty() && copied.pages < positions.size())
      for (const auto i : positions)
        left_out.push_back(batch[i].key);
    take_answer(member, positions, left_out);
  };
  auto on_error = [this, member, positions](const caf::error& err) {
    spdlog::warn("member {:016x} does not take pages: {}", member, to_string(from_caf(err)));
    auto all = std::vector<page_key>{};
    for (const auto i : positions)
      all.push_back(batch[i].key);
    take_answer(member, positions, all);
  };
  self->request(actor, caf::timespan{copy_time}, atom::copy_v, std::move(wanted))
    .then(on_copied, on_error);
}

void spreader_state::take_answer(uint64_t member, const std::vector<size_t>& positions,
                                 const std::vector<page_key>& left_out) {
  for (const auto i : positions) {
    auto& page = batch[i];
    const auto is_there = std::ranges::find(left_out, page.key) == left_out.end();
    (is_there ? page.confirmed : page.refused).push_back(member);
  }
  if (--open == 0)
    next_round();
}

void spreader_state::end_batch() {
  const auto lacking = lacking_copies(batch, members, options.source);
  for (const auto i : lacking)
    totals.left_out.push_back(batch[i].key);
  totals.pages += batch.size() - lacking.size();
  totals.bytes += bytes;
  begin += batch.size();
  options.figures->tried = begin;
  options.figures->copied = totals.pages;
  if (options.bytes_per_second == 0 || begin == options.pages.size())
    return next_batch();
  self->delayed_send(self, pause_after(bytes, options.bytes_per_second), atom::tick_v);
}

// -- actor --------------------------------------------------------------------

spreader_actor::behavior_type spreader(spreader_actor::stateful_pointer<spreader_state> self,
                                       spreader_options options) {
  HICACHE_CHECK(options.figures != nullptr);
  self->state.options = std::move(options);
  // The requester is gone, and the pages with it.
  self->set_down_handler([self](const caf::down_msg&) { self->quit(); });
  return {[self](atom::copy) { return self->state.spread(); },
          [self](atom::tick) { self->state.next_batch(); }};
}

copied_page copy_of(const kept_page& kept, time_point now) {
  auto copy = copied_page{announce(kept.page), kept.parent.value_or(page_key{}),
                          kept.page.fingerprint, kept.tenant};
  copy.pin = static_cast<uint8_t>(kept.pin);
  if (kept.pin == pin_kind::soft)
    copy.pin_ttl_ms = static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(
                                              std::max(kept.pinned_until - now, duration::zero()))
                                              .count());
  copy.copies = kept.copies;
  return copy;
}

} // namespace hicache
