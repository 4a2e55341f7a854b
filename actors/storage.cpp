#include "actors/storage.hpp"

#include "base/check.hpp"
#include "base/limits.hpp"
#include "cache/hash/page_hash.hpp"

#include <caf/send.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace hicache {

namespace {

/// A first page has no parent, and so has its object.
constexpr auto no_parent = page_key{};

/// Whether an object's outcome says that the store does not work. A store that is full or lacks a
/// page works.
bool is_failure_of_store(ec code) {
  return code == ec::io_failure || code == ec::deadline_exceeded || code == ec::peer_unreachable;
}

template <class Iterator>
Iterator first_failure(Iterator begin, Iterator end) {
  return std::find_if(begin, end, [](ec code) { return code != ec::none; });
}

/// Puts the outcomes of objects together to those of pages.
storage_outcome outcome_of(const std::vector<bool>& moved, const std::vector<ec>& objects,
                           size_t objects_per_page) {
  auto outcome = storage_outcome{std::vector<ec>(moved.size(), ec::none)};
  auto object = objects.begin();
  auto failed = false;
  for (auto i = size_t{0}; i < moved.size(); ++i) {
    if (!moved[i]) {
      outcome.left_to_others += failed ? 0 : 1;
      continue;
    }
    const auto end = object + static_cast<ptrdiff_t>(objects_per_page);
    if (const auto failure = first_failure(object, end); failure != end) {
      outcome.pages[i] = *failure;
      failed = true;
    }
    object = end;
  }
  return outcome;
}

} // namespace

// -- request handling ---------------------------------------------------------

caf::result<uint64_t> storage_state::exists(const storage_batch& batch, caf::timespan timeout) {
  const auto pass = admit(store_call::exists);
  if (!pass)
    return to_caf({ec::store_unavailable, {}});
  auto promise = self->make_response_promise<uint64_t>();
  const auto deadline = options->clock->now() + timeout;
  const auto ticket = open({store_call::exists, *pass, promise, deadline});
  auto on_done = [me = storage_actor{self}, ticket](const std::vector<bool>& found) {
    auto codes = std::vector<ec>{};
    for (const auto here : found)
      codes.push_back(here ? ec::none : ec::not_found);
    caf::anon_send(me, atom::done_v, storage_completion{ticket, std::move(codes)});
  };
  is_queued(ticket, queue->submit_exists(object_names(batch), deadline, on_done));
  return promise;
}

caf::result<storage_outcome> storage_state::get(const storage_batch& batch, caf::timespan timeout) {
  const auto pass = admit(store_call::get);
  if (!pass)
    return refused(batch.count);
  const auto count
    = pass->is_probe ? std::min<uint64_t>(batch.count, limits::probe_pages) : batch.count;
  if (options->lent)
    options->lent->reclaim(std::span{*batch.host_pages}.subspan(batch.host_first, count));
  auto reads = std::vector<page_read>{};
  reads.reserve(count * options->groups.size());
  for (auto i = uint64_t{0}; i < count; ++i)
    for (auto k = size_t{0}; k < masks.size(); ++k)
      reads.push_back(
        {object_key((*batch.keys)[batch.first + i], masks[k]),
         parts_of<std::byte>((*batch.host_pages)[batch.host_first + i], options->groups[k])});
  auto promise = self->make_response_promise<storage_outcome>();
  const auto deadline = options->clock->now() + timeout;
  const auto ticket
    = open({store_call::get, *pass,
            open_move{promise, std::vector<bool>(count, true), batch.count - count}, deadline});
  is_queued(ticket, queue->submit_get(std::move(reads), deadline, bring(ticket)));
  return promise;
}

caf::result<storage_outcome> storage_state::set(const storage_batch& batch, caf::timespan timeout) {
  const auto pages = std::span{*batch.keys}.subspan(batch.first, batch.count);
  if (std::ranges::none_of(pages, [this](const auto& key) { return is_writer_of(key); }))
    return storage_outcome{std::vector<ec>(batch.count, ec::none), batch.count};
  const auto pass = admit(store_call::set);
  if (!pass)
    return refused(batch.count);
  auto writes = std::vector<page_write>{};
  auto moved = std::vector<bool>{};
  auto written = size_t{0};
  for (auto i = uint64_t{0}; i < batch.count; ++i) {
    const auto& key = (*batch.keys)[batch.first + i];
    const auto& parent = (*batch.parents)[batch.first + i];
    if (pass->is_probe && written == limits::probe_pages)
      break;
    moved.push_back(is_writer_of(key));
    if (!moved.back())
      continue;
    ++written;
    for (auto k = size_t{0}; k < masks.size(); ++k)
      writes.push_back(
        {object_key(key, masks[k]), parent == no_parent ? parent : object_key(parent, masks[k]),
         parts_of<const std::byte>((*batch.host_pages)[batch.host_first + i], options->groups[k]),
         batch.tenant});
  }
  auto promise = self->make_response_promise<storage_outcome>();
  const auto deadline = options->clock->now() + timeout;
  const auto withheld = batch.count - moved.size();
  const auto ticket
    = open({store_call::set, *pass, open_move{promise, std::move(moved), withheld}, deadline});
  is_queued(ticket, queue->submit_set(std::move(writes), deadline, bring(ticket)));
  return promise;
}

caf::result<storage_outcome> storage_state::remove(const storage_batch& batch,
                                                   caf::timespan timeout) {
  const auto pass = admit(store_call::remove);
  if (!pass)
    return refused(batch.count);
  auto promise = self->make_response_promise<storage_outcome>();
  const auto deadline = options->clock->now() + timeout;
  const auto ticket = open({store_call::remove, *pass,
                            open_move{promise, std::vector<bool>(batch.count, true)}, deadline});
  is_queued(ticket, queue->submit_remove(object_names(batch), deadline, bring(ticket)));
  return promise;
}

caf::result<atom::ok> storage_state::drain(uint64_t ticket) {
  const auto entry = late.find(ticket);
  if (entry == late.end())
    return atom::ok_v;
  return entry->second.waiting.emplace_back(self->make_response_promise<atom::ok>());
}

void storage_state::finish(const storage_completion& completion) {
  if (auto node = late.extract(completion.ticket)) {
    for (auto& promise : node.mapped().waiting)
      promise.deliver(atom::ok_v);
    update_stuck();
    return;
  }
  auto node = calls.extract(completion.ticket);
  if (!node)
    return;
  auto& call = node.mapped();
  deadlines.erase({call.deadline, completion.ticket});
  with_breaker(call.kind, [&](store_breaker& breaker) {
    const auto& objects = completion.objects;
    const auto now = options->clock->now();
    if (!objects.empty() && std::ranges::all_of(objects, is_failure_of_store))
      breaker.failed(call.kind, call.pass,
                     objects.front() == ec::deadline_exceeded ? breaker_cause::late
                                                              : breaker_cause::failing,
                     now);
    else
      breaker.succeeded(call.kind, call.pass, now);
  });
  if (auto* promise = std::get_if<open_count>(&call.asker)) {
    const auto missing = first_failure(completion.objects.begin(), completion.objects.end());
    const auto objects = static_cast<uint64_t>(missing - completion.objects.begin());
    promise->deliver(objects / options->groups.size());
    return;
  }
  auto& move = std::get<open_move>(call.asker);
  auto outcome = outcome_of(move.moved, completion.objects, options->groups.size());
  outcome.pages.insert(outcome.pages.end(), move.withheld, ec::store_unavailable);
  move.promise.deliver(std::move(outcome));
}

void storage_state::expire() {
  timer.reset();
  const auto now = options->clock->now();
  auto late_ones = std::set<uint64_t, std::greater<>>{};
  for (; !deadlines.empty() && deadlines.begin()->first <= now; deadlines.erase(deadlines.begin()))
    late_ones.insert(deadlines.begin()->second);
  // The newest first: those that wait are withdrawn before a thread is started instead of one that
  // is stuck, and would begin them.
  for (const auto ticket : late_ones)
    answer_late(ticket, calls.at(ticket));
  const auto is_over = [&](const auto& waiting) { return waiting.first <= now; };
  for (auto& [until, promise] : wondering)
    if (until <= now)
      promise.deliver(last_health);
  std::erase_if(wondering, is_over);
  set_timer();
}

storage_status storage_state::status() {
  const auto view = [](const watched_breaker& x) {
    return storage_status::direction{to_string(x.breaker.state()), to_string(x.breaker.cause()),
                                     x.since_s, x.breaker.openings()};
  };
  auto status
    = storage_status{queue->name(), view(read_breaker), view(write_breaker), queue->stuck(), 0};
  for (const auto& [ticket, call] : late)
    status.quarantined_pages += call.pages;
  return status;
}

caf::result<storage_health_ptr> storage_state::health(caf::timespan timeout) {
  const auto deadline = options->clock->now() + timeout;
  auto promise = self->make_response_promise<storage_health_ptr>();
  wondering.emplace_back(deadline, promise);
  if (!std::exchange(is_asking_health, true)) {
    queue->submit_health([me = storage_actor{self}](const backend_health& health) {
      caf::anon_send(me, atom::health_v, std::make_shared<const backend_health>(health));
    });
  }
  set_timer();
  return promise;
}

void storage_state::hear_health(const storage_health_ptr& health) {
  is_asking_health = false;
  last_health = health;
  for (auto& [until, promise] : std::exchange(wondering, {}))
    promise.deliver(health);
}

// -- deadlines and breakers ---------------------------------------------------

watched_breaker& storage_state::breaker_of(store_call kind) {
  return kind == store_call::exists || kind == store_call::get ? read_breaker : write_breaker;
}

std::optional<store_breaker::pass> storage_state::admit(store_call kind) {
  auto pass = std::optional<store_breaker::pass>{};
  with_breaker(kind, [&](store_breaker& x) { pass = x.admit(options->clock->now()); });
  return pass;
}

void storage_state::with_breaker(store_call kind,
                                 const std::function<void(store_breaker&)>& change) {
  auto& watched = breaker_of(kind);
  const auto& breaker = watched.breaker;
  const auto before = breaker.state();
  change(watched.breaker);
  if (breaker.state() == before)
    return;
  watched.since_s = std::chrono::duration_cast<std::chrono::seconds>(
                      std::chrono::system_clock::now().time_since_epoch())
                      .count();
  const auto* const direction = &watched == &read_breaker ? "reads of" : "writes to";
  if (breaker.state() == breaker_state::closed)
    spdlog::info("{} L3 ({}) work again", direction, queue->name());
  if (before != breaker_state::closed || breaker.state() != breaker_state::open)
    return;
  const auto* const why = breaker.cause() == breaker_cause::failing ? "they fail"
                          : breaker.cause() == breaker_cause::late
                            ? "they do not return before their deadline"
                            : "too many have not returned";
  const auto notice = error{ec::store_unavailable, std::string{direction} + " L3 (" + queue->name()
                                                     + ") are left out for a while: " + why};
  spdlog::warn("{}", notice.detail);
  if (options->notice)
    options->notice(notice);
}

storage_outcome storage_state::refused(size_t pages) const {
  return {std::vector<ec>(pages, ec::store_unavailable)};
}

uint64_t storage_state::open(open_call call) {
  const auto ticket = ++last_ticket;
  deadlines.emplace(call.deadline, ticket);
  calls.emplace(ticket, std::move(call));
  set_timer();
  return ticket;
}

void storage_state::is_queued(uint64_t ticket, uint64_t number) {
  calls.at(ticket).queued = number;
}

void storage_state::set_timer() {
  auto next = std::optional<time_point>{};
  if (!deadlines.empty())
    next = deadlines.begin()->first;
  for (const auto& [until, promise] : wondering)
    next = std::min(next.value_or(until), until);
  if (!next || (timer && *timer <= *next))
    return;
  timer = next;
  const auto left = std::max(*next - options->clock->now(), duration{0});
  self->delayed_send(self, caf::timespan{left}, atom::tick_v);
}

void storage_state::answer_late(uint64_t ticket, open_call& call) {
  const auto fate = queue->expire(call.queued);
  if (fate == storage_queue::expiry::finished)
    return; // Its outcome is in the mailbox.
  with_breaker(call.kind, [&](store_breaker& breaker) {
    breaker.failed(call.kind, call.pass, breaker_cause::late, options->clock->now());
  });
  const auto is_running = fate == storage_queue::expiry::running;
  if (auto* promise = std::get_if<open_count>(&call.asker)) {
    promise->deliver(to_caf({ec::deadline_exceeded, queue->name() + " did not answer in time"}));
    if (is_running)
      late.emplace(ticket, late_call{});
  } else {
    auto& move = std::get<open_move>(call.asker);
    const auto pages = move.moved.size() + move.withheld;
    auto outcome = storage_outcome{std::vector<ec>(pages, ec::deadline_exceeded)};
    if (is_running) {
      outcome.ticket = ticket;
      late.emplace(ticket, late_call{call.kind == store_call::remove ? 0 : pages, {}});
    }
    move.promise.deliver(std::move(outcome));
  }
  calls.erase(ticket);
  update_stuck();
}

void storage_state::update_stuck() {
  const auto update
    = [this](store_breaker& breaker) { breaker.set_stuck(queue->stuck(), options->clock->now()); };
  with_breaker(store_call::get, update);
  with_breaker(store_call::set, update);
}

// -- internal steps -----------------------------------------------------------

std::vector<page_key> storage_state::object_names(const storage_batch& batch) const {
  auto names = std::vector<page_key>{};
  names.reserve(batch.count * options->groups.size());
  for (auto i = uint64_t{0}; i < batch.count; ++i)
    for (const auto& mask : masks)
      names.push_back(object_key((*batch.keys)[batch.first + i], mask));
  return names;
}

template <class Byte>
std::vector<std::span<Byte>> storage_state::parts_of(page_index page,
                                                     const head_group& group) const {
  const auto runs = options->host_geometry.object_runs(page, group.heads);
  auto parts = std::vector<std::span<Byte>>{};
  parts.reserve(runs.size());
  for (const auto& run : runs)
    parts.emplace_back(options->host_memory + run.offset, run.length);
  return parts;
}

bool storage_state::is_writer_of(const page_key& page) const {
  const auto& writers = options->writers;
  return writer_of(page, writers.ranks) == writers.rank;
}

storage_queue::pages_callback storage_state::bring(uint64_t ticket) {
  return [me = storage_actor{self}, ticket](const std::vector<result<void>>& outcome) {
    auto codes = std::vector<ec>{};
    codes.reserve(outcome.size());
    for (const auto& object : outcome)
      codes.push_back(object ? ec::none : object.error().code);
    caf::anon_send(me, atom::done_v, storage_completion{ticket, std::move(codes)});
  };
}

// -- actor --------------------------------------------------------------------

storage_actor::behavior_type storage(storage_actor::stateful_pointer<storage_state> self,
                                     storage_options options,
                                     std::shared_ptr<storage_queue> queue) {
  HICACHE_CHECK(queue != nullptr && options.host_memory != nullptr && options.clock != nullptr);
  HICACHE_CHECK(!options.groups.empty() && options.writers.rank < options.writers.ranks);
  for (const auto& group : options.groups)
    self->state.masks.push_back(object_mask(options.fingerprint, group.name));
  self->state.options.emplace(std::move(options));
  self->state.queue = std::move(queue);
  return {
    [self](atom::exists, const storage_batch& batch, caf::timespan timeout) {
      return self->state.exists(batch, timeout);
    },
    [self](atom::get, const storage_batch& batch, caf::timespan timeout) {
      return self->state.get(batch, timeout);
    },
    [self](atom::set, const storage_batch& batch, caf::timespan timeout) {
      return self->state.set(batch, timeout);
    },
    [self](atom::remove, const storage_batch& batch, caf::timespan timeout) {
      return self->state.remove(batch, timeout);
    },
    [self](atom::drain, uint64_t ticket) { return self->state.drain(ticket); },
    [self](atom::done, const storage_completion& completion) { self->state.finish(completion); },
    [self](atom::tick) { self->state.expire(); },
    [self](atom::status) { return self->state.status(); },
    [self](atom::health, caf::timespan timeout) { return self->state.health(timeout); },
    [self](atom::health, const storage_health_ptr& health) { self->state.hear_health(health); },
  };
}

} // namespace hicache
