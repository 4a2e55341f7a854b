#include "actors/segment_mounts.hpp"

#include "base/keys_of.hpp"
#include "base/limits.hpp"

#include <absl/container/inlined_vector.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace hicache {

namespace {

/// Used until the index has sent its interval.
constexpr auto first_heartbeat_pause = std::chrono::milliseconds{500};

/// A shard's role for a key; index into kept_pages.
enum role : size_t { first_keeper, second_keeper };

/// The shards that keep a key, with their roles.
absl::InlinedVector<std::pair<uint32_t, role>, 2> roles_of(const shard_set& shards,
                                                           const page_key& key) {
  const auto keepers = shards.keepers_of(key);
  auto roles = absl::InlinedVector<std::pair<uint32_t, role>, 2>{
    {shards.numbers[keepers.first], first_keeper}};
  if (keepers.second != key_keepers::none)
    roles.emplace_back(shards.numbers[keepers.second], second_keeper);
  return roles;
}

/// @returns nullopt if the shard does not keep the key
std::optional<role> role_of(uint32_t number, const shard_set& shards, const page_key& key) {
  for (const auto& [keeper, what] : roles_of(shards, key))
    if (keeper == number)
      return what;
  return std::nullopt;
}

/// Splits pages into messages of at most limits::index_batch_keys; member and epoch are left unset.
std::vector<published_pages> batches(const std::array<std::vector<announced_page>, 2>& pages) {
  auto all = std::vector<published_pages>{};
  for (const auto role : {first_keeper, second_keeper})
    for (const auto& page : pages[role]) {
      if (all.empty() || all.back().pages.size() == limits::index_batch_keys)
        all.emplace_back();
      all.back().pages.push_back(page);
      all.back().seconds += role == second_keeper ? 1 : 0;
    }
  return all;
}

/// Removes the pages on disk. @returns their keys
std::vector<page_key> take_disk_pages(std::array<std::vector<announced_page>, 2>& pages) {
  auto keys = std::vector<page_key>{};
  for (auto& of_role : pages) {
    for (const auto& page : of_role)
      if (is_on_disk(page.offset))
        keys.push_back(page.key);
    std::erase_if(of_role, [](const auto& x) { return is_on_disk(x.offset); });
  }
  return keys;
}

} // namespace

announced_page announce(const stored_page& page) noexcept {
  return {page.key, is_on_disk(page.offset) ? disk_offset : page.offset, page.generation,
          page.length};
}

segment_mounts::segment_mounts(segment_actor::pointer self, segment_mounts_options options,
                               const offered_pages& offered)
  : self_(self), options_(std::move(options)), offered_(offered),
    heartbeat_pause_(first_heartbeat_pause) {}

void segment_mounts::look_at_index() {
  const auto view = options_.index();
  if (*view != shards_)
    reshard(*view);
  for (auto i = size_t{0}; i < shards_.numbers.size(); ++i)
    if (const auto number = shards_.numbers[i];
        view->shards[i] && view->shards[i] != mounts_[number].shard)
      mount(number, view->shards[i]);
}

void segment_mounts::send_heartbeat(const member_counters& counters, bool is_closed) {
  counters_ = counters;
  options_.member.is_closed = is_closed;
  for (const auto& [number, at] : mounts_)
    if (at.progress.is_told())
      heartbeat_at(number);
}

void segment_mounts::publish(const std::vector<announced_page>& pages,
                             const std::function<void()>& then, bool only_new) {
  // Calls `then` when the last reference is gone.
  const auto end = std::shared_ptr<void>{nullptr, [then](void*) { then(); }};
  for (auto& [number, part] : by_shard(pages, &announced_page::key))
    tell(number, std::move(part), end, only_new);
}

void segment_mounts::withdraw(const std::vector<page_key>& keys) {
  for (const auto& [number, gone] : by_shard(keys, std::identity{}))
    for (const auto& part : gone)
      withdraw_from(number, part);
}

void segment_mounts::report_disk() {
  for (auto& [number, at] : mounts_)
    if (at.progress.rewind(disk_offset))
      report(number);
}

void segment_mounts::start_over() {
  for (auto& [number, at] : mounts_) {
    at.progress.forget();
    if (at.shard)
      mount(number, at.shard);
  }
}

void segment_mounts::leave(const std::function<void()>& then) {
  // Calls `then` when the last reference is gone.
  const auto end = std::shared_ptr<void>{nullptr, [then](void*) { then(); }};
  for (const auto& [number, at] : mounts_)
    if (at.shard)
      self_
        ->request(at.shard, options_.timeout, atom::tick_v,
                  heartbeat{options_.member.member, at.progress.epoch(), counters_, true, true})
        .then([end](const membership&) {}, [end](const caf::error&) {});
}

void segment_mounts::when_settled(std::function<void()> then) {
  waiting_.push_back(std::move(then));
  settle();
}

// -- internal steps -----------------------------------------------------------

void segment_mounts::reshard(const shard_set& now) {
  const auto before = std::exchange(shards_, now);
  const auto is_in_use = [&](uint32_t x) { return std::ranges::binary_search(now.numbers, x); };
  std::erase_if(mounts_, [&](const auto& at) { return !is_in_use(at.first); });
  if (!before.numbers.empty() && !now.numbers.empty()) {
    auto gained = std::map<uint32_t, kept_pages<announced_page>>{};
    auto lost = std::map<uint32_t, std::vector<page_key>>{};
    for (auto pages = offered_.published(0, limits::index_batch_keys); !pages.empty();
         pages = offered_.published(pages.back().offset + 1, limits::index_batch_keys))
      for (const auto& page : pages) {
        for (const auto& [number, role] : roles_of(now, page.key))
          if (role_of(number, before, page.key) != role)
            gained[number][role].push_back(hicache::announce(page));
        for (const auto& [number, role] : roles_of(before, page.key))
          if (!role_of(number, now, page.key) && is_in_use(number))
            lost[number].push_back(page.key);
      }
    for (auto& [number, kept] : gained)
      if (mounts_.contains(number)) // New shards get a block report.
        tell(number, std::move(kept), nullptr);
    for (const auto& [number, keys] : lost)
      withdraw_from(number, keys);
  }
  for (const auto number : now.numbers)
    mounts_[number];
  settle();
}

template <class Page, class KeyOf>
std::map<uint32_t, segment_mounts::kept_pages<Page>>
segment_mounts::by_shard(const std::vector<Page>& pages, KeyOf key_of) const {
  auto lists = std::map<uint32_t, kept_pages<Page>>{};
  if (shards_.numbers.empty())
    return lists;
  for (const auto& page : pages)
    for (const auto& [number, role] : roles_of(shards_, std::invoke(key_of, page)))
      lists[number][role].push_back(page);
  return lists;
}

void segment_mounts::tell(uint32_t number, kept_pages<announced_page> pages,
                          const std::shared_ptr<void>& then, bool only_new) {
  if (!mounts_[number].progress.is_told()) {
    for (const auto role : {first_keeper, second_keeper})
      unsettle(number, keys_of(pages[role]));
    return;
  }
  if (!mounts_[number].takes_disk)
    withdraw_from(number, take_disk_pages(pages));
  for (auto& batch : batches(pages)) {
    batch.only_new = only_new;
    announce_or_unsettle(number, std::move(batch), then);
  }
}

void segment_mounts::announce_or_unsettle(uint32_t number, published_pages batch,
                                          const std::shared_ptr<void>& then) {
  auto keys = keys_of(batch.pages);
  announce(number, std::move(batch), [this, number, keys = std::move(keys), then](bool is_taken) {
    if (!is_taken)
      unsettle(number, keys);
  });
}

void segment_mounts::mount(uint32_t number, const index_actor& shard) {
  auto& at = mounts_[number];
  at.shard = shard;
  auto member = options_.member;
  member.epoch = ++options_.member.epoch;
  member.resumes = at.progress.mount(member.epoch);
  auto on_view = [this, number, epoch = member.epoch](const membership& view) {
    const auto here = mounts_.find(number);
    if (here == mounts_.end() || !here->second.progress.confirm(epoch, view.resumed))
      return;
    here->second.takes_disk = view.takes_disk;
    heartbeat_pause_ = std::chrono::milliseconds{std::max<uint64_t>(view.member_ttl_ms / 4, 1)};
    report(number);
  };
  auto on_error
    = [this, number, shard](const caf::error& err) { on_index_error(number, shard, err); };
  self_->request(shard, options_.timeout, atom::mount_v, std::move(member)).then(on_view, on_error);
}

void segment_mounts::report(uint32_t number) {
  auto& progress = mounts_[number].progress;
  const auto takes_disk = mounts_[number].takes_disk;
  auto news = kept_pages<announced_page>{};
  const auto size = [&news] { return news[0].size() + news[1].size(); };
  auto next = progress.reported_to();
  while (size() < limits::index_batch_keys) {
    const auto pages = offered_.published(next, limits::index_batch_keys - size());
    if (pages.empty() || (!takes_disk && is_on_disk(pages.front().offset)))
      break;
    for (const auto& page : pages)
      if (const auto role = role_of(number, shards_, page.key);
          role && (takes_disk || !is_on_disk(page.offset)))
        news[*role].push_back(hicache::announce(page));
    next = pages.back().offset + 1;
  }
  if (size() > 0) {
    auto on_end = [this, number, next, epoch = progress.epoch()](bool is_taken) {
      const auto here = mounts_.find(number);
      if (is_taken && here != mounts_.end() && here->second.progress.advance(epoch, next))
        report(number);
    };
    // One batch, unless many pages have the same position on disk.
    auto all = batches(news);
    for (; all.size() > 1; all.erase(all.begin()))
      announce_or_unsettle(number, std::move(all.front()), nullptr);
    return announce(number, std::move(all.front()), on_end);
  }
  progress.complete();
  tell_unsettled(number);
  heartbeat_at(number);
  settle();
}

void segment_mounts::unsettle(uint32_t number, const std::vector<page_key>& keys) {
  const auto found = mounts_.find(number);
  if (found == mounts_.end())
    return;
  auto& progress = found->second.progress;
  progress.unsettle(keys);
  if (progress.is_told())
    tell_unsettled(number);
}

void segment_mounts::tell_unsettled(uint32_t number) {
  auto offered = kept_pages<announced_page>{};
  auto gone = std::vector<page_key>{};
  for (const auto& key : mounts_[number].progress.take_unsettled()) {
    const auto here = offered_.find_anywhere(key);
    const auto role = role_of(number, shards_, key);
    if (here && role)
      offered[*role].push_back(hicache::announce(*here));
    else
      gone.push_back(key);
  }
  withdraw_from(number, gone);
  tell(number, std::move(offered), nullptr);
}

void segment_mounts::heartbeat_at(uint32_t number) {
  const auto& at = mounts_[number];
  auto on_view = [this, number, epoch = at.progress.epoch()](const membership& view) {
    apply_view(number, epoch, view);
  };
  auto on_error
    = [this, number, to = at.shard](const caf::error& err) { on_index_error(number, to, err); };
  self_
    ->request(at.shard, options_.timeout, atom::tick_v,
              heartbeat{options_.member.member, at.progress.epoch(), counters_, false,
                        options_.member.is_closed})
    .then(on_view, on_error);
}

void segment_mounts::announce(uint32_t number, published_pages batch,
                              std::function<void(bool)> then) {
  const auto& at = mounts_[number];
  auto on_error = [this, number, to = at.shard, then](const caf::error& err) {
    on_index_error(number, to, err);
    then(false);
  };
  auto on_view = [this, number, epoch = at.progress.epoch(), then](const membership& view) {
    // What an older epoch refused is told again under the present one.
    then(apply_view(number, epoch, view) && view.known);
  };
  batch.member = options_.member.member;
  batch.epoch = at.progress.epoch();
  self_->request(at.shard, options_.timeout, atom::publish_v, std::move(batch))
    .then(on_view, on_error);
}

void segment_mounts::withdraw_from(uint32_t number, const std::vector<page_key>& keys) {
  const auto& at = mounts_[number];
  if (!at.shard)
    return unsettle(number, keys);
  for (auto first = size_t{0}; first < keys.size(); first += limits::index_batch_keys) {
    const auto begin = keys.begin() + static_cast<ptrdiff_t>(first);
    const auto end
      = begin + static_cast<ptrdiff_t>(std::min(limits::index_batch_keys, keys.size() - first));
    auto part = std::vector<page_key>(begin, end);
    auto on_view = [this, number, epoch = at.progress.epoch(), part](const membership& view) {
      apply_view(number, epoch, view);
      if (!view.known)
        unsettle(number, part);
    };
    auto on_error = [this, number, to = at.shard, part](const caf::error& err) {
      on_index_error(number, to, err);
      unsettle(number, part);
    };
    self_
      ->request(at.shard, options_.timeout, atom::withdraw_v,
                withdrawn_pages{options_.member.member, at.progress.epoch(), std::move(part)})
      .then(on_view, on_error);
  }
}

bool segment_mounts::apply_view(uint32_t number, uint64_t epoch, const membership& view) {
  options_.index_heard(view.shards_digest);
  const auto at = mounts_.find(number);
  if (at == mounts_.end() || !at->second.shard || at->second.progress.epoch() != epoch)
    return false;
  if (!view.known) {
    mount(number, at->second.shard);
    return true;
  }
  if (!view.refused.empty())
    options_.refused(view.refused);
  if (!view.lost.empty())
    options_.lost(view.lost);
  return true;
}

void segment_mounts::on_index_error(uint32_t number, const index_actor& lost,
                                    const caf::error& err) {
  const auto at = mounts_.find(number);
  if (at == mounts_.end() || at->second.shard != lost)
    return; // Already handled.
  spdlog::warn("shard {} of the index does not answer: {}", number, to_string(from_caf(err)));
  options_.index_lost(lost);
  at->second.shard = nullptr;
  at->second.progress.lose();
  settle();
}

void segment_mounts::settle() {
  const auto is_reporting = [](const auto& at) { return at.second.progress.is_reporting(); };
  if (std::ranges::none_of(mounts_, is_reporting))
    for (const auto& then : std::exchange(waiting_, {}))
      then();
}

} // namespace hicache
