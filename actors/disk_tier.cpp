#include "actors/disk_tier.hpp"

#include "backends/cluster/segment_memory.hpp"
#include "base/check.hpp"
#include "base/limits.hpp"
#include "cache/store/client_table.hpp"
#include "messages/page_header.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

namespace hicache {

// -- requests -----------------------------------------------------------------

caf::result<atom::ok> disk_tier_state::fetch(const page_fetch& wanted) {
  auto job = std::make_shared<fetch_job>();
  job->pages = wanted.pages.list;
  job->deadline = wanted.deadline;
  job->promise = self->make_response_promise<atom::ok>();
  auto answer = job->promise;
  enqueue([this, job] { read_next(job); });
  return answer;
}

void disk_tier_state::store(const segment_pages& pages) {
  const auto room = limits::disk_waiting_pages - waiting.size();
  const auto taken = std::min(room, pages.list.size());
  waiting.insert(waiting.end(), pages.list.begin(),
                 pages.list.begin() + static_cast<ptrdiff_t>(taken));
  options.figures->skipped += pages.list.size() - taken;
  wake();
}

caf::result<atom::ok> disk_tier_state::remove(const segment_holds& unwanted) {
  auto promise = self->make_response_promise<atom::ok>();
  enqueue([this, promise, unwanted]() mutable {
    std::erase_if(waiting, [&unwanted](const segment_page& x) {
      return x.fingerprint == unwanted.fingerprint
             && std::ranges::find(unwanted.keys, x.key) != unwanted.keys.end();
    });
    for (const auto& outcome : options.files->remove(
           unwanted.keys, unwanted.fingerprint, options.clock->now() + limits::storage_timeout))
      note(outcome);
    promise.deliver(atom::ok_v);
    end_turn();
  });
  return promise;
}

caf::result<atom::ok> disk_tier_state::clear(const namespace_pages& unwanted) {
  auto promise = self->make_response_promise<atom::ok>();
  enqueue([this, promise, fingerprint = unwanted.fingerprint]() mutable {
    std::erase_if(waiting,
                  [fingerprint](const segment_page& x) { return x.fingerprint == fingerprint; });
    cleared.push_back({fingerprint, options.files->directories()});
    promise.deliver(atom::ok_v);
    end_turn();
  });
  return promise;
}

caf::result<atom::ok> disk_tier_state::drain() {
  drains.push_back(self->make_response_promise<atom::ok>());
  wake();
  return drains.back();
}

// -- turns --------------------------------------------------------------------

void disk_tier_state::enqueue(std::function<void()> begin) {
  turns.push_back(std::move(begin));
  wake();
}

void disk_tier_state::wake() {
  if (is_busy || std::exchange(is_woken, true))
    return;
  self->send(self, atom::tick_v);
}

void disk_tier_state::end_turn() {
  is_busy = false;
  wake();
}

void disk_tier_state::tick() {
  is_woken = false;
  if (is_busy)
    return;
  is_busy = true;
  if (!turns.empty()) {
    const auto begin = std::move(turns.front());
    turns.pop_front();
    begin();
  } else if (!waiting.empty()) {
    write_some();
  } else if (!cleared.empty()) {
    clear_some();
  } else {
    is_busy = false;
    show();
    for (auto& promise : std::exchange(drains, {}))
      promise.deliver(atom::ok_v);
  }
}

// -- reading ------------------------------------------------------------------

segment_pages disk_tier_state::next_on_disk(fetch_job& job) {
  const auto fingerprint = job.pages[job.next].fingerprint;
  auto keys = std::vector<page_key>{};
  for (auto i = job.next; i < job.pages.size() && keys.size() < limits::storage_batch_pages
                          && job.pages[i].fingerprint == fingerprint;
       ++i)
    keys.push_back(job.pages[i].key);
  auto found = segment_pages{};
  if (is_being_cleared(fingerprint)) {
    job.next += keys.size();
    return found;
  }
  auto bytes = uint64_t{0};
  for (const auto& length : options.files->lengths(keys, fingerprint, job.deadline)) {
    auto& page = job.pages[job.next++];
    if (!length)
      continue;
    page.length = *length;
    found.list.push_back(page);
    bytes += page.length;
    if (bytes >= limits::disk_batch_bytes)
      break;
  }
  return found;
}

void disk_tier_state::read_next(const job_ptr& job) {
  auto found = segment_pages{};
  while (found.list.empty() && job->next < job->pages.size()
         && options.clock->now() < job->deadline)
    found = next_on_disk(*job);
  const auto end = [this, job] {
    show();
    job->promise.deliver(atom::ok_v);
    end_turn();
  };
  if (found.list.empty())
    return end();
  const auto on_error = [end](const caf::error&) { end(); };
  auto on_slots = [this, job, end, on_error,
                   fingerprint = found.list.front().fingerprint](const segment_slots& slots) {
    auto complete = read_into(slots, fingerprint, job->deadline);
    const auto is_full = !slots_in(slots, segment_slot::state::full).list.empty();
    auto on_published = [this, job, end, is_full](const key_batch&) {
      if (is_full)
        end();
      else
        read_next(job);
    };
    self->request(options.segment, caf::infinite, atom::publish_v, std::move(complete))
      .then(std::move(on_published), on_error);
  };
  self->request(options.segment, caf::infinite, atom::reserve_v, std::move(found))
    .then(std::move(on_slots), on_error);
}

segment_slots disk_tier_state::read_into(const segment_slots& slots, uint64_t fingerprint,
                                         time_point deadline) {
  const auto reserved = slots_in(slots, segment_slot::state::reserved);
  auto reads = std::vector<page_read>{};
  for (const auto& slot : reserved.list)
    reads.push_back({slot.key, {object_of(options.memory, slot)}});
  const auto outcomes = options.files->read(reads, fingerprint, part_lengths::exact, deadline);
  auto complete = segment_slots{};
  auto failed = segment_slots{};
  for (auto i = size_t{0}; i < outcomes.size(); ++i) {
    const auto& slot = reserved.list[i];
    if (!outcomes[i]) {
      failed.list.push_back(slot);
      if (const auto& err = outcomes[i].error(); err.code == ec::io_failure)
        note(tl::unexpected{err});
      continue;
    }
    seal_slot(options.memory, slot, fingerprint, outcomes[i]->checksum);
    complete.list.push_back(slot);
  }
  options.figures->read += complete.list.size();
  self->send(options.segment, atom::abort_v, std::move(failed));
  return complete;
}

// -- writing ------------------------------------------------------------------

void disk_tier_state::write_some() {
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
  auto on_held = [this, pages = std::move(pages)](const segment_slots& held) {
    write_held(pages, held);
    self->send(options.segment, atom::release_v, slots_in(held, segment_slot::state::present));
    end_turn();
  };
  self->request(options.segment, caf::infinite, atom::hold_v, std::move(wanted))
    .then(std::move(on_held), [this](const caf::error&) { end_turn(); });
}

void disk_tier_state::write_held(const segment_pages& pages, const segment_slots& held) {
  auto writes = std::vector<page_write>{};
  auto checksums = std::vector<uint64_t>{};
  const auto fingerprint = pages.list.front().fingerprint;
  for (auto i = size_t{0}; i < held.list.size(); ++i) {
    const auto& slot = held.list[i];
    if (slot.what != segment_slot::state::present)
      continue;
    // The header's checksum, not a recomputed one: other processes can write to the memory, and
    // readers must detect damage.
    const auto header = decode_page_header(options.memory.subspan(slot.offset));
    if (!header)
      continue;
    const auto& page = pages.list[i];
    writes.push_back({slot.key, page.parent, {object_of(options.memory, slot)}, page.tenant});
    checksums.push_back(header->checksum);
  }
  options.figures->skipped += held.list.size() - writes.size();
  for (const auto& outcome : options.files->set(writes, checksums, fingerprint,
                                                options.clock->now() + limits::storage_timeout)) {
    note(outcome);
    if (outcome)
      ++options.figures->written;
  }
}

// -- removing -----------------------------------------------------------------

void disk_tier_state::clear_some() {
  auto& [fingerprint, directories, removed] = cleared.front();
  if (directories.empty()) {
    spdlog::info("namespace {:016x}: {} pages are gone from the disk", fingerprint, removed);
    cleared.pop_front();
  } else {
    removed += options.files->clear(directories.back(), fingerprint);
    directories.pop_back();
  }
  end_turn();
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

void disk_tier_state::show() {
  const auto now = options.files->health();
  options.figures->pages = now.objects;
  options.figures->bytes = now.bytes;
  options.figures->failed = now.counters.corrupt + now.counters.errors;
}

// -- actor --------------------------------------------------------------------

disk_tier_actor::behavior_type disk_tier(disk_tier_actor::stateful_pointer<disk_tier_state> self,
                                         disk_tier_options options) {
  HICACHE_CHECK(options.files != nullptr && !options.memory.empty() && options.segment
                && options.figures != nullptr && options.clock != nullptr);
  self->state.options = std::move(options);
  self->state.show();
  return {
    [self](atom::fetch, const page_fetch& wanted) { return self->state.fetch(wanted); },
    [self](atom::backup, const segment_pages& pages) { self->state.store(pages); },
    [self](atom::remove, const segment_holds& unwanted) { return self->state.remove(unwanted); },
    [self](atom::clear, const namespace_pages& unwanted) { return self->state.clear(unwanted); },
    [self](atom::drain) { return self->state.drain(); },
    [self](atom::tick) { self->state.tick(); },
  };
}

} // namespace hicache
