#include "bench/simulated_shard.hpp"

#include "base/check.hpp"
#include "base/limits.hpp"
#include "messages/wire.hpp"

#include <algorithm>
#include <ctime>

namespace hicache::bench {

namespace {

/// Only every n-th message with few keys is encoded and decoded, because there are millions.
constexpr auto codec_interval = uint64_t{16};

double thread_time() {
  auto now = timespec{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

/// Overhead of thread_time: the time between two consecutive calls.
double empty_time() {
  constexpr auto rounds = 1000;
  const auto begin = thread_time();
  for (auto i = 0; i < rounds; ++i)
    thread_time();
  return (thread_time() - begin) / (rounds + 1);
}

} // namespace

const char* to_string(message_kind kind) noexcept {
  switch (kind) {
    case message_kind::mount:
      return "mount";
    case message_kind::beat:
      return "heartbeat";
    case message_kind::publish:
      return "publish";
    case message_kind::withdraw:
      return "withdraw";
    case message_kind::report:
      return "block report";
    case message_kind::locate:
      return "lookup";
    case message_kind::list:
      return "list of members";
  }
  return "unknown";
}

time_point simulated_shard::occupy(time_point when, duration what) {
  busy_until_ = begin(when) + what;
  worked += what;
  return busy_until_;
}

template <class Request, class Apply>
auto simulated_shard::through_codecs(message_kind kind, const Request& request, size_t items,
                                     Apply apply) {
  using answer_type = decltype(apply(request));
  auto& counted = figures[static_cast<size_t>(kind)];
  ++counted.messages;
  counted.items += items;
  if (kind != message_kind::report && counted.messages % codec_interval != 1)
    return apply(request);
  const auto sent = wire::codec<Request>::encode(request);
  const auto begin = thread_time();
  const auto received = wire::codec<Request>::decode(sent);
  const auto decoded = thread_time();
  HICACHE_CHECK(received && *received == request);
  const auto compared = thread_time();
  const auto answer = apply(*received);
  const auto applied = thread_time();
  const auto returned = wire::codec<answer_type>::encode(answer);
  const auto encoded = thread_time();
  auto understood = wire::codec<answer_type>::decode(returned);
  HICACHE_CHECK(understood && *understood == answer);
  ++counted.coded;
  counted.coded_items += items;
  counted.request_bytes += sent.size() * sizeof(sent[0]);
  counted.answer_bytes += returned.size() * sizeof(returned[0]);
  static const auto empty = empty_time();
  counted.decode_ns += std::max(decoded - begin - empty, 0.0);
  counted.table_ns += std::max(applied - compared - empty, 0.0);
  counted.encode_ns += std::max(encoded - applied - empty, 0.0);
  return *std::move(understood);
}

membership simulated_shard::mount(const member_info& member, uint32_t link, time_point now) {
  return through_codecs(message_kind::mount, member, 1, [&](const member_info& x) {
    const auto entered = table.mount(x, now);
    auto answer = view(entered.has_value());
    if (entered) {
      answer.resumed = entered->is_resumed;
      suspended.erase(x.member);
      peers[x.member] = link;
    }
    return answer;
  });
}

membership simulated_shard::beat(const heartbeat& sign, time_point now) {
  return through_codecs(message_kind::beat, sign, 1, [&](const heartbeat& x) {
    auto answer = view(table.heartbeat(x.member, x.epoch, now));
    if (const auto at = lost.find(x.member); answer.known && at != lost.end()) {
      auto& keys = at->second;
      const auto first
        = keys.end() - static_cast<ptrdiff_t>(std::min(keys.size(), limits::index_batch_keys));
      answer.lost.assign(first, keys.end());
      keys.erase(first, keys.end());
      if (keys.empty())
        lost.erase(at);
    }
    return answer;
  });
}

membership simulated_shard::publish(message_kind kind, const published_pages& news,
                                    time_point now) {
  return through_codecs(kind, news, news.pages.size(), [&](const published_pages& x) {
    if (!table.hear(x.member, x.epoch, now))
      return view(false);
    const auto pages = std::span{x.pages};
    const auto firsts = pages.size() - x.seconds;
    return view(table.publish(x.member, x.epoch, pages.first(firsts))
                && table.publish(x.member, x.epoch, pages.subspan(firsts), true));
  });
}

membership simulated_shard::withdraw(const withdrawn_pages& news) {
  return through_codecs(
    message_kind::withdraw, news, news.keys.size(),
    [&](const withdrawn_pages& x) { return view(table.withdraw(x.member, x.epoch, x.keys)); });
}

placements simulated_shard::locate(const key_batch& query, time_point now) {
  return through_codecs(message_kind::locate, query, query.keys.size(), [&](const key_batch& x) {
    const auto found = table.locate(x.keys);
    auto answer = placements{{}, shards_known, table.is_partial() || now - last_loss < member_ttl};
    answer.replicas.resize(x.keys.size());
    for (auto i = size_t{0}; i < x.keys.size(); ++i)
      for (const auto& copy : found.of(i)) {
        const auto* owner = table.find(copy.member);
        HICACHE_CHECK(owner != nullptr);
        answer.replicas[i].push_back({owner->member, copy.offset, copy.generation, copy.length});
      }
    return answer;
  });
}

member_list simulated_shard::list(const member_query& query) {
  auto& counted = figures[static_cast<size_t>(message_kind::list)];
  const auto coded = counted.coded;
  auto answer = through_codecs(message_kind::list, query, 0,
                               [&](const member_query& x) { return table.list(x); });
  counted.items += answer.members.size();
  counted.coded_items += counted.coded > coded ? answer.members.size() : 0;
  return answer;
}

bool simulated_shard::lose(uint64_t member, uint32_t link, time_point now) {
  const auto at = peers.find(member);
  if (at == peers.end() || at->second != link)
    return false; // Mounted by another connection in the meantime.
  peers.erase(at);
  if (!table.suspend(member))
    return false;
  suspended.insert(member);
  last_loss = now;
  return true;
}

bool simulated_shard::drop_silent(time_point now) {
  auto has_lost = false;
  for (const auto member : table.silent(now, member_ttl)) {
    peers.erase(member);
    lost.erase(member);
    suspended.erase(member);
    if (table.drop(member)) {
      last_loss = now;
      has_lost = true;
    }
  }
  return has_lost;
}

bool simulated_shard::expire_replicas() {
  const auto has_more = table.expire_replicas(limits::index_expiry);
  for (auto& copy : table.take_lost())
    lost[copy.holder].push_back(copy.key);
  return has_more;
}

void simulated_shard::end() {
  is_up = false;
  is_expiring = false;
  suspended.clear();
  peers.clear();
  lost.clear();
  table = {};
}

membership simulated_shard::view(bool known) const {
  return {known, static_cast<uint64_t>(member_ttl / std::chrono::milliseconds{1}), shards_known};
}

} // namespace hicache::bench
