#include "actors/segment.hpp"

#include "backends/cluster/segment_memory.hpp"
#include "base/check.hpp"
#include "messages/page_header.hpp"

#include <caf/actor_cast.hpp>
#include <caf/send.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

namespace hicache {

namespace {

constexpr auto no_parent = page_key{};

/// How soon a segment notices a new or returned shard; its pages are misses until then.
constexpr auto index_pause = caf::timespan{std::chrono::milliseconds{250}};

segment_request request_for(const segment_page& page) {
  return {page.key,
          page.parent == no_parent ? std::nullopt : std::optional{page.parent},
          slot_bytes_for(page.length),
          page.length,
          page.fingerprint,
          page.tenant,
          page.copies};
}

segment_slot slot_of(const stored_page& exported) {
  return {exported.key, segment_slot::state::exported, exported.offset, exported.generation,
          exported.length};
}

} // namespace

// -- requests of this process -------------------------------------------------

caf::result<atom::ok> segment_state::mount() {
  auto promise = self->make_response_promise<atom::ok>();
  mounts->when_settled([promise]() mutable { promise.deliver(atom::ok_v); });
  return promise;
}

segment_slots segment_state::reserve(const segment_pages& pages) {
  auto slots = segment_slots{};
  auto evicted = std::vector<page_key>{};
  auto moved = std::vector<announced_page>{};
  slots.list.reserve(pages.list.size());
  const auto now = options.clock->now();
  for (const auto& page : pages.list) {
    if (offered->find_exported(page.key)) {
      slots.list.push_back({page.key, segment_slot::state::present, 0, 0, page.length});
      continue;
    }
    const auto room = table->reserve(request_for(page), now);
    for (const auto& gone : room.evicted) {
      clear_header(options.memory, gone.offset);
      evicted.push_back(gone.key);
    }
    for (const auto& one : room.moved) {
      move_slot(options.memory, one.from, one.to, one.bytes, one.generation);
      moved.push_back({one.key, one.to, one.generation, 0});
    }
    auto& slot = slots.list.emplace_back(segment_slot{.key = page.key, .length = page.length});
    if (room.status == reserve_status::already_there) {
      slot.what = segment_slot::state::present;
      table->touch(page.key); // A write shows interest in the page.
    } else if (room.status == reserve_status::reserved) {
      slot = {page.key,   segment_slot::state::reserved, room.offset, room.generation, page.length,
              page.parent};
      clear_header(options.memory, room.offset);
    }
  }
  tell_gone(evicted);
  auto news = std::vector<announced_page>{};
  for (const auto& one : moved)
    if (const auto here = table->find(one.key); here && here->generation == one.generation) {
      keep(one.key);
      news.push_back(announce(*here));
    }
  mounts->publish(news, [] {});
  show();
  return slots;
}

caf::result<key_batch> segment_state::publish(const segment_slots& slots) {
  auto news = std::vector<announced_page>{};
  auto keys = std::vector<page_key>{};
  for (const auto& slot : slots.list) {
    const auto is_exported = slot.what == segment_slot::state::exported;
    keys.push_back(slot.key);
    if (is_exported ? export_page(slot) : table->publish(slot.key, slot.generation)) {
      news.push_back({slot.key, slot.offset, slot.generation, slot.length});
      if (!is_exported) {
        revoke(slot.key); // The segment's copy lives longer.
        keep(slot.key);
      }
    }
  }
  show();
  auto promise = self->make_response_promise<key_batch>();
  auto on_end = [this, promise, keys = std::move(keys)]() mutable {
    std::erase_if(keys, [this](const page_key& key) { return offered->find(key).has_value(); });
    promise.deliver(key_batch{std::move(keys)});
  };
  mounts->publish(news, std::move(on_end), slots.only_new);
  return promise;
}

void segment_state::abort(const segment_slots& slots) {
  auto published = std::vector<page_key>{};
  for (const auto& slot : slots.list) {
    if (slot.what == segment_slot::state::reserved && table->abort(slot.key, slot.generation))
      continue;
    if (const auto here = offered->find(slot.key);
        here && here->offset == slot.offset && here->generation == slot.generation)
      published.push_back(slot.key);
  }
  let_go(published);
}

void segment_state::withdraw(const segment_slots& reclaimed) {
  auto gone = std::vector<page_key>{};
  for (const auto& slot : reclaimed.list)
    if (const auto here = offered->find_exported(slot.key);
        here && here->generation == slot.generation) {
      offered->revoke(slot.key);
      gone.push_back(slot.key);
    }
  mounts->withdraw(gone);
  show();
}

segment_slots segment_state::hold(const segment_holds& wanted) {
  auto slots = segment_slots{};
  slots.list.reserve(wanted.keys.size());
  for (const auto& key : wanted.keys) {
    auto& slot = slots.list.emplace_back(segment_slot{key});
    // Pages exported from L2 cannot be held.
    const auto here = table->find(key);
    if (!here || here->fingerprint != wanted.fingerprint || !table->hold(key))
      continue;
    table->touch(key);
    if (options.lasting)
      set_held(options.memory, here->offset, true);
    slot = {key, segment_slot::state::present, here->offset, here->generation, here->length};
  }
  return slots;
}

void segment_state::release(const segment_slots& slots) {
  for (const auto& slot : slots.list)
    if (table->release(slot.offset, slot.generation) && options.lasting
        && !table->is_held(slot.offset))
      set_held(options.memory, slot.offset, false);
  show();
}

caf::result<atom::ok> segment_state::remove(const key_list& keys) {
  let_go(*keys);
  return atom::ok_v;
}

caf::result<atom::ok> segment_state::adopt(const found_pages& part) {
  auto promise = self->make_response_promise<atom::ok>();
  auto news = std::vector<announced_page>{};
  for (const auto offset : part.damaged)
    clear_header(options.memory, offset);
  for (const auto& found : part.list) {
    if (adopt(found))
      news.push_back({found.page.key, found.offset, found.generation, found.page.length});
    else
      clear_header(options.memory, found.offset);
  }
  table->pass(part.end);
  options.figures->kept += news.size();
  options.figures->dropped += part.damaged.size();
  options.figures->unscanned_bytes = options.memory.size() - part.end;
  if (part.end == options.memory.size())
    unwanted.clear();
  show();
  mounts->publish(news, [promise]() mutable { promise.deliver(atom::ok_v); });
  return promise;
}

void segment_state::drop(const segment_holds& pages) {
  if (options.figures->unscanned_bytes > 0)
    for (const auto& key : pages.keys)
      unwanted.add(pages.fingerprint, key);
}

void segment_state::note_disk(const key_batch& changed) {
  auto keys = changed.keys;
  std::erase_if(keys, [this](const page_key& key) { return offered->find(key).has_value(); });
  tell_gone(keys);
}

caf::result<atom::ok> segment_state::leave() {
  auto promise = self->make_response_promise<atom::ok>();
  mounts->leave([this, promise]() mutable {
    promise.deliver(atom::ok_v);
    self->quit();
  });
  return promise;
}

void segment_state::tick() {
  self->delayed_send(self, tick_pause(), atom::tick_v);
  mounts->look_at_index();
  if (const auto now = options.clock->now(); now >= next_heartbeat) {
    next_heartbeat = now + mounts->heartbeat_pause();
    mounts->send_heartbeat(counters(), table->is_closed());
  }
  if (!held_before.list.empty() && options.clock->now() >= held_until)
    release(std::exchange(held_before, {}));
  if (!table->is_closed())
    repair->run();
}

// -- requests of other members and of operators -------------------------------

caf::result<page_totals> segment_state::copy(const page_copies& pages) {
  if (!options.replicator)
    return to_caf({ec::unsupported, "this member copies nothing"});
  return self->delegate(options.replicator, atom::copy_v, pages,
                        caf::actor_cast<caf::strong_actor_ptr>(self));
}

page_totals segment_state::pin(const page_pins& wanted) {
  auto totals = page_totals{};
  const auto ttl = std::min<uint64_t>(wanted.ttl_ms, limits::pin_time.count());
  const auto until = options.clock->now() + std::chrono::milliseconds{ttl};
  for (const auto& key : wanted.keys)
    if (table->pin(key, static_cast<pin_kind>(wanted.kind), until)) {
      ++totals.pages;
      totals.bytes += table->find(key)->bytes;
    } else {
      totals.left_out.push_back(key);
    }
  return totals;
}

caf::result<page_totals> segment_state::clear(const namespace_pages& wanted) {
  if (wanted.evict_first) {
    const auto [pages, bytes] = table->evict_first(wanted.fingerprint);
    return page_totals{pages, bytes};
  }
  if (options.figures->unscanned_bytes > 0)
    unwanted.add(wanted.fingerprint);
  auto let_them_go = [this, wanted] { return let_go(offered->of_namespace(wanted.fingerprint)); };
  if (!disk)
    return let_them_go();
  // Disk first, so that the pages do not return from there.
  auto promise = self->make_response_promise<page_totals>();
  self->request(disk, caf::infinite, atom::clear_v, wanted)
    .then([promise, let_them_go](atom::ok) mutable { promise.deliver(let_them_go()); },
          [promise, let_them_go](caf::error& err) mutable {
            let_them_go();
            promise.deliver(std::move(err));
          });
  return promise;
}

caf::result<drain_report> segment_state::drain(const drain_request& how) {
  auto promise = self->make_response_promise<drain_report>();
  if (!drain_) {
    table->close();
    if (options.exported)
      options.exported->close();
    mounts->send_heartbeat(counters(), true); // Other members stop sending pages.
    drain_ = draining{};
    auto settings = spread_settings(mounts->options());
    settings.source.stays = false;
    settings.figures = drain_->figures;
    const auto now = options.clock->now();
    for (const auto& kept : table->worth_keeping(limits::hot_uses))
      settings.pages.push_back(copy_of(kept, now));
    drain_->spreader = self->spawn(spreader, std::move(settings));
    const auto is_this
      = [this, started = drain_->figures] { return drain_ && drain_->figures == started; };
    self->request(drain_->spreader, caf::infinite, atom::copy_v)
      .then(
        [this, is_this](const page_totals& spread) {
          if (is_this())
            end_drain(spread);
        },
        [this, is_this](const caf::error& err) {
          if (is_this())
            answer_drain(tl::unexpected{from_caf(err)});
        });
  }
  drain_->is_forced |= how.force;
  drain_->waiting.push_back(promise);
  return promise;
}

drain_progress segment_state::progress() const {
  if (!drain_)
    return {false, table->is_closed(), 0, 0, 0};
  const auto& figures = *drain_->figures;
  return {true, table->is_closed(), figures.pages, figures.tried, figures.copied};
}

drain_progress segment_state::resume() {
  const auto so_far = progress();
  if (drain_) {
    self->send_exit(drain_->spreader, caf::exit_reason::user_shutdown);
    answer_drain(fail(ec::stopping, "draining was undone"));
  }
  if (!table->is_closed())
    return so_far;
  table->open();
  mounts->send_heartbeat(counters(), false);
  offered->offer_disk(true);
  mounts->report_disk();
  if (options.exported)
    options.exported->open([me = caf::actor_cast<segment_actor>(self)](segment_slots reclaimed) {
      caf::anon_send(me, atom::withdraw_v, std::move(reclaimed));
    });
  spdlog::info("takes pages again");
  return so_far;
}

void segment_state::touch(const key_batch& used) {
  for (const auto& key : used.keys)
    table->touch(key);
}

void segment_state::check(const key_batch& doubtful) {
  auto damaged = std::vector<page_key>{};
  for (const auto& key : doubtful.keys)
    if (const auto here = offered->find(key); here && is_damaged(*here)) {
      spdlog::warn("page {} is damaged in this member's memory; it is withdrawn", to_string(key));
      damaged.push_back(key);
    }
  corrupt += damaged.size();
  let_go(damaged);
}

caf::result<placements> segment_state::recall(const page_recall& wanted) {
  const auto wait
    = std::min<duration>(std::chrono::milliseconds{wanted.wait_ms}, limits::storage_timeout);
  auto order = page_fetch{{}, options.clock->now() + wait};
  for (const auto& key : wanted.keys)
    if (!table->touch(key))
      order.pages.list.push_back({key, no_parent, 0, wanted.fingerprint, 0});
  if (!disk || order.pages.list.empty())
    return places_of(wanted);
  auto promise = self->make_response_promise<placements>();
  // Some pages may have arrived even after an error.
  auto end = [this, promise, wanted]() mutable { promise.deliver(places_of(wanted)); };
  self->request(disk, caf::timespan{wait}, atom::fetch_v, std::move(order))
    .then([end](atom::ok) mutable { end(); }, [end](const caf::error&) mutable { end(); });
  return promise;
}

// -- internal steps -----------------------------------------------------------

bool segment_state::export_page(const segment_slot& slot) {
  // If it was revoked meanwhile, there is no further notice.
  if (!options.exported || !options.exported->is_exported(slot))
    return false;
  if (table->find(slot.key)) {
    options.exported->revoke(slot);
    return false;
  }
  if (const auto here = offered->find_exported(slot.key);
      here && here->generation == slot.generation)
    return false;
  // The page was exported from another L2 object before.
  revoke(slot.key);
  offered->export_page({slot.key, slot.offset, slot.generation, slot.length,
                        slot_object_offset + slot.length, mounts->options().member.fingerprint});
  return true;
}

std::optional<stored_page> segment_state::revoke(const page_key& key) {
  auto gone = offered->revoke(key);
  if (gone)
    options.exported->revoke(slot_of(*gone));
  return gone;
}

bool segment_state::is_damaged(const stored_page& page) const {
  if (offered->find_exported(page.key))
    return options.exported->is_damaged(slot_of(page), page.fingerprint);
  const auto slot = segment_slot{page.key, segment_slot::state::present, page.offset,
                                 page.generation, page.length};
  return !is_intact(options.memory, slot, page.offset + slot_object_offset, page.fingerprint);
}

void segment_state::keep(const page_key& key) {
  if (!options.lasting)
    return;
  const auto kept = table->describe(key);
  const auto& page = kept->page;
  keep_slot(options.memory,
            {{key, kept->parent.value_or(no_parent), page.length, page.fingerprint, kept->tenant,
              kept->copies},
             page.offset,
             page.generation},
            options.lasting->seed);
}

bool segment_state::adopt(const found_page& found) {
  const auto& page = found.page;
  if (unwanted.contains(page.fingerprint, page.key) || offered->find_exported(page.key)
      || !table->adopt(request_for(page), found.offset, found.generation))
    return false;
  if (found.was_held)
    for (const auto& slot : hold({page.fingerprint, {page.key}}).list)
      if (slot.what == segment_slot::state::present)
        held_before.list.push_back(slot);
  return true;
}

void segment_state::tell_gone(const std::vector<page_key>& keys) {
  auto gone = std::vector<page_key>{};
  auto on_disk = std::vector<announced_page>{};
  for (const auto& key : keys)
    if (const auto left = offered->find_anywhere(key))
      on_disk.push_back(announce(*left));
    else
      gone.push_back(key);
  mounts->withdraw(gone);
  mounts->publish(on_disk, [] {});
}

placements segment_state::places_of(const page_recall& wanted) const {
  auto answer = placements{};
  answer.replicas.resize(wanted.keys.size());
  for (auto i = size_t{0}; i < wanted.keys.size(); ++i)
    if (const auto here = table->find(wanted.keys[i]);
        here && here->fingerprint == wanted.fingerprint)
      answer.replicas[i].push_back(
        {mounts->options().member.member, here->offset, here->generation, here->length});
  return answer;
}

page_totals segment_state::let_go(const std::vector<page_key>& keys) {
  auto totals = page_totals{};
  auto gone = std::vector<page_key>{};
  for (const auto& key : keys)
    if (const auto where = offered->find(key)) {
      if (table->remove(key))
        clear_header(options.memory, where->offset);
      else
        revoke(key);
      gone.push_back(key);
      ++totals.pages;
      totals.bytes += where->bytes;
    }
  tell_gone(gone);
  show();
  return totals;
}

uint64_t segment_state::let_all_go() {
  const auto* const on_disk = offered->disk();
  auto pages = on_disk ? on_disk->size() : 0;
  auto keys = std::vector<page_key>{};
  for (const auto& page : offered->published(0, offered->count())) {
    keys.push_back(page.key);
    pages += on_disk && on_disk->find(page.key) ? 0 : 1;
  }
  offered->offer_disk(false);
  let_go(keys);
  withdraw_disk();
  return pages;
}

void segment_state::withdraw_disk() {
  offered->offer_disk(false);
  if (options.on_disk)
    mounts->start_over(); // A disk may have too many pages to withdraw each.
}

void segment_state::end_drain(const page_totals& spread) {
  auto pinned = size_t{0};
  for (const auto& key : spread.left_out)
    if (const auto kept = table->describe(key); kept && kept->pin != pin_kind::none)
      ++pinned;
  if (pinned > 0 && !drain_->is_forced) {
    withdraw_disk(); // There is no room to bring them to.
    answer_drain(fail(ec::store_full, std::to_string(pinned)
                                        + " pinned pages could not be copied to other members; the "
                                          "member keeps all of its pages in memory and takes no "
                                          "more"));
    return;
  }
  const auto report = drain_report{spread.pages, let_all_go()};
  spdlog::info("drained: other members have {} of the pages, {} are withdrawn", report.moved,
               report.withdrawn);
  answer_drain(report);
}

void segment_state::answer_drain(const result<drain_report>& end) {
  if (!end)
    spdlog::warn("not drained: {}", to_string(end.error()));
  auto waiting = std::move(drain_->waiting);
  drain_.reset();
  for (auto& promise : waiting) {
    if (end)
      promise.deliver(*end);
    else
      promise.deliver(to_caf(end.error()));
  }
}

caf::timespan segment_state::tick_pause() const {
  return std::min<caf::timespan>(mounts->heartbeat_pause(), index_pause);
}

member_counters segment_state::counters() const {
  const auto& figures = *options.figures;
  return {figures.hits, figures.misses,  figures.errors,
          corrupt,      figures.evicted, table->counters().pinned_bytes};
}

void segment_state::show() {
  const auto counters = table->counters();
  options.figures->pages = offered->count();
  options.figures->used_bytes = counters.used_bytes;
  options.figures->evicted = counters.evicted;
}

// -- actor --------------------------------------------------------------------

segment_actor::behavior_type segment(segment_actor::stateful_pointer<segment_state> self,
                                     segment_options options) {
  HICACHE_CHECK(!options.memory.empty() && options.figures != nullptr && options.clock != nullptr);
  const auto& exported = options.mounts.member.exported;
  HICACHE_CHECK(exported == (options.exported ? options.exported->objects() : exported_objects{}));
  const auto segment_bytes = options.exported ? exported.headers : options.memory.size();
  auto& state = self->state;
  state.options = std::move(options);
  state.table.emplace(segment_bytes, state.options.policy);
  if (state.options.lasting && state.options.lasting->has_pages) {
    state.table->expect_pages();
    state.options.figures->unscanned_bytes = segment_bytes;
  }
  state.held_until = state.options.clock->now() + limits::node_lease_time;
  state.offered.emplace(*state.table, state.options.on_disk);
  state.options.mounts.refused = [self](const auto& keys) { self->state.let_go(keys); };
  state.options.mounts.lost = [self](const auto& keys) { self->state.repair->note(keys); };
  state.mounts.emplace(self, state.options.mounts, *state.offered);
  state.repair.emplace(self,
                       segment_repair_options{state.options.repair, state.options.copies,
                                              state.options.figures, state.options.clock},
                       *state.table, *state.offered, *state.mounts);
  state.mounts->look_at_index();
  // By default an error message terminates an actor, and any peer may send one.
  self->set_error_handler(
    [](const caf::error& err) { spdlog::warn("a peer complains: {}", to_string(from_caf(err))); });
  self->delayed_send(self, state.tick_pause(), atom::tick_v);
  return {
    [self](atom::copy, const page_copies& pages) { return self->state.copy(pages); },
    [self](atom::pin, const page_pins& wanted) { return self->state.pin(wanted); },
    [self](atom::clear, const namespace_pages& wanted) { return self->state.clear(wanted); },
    [self](atom::drain, const drain_request& how) { return self->state.drain(how); },
    [self](atom::status, const status_query&) { return self->state.progress(); },
    [self](atom::resume, const drain_request&) { return self->state.resume(); },
    [self](atom::touch, const key_batch& used) { self->state.touch(used); },
    [self](atom::corrupt, const key_batch& doubtful) { self->state.check(doubtful); },
    [self](atom::recall, const page_recall& wanted) { return self->state.recall(wanted); },
    [self](atom::mount) { return self->state.mount(); },
    [self](atom::reserve, const segment_pages& pages) { return self->state.reserve(pages); },
    [self](atom::publish, const segment_slots& slots) { return self->state.publish(slots); },
    [self](atom::abort, const segment_slots& slots) { self->state.abort(slots); },
    [self](atom::withdraw, const segment_slots& slots) { self->state.withdraw(slots); },
    [self](atom::hold, const segment_holds& wanted) { return self->state.hold(wanted); },
    [self](atom::release, const segment_slots& slots) { self->state.release(slots); },
    [self](atom::attach, const caf::strong_actor_ptr& below) {
      self->state.disk = caf::actor_cast<disk_tier_actor>(below);
    },
    [self](atom::backup, const key_batch& changed) { self->state.note_disk(changed); },
    [self](atom::adopt) { self->state.mounts->report_disk(); },
    [self](atom::remove, const key_list& keys) { return self->state.remove(keys); },
    [self](atom::adopt, const found_pages& part) { return self->state.adopt(part); },
    [self](atom::drop, const segment_holds& pages) { self->state.drop(pages); },
    [self](atom::terminate) { return self->state.leave(); },
    [self](atom::tick) { self->state.tick(); },
  };
}

} // namespace hicache
