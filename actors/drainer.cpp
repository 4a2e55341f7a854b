#include "actors/drainer.hpp"

#include "actors/segment_mounts.hpp"
#include "base/limits.hpp"
#include "messages/object_place.hpp"
#include "messages/placement.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

namespace hicache {

caf::result<drain_report> drainer_state::drain() {
  promise = self->make_response_promise<drain_report>();
  const auto view = options.index();
  const auto reached = std::ranges::find_if(view->shards, [](const auto& x) { return !!x; });
  if (reached == view->shards.end() || options.pages.empty()) {
    finish();
    return promise;
  }
  auto on_members = [this](const member_list& all) {
    choose(all);
    copy_next();
  };
  self->request(*reached, options.timeout, atom::members_v, member_query{})
    .then(on_members, [this](const caf::error&) { finish(); });
  return promise;
}

void drainer_state::choose(const member_list& all) {
  std::ranges::copy_if(all.members, std::back_inserter(targets),
                       [this](const auto& x) { return x.host != options.host && has_segment(x); });
  if (targets.empty())
    std::ranges::copy_if(all.members, std::back_inserter(targets),
                         [this](const auto& x) { return x.member != options.member; });
}

void drainer_state::copy_next() {
  if (done == options.pages.size() || targets.empty()) {
    finish();
    return;
  }
  // No member's host is empty, so any may be chosen.
  const auto target = place_replicas(options.pages[done].page.key, targets, {}, 1);
  if (target.empty()) {
    finish();
    return;
  }
  copy_to(*std::ranges::find(targets, target.front(), &member_info::member));
}

void drainer_state::copy_to(const member_info& target) {
  auto& actor = known[target.member];
  if (!actor)
    actor = options.reach(target);
  const auto count = std::min(limits::storage_batch_pages, options.pages.size() - done);
  const auto begin = options.pages.begin() + static_cast<ptrdiff_t>(done);
  done += count;
  auto on_copied = [this](const page_totals& copied) {
    report.moved += copied.pages;
    copy_next();
  };
  auto on_error = [this](const caf::error& err) {
    spdlog::warn("a member does not take pages: {}", to_string(from_caf(err)));
    copy_next();
  };
  self
    ->request(actor, options.timeout, atom::copy_v,
              page_copies{options.member, {begin, begin + static_cast<ptrdiff_t>(count)}})
    .then(on_copied, on_error);
}

void drainer_state::finish() {
  promise.deliver(report);
  self->quit();
}

// -- actor --------------------------------------------------------------------

drainer_actor::behavior_type drainer(drainer_actor::stateful_pointer<drainer_state> self,
                                     drainer_options options) {
  self->state.options = std::move(options);
  return {[self](atom::drain) { return self->state.drain(); }};
}

copied_page copy_of(const kept_page& kept, time_point now) {
  auto copy = copied_page{announce(kept.page), kept.parent.value_or(page_key{}),
                          kept.page.fingerprint, kept.tenant};
  copy.pin = static_cast<uint8_t>(kept.pin);
  if (kept.pin == pin_kind::soft)
    copy.pin_ttl_ms = static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(
                                              std::max(kept.pinned_until - now, duration::zero()))
                                              .count());
  return copy;
}

} // namespace hicache
