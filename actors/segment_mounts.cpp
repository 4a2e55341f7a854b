#include "actors/segment_mounts.hpp"

#include "base/limits.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

namespace hicache {

namespace {

/// Until the index has said how long it waits for a sign of life.
constexpr auto first_heartbeat_pause = std::chrono::milliseconds{500};

const page_key& key_of(const page_key& x) {
  return x;
}

const page_key& key_of(const announced_page& x) {
  return x.key;
}

} // namespace

announced_page announce(const stored_page& page) noexcept {
  return {page.key, page.offset, page.generation, page.length};
}

segment_mounts::segment_mounts(segment_actor::pointer self, segment_mounts_options options,
                               const offered_pages& offered)
  : self_(self), options_(std::move(options)), offered_(offered),
    heartbeat_pause_(first_heartbeat_pause) {}

void segment_mounts::look_at_index() {
  const auto view = options_.index();
  if (view->numbers != numbers_)
    reshard(view->numbers);
  for (auto i = size_t{0}; i < numbers_.size(); ++i)
    if (view->shards[i] && view->shards[i] != mounts_[numbers_[i]].shard)
      mount(numbers_[i], view->shards[i]);
}

void segment_mounts::beat(const member_counters& counters) {
  for (const auto& [number, at] : mounts_) {
    if (!at.shard || at.is_reporting)
      continue;
    auto on_view = [this, number = number, epoch = at.epoch](const membership& view) {
      heed(number, epoch, view);
    };
    auto on_error = [this, number = number, to = at.shard](const caf::error& err) {
      on_index_error(number, to, err);
    };
    self_
      ->request(at.shard, options_.timeout, atom::tick_v,
                heartbeat{options_.member.member, at.epoch, counters})
      .then(on_view, on_error);
  }
}

void segment_mounts::publish(const std::vector<announced_page>& pages,
                             const std::function<void()>& then) {
  // Called when nobody holds it any more.
  const auto end = std::shared_ptr<void>{nullptr, [then](void*) { then(); }};
  for (auto& [number, part] : by_shard(pages)) {
    auto& at = mounts_[number];
    if (at.is_reporting)
      at.held_back.insert(at.held_back.end(), part.begin(), part.end());
    else if (at.shard) // Without it the pages are stored all the same: its block report tells.
      for (auto first = size_t{0}; first < part.size(); first += limits::index_batch_keys) {
        const auto count = std::min(limits::index_batch_keys, part.size() - first);
        const auto begin = part.begin() + static_cast<ptrdiff_t>(first);
        announce(number, {begin, begin + static_cast<ptrdiff_t>(count)}, [end] {});
      }
  }
}

void segment_mounts::withdraw(const std::vector<page_key>& keys) {
  for (const auto& [number, gone] : by_shard(keys))
    withdraw_from(number, gone);
}

void segment_mounts::when_settled(std::function<void()> then) {
  waiting_.push_back(std::move(then));
  settle();
}

// -- internal steps -----------------------------------------------------------

void segment_mounts::reshard(const std::vector<uint32_t>& now) {
  auto moved = std::map<uint32_t, std::vector<page_key>>{};
  if (!numbers_.empty() && !now.empty())
    for (const auto& page : offered_.published(0, offered_.count())) {
      const auto before = numbers_[shard_of(page.key, numbers_)];
      if (before != now[shard_of(page.key, now)])
        moved[before].push_back(page.key);
    }
  const auto is_in_use = [&](uint32_t x) { return std::ranges::binary_search(now, x); };
  const auto leaves_keys = !std::ranges::all_of(numbers_, is_in_use);
  numbers_ = now;
  std::erase_if(mounts_, [&](const auto& at) { return !is_in_use(at.first); });
  for (const auto& [number, keys] : moved)
    if (is_in_use(number))
      withdraw_from(number, keys);
  for (const auto number : numbers_)
    if (auto& at = mounts_[number]; leaves_keys && at.shard)
      mount(number, at.shard);
  settle();
}

template <class Page>
std::map<uint32_t, std::vector<Page>>
segment_mounts::by_shard(const std::vector<Page>& pages) const {
  auto lists = std::map<uint32_t, std::vector<Page>>{};
  if (numbers_.empty())
    return lists;
  for (const auto& page : pages)
    lists[numbers_[shard_of(key_of(page), numbers_)]].push_back(page);
  return lists;
}

void segment_mounts::mount(uint32_t number, const index_actor& shard) {
  auto& at = mounts_[number];
  at = {shard, ++options_.member.epoch, true, {}};
  auto on_view = [this, number, epoch = at.epoch](const membership& view) {
    if (const auto here = mounts_.find(number);
        here == mounts_.end() || here->second.epoch != epoch)
      return; // Mounted anew since.
    heartbeat_pause_ = std::chrono::milliseconds{std::max<uint64_t>(view.member_ttl_ms / 4, 1)};
    report(number, 0);
  };
  auto on_error
    = [this, number, shard](const caf::error& err) { on_index_error(number, shard, err); };
  self_->request(shard, options_.timeout, atom::mount_v, options_.member).then(on_view, on_error);
}

void segment_mounts::report(uint32_t number, uint64_t offset) {
  auto news = std::vector<announced_page>{};
  auto next = offset;
  while (news.size() < limits::index_batch_keys) {
    const auto pages = offered_.published(next, limits::index_batch_keys - news.size());
    if (pages.empty())
      break;
    for (const auto& page : pages)
      if (numbers_[shard_of(page.key, numbers_)] == number)
        news.push_back(hicache::announce(page));
    next = pages.back().offset + 1;
  }
  auto& at = mounts_[number];
  if (!news.empty()) {
    announce(number, std::move(news), [this, number, next, epoch = at.epoch] {
      if (const auto here = mounts_.find(number);
          here != mounts_.end() && here->second.shard && here->second.epoch == epoch)
        report(number, next);
    });
    return;
  }
  at.is_reporting = false;
  std::erase_if(at.held_back, [this](const announced_page& page) {
    const auto here = offered_.find(page.key);
    return !here || hicache::announce(*here) != page;
  });
  if (auto late = std::exchange(at.held_back, {}); !late.empty())
    publish(late, [] {});
  settle();
}

void segment_mounts::announce(uint32_t number, std::vector<announced_page> pages,
                              std::function<void()> then) {
  const auto& at = mounts_[number];
  auto on_error = [this, number, to = at.shard, then](const caf::error& err) {
    on_index_error(number, to, err);
    then();
  };
  auto on_view = [this, number, epoch = at.epoch, then](const membership& view) {
    heed(number, epoch, view);
    then();
  };
  self_
    ->request(at.shard, options_.timeout, atom::publish_v,
              published_pages{options_.member.member, at.epoch, std::move(pages)})
    .then(on_view, on_error);
}

void segment_mounts::withdraw_from(uint32_t number, const std::vector<page_key>& keys) {
  const auto& at = mounts_[number];
  if (!at.shard)
    return;
  auto on_view
    = [this, number, epoch = at.epoch](const membership& view) { heed(number, epoch, view); };
  auto on_error
    = [this, number, to = at.shard](const caf::error& err) { on_index_error(number, to, err); };
  for (auto first = size_t{0}; first < keys.size(); first += limits::index_batch_keys) {
    const auto begin = keys.begin() + static_cast<ptrdiff_t>(first);
    const auto end
      = begin + static_cast<ptrdiff_t>(std::min(limits::index_batch_keys, keys.size() - first));
    self_
      ->request(at.shard, options_.timeout, atom::withdraw_v,
                withdrawn_pages{options_.member.member, at.epoch, {begin, end}})
      .then(on_view, on_error);
  }
}

void segment_mounts::heed(uint32_t number, uint64_t epoch, const membership& view) {
  options_.index_heard(view.shards_digest);
  const auto at = mounts_.find(number);
  // What a shard says of an older epoch means nothing any more.
  if (at == mounts_.end() || !at->second.shard || at->second.epoch != epoch)
    return;
  if (!view.known) {
    mount(number, at->second.shard);
    return;
  }
  if (!view.refused.empty())
    options_.refused(view.refused);
  if (!view.lost.empty())
    options_.lost(view.lost);
}

void segment_mounts::on_index_error(uint32_t number, const index_actor& lost,
                                    const caf::error& err) {
  const auto at = mounts_.find(number);
  if (at == mounts_.end() || at->second.shard != lost)
    return; // Noticed already.
  spdlog::warn("shard {} of the index does not answer: {}", number, to_string(from_caf(err)));
  options_.index_lost(lost);
  at->second = {};
  settle();
}

void segment_mounts::settle() {
  const auto is_reporting = [](const auto& at) { return at.second.is_reporting; };
  if (std::ranges::none_of(mounts_, is_reporting))
    for (const auto& then : std::exchange(waiting_, {}))
      then();
}

} // namespace hicache
