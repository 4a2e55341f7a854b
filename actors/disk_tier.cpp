#include "actors/disk_tier.hpp"

#include "backends/cluster/segment_memory.hpp"
#include "base/check.hpp"
#include "base/keys_of.hpp"
#include "base/limits.hpp"
#include "cache/store/client_table.hpp"
#include "messages/page_header.hpp"

#include <caf/actor_cast.hpp>
#include <caf/send.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>

namespace hicache {

namespace {

/// Whether a page that was read is the one that was written.
/// @param object In memory that others may write to.
result<void> verify(const encoded_page_header& encoded, const segment_slot& slot,
                    uint64_t fingerprint, std::span<std::byte> object) {
  const auto page = page_read{slot.key, {object}};
  auto reader = headed_object_reader{page, fingerprint, part_lengths::exact};
  reader.take(0, encoded);
  return reader.outcome(page_header_bytes + slot.length).map([](uint64_t) {});
}

disk_listing listing_of(const result<object_list>& part) {
  if (!part)
    return {{}, {}, part.error()};
  auto listing = disk_listing{{}, part->next, {}};
  for (const auto& object : part->objects)
    if (object.bytes > page_header_bytes && object.bytes <= UINT32_MAX)
      listing.pages.push_back(
        {object.key, object.fingerprint, static_cast<uint32_t>(object.bytes - page_header_bytes)});
  return listing;
}

} // namespace

// -- requests -----------------------------------------------------------------

caf::result<atom::ok> disk_tier_state::fetch(const page_fetch& wanted) {
  const auto job = std::make_shared<fetch_job>(
    fetch_job{wanted.pages.list, 0, wanted.deadline, self->make_response_promise<atom::ok>()});
  auto answer = job->promise;
  enqueue(false, [this, job] {
    ++fetches;
    read_next(job);
  });
  return answer;
}

void disk_tier_state::store(const segment_pages& pages) {
  const auto taken = std::min(limits::disk_waiting_pages - waiting.size(), pages.list.size());
  waiting.insert(waiting.end(), pages.list.begin(),
                 pages.list.begin() + static_cast<ptrdiff_t>(taken));
  options.figures->skipped += pages.list.size() - taken;
  wake();
}

caf::result<atom::ok> disk_tier_state::remove(const segment_holds& unwanted) {
  auto promise = self->make_response_promise<atom::ok>();
  enqueue(true, [this, promise, unwanted]() mutable {
    std::erase_if(waiting, [&unwanted](const segment_page& x) {
      return x.fingerprint == unwanted.fingerprint
             && std::ranges::find(unwanted.keys, x.key) != unwanted.keys.end();
    });
    auto keys = std::vector<page_key>{};
    for (const auto& key : unwanted.keys)
      if (const auto on_disk = options.table->find(key);
          on_disk && on_disk->fingerprint == unwanted.fingerprint)
        keys.push_back(key);
    is_removing = true;
    remove_from_store(std::move(keys), [this, promise]() mutable {
      is_removing = false;
      promise.deliver(atom::ok_v);
      wake();
    });
  });
  return promise;
}

caf::result<atom::ok> disk_tier_state::clear(const namespace_pages& unwanted) {
  auto promise = self->make_response_promise<atom::ok>();
  enqueue(true, [this, promise, fingerprint = unwanted.fingerprint]() mutable {
    std::erase_if(waiting,
                  [fingerprint](const segment_page& x) { return x.fingerprint == fingerprint; });
    cleared.push_back({fingerprint});
    promise.deliver(atom::ok_v);
  });
  return promise;
}

caf::result<atom::ok> disk_tier_state::drain() {
  drains.push_back(self->make_response_promise<atom::ok>());
  wake();
  return drains.back();
}

// -- turns --------------------------------------------------------------------

void disk_tier_state::enqueue(bool is_alone, std::function<void()> begin) {
  turns.push_back({is_alone, std::move(begin)});
  wake();
}

void disk_tier_state::wake() {
  if (!std::exchange(is_woken, true))
    self->send(self, atom::tick_v);
}

bool disk_tier_state::may_begin(const turn& next) const {
  if (is_removing)
    return false;
  return next.is_alone ? fetches == 0 && writes == 0 : fetches < limits::disk_fetches;
}

bool disk_tier_state::is_idle() const {
  return turns.empty() && waiting.empty() && cleared.empty() && fetches == 0 && writes == 0
         && !is_removing;
}

void disk_tier_state::tick() {
  is_woken = false;
  if (next_list && *next_list <= options.clock->now()) {
    next_list.reset();
    listing += list_position.empty() ? 1 : 0;
    list_from(list_position);
  }
  expire();
  if (!is_listed)
    return;
  while (!turns.empty() && may_begin(turns.front())) {
    const auto next = std::move(turns.front());
    turns.pop_front();
    next.begin();
  }
  if (unlisted)
    drop_unlisted();
  if (turns.empty() && !is_removing) {
    // First what is cleared, so that no page is written that is then removed.
    if (!cleared.empty())
      clear_some();
    else
      while (!waiting.empty() && writes < limits::disk_writes)
        write_some();
  }
  if (is_idle())
    for (auto& promise : std::exchange(drains, {}))
      promise.deliver(atom::ok_v);
}

// -- batches ------------------------------------------------------------------

template <class Submit>
void disk_tier_state::submit(open_batch batch, Submit submit) {
  const auto ticket = ++last_ticket;
  deadlines.emplace(batch.deadline, ticket);
  const auto entry = batches.emplace(ticket, std::move(batch)).first;
  set_timer();
  entry->second.number = submit([me = disk_tier_actor{self}, ticket](outcomes objects) {
    caf::anon_send(me, atom::done_v, disk_completion{ticket, std::move(objects)});
  });
}

void disk_tier_state::finish(const disk_completion& completion) {
  const auto node = batches.extract(completion.ticket);
  if (!node)
    return;
  const auto& batch = node.mapped();
  deadlines.erase({batch.deadline, completion.ticket});
  batch.done(completion.outcomes, batch.is_late);
}

void disk_tier_state::expire() {
  const auto now = options.clock->now();
  while (!deadlines.empty() && deadlines.begin()->first <= now) {
    const auto ticket = deadlines.extract(deadlines.begin()).value().second;
    auto& batch = batches.at(ticket);
    const auto fate = options.store->expire(batch.number);
    if (fate == storage_backend::expiry::finished)
      continue; // Its outcomes are in the mailbox.
    batch.is_late = true;
    batch.expired();
    if (fate == storage_backend::expiry::withdrawn)
      finish({ticket, outcomes(batch.objects, fail(ec::deadline_exceeded))});
  }
  if (timer && *timer <= now)
    timer.reset();
  set_timer();
}

void disk_tier_state::set_timer() {
  auto next = next_list;
  if (!deadlines.empty())
    next = std::min(next.value_or(time_point::max()), deadlines.begin()->first);
  if (!next || (timer && *timer <= *next))
    return;
  timer = next;
  const auto left = std::max(*timer - options.clock->now(), duration{0});
  self->delayed_send(self, caf::timespan{left}, atom::tick_v);
}

// -- the table ----------------------------------------------------------------

void disk_tier_state::list_from(const std::string& from) {
  options.store->list(from, options.clock->now() + limits::storage_timeout,
                      [me = disk_tier_actor{self}](const result<object_list>& part) {
                        caf::anon_send(me, atom::adopt_v, listing_of(part));
                      });
}

void disk_tier_state::adopt(const disk_listing& part) {
  auto gained = std::vector<page_key>{};
  for (const auto& page : part.pages)
    if (options.table->add(page.key, {page.fingerprint, page.length, listing}))
      gained.push_back(page.key);
  show();
  if (is_listed)
    tell_segment(std::move(gained));
  if (part.next.empty())
    return end_list(part.failure);
  if (is_listed)
    return list_later(part.next, limits::disk_list_part_pause);
  list_from(part.next);
}

void disk_tier_state::end_list(const error& failure) {
  if (failure.code != ec::none)
    note(tl::unexpected{failure});
  if (!std::exchange(is_listed, true)) {
    self->send(options.segment, atom::adopt_v);
    wake();
  }
  if (tells_evictions)
    return;
  if (failure.code == ec::none)
    unlisted = 0;
  list_later({}, limits::disk_list_pause);
}

void disk_tier_state::list_later(std::string from, duration pause) {
  list_position = std::move(from);
  next_list = options.clock->now() + pause;
  wake();
}

void disk_tier_state::drop_unlisted() {
  auto gone = std::vector<page_key>{};
  unlisted = options.table->remove_unlisted(listing, *unlisted, limits::disk_cleared_pages, gone);
  tell_segment(std::move(gone));
  show();
  wake();
}

void disk_tier_state::forget(const key_batch& evicted) {
  for (const auto& key : evicted.keys)
    options.table->remove(key);
  tell_segment(evicted.keys);
  show();
}

// -- reading ------------------------------------------------------------------

segment_pages disk_tier_state::next_on_disk(fetch_job& job) const {
  auto found = segment_pages{};
  auto bytes = uint64_t{0};
  const auto fingerprint = job.pages[job.next].fingerprint;
  for (; job.next < job.pages.size() && found.list.size() < limits::storage_batch_pages
         && bytes < limits::disk_batch_bytes && job.pages[job.next].fingerprint == fingerprint;
       ++job.next) {
    const auto& page = job.pages[job.next];
    const auto on_disk = options.table->find(page.key);
    if (!on_disk || on_disk->fingerprint != fingerprint || is_being_cleared(fingerprint))
      continue;
    found.list.push_back(page);
    found.list.back().length = on_disk->length;
    bytes += on_disk->length;
  }
  return found;
}

void disk_tier_state::read_next(const job_ptr& job) {
  auto found = segment_pages{};
  while (found.list.empty() && job->next < job->pages.size()
         && options.clock->now() < job->deadline)
    found = next_on_disk(*job);
  if (found.list.empty())
    return end_fetch(job);
  auto on_slots = [this, job, fingerprint = found.list.front().fingerprint](
                    const segment_slots& slots) { read_into(job, slots, fingerprint); };
  self->request(options.segment, caf::infinite, atom::reserve_v, std::move(found))
    .then(std::move(on_slots), [this, job](const caf::error&) { end_fetch(job); });
}

void disk_tier_state::end_fetch(const job_ptr& job) {
  --fetches;
  show();
  job->promise.deliver(atom::ok_v);
  wake();
}

void disk_tier_state::read_into(const job_ptr& job, const segment_slots& slots,
                                uint64_t fingerprint) {
  const auto reading = std::make_shared<page_reading>();
  reading->job = job;
  reading->fingerprint = fingerprint;
  reading->slots = slots_in(slots, segment_slot::state::reserved);
  reading->headers.resize(reading->slots.list.size());
  reading->is_full = !slots_in(slots, segment_slot::state::full).list.empty();
  auto reads = std::vector<page_read>{};
  for (auto i = size_t{0}; i < reading->headers.size(); ++i) {
    const auto& slot = reading->slots.list[i];
    reads.push_back({slot.key,
                     {reading->headers[i], object_of(options.memory, slot)},
                     {},
                     slot.parent,
                     0,
                     fingerprint});
  }
  auto batch = open_batch{0, reads.size(), job->deadline, {}, {}};
  batch.expired = [this, job, count = reads.size()] {
    options.figures->failed += count;
    end_fetch(job);
  };
  batch.done = [this, reading](const outcomes& pages, bool is_late) {
    if (is_late)
      self->send(options.segment, atom::abort_v, reading->slots);
    else
      end_read(*reading, pages);
  };
  submit(std::move(batch), [&](storage_backend::pages_done done) {
    // On the store's thread.
    auto on_read = [done = std::move(done), reading, memory = options.memory](outcomes pages) {
      for (auto i = size_t{0}; i < pages.size(); ++i)
        if (const auto& slot = reading->slots.list[i]; pages[i])
          pages[i]
            = verify(reading->headers[i], slot, reading->fingerprint, object_of(memory, slot));
      done(std::move(pages));
    };
    return options.store->read(std::move(reads), job->deadline, std::move(on_read), {});
  });
}

void disk_tier_state::end_read(const page_reading& reading, const outcomes& pages) {
  auto complete = segment_slots{};
  auto unread = segment_slots{};
  auto broken = std::vector<page_key>{};
  auto lost = std::vector<page_key>{};
  for (auto i = size_t{0}; i < pages.size(); ++i) {
    const auto& slot = reading.slots.list[i];
    if (pages[i]) {
      seal_slot(options.memory, slot, reading.fingerprint,
                decode_page_header(reading.headers[i])->checksum);
      complete.list.push_back(slot);
      continue;
    }
    unread.list.push_back(slot);
    const auto why = pages[i].error().code;
    options.figures->failed += why == ec::not_found ? 0 : 1;
    // Of another length: it was written anew by another user of the store.
    if (why == ec::not_found || why == ec::invalid_argument) {
      if (options.table->remove(slot.key))
        lost.push_back(slot.key);
    } else if (why == ec::corrupt_page)
      broken.push_back(slot.key);
    else if (why == ec::io_failure)
      note(pages[i]);
  }
  self->send(options.segment, atom::abort_v, std::move(unread));
  tell_segment(std::move(lost));
  remove_from_store(std::move(broken), [] {});
  publish(reading.job, std::move(complete), reading.is_full);
}

void disk_tier_state::publish(const job_ptr& job, segment_slots complete, bool is_full) {
  options.figures->read += complete.list.size();
  auto on_published = [this, job, is_full](const key_batch&) {
    if (is_full)
      end_fetch(job);
    else
      read_next(job);
  };
  self->request(options.segment, caf::infinite, atom::publish_v, std::move(complete))
    .then(std::move(on_published), [this, job](const caf::error&) { end_fetch(job); });
}

// -- writing ------------------------------------------------------------------

void disk_tier_state::write_some() {
  ++writes;
  auto pages = segment_pages{};
  auto wanted = segment_holds{waiting.front().fingerprint, {}};
  for (auto bytes = uint64_t{0}; !waiting.empty() && bytes < limits::disk_batch_bytes
                                 && wanted.keys.size() < limits::storage_batch_pages
                                 && waiting.front().fingerprint == wanted.fingerprint;
       waiting.pop_front()) {
    bytes += waiting.front().length;
    wanted.keys.push_back(waiting.front().key);
    pages.list.push_back(waiting.front());
  }
  auto on_held
    = [this, pages = std::move(pages)](const segment_slots& held) { write_held(pages, held); };
  self->request(options.segment, caf::infinite, atom::hold_v, std::move(wanted))
    .then(std::move(on_held), [this](const caf::error&) { end_write(); });
}

void disk_tier_state::write_held(const segment_pages& pages, const segment_slots& held) {
  const auto fingerprint = pages.list.front().fingerprint;
  const auto headers = std::make_shared<std::vector<encoded_page_header>>(held.list.size());
  auto list = std::vector<page_write>{};
  auto written = std::vector<disk_page>{};
  for (auto i = size_t{0}; i < held.list.size(); ++i) {
    const auto& slot = held.list[i];
    if (slot.what != segment_slot::state::present)
      continue;
    // The header's checksum, not a recomputed one: other processes can write to the memory, and
    // readers must detect damage.
    const auto header = decode_page_header(options.memory.subspan(slot.offset));
    if (!header)
      continue;
    encode_page_header({.fingerprint = fingerprint,
                        .key = slot.key,
                        .length = slot.length,
                        .checksum = header->checksum},
                       (*headers)[i]);
    const auto& page = pages.list[i];
    list.push_back({slot.key,
                    page.parent,
                    {(*headers)[i], object_of(options.memory, slot)},
                    page.tenant,
                    fingerprint});
    written.push_back({slot.key, fingerprint, slot.length});
  }
  options.figures->skipped += held.list.size() - list.size();
  const auto deadline = options.clock->now() + limits::storage_timeout;
  auto batch = open_batch{0, list.size(), deadline, {}, {}};
  batch.expired = [this, count = list.size()] {
    options.figures->failed += count;
    note(fail(ec::deadline_exceeded, "writes do not return in time"));
    end_write();
  };
  batch.done
    = [this, headers, written = std::move(written),
       here = slots_in(held, segment_slot::state::present)](const outcomes& stored, bool is_late) {
        self->send(options.segment, atom::release_v, here);
        if (is_late)
          return take_back(written, stored);
        note_written(written, stored);
        end_write();
      };
  submit(std::move(batch), [&](storage_backend::pages_done done) {
    return options.store->write(std::move(list), deadline, std::move(done));
  });
}

void disk_tier_state::note_written(const std::vector<disk_page>& written, const outcomes& stored) {
  auto gained = std::vector<page_key>{};
  for (auto i = size_t{0}; i < stored.size(); ++i) {
    note(stored[i]);
    ++(stored[i] ? options.figures->written : options.figures->failed);
    if (stored[i]) {
      options.table->add(written[i].key, {written[i].fingerprint, written[i].length, listing});
      gained.push_back(written[i].key);
    }
  }
  tell_segment(std::move(gained));
}

void disk_tier_state::take_back(const std::vector<disk_page>& written, const outcomes& stored) {
  auto unwanted = std::vector<page_key>{};
  for (auto i = size_t{0}; i < stored.size(); ++i)
    if (stored[i])
      unwanted.push_back(written[i].key);
  remove_from_store(std::move(unwanted), [] {});
}

void disk_tier_state::end_write() {
  --writes;
  show();
  wake();
}

// -- removing -----------------------------------------------------------------

void disk_tier_state::remove_from_store(std::vector<page_key> keys, std::function<void()> then) {
  if (keys.empty())
    return then();
  for (const auto& key : keys)
    options.table->remove(key);
  tell_segment(keys);
  show();
  const auto deadline = options.clock->now() + limits::storage_timeout;
  auto batch = open_batch{0, keys.size(), deadline, {}, {}};
  batch.expired = [this, then] {
    note(fail(ec::deadline_exceeded, "removals do not return in time"));
    then();
  };
  batch.done = [this, then](const outcomes& pages, bool is_late) {
    if (is_late)
      return;
    for (const auto& outcome : pages)
      note(outcome);
    then();
  };
  submit(std::move(batch), [&](storage_backend::pages_done done) {
    return options.store->remove(std::move(keys), deadline, std::move(done));
  });
}

void disk_tier_state::clear_some() {
  if (is_clearing)
    return;
  auto& [fingerprint, position, removed] = cleared.front();
  const auto part = options.table->list(position, limits::disk_cleared_pages);
  if (part.empty()) {
    spdlog::info("namespace {:016x}: {} pages are gone from the disk", fingerprint, removed);
    cleared.pop_front();
    return wake();
  }
  auto keys = std::vector<page_key>{};
  for (const auto& page : part)
    if (page.on_disk.fingerprint == fingerprint)
      keys.push_back(page.key);
  position = part.back().position + 1;
  removed += keys.size();
  is_clearing = true;
  remove_from_store(std::move(keys), [this] {
    is_clearing = false;
    wake();
  });
}

bool disk_tier_state::is_being_cleared(uint64_t fingerprint) const {
  return std::ranges::find(cleared, fingerprint, &clearing::fingerprint) != cleared.end();
}

// -- figures ------------------------------------------------------------------

void disk_tier_state::note(const result<void>& outcome) {
  if (!outcome && !std::exchange(is_failing, true))
    spdlog::warn("the disk fails, and pages are not kept there: {}", to_string(outcome.error()));
  if (outcome && std::exchange(is_failing, false))
    spdlog::info("the disk works again");
}

void disk_tier_state::tell_segment(std::vector<page_key> changed) {
  if (!changed.empty())
    self->send(options.segment, atom::backup_v, key_batch{std::move(changed)});
}

void disk_tier_state::show() {
  options.figures->pages = options.table->size();
  options.figures->bytes = options.table->bytes() + options.table->size() * page_header_bytes;
}

// -- actor --------------------------------------------------------------------

disk_tier_actor::behavior_type disk_tier(disk_tier_actor::stateful_pointer<disk_tier_state> self,
                                         disk_tier_options options) {
  HICACHE_CHECK(options.store != nullptr && !options.memory.empty() && options.segment
                && options.table != nullptr && options.figures != nullptr
                && options.clock != nullptr);
  self->state.options = std::move(options);
  // A strong reference would keep both alive.
  self->state.tells_evictions = self->state.options.store->watch_evictions(
    [me = self->address()](std::span<const evicted_object> objects) {
      if (const auto to = caf::actor_cast<disk_tier_actor>(me))
        caf::anon_send(to, atom::withdraw_v, key_batch{keys_of(objects)});
    },
    false);
  self->state.list_from({});
  return {
    [self](atom::fetch, const page_fetch& wanted) { return self->state.fetch(wanted); },
    [self](atom::backup, const segment_pages& pages) { self->state.store(pages); },
    [self](atom::remove, const segment_holds& unwanted) { return self->state.remove(unwanted); },
    [self](atom::clear, const namespace_pages& unwanted) { return self->state.clear(unwanted); },
    [self](atom::drain) { return self->state.drain(); },
    [self](atom::adopt, const disk_listing& part) { self->state.adopt(part); },
    [self](atom::done, const disk_completion& completion) { self->state.finish(completion); },
    [self](atom::withdraw, const key_batch& evicted) { self->state.forget(evicted); },
    [self](atom::tick) { self->state.tick(); },
  };
}

} // namespace hicache
