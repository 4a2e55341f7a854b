#include "actors/index.hpp"

#include "base/check.hpp"
#include "base/limits.hpp"

#include <caf/actor_cast.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <string>
#include <utility>

namespace hicache {

namespace {

uint64_t milliseconds(duration time) {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(time).count());
}

} // namespace

// -- request handling ---------------------------------------------------------

caf::result<membership> index_state::mount(const member_info& member) {
  if (member.protocol_version < index_protocol_minimum)
    return to_caf(
      {ec::unsupported, std::string{"the member speaks version "}
                          .append(std::to_string(member.protocol_version))
                          .append(" of the index protocol; this index wants at least version ")
                          .append(std::to_string(index_protocol_minimum))});
  const auto entered = table.mount(member, options.clock->now());
  if (!entered)
    return to_caf(entered.error());
  if (const auto& sender = self->current_sender()) {
    const auto peer = caf::actor_cast<caf::actor_addr>(sender);
    if (!mounted_by.contains(peer))
      self->monitor(sender);
    mounted_by[peer].insert(member.member);
    peers[member.member] = peer;
  }
  expire_replicas(); // Of an older epoch.
  spdlog::info("member {:016x} on {} exports {} bytes{}", member.member, member.host,
               member.capacity_bytes, entered->is_resumed ? ", and goes on" : "");
  auto answer = view(true);
  answer.resumed = entered->is_resumed;
  return answer;
}

membership index_state::take_heartbeat(const heartbeat& sign) {
  auto answer = view(
    table.heartbeat(sign.member, sign.epoch, options.clock->now(), sign.counters, sign.is_closed));
  if (answer.known && sign.leaves) {
    forget(sign.member);
    spdlog::info("member {:016x} leaves; its pages are withdrawn", sign.member);
    expire_replicas();
    return answer;
  }
  if (const auto at = lost.find(sign.member); answer.known && at != lost.end()) {
    auto& keys = at->second;
    const auto count = std::min(keys.size(), limits::index_batch_keys);
    const auto first = keys.end() - static_cast<ptrdiff_t>(count);
    answer.lost.assign(first, keys.end());
    keys.erase(first, keys.end());
    if (keys.empty())
      lost.erase(at);
  }
  if (answer.known)
    answer.refused = table.take_displaced(sign.member, limits::index_batch_keys);
  return answer;
}

membership index_state::publish(const published_pages& news) {
  // Counts as a heartbeat: a member reporting many pages sends nothing else meanwhile.
  if (!table.hear(news.member, news.epoch, options.clock->now()))
    return view(false);
  auto answer = view(true);
  const auto pages = std::span{news.pages};
  const auto firsts = pages.size() - news.seconds;
  answer.refused
    = *table.publish(news.member, news.epoch, pages.first(firsts), false, news.only_new);
  const auto seconds = *table.publish(news.member, news.epoch, pages.subspan(firsts), true);
  answer.refused.insert(answer.refused.end(), seconds.begin(), seconds.end());
  end_waits(pages);
  return answer;
}

membership index_state::withdraw(const withdrawn_pages& news) {
  return view(table.withdraw(news.member, news.epoch, news.keys));
}

placements index_state::locate(const key_batch& query) {
  const auto found = table.locate(query.keys);
  auto answer = placements{{}, shards_digest, is_partial()};
  answer.replicas.resize(query.keys.size());
  for (auto i = size_t{0}; i < query.keys.size(); ++i)
    for (const auto& copy : found.of(i)) {
      if (is_on_disk(copy.offset) && !query.with_disk)
        continue;
      const auto* owner = table.find(copy.member);
      HICACHE_CHECK(owner != nullptr);
      answer.replicas[i].push_back({owner->member, copy.offset, copy.generation, copy.length});
    }
  ++lookups;
  keys_asked += query.keys.size();
  for (const auto& copies : answer.replicas)
    keys_found += copies.empty() ? 0 : 1;
  return answer;
}

caf::result<atom::ok> index_state::await(const awaited_pages& query) {
  const auto found = table.locate(query.keys);
  for (auto i = size_t{0}; i < query.keys.size(); ++i)
    if (count_in_memory(found.of(i)) > query.known[i])
      return atom::ok_v;
  if (waits.size() + query.keys.size() > limits::awaited_pages)
    return to_caf({ec::limit_reached, "too many readers wait for replicas"});
  const auto number = waits.add(query.keys);
  auto promise = self->make_response_promise<atom::ok>();
  waiting.emplace(number, promise);
  const auto wait
    = std::min<caf::timespan>(std::chrono::milliseconds{query.wait_ms}, limits::demand_wait);
  self->delayed_send(self, wait, atom::await_v, number);
  return promise;
}

index_status index_state::status(const status_query& query) const {
  const auto now = options.clock->now();
  const auto counters = table.counters();
  auto answer = index_status{};
  auto page = table.part(query.from, query.most);
  answer.has_more = page.has_more;
  for (auto& entry : page.members)
    answer.members.push_back({std::move(entry.member), entry.replicas, entry.bytes,
                              milliseconds(now - entry.last_heard), entry.counters,
                              entry.disk_replicas, entry.disk_bytes});
  answer.keys = counters.keys - counters.second_keys;
  answer.replicas = counters.replicas - counters.second_replicas - counters.disk_replicas;
  answer.bytes = counters.bytes - counters.second_bytes - counters.disk_bytes;
  answer.disk_replicas = counters.disk_replicas;
  answer.disk_bytes = counters.disk_bytes;
  answer.second_keys = counters.second_keys;
  answer.lookups = lookups;
  answer.keys_asked = keys_asked;
  answer.keys_found = keys_found;
  answer.members_lost = members_lost;
  answer.uptime_ms = milliseconds(now - started);
  return answer;
}

void index_state::poll() {
  for (const auto member : table.silent(options.clock->now(), options.member_ttl)) {
    if (forget(member)) // Otherwise it was suspended.
      spdlog::warn("member {:016x} has been silent for too long; its pages are withdrawn", member);
  }
  expire_replicas();
  self->delayed_send(self, options.member_ttl / 4, atom::poll_v);
}

void index_state::expire_replicas() {
  if (is_expiring)
    return;
  if (table.expire_replicas(limits::index_expiry)) {
    is_expiring = true;
    self->delayed_send(self, limits::index_expiry_pause, atom::drop_v);
  }
  for (auto& copy : table.take_lost())
    lost[copy.holder].push_back(copy.key);
}

// -- internal steps -----------------------------------------------------------

void index_state::end_waits(std::span<const announced_page> pages) {
  if (waiting.empty())
    return;
  for (const auto& page : pages)
    if (!is_on_disk(page.offset))
      for (const auto number : waits.take(page.key))
        waiting.extract(number).mapped().deliver(atom::ok_v);
}

void index_state::expire_wait(uint64_t number) {
  if (auto promise = waiting.extract(number)) {
    waits.remove(number);
    promise.mapped().deliver(to_caf({ec::deadline_exceeded, "no other replica yet"}));
  }
}

membership index_state::view(bool known) const {
  return {known, milliseconds(options.member_ttl), shards_digest, {}, {}, false, true};
}

bool index_state::is_partial() const {
  return table.is_partial() || options.clock->now() - last_loss < options.member_ttl;
}

bool index_state::forget(uint64_t member) {
  peers.erase(member);
  lost.erase(member);
  if (!table.drop(member))
    return false;
  on_member_lost();
  return true;
}

void index_state::on_member_lost() {
  ++members_lost;
  last_loss = options.clock->now();
}

void index_state::on_down(const caf::actor_addr& who) {
  const auto gone = mounted_by.extract(who);
  if (!gone)
    return;
  for (const auto member : gone.mapped()) {
    const auto at = peers.find(member);
    if (at == peers.end() || at->second != who)
      continue; // Dropped already, or mounted by another peer since.
    if (table.suspend(member)) {
      on_member_lost();
      spdlog::info("member {:016x} is gone; its pages are withdrawn", member);
    }
    peers.erase(at);
  }
}

// -- actor --------------------------------------------------------------------

index_actor::behavior_type index(index_actor::stateful_pointer<index_state> self,
                                 index_options options) {
  HICACHE_CHECK(options.clock != nullptr && options.member_ttl.count() > 0);
  auto& state = self->state;
  state.options = options;
  state.started = state.last_loss = options.clock->now();
  self->set_down_handler([self](const caf::down_msg& msg) { self->state.on_down(msg.source); });
  // By default an error message terminates an actor; peers send one if they do not understand a
  // reply.
  self->set_error_handler(
    [](const caf::error& err) { spdlog::warn("a peer complains: {}", to_string(from_caf(err))); });
  self->delayed_send(self, options.member_ttl / 4, atom::poll_v);
  return {
    [self](atom::mount, const member_info& member) { return self->state.mount(member); },
    [self](atom::tick, const heartbeat& sign) { return self->state.take_heartbeat(sign); },
    [self](atom::publish, const published_pages& news) { return self->state.publish(news); },
    [self](atom::withdraw, const withdrawn_pages& news) { return self->state.withdraw(news); },
    [self](atom::locate, const key_batch& query) { return self->state.locate(query); },
    [self](atom::await, const awaited_pages& query) { return self->state.await(query); },
    [self](atom::members, const member_query& query) { return self->state.table.list(query); },
    [self](atom::status, const status_query& query) { return self->state.status(query); },
    [self](atom::shards, uint64_t digest) { self->state.shards_digest = digest; },
    [self](atom::poll) { self->state.poll(); },
    [self](atom::drop) {
      self->state.is_expiring = false;
      self->state.expire_replicas();
    },
    [self](atom::await, uint64_t number) { self->state.expire_wait(number); },
  };
}

} // namespace hicache
