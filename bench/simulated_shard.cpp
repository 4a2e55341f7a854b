#include "bench/simulated_shard.hpp"

#include "base/check.hpp"
#include "messages/wire.hpp"

#include <algorithm>
#include <ctime>

namespace hicache::bench {

namespace {

/// Of the messages with few keys only each so many is encoded and decoded: there are millions.
constexpr auto codec_interval = uint64_t{16};

double thread_time() {
  auto now = timespec{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

/// What lies between two calls of thread_time that follow each other.
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

membership simulated_shard::mount(const member_info& member, time_point now) {
  return through_codecs(message_kind::mount, member, 1, [&](const member_info& x) {
    return view(table.mount(x, now).has_value());
  });
}

membership simulated_shard::beat(const heartbeat& sign, time_point now) {
  return through_codecs(message_kind::beat, sign, 1, [&](const heartbeat& x) {
    return view(table.heartbeat(x.member, x.epoch, now));
  });
}

membership simulated_shard::publish(message_kind kind, const published_pages& news) {
  return through_codecs(kind, news, news.pages.size(), [&](const published_pages& x) {
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

membership simulated_shard::view(bool known) const {
  return {known, static_cast<uint64_t>(member_ttl / std::chrono::milliseconds{1}), shards_known};
}

} // namespace hicache::bench
