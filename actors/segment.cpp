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
  withdraw(std::move(evicted));
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
  if (mounting)
    held_back.insert(held_back.end(), news.begin(), news.end());
  // Without an index the pages are stored all the same; the next block report tells the others.
  if (!index || mounting || news.empty())
    return atom::ok_v;
  auto promise = self->make_response_promise<atom::ok>();
  announce(std::move(news), [promise]() mutable { promise.deliver(atom::ok_v); });
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
  withdraw(std::move(gone));
  return atom::ok_v;
}

void segment_state::tick() {
  self->delayed_send(self, heartbeat_pause, atom::tick_v);
  if (mounting)
    return;
  if (!index) {
    mount();
    return;
  }
  auto on_error = [this, to = index](const caf::error& err) { on_index_error(to, err); };
  self
    ->request(index, options.timeout, atom::tick_v,
              heartbeat{options.member.member, options.member.epoch})
    .then([this](const membership& view) { heed(view); }, on_error);
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

void segment_state::mount() {
  index = options.index();
  if (!index)
    return;
  mounting = true;
  ++options.member.epoch;
  auto on_view = [this](const membership& view) {
    heartbeat_pause = std::chrono::milliseconds{std::max<uint64_t>(view.member_ttl_ms / 4, 1)};
    report(0);
  };
  auto on_error = [this, to = index](const caf::error& err) { on_index_error(to, err); };
  self->request(index, options.timeout, atom::mount_v, options.member).then(on_view, on_error);
}

void segment_state::report(uint32_t first) {
  auto news = std::vector<announced_page>{};
  auto next = first;
  for (const auto& page : table->published(first, limits::index_batch_keys)) {
    news.push_back(
      {page.key, page.slot * options.member.slot_bytes, page.generation, lengths[page.slot]});
    next = page.slot + 1;
  }
  if (!news.empty()) {
    announce(std::move(news), [this, next] {
      if (index)
        report(next);
    });
    return;
  }
  mounting = false;
  std::erase_if(held_back, [this](const announced_page& page) {
    const auto here = table->find(page.key);
    return !here || here->generation != page.generation;
  });
  if (auto late = std::exchange(held_back, {}); !late.empty())
    announce(std::move(late), [] {});
}

void segment_state::announce(std::vector<announced_page> pages, std::function<void()> then) {
  auto on_error = [this, to = index, then](const caf::error& err) {
    on_index_error(to, err);
    then();
  };
  auto on_view = [this, then](const membership& view) {
    heed(view);
    then();
  };
  self
    ->request(index, options.timeout, atom::publish_v,
              published_pages{options.member.member, options.member.epoch, std::move(pages)})
    .then(on_view, on_error);
}

void segment_state::withdraw(std::vector<page_key> keys) {
  if (!index || keys.empty())
    return;
  auto news = withdrawn_pages{options.member.member, options.member.epoch, std::move(keys)};
  auto on_error = [this, to = index](const caf::error& err) { on_index_error(to, err); };
  self->request(index, options.timeout, atom::withdraw_v, std::move(news))
    .then([this](const membership& view) { heed(view); }, on_error);
}

void segment_state::heed(const membership& view) {
  if (!view.known && !mounting)
    mount();
}

void segment_state::on_index_error(const index_actor& lost, const caf::error& err) {
  if (index != lost)
    return; // Noticed already.
  spdlog::warn("the index does not answer: {}", to_string(from_caf(err)));
  options.index_lost(lost);
  index = nullptr;
  mounting = false;
  held_back.clear();
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
  state.mount();
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
