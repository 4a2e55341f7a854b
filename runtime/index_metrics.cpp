#include "runtime/index_metrics.hpp"

#include "base/limits.hpp"
#include "runtime/metric_families.hpp"

#include <caf/scoped_actor.hpp>

#include <string>

namespace hicache {

std::vector<prometheus::MetricFamily> to_metrics(const shard_figures& shards) {
  auto families = metric_families{};
  for (const auto& [number, status] : shards) {
    const auto labels = metric_labels{{"shard", std::to_string(number)}};
    const auto add = [&](const char* name, const char* help, auto value) {
      families.add(name, help, value, labels);
    };
    add("hicache_up", "1 if the shard answered the scrape, 0 if not.", status ? 1 : 0);
    if (!status)
      continue;
    add("hicache_index_members", "Members that export memory.", status->members.size());
    add("hicache_index_keys", "Objects that the shard knows as their first keeper.", status->keys);
    add("hicache_index_second_keys", "Objects that the shard knows as their second keeper.",
        status->second_keys);
    add("hicache_index_replicas", "Places in memory where these are.", status->replicas);
    add("hicache_index_bytes", "Bytes that these take.", status->bytes);
    add("hicache_index_disk_replicas", "Places on disk where these are, and not in that memory.",
        status->disk_replicas);
    add("hicache_index_disk_bytes", "Bytes that these take.", status->disk_bytes);
    add("hicache_index_lookups_total", "Look-ups, each of a batch of keys.", status->lookups);
    add("hicache_index_keys_asked_total", "Keys that were looked up.", status->keys_asked);
    add("hicache_index_keys_found_total", "Keys of these that were known.", status->keys_found);
    add("hicache_index_members_lost_total", "Members that left, in order or not.",
        status->members_lost);
    add("hicache_index_uptime_seconds", "Time since the shard began.",
        static_cast<double>(status->uptime_ms) / 1000);
  }
  return families.take();
}

std::vector<prometheus::MetricFamily> index_metrics::Collect() const {
  auto self = caf::scoped_actor{system_};
  const auto ask = [&](const index_actor& shard) {
    return self->request(shard, caf::timespan{limits::scrape_time}, atom::status_v, status_query{});
  };
  // Sent at once, so that all shards share the timeout.
  auto asked = std::map<uint32_t, decltype(ask({}))>{};
  for (const auto& [number, shard] : shards_)
    asked.emplace(number, ask(shard));
  auto figures = shard_figures{};
  for (auto& [number, answer] : asked) {
    auto& told = figures[number];
    answer.receive([&](index_status& x) { told = std::move(x); }, [](const caf::error&) {});
  }
  return to_metrics(figures);
}

} // namespace hicache
