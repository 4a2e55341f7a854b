#include "actors/node.hpp"

#include "backends/cluster/segment_memory.hpp"
#include "base/check.hpp"
#include "base/keys_of.hpp"

#include <caf/actor_cast.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace hicache {

namespace {

/// Maximum delay of a lease's expiry; its pages are kept from eviction for that long.
constexpr auto lease_slack = caf::timespan{std::chrono::milliseconds{250}};

page_totals totals_of(const segment_slots& slots) {
  auto totals = page_totals{slots.list.size()};
  for (const auto& slot : slots.list)
    totals.bytes += slot_bytes_for(slot.length);
  return totals;
}

page_place place_to_write(const segment_slot& slot) {
  if (slot.what == segment_slot::state::reserved)
    return {place_status::writable, slot.offset, slot.generation, slot.length};
  return {slot.what == segment_slot::state::full ? place_status::none : place_status::present};
}

page_place place_to_read(const segment_slot& slot) {
  if (slot.what == segment_slot::state::present)
    return {place_status::present, slot.offset, slot.generation, slot.length};
  return {};
}

duration wait_of(uint64_t milliseconds) {
  return std::chrono::milliseconds{
    std::min<uint64_t>(milliseconds, std::chrono::milliseconds{limits::node_wait_time}.count())};
}

} // namespace

template <class Promise>
auto node_state::refusal(uint64_t request, Promise promise) {
  return [this, request, promise](const caf::error& err) mutable {
    clients->refuse(request);
    promise.deliver(err);
  };
}

// -- clients ------------------------------------------------------------------

caf::result<node_info> node_state::attach(const client_info& who) {
  const auto& client = self->current_sender();
  if (!client)
    return to_caf({ec::invalid_argument, "a client needs an address"});
  const auto at = caf::actor_cast<caf::actor_addr>(client);
  const auto known = client_of.find(at);
  const auto id = known == client_of.end() ? last_client + 1 : known->second;
  if (auto entered = clients->enter(id, who); !entered)
    return to_caf(entered.error());
  last_client = id;
  client_of.emplace(at, id);
  self->monitor(client);
  spdlog::info("client {} of tenant {} is here", id, who.tenant);
  return options.info;
}

client_id node_state::sender() const {
  const auto at = client_of.find(caf::actor_cast<caf::actor_addr>(self->current_sender()));
  return at == client_of.end() ? 0 : at->second;
}

void node_state::lose(const caf::actor_addr& client) {
  const auto at = client_of.find(client);
  if (at == client_of.end())
    return;
  auto left = clients->leave(at->second);
  spdlog::info("client {} is gone; {} pages that it was writing and {} that it was reading are "
               "free again",
               at->second, left.reserved.list.size(), left.leased.list.size());
  client_of.erase(at);
  give_back(std::move(left.reserved));
  end_holds(std::move(left.leased));
}

// -- writing ------------------------------------------------------------------

caf::result<reserved_pages> node_state::reserve(const wanted_pages& wanted) {
  auto pages = segment_pages{};
  for (const auto& page : wanted.pages)
    pages.list.push_back({page.key, page.parent, page.length});
  const auto request = clients->ask_to_write(sender(), pages);
  if (!request)
    return to_caf(request.error());
  auto promise = self->make_response_promise<reserved_pages>();
  auto on_slots = [this, promise, number = *request](const segment_slots& slots) mutable {
    give_back(clients->grant_write(number, slots));
    auto answer = reserved_pages{};
    for (const auto& slot : slots.list) {
      answer.places.push_back(place_to_write(slot));
      if (slot.what == segment_slot::state::reserved)
        answer.reservation = number;
    }
    promise.deliver(std::move(answer));
  };
  self->request(options.segment, caf::infinite, atom::reserve_v, std::move(pages))
    .then(std::move(on_slots), refusal(*request, promise));
  return promise;
}

caf::result<page_totals> node_state::commit(const complete_pages& complete) {
  const auto client = sender();
  const auto keys = keys_of(complete.pages);
  auto ended = clients->commit(client, complete.reservation, keys);
  if (!ended)
    return to_caf(ended.error());
  give_back(std::move(ended->unused));
  const auto fingerprint = clients->find(client)->fingerprint;
  auto& written = ended->complete;
  for (auto i = size_t{0}; i < keys.size(); ++i)
    seal_slot(options.memory, written.list[i], fingerprint, complete.pages[i].checksum);
  if (keys.empty())
    return page_totals{};
  auto promise = self->make_response_promise<page_totals>();
  auto on_published
    = [this, promise, written, who = *clients->find(client)](const key_batch& refused) mutable {
        std::erase_if(written.list, [&refused](const segment_slot& x) {
          return std::ranges::find(refused.keys, x.key) != refused.keys.end();
        });
        keep_on_disk(written, who);
        auto totals = totals_of(written);
        totals.left_out = refused.keys;
        promise.deliver(std::move(totals));
      };
  auto on_error = [promise](caf::error& err) mutable { promise.deliver(std::move(err)); };
  self->request(options.segment, caf::infinite, atom::publish_v, std::move(written))
    .then(std::move(on_published), std::move(on_error));
  return promise;
}

void node_state::keep_on_disk(const segment_slots& published, const client_info& who) {
  if (!options.disk || published.list.empty())
    return;
  auto pages = segment_pages{};
  for (const auto& slot : published.list)
    pages.list.push_back({slot.key, slot.parent, slot.length, who.fingerprint, who.tenant});
  self->send(options.disk, atom::backup_v, std::move(pages));
}

caf::result<page_totals> node_state::abort(const client_ticket& reservation) {
  auto ended = clients->commit(sender(), reservation.number, {});
  if (!ended)
    return to_caf(ended.error());
  const auto totals = totals_of(ended->unused);
  give_back(std::move(ended->unused));
  return totals;
}

// -- reading ------------------------------------------------------------------

template <class Answer, class Wanted, class Then>
caf::result<Answer> node_state::search_for(const Wanted& wanted, Then then) {
  const auto client = sender();
  const auto request = clients->ask_to_read(client, wanted.keys.size());
  if (!request)
    return to_caf(request.error());
  auto promise = self->make_response_promise<Answer>();
  auto opened = std::make_shared<search>();
  opened->request = *request;
  opened->who = *clients->find(client);
  opened->keys = wanted.keys;
  opened->is_chain = wanted.is_chain;
  opened->deadline = options.clock->now() + wait_of(wanted.wait_ms);
  opened->then = [promise, then](search& all) mutable { promise.deliver(then(all)); };
  opened->otherwise = refusal(*request, promise);
  find(opened);
  return promise;
}

caf::result<leased_pages> node_state::look_up(const page_lookup& wanted) {
  const auto longest = options.info.lease_ms;
  const auto lease_ms = wanted.lease_ms == 0 ? longest : std::min(wanted.lease_ms, longest);
  return search_for<leased_pages>(wanted, [this, lease_ms](const search& all) {
    const auto extent = all.is_chain ? lease_extent::prefix : lease_extent::all;
    const auto until = options.clock->now() + std::chrono::milliseconds{lease_ms};
    auto granted = clients->grant_read(all.request, all.slots, extent, until);
    end_holds(std::move(granted.surplus));
    auto answer = leased_pages{granted.lease, lease_ms, {}};
    for (const auto& slot : granted.places.list)
      answer.places.push_back(place_to_read(slot));
    keep_ticking();
    return answer;
  });
}

caf::result<page_totals> node_state::release(const client_ticket& lease) {
  auto ended = clients->release(sender(), lease.number);
  if (!ended)
    return to_caf(ended.error());
  const auto totals = totals_of(*ended);
  end_holds(std::move(*ended));
  return totals;
}

caf::result<page_totals> node_state::prefetch(const page_prefetch& wanted) {
  return search_for<page_totals>(wanted, [this](const search& all) {
    clients->refuse(all.request); // Nothing is leased.
    auto here = slots_in(all.slots, segment_slot::state::present);
    auto totals = totals_of(here);
    for (const auto& slot : all.slots.list)
      if (slot.what != segment_slot::state::present)
        totals.left_out.push_back(slot.key);
    end_holds(std::move(here));
    return totals;
  });
}

caf::result<page_totals> node_state::check(const key_batch& doubtful) {
  const auto client = sender();
  const auto request = clients->ask_to_read(client, doubtful.keys.size());
  if (!request)
    return to_caf(request.error());
  auto promise = self->make_response_promise<page_totals>();
  inspect(std::make_shared<inspection>(inspection{client, *request, doubtful.keys, 0, promise}));
  return promise;
}

void node_state::inspect(const std::shared_ptr<inspection>& doubtful) {
  auto& [client, request, keys, next, promise] = *doubtful;
  if (next == keys.size() || !clients->find(client)) {
    clients->refuse(request); // Nothing is leased.
    promise.deliver(page_totals{next, 0});
    return;
  }
  self->send(options.segment, atom::corrupt_v, key_batch{{keys[next++]}});
  // An empty hold is answered after the page was verified.
  self->request(options.segment, caf::infinite, atom::hold_v, segment_holds{})
    .then([this, doubtful](const segment_slots&) { inspect(doubtful); }, refusal(request, promise));
}

caf::result<page_totals> node_state::remove(const key_batch& unwanted) {
  const auto client = sender();
  const auto request = clients->ask_to_read(client, unwanted.keys.size());
  if (!request)
    return to_caf(request.error());
  auto promise = self->make_response_promise<page_totals>();
  auto on_error = refusal(*request, promise);
  // Held, so that only pages of the client's namespace are removed.
  auto on_held = [this, promise, number = *request, on_error](const segment_slots& slots) mutable {
    clients->refuse(number); // Nothing is leased.
    auto here = slots_in(slots, segment_slot::state::present);
    auto on_removed
      = [promise, totals = totals_of(here)](atom::ok) mutable { promise.deliver(totals); };
    self
      ->request(options.segment, caf::infinite, atom::remove_v,
                std::make_shared<const std::vector<page_key>>(keys_of(here.list)))
      .then(std::move(on_removed), std::move(on_error));
    end_holds(std::move(here));
  };
  const auto wanted = segment_holds{clients->find(client)->fingerprint, unwanted.keys};
  // The scanner may find the pages later in memory left by an earlier node.
  self->send(options.segment, atom::drop_v, wanted);
  auto remove_here = [this, wanted, on_held, on_error] {
    self->request(options.segment, caf::infinite, atom::hold_v, wanted).then(on_held, on_error);
  };
  if (!options.disk) {
    remove_here();
    return promise;
  }
  // Disk first, so that the pages do not return from there.
  self->request(options.disk, caf::infinite, atom::remove_v, wanted)
    .then([remove_here](atom::ok) { remove_here(); }, on_error);
  return promise;
}

caf::result<page_totals> node_state::clear(const namespace_pages& unwanted) {
  const auto client = clients->find(sender());
  if (!client)
    return to_caf({ec::unknown_id, "the client has not said who it is"});
  if (unwanted.fingerprint != client->fingerprint)
    return to_caf({ec::invalid_argument, "the namespace is another client's"});
  return self->delegate(options.segment, atom::clear_v, unwanted);
}

void node_state::find(const search_ptr& wanted) {
  for (const auto& key : wanted->keys)
    wanted->slots.list.push_back({key});
  hold_missing(wanted, [this, wanted] {
    bring(wanted, options.disk,
          [this, wanted] { bring(wanted, options.fetcher, [wanted] { wanted->then(*wanted); }); });
  });
}

void node_state::hold_missing(const search_ptr& wanted, std::function<void()> then) {
  auto positions = std::vector<size_t>{};
  auto holds = segment_holds{wanted->who.fingerprint, {}};
  for (auto i = size_t{0}; i < wanted->keys.size(); ++i)
    if (wanted->slots.list[i].what != segment_slot::state::present) {
      positions.push_back(i);
      holds.keys.push_back(wanted->keys[i]);
    }
  auto on_held = [wanted, positions = std::move(positions),
                  then = std::move(then)](const segment_slots& held) {
    for (auto k = size_t{0}; k < positions.size(); ++k)
      wanted->slots.list[positions[k]] = held.list[k];
    then();
  };
  auto on_error = [this, wanted](const caf::error& err) {
    end_holds(slots_in(wanted->slots, segment_slot::state::present));
    wanted->otherwise(err);
  };
  self->request(options.segment, caf::infinite, atom::hold_v, std::move(holds))
    .then(std::move(on_held), std::move(on_error));
}

template <class Source>
void node_state::bring(const search_ptr& wanted, const Source& from, std::function<void()> then) {
  const auto is_here = [](const segment_slot& x) { return x.what == segment_slot::state::present; };
  if (!from || options.clock->now() >= wanted->deadline
      || std::ranges::all_of(wanted->slots.list, is_here))
    return then();
  auto order = page_fetch{{}, wanted->deadline};
  for (auto i = size_t{0}; i < wanted->keys.size(); ++i)
    if (wanted->slots.list[i].what != segment_slot::state::present)
      order.pages.list.push_back({wanted->keys[i],
                                  wanted->is_chain && i > 0 ? wanted->keys[i - 1] : page_key{}, 0,
                                  wanted->who.fingerprint, wanted->who.tenant});
  const auto left = caf::timespan{wanted->deadline - options.clock->now()};
  // Even after an error or timeout, some pages may have arrived.
  auto end = [this, wanted, then] { hold_missing(wanted, then); };
  self->request(from, left, atom::fetch_v, std::move(order))
    .then([end](atom::ok) { end(); }, [end](const caf::error&) { end(); });
}

// -- both ---------------------------------------------------------------------

node_status node_state::status(const status_query& query) const {
  auto answer = node_status{};
  const auto most = query.most == 0 ? limits::node_clients : size_t{query.most};
  for (const auto& client : clients->clients()) {
    if (client.client < query.from)
      continue;
    if (answer.clients.size() == most) {
      answer.has_more = true;
      break;
    }
    answer.clients.push_back(client);
  }
  const auto counters = clients->counters();
  answer.client_count = counters.clients;
  answer.reserved_bytes = counters.reserved_bytes;
  answer.leased_bytes = counters.leased_bytes;
  answer.reservations = counters.reservations;
  answer.leases = counters.leases;
  answer.expired_leases = counters.expired;
  answer.refused = counters.refused;
  answer.capacity_bytes = options.memory.size();
  answer.used_bytes = options.figures->used_bytes;
  answer.pages = options.figures->pages;
  answer.evicted = options.figures->evicted;
  answer.pages_wanted = counters.traffic.pages_wanted;
  answer.pages_found = counters.traffic.pages_found;
  answer.pages_written = counters.traffic.pages_written;
  answer.pages_kept = options.figures->kept;
  answer.pages_dropped = options.figures->dropped;
  answer.unscanned_bytes = options.figures->unscanned_bytes;
  if (options.on_disk) {
    answer.disk_capacity_bytes = options.disk_bytes;
    answer.disk_bytes = options.on_disk->bytes;
    answer.disk_pages = options.on_disk->pages;
    answer.disk_pages_read = options.on_disk->read;
    answer.disk_pages_written = options.on_disk->written;
    answer.disk_pages_skipped = options.on_disk->skipped;
    answer.disk_pages_failed = options.on_disk->failed;
    answer.disk_stores = options.disk_stores;
  }
  return answer;
}

void node_state::tick() {
  is_ticking = false;
  end_holds(clients->expire(options.clock->now()));
  keep_ticking();
}

void node_state::give_back(segment_slots slots) {
  if (!slots.list.empty())
    self->send(options.segment, atom::abort_v, std::move(slots));
}

void node_state::end_holds(segment_slots slots) {
  if (!slots.list.empty())
    self->send(options.segment, atom::release_v, std::move(slots));
}

void node_state::keep_ticking() {
  if (is_ticking || clients->counters().leases == 0)
    return;
  is_ticking = true;
  self->delayed_send(self, lease_slack, atom::tick_v);
}

// -- actor --------------------------------------------------------------------

node_actor::behavior_type node(node_actor::stateful_pointer<node_state> self,
                               node_options options) {
  HICACHE_CHECK(!options.memory.empty() && options.segment && options.figures != nullptr
                && !options.disk == !options.on_disk && options.clock != nullptr);
  HICACHE_CHECK(options.lease_time > duration{} && options.lease_time <= limits::node_lease_time);
  options.shares.pool_bytes = options.memory.size();
  options.info.lease_ms = static_cast<uint64_t>(
    std::chrono::duration_cast<std::chrono::milliseconds>(options.lease_time).count());
  self->state.clients.emplace(options.shares);
  self->state.options = std::move(options);
  self->set_down_handler([self](const caf::down_msg& msg) { self->state.lose(msg.source); });
  // By default an error message terminates an actor, and any peer may send one.
  self->set_error_handler(
    [](const caf::error& err) { spdlog::warn("a peer complains: {}", to_string(from_caf(err))); });
  return {
    [self](atom::attach, const client_info& who) { return self->state.attach(who); },
    [self](atom::reserve, const wanted_pages& wanted) { return self->state.reserve(wanted); },
    [self](atom::commit, const complete_pages& pages) { return self->state.commit(pages); },
    [self](atom::abort, const client_ticket& which) { return self->state.abort(which); },
    [self](atom::locate, const page_lookup& wanted) { return self->state.look_up(wanted); },
    [self](atom::release, const client_ticket& which) { return self->state.release(which); },
    [self](atom::fetch, const page_prefetch& wanted) { return self->state.prefetch(wanted); },
    [self](atom::corrupt, const key_batch& doubtful) { return self->state.check(doubtful); },
    [self](atom::remove, const key_batch& unwanted) { return self->state.remove(unwanted); },
    [self](atom::clear, const namespace_pages& unwanted) { return self->state.clear(unwanted); },
    [self](atom::status, const status_query& query) { return self->state.status(query); },
    [self](atom::tick) { self->state.tick(); },
  };
}

} // namespace hicache
