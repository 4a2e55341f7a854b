// hicachectl: inspects a running cluster; attaches and detaches L3; looks into stores; computes
// model ids; runs, replays and compares op logs.

#include "backends/cluster/index_addresses.hpp"
#include "backends/cluster/index_link.hpp"
#include "backends/cluster/member_lists.hpp"
#include "base/about.hpp"
#include "base/try.hpp"
#include "base/units.hpp"
#include "hicache/system_config.hpp"
#include "launch/cluster_commands.hpp"
#include "launch/model_commands.hpp"
#include "launch/node_commands.hpp"
#include "launch/oplog_commands.hpp"
#include "launch/program.hpp"
#include "launch/storage_commands.hpp"
#include "launch/store_commands.hpp"
#include "rpc/network.hpp"
#include "runtime/network_flags.hpp"
#include "runtime/rank_config.hpp"
#include "runtime/setting_flags.hpp"

#include <absl/strings/str_format.h>
#include <caf/actor_system.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <future>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace hicache {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(member_counters, hits, misses, errors, corrupt, evicted,
                                   pinned_bytes)

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(index_status, keys, replicas, bytes, disk_replicas, disk_bytes,
                                   lookups, keys_asked, keys_found, members_lost, uptime_ms)

} // namespace hicache

namespace {

using namespace hicache;

/// Minimum time for a reached shard to answer, even if the timeout is almost over.
constexpr auto answer_time_min = duration{std::chrono::milliseconds{100}};

struct status_flags {
  std::string index = "127.0.0.1:7766";
  duration timeout = std::chrono::seconds{5};
  bool json = false;
  tls_files tls;
};

struct shard_status {
  uint32_t number = 0;
  std::string address;
  index_status status;
  /// Error message if `status` is absent.
  std::string trouble;
};

result<std::vector<shard_status>> ask_shards(const status_flags& flags) {
  HICACHE_TRY(flags.tls.check());
  auto addresses
    = HICACHE_TRY(about_input("--index", index_addresses::open(flags.index, flags.tls)));
  auto config = system_config{};
  auto system = caf::actor_system{config};
  const auto network = rpc_network{system, flags.tls};
  auto link = index_link{system, network.connector(), std::move(addresses)};
  const auto end = std::chrono::steady_clock::now() + flags.timeout;
  HICACHE_TRY(link.connect(flags.timeout));
  const auto view = link.view();
  const auto clock = monotonic_clock{};
  const auto deadline = std::max<time_point>(end, clock.now() + answer_time_min);
  // In parallel, so that all shards share the deadline.
  auto asked = std::vector<std::future<result<index_status>>>{};
  for (const auto& shard : view->shards)
    asked.push_back(std::async(std::launch::async, [&, shard]() -> result<index_status> {
      if (!shard)
        return fail(ec::peer_unreachable, "not reached");
      return ask_status(system, shard, clock, deadline);
    }));
  auto all = std::vector<shard_status>{};
  for (auto i = size_t{0}; i < view->numbers.size(); ++i) {
    auto& shard = all.emplace_back(shard_status{view->numbers[i], view->addresses[i], {}, {}});
    if (auto status = asked[i].get())
      shard.status = std::move(*status);
    else
      shard.trouble = view->shards[i] ? to_string(status.error()) : status.error().detail;
  }
  return all;
}

constexpr auto summed_fields
  = std::array{&index_status::keys,       &index_status::replicas,      &index_status::bytes,
               &index_status::disk_bytes, &index_status::disk_replicas, &index_status::lookups,
               &index_status::keys_asked, &index_status::keys_found};

/// Aggregates the shards: sums of all counts, and members with the counts of all shards.
index_status total(const std::vector<shard_status>& shards) {
  auto sum = index_status{};
  auto positions = std::unordered_map<uint64_t, size_t>{};
  for (const auto& shard : shards) {
    const auto& status = shard.status;
    for (const auto& member : status.members) {
      const auto [at, is_new] = positions.try_emplace(member.info.member, sum.members.size());
      if (is_new) {
        sum.members.push_back(member);
        continue;
      }
      auto& known = sum.members[at->second];
      known.pages += member.pages;
      known.bytes += member.bytes;
      known.disk_pages += member.disk_pages;
      known.disk_bytes += member.disk_bytes;
      known.silent_ms = std::max(known.silent_ms, member.silent_ms);
    }
    for (const auto field : summed_fields)
      sum.*field += status.*field;
    sum.members_lost = std::max(sum.members_lost, status.members_lost);
    sum.uptime_ms = std::max(sum.uptime_ms, status.uptime_ms);
  }
  return sum;
}

nlohmann::json to_json(const std::vector<shard_status>& shards) {
  const auto status = total(shards);
  auto parts = nlohmann::json::array();
  for (const auto& shard : shards)
    parts.push_back({{"shard", shard.number},
                     {"address", shard.address},
                     {"reached", shard.trouble.empty()},
                     {"keys", shard.status.keys},
                     {"second_keys", shard.status.second_keys},
                     {"lookups", shard.status.lookups},
                     {"uptime_ms", shard.status.uptime_ms}});
  auto members = nlohmann::json::array();
  for (const auto& member : status.members) {
    auto shown = nlohmann::json(member.counters);
    shown.update({{"member", absl::StrFormat("%016x", member.info.member)},
                  {"host", member.info.host},
                  {"page_address", member.info.page_address},
                  {"capacity_bytes", member.info.capacity_bytes},
                  {"pages", member.pages},
                  {"bytes", member.bytes},
                  {"disk_pages", member.disk_pages},
                  {"disk_bytes", member.disk_bytes},
                  {"silent_ms", member.silent_ms},
                  {"closed", member.info.is_closed},
                  {"fingerprint", absl::StrFormat("%016x", member.info.fingerprint)}});
    members.push_back(std::move(shown));
  }
  auto all = nlohmann::json(status);
  all["shards"] = std::move(parts);
  all["members"] = std::move(members);
  return all;
}

/// Percentage of pages wanted from L3 that were hits.
double hit_share(const member_counters& counters) {
  const auto wanted = counters.hits + counters.misses + counters.errors;
  return wanted == 0 ? 0.0 : 100 * static_cast<double>(counters.hits) / static_cast<double>(wanted);
}

std::string on_disk(const index_status& status) {
  return status.disk_replicas == 0 ? ""
                                   : absl::StrFormat("%d more on disk, %s; ", status.disk_replicas,
                                                     format_bytes(status.disk_bytes));
}

void print(const std::vector<shard_status>& shards) {
  const auto status = total(shards);
  auto addresses = std::set<std::string>{};
  for (const auto& shard : shards)
    addresses.insert(shard.address);
  for (const auto& shard : shards)
    if (!shard.trouble.empty())
      std::printf("shard %u at %s: %s; its pages are %s\n", shard.number, shard.address.c_str(),
                  shard.trouble.c_str(),
                  addresses.size() > 1 ? "left to their other keepers, and not counted" : "misses");
  const auto share = status.keys_asked == 0 ? 0.0
                                            : 100 * static_cast<double>(status.keys_found)
                                                / static_cast<double>(status.keys_asked);
  std::printf("up %.0f s; %zu shards, %zu members, %llu gone since the start\n",
              static_cast<double>(status.uptime_ms) / 1000, shards.size(), status.members.size(),
              static_cast<unsigned long long>(status.members_lost));
  absl::PrintF("%d pages, %d replicas, %s; %s%d look-ups, %.1f %% of pages found\n", status.keys,
               status.replicas, format_bytes(status.bytes), on_disk(status), status.lookups, share);
  if (status.members.empty())
    return;
  absl::PrintF("%-16s  %-16s  %-20s %-22s %10s %10s %10s %10s %6s %6s %7s\n", "member", "namespace",
               "host", "address", "pages", "used", "exported", "on disk", "hit %", "errors",
               "damaged");
  for (const auto& member : status.members)
    absl::PrintF("%016x  %016x  %-20s %-22s %10d %10s %10s %10d %6.1f %6d %7d\n",
                 member.info.member, member.info.fingerprint, member.info.host,
                 member.info.page_address, member.pages, format_bytes(member.bytes),
                 format_bytes(member.info.capacity_bytes), member.disk_pages,
                 hit_share(member.counters), member.counters.errors, member.counters.corrupt);
}

result<int> show_status(const status_flags& flags) {
  start_logging("error", 0, 1);
  const auto status = HICACHE_TRY(ask_shards(flags));
  if (flags.json)
    std::printf("%s\n", to_json(status).dump(2).c_str());
  else
    print(status);
  return exit_ok;
}

} // namespace

int main(int argc, char** argv) {
  auto flags = status_flags{};
  auto app
    = CLI::App{"For people: looks at a running hicache cluster, and into caches.", "hicachectl"};
  app.require_subcommand(1);
  auto* status
    = app.add_subcommand("status", "members of the cluster, their segments, pages and bytes");
  add_index_flag(*status, flags.index);
  add_duration_flag(*status, "--timeout", flags.timeout, "how long to wait for the index");
  add_tls_flags(*status, flags.tls);
  status->add_flag("--json", flags.json, "print one JSON object");
  const auto oplog = oplog_commands{app};
  const auto storage = storage_commands{app};
  const auto store = store_commands{app};
  const auto cluster = cluster_commands{app};
  const auto model = model_commands{app};
  const auto node = node_commands{app};
  return run_program(app, argc, argv, [&] {
    if (app.got_subcommand(status))
      return show_status(flags);
    if (app.got_subcommand("storage"))
      return storage.perform();
    if (app.got_subcommand("store"))
      return store.perform();
    if (app.got_subcommand("model-id"))
      return model.perform();
    if (app.got_subcommand("node"))
      return node.perform();
    return app.got_subcommand("oplog") ? oplog.perform() : cluster.perform();
  });
}
