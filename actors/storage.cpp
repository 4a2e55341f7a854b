#include "actors/storage.hpp"

#include "backends/store_outcomes.hpp"
#include "base/check.hpp"
#include "base/limits.hpp"

#include <caf/send.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>

namespace hicache {

namespace {

template <class Iterator>
Iterator first_failure(Iterator begin, Iterator end) {
  return std::find_if(begin, end, [](const auto& object) { return !object; });
}

/// Combines object outcomes into page outcomes.
storage_outcome outcome_of(const std::vector<bool>& moved, const std::vector<result<void>>& objects,
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
      outcome.pages[i] = failure->error().code;
      failed = true;
    }
    object = end;
  }
  return outcome;
}

/// The leading pages found by a lookup, with the places of their objects and their tiers.
/// @param names Of the tiers; may be null.
storage_hit hit_of(const std::vector<result<store_place>>& objects, size_t objects_per_page,
                   const tier_names& names) {
  const auto missing = first_failure(objects.begin(), objects.end());
  const auto pages = static_cast<size_t>(missing - objects.begin()) / objects_per_page;
  auto places = std::vector<store_place>{};
  places.reserve(pages * objects_per_page);
  for (auto i = size_t{0}; i < pages * objects_per_page; ++i)
    places.push_back(*objects[i]);
  auto hit = storage_hit{.pages = pages};
  if (names) {
    auto tiers = tier_list(pages);
    const auto last = static_cast<uint32_t>(limits::storage_tiers - 1);
    for (auto i = size_t{0}; i < places.size(); ++i) {
      auto& tier = tiers[i / objects_per_page];
      tier = std::max(tier, static_cast<uint8_t>(std::min(places[i].tier, last)));
    }
    hit.tiers = std::make_shared<const tier_list>(std::move(tiers));
    hit.names = names;
  }
  hit.places = std::make_shared<const std::vector<store_place>>(std::move(places));
  return hit;
}

} // namespace

// -- request handling ---------------------------------------------------------

caf::result<storage_hit> storage_state::exists(const storage_batch& batch, caf::timespan timeout) {
  const auto pass = admit(store_call::exists);
  if (!pass)
    return to_caf({ec::store_unavailable, {}});
  return open<storage_hit>(
    store_call::exists, *pass, 0, timeout, [&](time_point deadline, uint64_t ticket) {
      auto on_done = [me = storage_actor{self}, ticket, per_page = options.objects->per_page(),
                      names = store->tiers()](const std::vector<result<store_place>>& found) {
        caf::anon_send(
          me, atom::done_v,
          storage_completion{ticket, hit_of(found, per_page, names), {}, failure_of(found)});
      };
      return store->lookup(options.objects->names(batch), deadline, on_done);
    });
}

caf::result<storage_outcome> storage_state::get(const storage_batch& batch, caf::timespan timeout) {
  const auto pass = admit(store_call::get);
  if (!pass)
    return refused(batch.count);
  auto admitted = batch;
  if (pass->is_probe)
    admitted.count = std::min<uint64_t>(batch.count, limits::probe_pages);
  return open<storage_outcome>(
    store_call::get, *pass, batch.count, timeout, [&](time_point deadline, uint64_t ticket) {
      auto done
        = bring(ticket, std::vector<bool>(admitted.count, true), batch.count - admitted.count);
      return store->read(options.objects->reads(admitted), deadline, std::move(done),
                         options.objects->progress(admitted));
    });
}

caf::result<storage_outcome> storage_state::set(const storage_batch& batch, caf::timespan timeout) {
  const auto& objects = *options.objects;
  auto moved = objects.writes(batch);
  if (std::ranges::find(moved, true) == moved.end())
    return storage_outcome{std::vector<ec>(batch.count, ec::none), batch.count};
  const auto pass = admit(store_call::set);
  if (!pass)
    return refused(batch.count);
  auto admitted = batch;
  admitted.count = 0;
  auto written = size_t{0};
  while (admitted.count < batch.count && !(pass->is_probe && written == limits::probe_pages))
    written += moved[admitted.count++] ? 1 : 0;
  moved.resize(admitted.count);
  return open<storage_outcome>(
    store_call::set, *pass, batch.count, timeout, [&](time_point deadline, uint64_t ticket) {
      auto done = bring(ticket, std::move(moved), batch.count - admitted.count);
      return store->write(objects.own_writes(admitted, written), deadline, std::move(done));
    });
}

caf::result<storage_outcome> storage_state::remove(const storage_batch& batch,
                                                   caf::timespan timeout) {
  const auto pass = admit(store_call::remove);
  if (!pass)
    return refused(batch.count);
  return open<storage_outcome>(
    store_call::remove, *pass, batch.count, timeout, [&](time_point deadline, uint64_t ticket) {
      return store->remove(options.objects->names(batch), deadline,
                           bring(ticket, std::vector<bool>(batch.count, true), 0));
    });
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
    return update_stuck();
  }
  auto node = calls.extract(completion.ticket);
  if (!node)
    return;
  auto& call = node.mapped();
  deadlines.erase({call.deadline, completion.ticket});
  with_breaker(call.kind, [&](store_breaker& breaker) {
    const auto now = options.clock->now();
    if (completion.failure == ec::none)
      breaker.succeeded(call.kind, call.pass, now);
    else
      breaker.failed(call.kind, call.pass,
                     completion.failure == ec::deadline_exceeded ? breaker_cause::late
                                                                 : breaker_cause::failing,
                     now);
  });
  if (call.kind == store_call::exists)
    return call.promise.deliver(completion.hit);
  auto outcome = completion.outcome;
  outcome.lost = lost->get();
  call.promise.deliver(std::move(outcome));
}

void storage_state::expire() {
  timer.reset();
  const auto now = options.clock->now();
  auto late_ones = std::set<uint64_t, std::greater<>>{};
  for (; !deadlines.empty() && deadlines.begin()->first <= now; deadlines.erase(deadlines.begin()))
    late_ones.insert(deadlines.begin()->second);
  // Newest first: queued batches must be withdrawn before the store replaces a stuck thread with a
  // new one that would start them.
  for (const auto ticket : late_ones)
    answer_late(ticket, calls.at(ticket));
  for (auto& [until, promise] : wondering)
    if (until <= now)
      promise.deliver(last_health);
  std::erase_if(wondering, [now](const auto& waiting) { return waiting.first <= now; });
  set_timer();
}

storage_status storage_state::status() {
  const auto view = [](const watched_breaker& x) {
    return storage_status::direction{to_string(x.breaker.state()), to_string(x.breaker.cause()),
                                     x.since_s, x.breaker.openings()};
  };
  auto status = storage_status{store->name(),      store->capabilities().orders_writes,
                               view(read_breaker), view(write_breaker),
                               late.size(),        0};
  for (const auto& [ticket, call] : late)
    status.quarantined_pages += call.pages;
  return status;
}

caf::result<storage_health_ptr> storage_state::health(caf::timespan timeout) {
  const auto deadline = options.clock->now() + timeout;
  auto promise = self->make_response_promise<storage_health_ptr>();
  wondering.emplace_back(deadline, promise);
  if (!std::exchange(is_asking_health, true)) {
    store->health([me = storage_actor{self}](const backend_health& health) {
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
  with_breaker(kind, [&](store_breaker& x) { pass = x.admit(options.clock->now()); });
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
    spdlog::info("{} L3 ({}) work again", direction, store->name());
  if (before != breaker_state::closed || breaker.state() != breaker_state::open)
    return;
  const auto* const why = breaker.cause() == breaker_cause::failing ? "they fail"
                          : breaker.cause() == breaker_cause::late
                            ? "they do not return before their deadline"
                            : "too many have not returned";
  const auto notice = error{ec::store_unavailable, std::string{direction} + " L3 (" + store->name()
                                                     + ") are left out for a while: " + why};
  spdlog::warn("{}", notice.detail);
  if (options.notice)
    options.notice(notice);
}

storage_outcome storage_state::refused(size_t pages) const {
  return {std::vector<ec>(pages, ec::store_unavailable)};
}

template <class Answer, class Submit>
caf::typed_response_promise<Answer> storage_state::open(store_call kind, store_breaker::pass pass,
                                                        size_t pages, caf::timespan timeout,
                                                        Submit submit) {
  auto promise = self->make_response_promise<Answer>();
  const auto deadline = options.clock->now() + timeout;
  const auto ticket = ++last_ticket;
  deadlines.emplace(deadline, ticket);
  const auto entry
    = calls.emplace(ticket, open_call{kind, pass, promise, deadline, pages, 0}).first;
  set_timer();
  entry->second.number = submit(deadline, ticket);
  return promise;
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
  const auto left = std::max(*next - options.clock->now(), duration{0});
  self->delayed_send(self, caf::timespan{left}, atom::tick_v);
}

void storage_state::answer_late(uint64_t ticket, open_call& call) {
  const auto fate = store->expire(call.number);
  if (fate == storage_backend::expiry::finished)
    return; // Its outcome is in the mailbox.
  with_breaker(call.kind, [&](store_breaker& breaker) {
    breaker.failed(call.kind, call.pass, breaker_cause::late, options.clock->now());
  });
  const auto is_running = fate == storage_backend::expiry::running;
  const auto moves_pages = call.kind == store_call::get || call.kind == store_call::set;
  if (is_running)
    late.emplace(ticket, late_call{moves_pages ? call.pages : 0, {}});
  if (call.kind == store_call::exists)
    call.promise.deliver(
      to_caf({ec::deadline_exceeded, store->name() + " did not answer in time"}));
  else
    call.promise.deliver(storage_outcome{std::vector<ec>(call.pages, ec::deadline_exceeded), 0,
                                         is_running ? ticket : 0});
  calls.erase(ticket);
  update_stuck();
}

void storage_state::update_stuck() {
  const auto update
    = [this](store_breaker& breaker) { breaker.set_stuck(late.size(), options.clock->now()); };
  with_breaker(store_call::get, update);
  with_breaker(store_call::set, update);
}

storage_backend::pages_done storage_state::bring(uint64_t ticket, std::vector<bool> moved,
                                                 size_t withheld) {
  return [me = storage_actor{self}, ticket, moved = std::move(moved), withheld,
          per_page = options.objects->per_page()](const std::vector<result<void>>& objects) {
    auto outcome = outcome_of(moved, objects, per_page);
    outcome.pages.insert(outcome.pages.end(), withheld, ec::store_unavailable);
    caf::anon_send(me, atom::done_v,
                   storage_completion{ticket, {}, std::move(outcome), failure_of(objects)});
  };
}

// -- actor --------------------------------------------------------------------

storage_actor::behavior_type storage(storage_actor::stateful_pointer<storage_state> self,
                                     storage_options options,
                                     std::shared_ptr<storage_backend> store) {
  HICACHE_CHECK(store != nullptr && options.objects != nullptr && options.clock != nullptr);
  auto& state = self->state;
  state.read_breaker.breaker = state.write_breaker.breaker = store_breaker{options.breaker};
  state.options = std::move(options);
  state.store = std::move(store);
  state.store->watch_losses([lost = state.lost](time_point used) { lost->add(used); });
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
