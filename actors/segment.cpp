#include "actors/segment.hpp"

#include "base/check.hpp"
#include "base/limits.hpp"
#include "messages/page_header.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

namespace hicache {

namespace {

/// Until the index has said how long it waits for a sign of life.
constexpr auto first_heartbeat_pause = std::chrono::milliseconds{500};

constexpr auto no_parent = page_key{};

const page_key& key_of(const page_key& x) {
  return x;
}

const page_key& key_of(const announced_page& x) {
  return x.key;
}

} // namespace

// -- request handling ---------------------------------------------------------

segment_slots segment_state::reserve(const segment_pages& pages) {
  auto slots = segment_slots{};
  auto evicted = std::vector<page_key>{};
  slots.list.reserve(pages.keys.size());
  for (auto i = size_t{0}; i < pages.keys.size(); ++i) {
    const auto& key = pages.keys[i];
    const auto* parent = pages.parents[i] == no_parent ? nullptr : &pages.parents[i];
    const auto room = table->reserve(key, parent);
    if (room.evicted)
      evicted.push_back(*room.evicted);
    auto& slot = slots.list.emplace_back();
    slot.key = key;
    if (room.status == reserve_status::already_there) {
      slot.what = segment_slot::state::present;
    } else if (room.status == reserve_status::reserved) {
      slot.what = segment_slot::state::reserved;
      slot.offset = room.slot * options.member.slot_bytes;
      slot.generation = room.generation;
      invalidate(room.slot);
    }
  }
  withdraw(evicted);
  return slots;
}

caf::result<atom::ok> segment_state::publish(const segment_slots& slots) {
  auto news = std::vector<announced_page>{};
  for (const auto& slot : slots.list) {
    const auto i = slot_of(slot.offset);
    if (!table->publish(i, slot.generation))
      continue;
    lengths[i] = slot.length;
    news.push_back({slot.key, slot.offset, slot.generation, slot.length});
  }
  // Answers when each shard that can be told has been told: when nobody holds the promise any more.
  auto promise = self->make_response_promise<atom::ok>();
  const auto answer
    = std::shared_ptr<void>{nullptr, [promise](void*) mutable { promise.deliver(atom::ok_v); }};
  for (auto& [number, pages] : by_shard(news)) {
    auto& at = mounts[number];
    if (at.is_reporting)
      at.held_back.insert(at.held_back.end(), pages.begin(), pages.end());
    else if (at.shard) // Without it the pages are stored all the same: its block report tells.
      announce(number, std::move(pages), [answer] {});
  }
  return promise;
}

void segment_state::abort(const segment_slots& slots) {
  for (const auto& slot : slots.list)
    if (slot.what == segment_slot::state::reserved)
      table->abort(slot_of(slot.offset), slot.generation);
}

void segment_state::touch(const key_list& keys) {
  for (const auto& key : *keys)
    table->touch(key);
}

caf::result<atom::ok> segment_state::remove(const key_list& keys) {
  auto gone = std::vector<page_key>{};
  for (const auto& key : *keys)
    if (const auto where = table->find(key); where && table->remove(key)) {
      invalidate(where->slot);
      gone.push_back(key);
    }
  withdraw(gone);
  return atom::ok_v;
}

void segment_state::tick() {
  self->delayed_send(self, heartbeat_pause, atom::tick_v);
  look_at_index();
  for (const auto& [number, at] : mounts) {
    if (!at.shard || at.is_reporting)
      continue;
    auto on_view = [this, number = number](const membership& view) { heed(number, view); };
    auto on_error = [this, number = number, to = at.shard](const caf::error& err) {
      on_index_error(number, to, err);
    };
    self
      ->request(at.shard, options.timeout, atom::tick_v, heartbeat{options.member.member, at.epoch})
      .then(on_view, on_error);
  }
}

// -- internal steps -----------------------------------------------------------

uint32_t segment_state::slot_of(uint64_t offset) const {
  return static_cast<uint32_t>(offset / options.member.slot_bytes);
}

void segment_state::invalidate(uint32_t slot) {
  auto* header = options.memory.data() + slot * options.member.slot_bytes;
  std::memset(header, 0, page_header_bytes);
  // Readers check the header after the bytes: the cleared header must be seen before any new byte.
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void segment_state::look_at_index() {
  const auto view = options.index();
  if (view->numbers != numbers)
    reshard(view->numbers);
  for (auto i = size_t{0}; i < numbers.size(); ++i)
    if (view->shards[i] && view->shards[i] != mounts[numbers[i]].shard)
      mount(numbers[i], view->shards[i]);
}

void segment_state::reshard(const std::vector<uint32_t>& now) {
  auto moved = std::map<uint32_t, std::vector<page_key>>{};
  if (!numbers.empty() && !now.empty())
    for (const auto& page : table->published(0, table->slots())) {
      const auto before = numbers[shard_of(page.key, numbers)];
      if (before != now[shard_of(page.key, now)])
        moved[before].push_back(page.key);
    }
  const auto is_in_use = [&](uint32_t x) { return std::ranges::binary_search(now, x); };
  const auto leaves_keys = !std::ranges::all_of(numbers, is_in_use);
  numbers = now;
  std::erase_if(mounts, [&](const auto& at) { return !is_in_use(at.first); });
  for (auto& [number, keys] : moved)
    if (is_in_use(number))
      withdraw_from(number, std::move(keys));
  for (const auto number : numbers)
    if (auto& at = mounts[number]; leaves_keys && at.shard)
      mount(number, at.shard);
}

template <class Page>
std::map<uint32_t, std::vector<Page>>
segment_state::by_shard(const std::vector<Page>& pages) const {
  auto lists = std::map<uint32_t, std::vector<Page>>{};
  if (numbers.empty())
    return lists;
  for (const auto& page : pages)
    lists[numbers[shard_of(key_of(page), numbers)]].push_back(page);
  return lists;
}

void segment_state::mount(uint32_t number, const index_actor& shard) {
  auto& at = mounts[number];
  at = {shard, ++options.member.epoch, true, {}};
  auto on_view = [this, number, epoch = at.epoch](const membership& view) {
    if (const auto here = mounts.find(number); here == mounts.end() || here->second.epoch != epoch)
      return; // Mounted anew since.
    heartbeat_pause = std::chrono::milliseconds{std::max<uint64_t>(view.member_ttl_ms / 4, 1)};
    report(number, 0);
  };
  auto on_error
    = [this, number, shard](const caf::error& err) { on_index_error(number, shard, err); };
  self->request(shard, options.timeout, atom::mount_v, options.member).then(on_view, on_error);
}

void segment_state::report(uint32_t number, uint32_t first) {
  auto news = std::vector<announced_page>{};
  auto next = first;
  while (news.size() < limits::index_batch_keys) {
    const auto pages = table->published(next, limits::index_batch_keys - news.size());
    if (pages.empty())
      break;
    for (const auto& page : pages)
      if (numbers[shard_of(page.key, numbers)] == number)
        news.push_back(
          {page.key, page.slot * options.member.slot_bytes, page.generation, lengths[page.slot]});
    next = pages.back().slot + 1;
  }
  auto& at = mounts[number];
  if (!news.empty()) {
    announce(number, std::move(news), [this, number, next, epoch = at.epoch] {
      if (const auto here = mounts.find(number);
          here != mounts.end() && here->second.shard && here->second.epoch == epoch)
        report(number, next);
    });
    return;
  }
  at.is_reporting = false;
  std::erase_if(at.held_back, [this](const announced_page& page) {
    const auto here = table->find(page.key);
    return !here || here->generation != page.generation;
  });
  if (auto late = std::exchange(at.held_back, {}); !late.empty())
    announce(number, std::move(late), [] {});
}

void segment_state::announce(uint32_t number, std::vector<announced_page> pages,
                             std::function<void()> then) {
  const auto& at = mounts[number];
  auto on_error = [this, number, to = at.shard, then](const caf::error& err) {
    on_index_error(number, to, err);
    then();
  };
  auto on_view = [this, number, then](const membership& view) {
    heed(number, view);
    then();
  };
  self
    ->request(at.shard, options.timeout, atom::publish_v,
              published_pages{options.member.member, at.epoch, std::move(pages)})
    .then(on_view, on_error);
}

void segment_state::withdraw(const std::vector<page_key>& keys) {
  for (auto& [number, gone] : by_shard(keys))
    withdraw_from(number, std::move(gone));
}

void segment_state::withdraw_from(uint32_t number, std::vector<page_key> keys) {
  const auto& at = mounts[number];
  if (!at.shard)
    return;
  auto on_view = [this, number](const membership& view) { heed(number, view); };
  auto on_error
    = [this, number, to = at.shard](const caf::error& err) { on_index_error(number, to, err); };
  for (auto first = size_t{0}; first < keys.size(); first += limits::index_batch_keys) {
    const auto begin = keys.begin() + static_cast<ptrdiff_t>(first);
    const auto end
      = begin + static_cast<ptrdiff_t>(std::min(limits::index_batch_keys, keys.size() - first));
    self
      ->request(at.shard, options.timeout, atom::withdraw_v,
                withdrawn_pages{options.member.member, at.epoch, {begin, end}})
      .then(on_view, on_error);
  }
}

void segment_state::heed(uint32_t number, const membership& view) {
  options.index_heard(view.shards_digest);
  const auto at = mounts.find(number);
  if (at != mounts.end() && at->second.shard && !at->second.is_reporting && !view.known)
    mount(number, at->second.shard);
}

void segment_state::on_index_error(uint32_t number, const index_actor& lost,
                                   const caf::error& err) {
  const auto at = mounts.find(number);
  if (at == mounts.end() || at->second.shard != lost)
    return; // Noticed already.
  spdlog::warn("shard {} of the index does not answer: {}", number, to_string(from_caf(err)));
  options.index_lost(lost);
  at->second = {};
}

// -- actor --------------------------------------------------------------------

segment_actor::behavior_type segment(segment_actor::stateful_pointer<segment_state> self,
                                     segment_options options) {
  HICACHE_CHECK(options.member.slot_bytes > page_header_bytes);
  const auto slot_count = options.memory.size() / options.member.slot_bytes;
  HICACHE_CHECK(slot_count > 0 && slot_count <= limits::pool_pages);
  auto& state = self->state;
  state.options = std::move(options);
  state.table.emplace(static_cast<uint32_t>(slot_count));
  state.lengths.resize(slot_count);
  state.heartbeat_pause = first_heartbeat_pause;
  state.look_at_index();
  self->delayed_send(self, state.heartbeat_pause, atom::tick_v);
  return {
    [self](atom::reserve, const segment_pages& pages) { return self->state.reserve(pages); },
    [self](atom::publish, const segment_slots& slots) { return self->state.publish(slots); },
    [self](atom::abort, const segment_slots& slots) { self->state.abort(slots); },
    [self](atom::touch, const key_list& keys) { self->state.touch(keys); },
    [self](atom::remove, const key_list& keys) { return self->state.remove(keys); },
    [self](atom::tick) { self->state.tick(); },
    [self](atom::counters) {
      auto counters = rank_counters{};
      counters.evicted_l3 = self->state.table->counters().evicted;
      return counters;
    },
  };
}

} // namespace hicache
