#include "actors/index.hpp"
#include "hicache/rank_reducer.hpp"
#include "hicache/runtime.hpp"
#include "hicache/system_config.hpp"
#include "runtime/ask_counters.hpp"
#include "runtime/index_metrics.hpp"
#include "runtime/metrics_server.hpp"
#include "runtime/node_metrics.hpp"
#include "runtime/rank_metrics.hpp"
#include "tests/runtime/metrics_support.hpp"

#include <caf/scoped_actor.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <httplib.h>
#include <prometheus/counter.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <map>
#include <optional>
#include <set>
#include <sstream>

namespace hicache {
namespace {

using namespace hicache::test;

/// HOST:PORT of a server, asked as Prometheus asks.
std::string scrape(const std::string& address) {
  auto client = httplib::Client{"http://" + address};
  const auto answer = client.Get("/metrics");
  if (!answer) {
    ADD_FAILURE() << "no answer from " << address;
    return {};
  }
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(answer->get_header_value("Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
  return answer->body;
}

uint16_t port_of(const std::string& address) {
  return static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
}

/// A port that was free a moment ago.
uint16_t free_port() {
  return port_of((*metrics_server::start({}))->address());
}

/// Every number differs from the others.
rank_figures sample_rank() {
  auto figures = rank_figures{};
  figures.rank = 3;
  figures.l1 = {51, 52};
  figures.l2 = {53, 54};
  figures.counters = rank_counters{21, 22, 23, 24, 25, 26, 27, 28, 29,     30,
                                   31, 32, 33, 34, 11, 13, 14, 15, 16'000, 17'000'000};
  auto store = store_figures{};
  store.evicted = 61;
  store.exported_bytes = 62;
  store.sent_bytes = 63;
  store.repaired_pages = 64;
  store.repair_failures = 65;
  store.unrepaired_pages = 66;
  store.counters["memory"] = {71, 72, 73, 74, 75};
  store.counters["file"] = {81, 82, 83, 84, 85};
  store.attached = attached_store{
    "file",
    false,
    {"file", false, {"open", "late", 101, 102}, {"half_open", "stuck", 103, 104}, 105, 106},
    attached_store::contents{91, 92, 93},
    {{"disk", {false, {}, 111, 112, 113, {114, 115, 116, 117, 118}, {}}, 119, 120}}};
  figures.store = store;
  return figures;
}

// Dashboards depend on these names.
TEST(RankMetricsTest, EveryCounterHasItsMetric) {
  const auto cause = [](const std::string& direction, const std::string& what) {
    return R"(hicache_storage_breaker_cause{rank="3",backend="file",direction=")" + direction
           + R"(",cause=")" + what + R"("})";
  };
  const auto expected = samples{
    {R"(hicache_up{rank="3"})", 1},
    {R"(hicache_capacity_pages{rank="3",tier="l1"})", 51},
    {R"(hicache_capacity_bytes{rank="3",tier="l1"})", 52},
    {R"(hicache_capacity_pages{rank="3",tier="l2"})", 53},
    {R"(hicache_capacity_bytes{rank="3",tier="l2"})", 54},
    {R"(hicache_used_pages{rank="3",tier="l1"})", 40},
    {R"(hicache_used_pages{rank="3",tier="l2"})", 40},
    {R"(hicache_moved_bytes_total{rank="3",from="l1",to="l2"})", 21},
    {R"(hicache_moved_bytes_total{rank="3",from="l2",to="l1"})", 22},
    {R"(hicache_moved_bytes_total{rank="3",from="l2",to="l3"})", 23},
    {R"(hicache_moved_bytes_total{rank="3",from="l3",to="l2"})", 24},
    {R"(hicache_evicted_pages_total{rank="3",tier="l1"})", 25},
    {R"(hicache_evicted_pages_total{rank="3",tier="l2"})", 26},
    {R"(hicache_evicted_pages_total{rank="3",tier="l3"})", 61},
    {R"(hicache_steps_total{rank="3"})", 28},
    {R"(hicache_reductions_total{rank="3"})", 29},
    {R"(hicache_divergences_total{rank="3"})", 30},
    {R"(hicache_storage_failures_total{rank="3"})", 31},
    {R"(hicache_dropped_backup_pages_total{rank="3"})", 32},
    {R"(hicache_backup_retries_total{rank="3"})", 33},
    {R"(hicache_errors_total{rank="3"})", 34},
    {R"(hicache_exported_bytes{rank="3"})", 62},
    {R"(hicache_sent_bytes_total{rank="3"})", 63},
    {R"(hicache_repaired_pages_total{rank="3"})", 64},
    {R"(hicache_repair_failures_total{rank="3"})", 65},
    {R"(hicache_unrepaired_pages{rank="3"})", 66},
    {R"(hicache_storage_hits_total{rank="3",backend="memory"})", 71},
    {R"(hicache_storage_misses_total{rank="3",backend="memory"})", 72},
    {R"(hicache_storage_corrupt_total{rank="3",backend="memory"})", 73},
    {R"(hicache_storage_errors_total{rank="3",backend="memory"})", 74},
    {R"(hicache_storage_hits_total{rank="3",backend="file"})", 81},
    {R"(hicache_storage_misses_total{rank="3",backend="file"})", 82},
    {R"(hicache_storage_corrupt_total{rank="3",backend="file"})", 83},
    {R"(hicache_storage_errors_total{rank="3",backend="file"})", 84},
    {R"(hicache_backup_locked_pages{rank="3"})", 14},
    {R"(hicache_declined_pages_total{rank="3"})", 15},
    {R"(hicache_token_compute_seconds{rank="3"})", 16e-6},
    {R"(hicache_load_estimate_seconds{rank="3"})", 17e-3},
    {R"(hicache_storage_up{rank="3",backend="file"})", 0},
    {R"(hicache_storage_breaker_open{rank="3",backend="file",direction="reads"})", 1},
    {R"(hicache_storage_breaker_open{rank="3",backend="file",direction="writes"})", 0.5},
    {R"(hicache_storage_breaker_since_seconds{rank="3",backend="file",direction="reads"})", 101},
    {R"(hicache_storage_breaker_since_seconds{rank="3",backend="file",direction="writes"})", 103},
    {R"(hicache_storage_breaker_openings_total{rank="3",backend="file",direction="reads"})", 102},
    {R"(hicache_storage_breaker_openings_total{rank="3",backend="file",direction="writes"})", 104},
    {cause("reads", "late"), 1},
    {cause("reads", "failing"), 0},
    {cause("reads", "stuck"), 0},
    {cause("writes", "late"), 0},
    {cause("writes", "failing"), 0},
    {cause("writes", "stuck"), 1},
    {R"(hicache_storage_stuck_calls{rank="3",backend="file"})", 105},
    {R"(hicache_storage_quarantined_pages{rank="3",backend="file"})", 106},
    {R"(hicache_storage_tier_up{rank="3",number="1",backend="disk"})", 0},
    {R"(hicache_storage_tier_objects{rank="3",number="1",backend="disk"})", 111},
    {R"(hicache_storage_tier_bytes{rank="3",number="1",backend="disk"})", 112},
    {R"(hicache_storage_tier_capacity_bytes{rank="3",number="1",backend="disk"})", 113},
    {R"(hicache_storage_tier_hits_total{rank="3",number="1",backend="disk"})", 114},
    {R"(hicache_storage_tier_misses_total{rank="3",number="1",backend="disk"})", 115},
    {R"(hicache_storage_tier_corrupt_total{rank="3",number="1",backend="disk"})", 116},
    {R"(hicache_storage_tier_errors_total{rank="3",number="1",backend="disk"})", 117},
    {R"(hicache_storage_tier_evicted_total{rank="3",number="1",backend="disk"})", 118},
    {R"(hicache_storage_tier_written_bytes_total{rank="3",number="1",backend="disk"})", 119},
    {R"(hicache_storage_tier_over_budget_total{rank="3",number="1",backend="disk"})", 120},
    {R"(hicache_storage_objects{rank="3",backend="file"})", 91},
    {R"(hicache_storage_bytes{rank="3",backend="file"})", 92},
    {R"(hicache_storage_capacity_bytes{rank="3",backend="file"})", 93},
  };
  EXPECT_EQ(parse(to_metrics(sample_rank())), expected);
}

TEST(RankMetricsTest, LargeCountersKeepEveryDigit) {
  auto figures = sample_rank();
  figures.counters->bytes_l1_to_l2 = (uint64_t{1} << 53) - 1;
  EXPECT_EQ(
    parse(to_metrics(figures)).at(R"(hicache_moved_bytes_total{rank="3",from="l1",to="l2"})"),
    9007199254740991.0);
}

TEST(RankMetricsTest, WhatIsNotKnownIsLeftOut) {
  auto figures = sample_rank();
  figures.counters = {};
  auto found = parse(to_metrics(figures));
  EXPECT_EQ(found.at(R"(hicache_up{rank="3"})"), 0);
  EXPECT_FALSE(found.contains(R"(hicache_steps_total{rank="3"})"));
  EXPECT_FALSE(found.contains(R"(hicache_evicted_pages_total{rank="3",tier="l1"})"));
  EXPECT_TRUE(found.contains(R"(hicache_evicted_pages_total{rank="3",tier="l3"})"));
  figures = sample_rank();
  figures.store->attached->held = {};
  figures.store->attached->ok = false;
  found = parse(to_metrics(figures));
  EXPECT_EQ(found.at(R"(hicache_storage_up{rank="3",backend="file"})"), 0);
  EXPECT_FALSE(found.contains(R"(hicache_storage_bytes{rank="3",backend="file"})"));
  figures.store->attached = {};
  found = parse(to_metrics(figures));
  EXPECT_FALSE(found.contains(R"(hicache_storage_up{rank="3",backend="file"})"));
  EXPECT_EQ(found.at(R"(hicache_storage_hits_total{rank="3",backend="file"})"), 81);
  figures.store = {};
  found = parse(to_metrics(figures));
  EXPECT_EQ(found.at(R"(hicache_up{rank="3"})"), 1);
  EXPECT_FALSE(found.contains(R"(hicache_exported_bytes{rank="3"})"));
  EXPECT_FALSE(found.contains(R"(hicache_storage_hits_total{rank="3",backend="file"})"));
}

TEST(RankMetricsTest, EveryMetricSaysWhatItIs) {
  for (const auto& family : to_metrics(sample_rank())) {
    EXPECT_TRUE(family.help.ends_with(".")) << family.name;
    EXPECT_EQ(family.type == prometheus::MetricType::Counter, family.name.ends_with("_total"))
      << family.name;
  }
}

TEST(IndexMetricsTest, EachShardHasItsCounters) {
  auto status = index_status{};
  status.members.resize(2);
  status.keys = 11;
  status.replicas = 12;
  status.bytes = 13;
  status.lookups = 14;
  status.keys_asked = 15;
  status.keys_found = 16;
  status.members_lost = 17;
  status.uptime_ms = 18500;
  status.second_keys = 19;
  status.disk_replicas = 20;
  status.disk_bytes = 21;
  const auto expected = samples{
    {R"(hicache_up{shard="4"})", 1},
    {R"(hicache_up{shard="5"})", 0},
    {R"(hicache_index_members{shard="4"})", 2},
    {R"(hicache_index_keys{shard="4"})", 11},
    {R"(hicache_index_second_keys{shard="4"})", 19},
    {R"(hicache_index_replicas{shard="4"})", 12},
    {R"(hicache_index_bytes{shard="4"})", 13},
    {R"(hicache_index_disk_replicas{shard="4"})", 20},
    {R"(hicache_index_disk_bytes{shard="4"})", 21},
    {R"(hicache_index_lookups_total{shard="4"})", 14},
    {R"(hicache_index_keys_asked_total{shard="4"})", 15},
    {R"(hicache_index_keys_found_total{shard="4"})", 16},
    {R"(hicache_index_members_lost_total{shard="4"})", 17},
    {R"(hicache_index_uptime_seconds{shard="4"})", 18.5},
  };
  EXPECT_EQ(parse(to_metrics(shard_figures{{4, status}, {5, std::nullopt}})), expected);
}

TEST(NodeMetricsTest, ShowsWhatTheNodeSays) {
  auto status = node_status{};
  auto value = uint64_t{1};
  for (auto* field : {&status.client_count, &status.reserved_bytes, &status.leased_bytes,
                      &status.reservations, &status.leases, &status.expired_leases, &status.refused,
                      &status.capacity_bytes, &status.used_bytes, &status.pages, &status.evicted,
                      &status.pages_wanted, &status.pages_found, &status.pages_written,
                      &status.pages_kept, &status.pages_dropped, &status.unscanned_bytes})
    *field = value++;
  for (auto* field : {&status.disk_capacity_bytes, &status.disk_bytes, &status.disk_pages,
                      &status.disk_pages_read, &status.disk_pages_written,
                      &status.disk_pages_skipped, &status.disk_pages_failed})
    *field = value++;
  const auto expected = samples{
    {"hicache_up", 1},
    {"hicache_node_clients", 1},
    {"hicache_node_reserved_bytes", 2},
    {"hicache_node_leased_bytes", 3},
    {"hicache_node_reservations", 4},
    {"hicache_node_leases", 5},
    {"hicache_node_expired_leases_total", 6},
    {"hicache_node_refused_total", 7},
    {"hicache_node_capacity_bytes", 8},
    {"hicache_node_used_bytes", 9},
    {"hicache_node_pages", 10},
    {"hicache_node_evicted_pages_total", 11},
    {"hicache_node_pages_wanted_total", 12},
    {"hicache_node_pages_found_total", 13},
    {"hicache_node_pages_written_total", 14},
    {"hicache_node_kept_pages_total", 15},
    {"hicache_node_dropped_pages_total", 16},
    {"hicache_node_unscanned_bytes", 17},
    {"hicache_node_disk_capacity_bytes", 18},
    {"hicache_node_disk_bytes", 19},
    {"hicache_node_disk_pages", 20},
    {"hicache_node_disk_read_pages_total", 21},
    {"hicache_node_disk_written_pages_total", 22},
    {"hicache_node_disk_skipped_pages_total", 23},
    {"hicache_node_disk_failed_pages_total", 24},
  };
  EXPECT_EQ(parse(to_metrics(std::optional{status})), expected);
  auto tiers = std::vector<tier_health>{{"disk", {}}, {"redis", {}}};
  tiers.front().health.objects = 7;
  tiers.front().over_budget = 8;
  const auto below = parse(to_metrics(std::optional{status}, tiers));
  EXPECT_EQ(below.at(R"(hicache_storage_tier_objects{number="1",backend="disk"})"), 7);
  EXPECT_EQ(below.at(R"(hicache_storage_tier_over_budget_total{number="1",backend="disk"})"), 8);
  EXPECT_EQ(below.at(R"(hicache_storage_tier_up{number="2",backend="redis"})"), 1);
  const auto silent = samples{{"hicache_up", 0}};
  EXPECT_EQ(parse(to_metrics(std::optional<node_status>{})), silent);
}

TEST(IndexMetricsTest, AShardThatIsGoneIsDown) {
  const auto clock = monotonic_clock{};
  auto config = system_config{};
  auto system = caf::actor_system{config};
  auto self = caf::scoped_actor{system};
  const auto options = index_options{std::chrono::seconds{10}, &clock};
  auto shards = std::map<uint32_t, index_actor>{{0, system.spawn(hicache::index, options)},
                                                {1, system.spawn(hicache::index, options)}};
  const auto metrics = index_metrics{system, shards};
  self->send_exit(shards[0], caf::exit_reason::user_shutdown);
  self->wait_for(shards[0]);
  const auto found = parse(metrics.Collect());
  EXPECT_EQ(found.at(R"(hicache_up{shard="0"})"), 0);
  EXPECT_EQ(found.at(R"(hicache_up{shard="1"})"), 1);
  EXPECT_EQ(found.at(R"(hicache_index_keys{shard="1"})"), 0);
  self->send_exit(shards[1], caf::exit_reason::user_shutdown);
  self->wait_for(shards[1]);
}

/// A controller that has counted, and one that never answers.
controller_actor::behavior_type counting(controller_actor::pointer) {
  return {[](atom::copy, const copy_batch&) {},
          [](atom::counters) {
            auto counters = rank_counters{};
            counters.bytes_l1_to_l2 = 7;
            return counters;
          }};
}

controller_actor::behavior_type silent(controller_actor::pointer self) {
  return {[](atom::copy, const copy_batch&) {},
          [self, kept = std::make_shared<std::vector<caf::response_promise>>()](
            atom::counters) -> caf::result<rank_counters> {
            kept->push_back(self->make_response_promise());
            return caf::delegated<rank_counters>{};
          }};
}

TEST(AskCountersTest, AnActorThatDoesNotAnswerIsNotWaitedFor) {
  auto config = system_config{};
  auto system = caf::actor_system{config};
  auto self = caf::scoped_actor{system};
  const auto counts = system.spawn(counting);
  const auto hangs = system.spawn(silent);
  auto total = rank_counters{};
  EXPECT_TRUE(ask_counters(system, caf::infinite, total, counts, controller_actor{}, counts));
  EXPECT_EQ(total.bytes_l1_to_l2, 14u);
  const auto late = ask_counters(system, caf::duration{std::chrono::milliseconds{20}}, total,
                                 counts, hangs, counts);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, ec::deadline_exceeded) << to_string(late.error());
  EXPECT_EQ(total.bytes_l1_to_l2, 28u);
  for (const auto& actor : {counts, hangs}) {
    self->send_exit(actor, caf::exit_reason::user_shutdown);
    self->wait_for(actor);
  }
}

TEST(MetricsServerTest, ShowsAllSourcesAndNothingElse) {
  const auto server = metrics_server::start({});
  ASSERT_TRUE(server) << server.error().detail;
  EXPECT_TRUE((*server)->address().starts_with("127.0.0.1:")) << (*server)->address();
  EXPECT_EQ(scrape((*server)->address()), "");
  (*server)->add(std::make_shared<rank_metrics>([] { return sample_rank(); }));
  const auto engine = std::make_shared<prometheus::Registry>();
  prometheus::BuildCounter().Name("engine_requests_total").Register(*engine).Add({}).Increment(7);
  (*server)->add(engine);
  const auto found = parse(scrape((*server)->address()));
  EXPECT_EQ(found.at(R"(hicache_steps_total{rank="3"})"), 28);
  EXPECT_EQ(found.at("engine_requests_total"), 7);
  auto client = httplib::Client{"http://" + (*server)->address()};
  EXPECT_EQ(client.Get("/")->status, 404);
  EXPECT_EQ(client.Post("/metrics", "", "text/plain")->status, 404);
}

TEST(MetricsServerTest, AnAddressThatCannotBeUsedIsOneSentence) {
  const auto first = metrics_server::start({});
  ASSERT_TRUE(first);
  const auto second = metrics_server::start({"127.0.0.1", port_of((*first)->address())});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ec::invalid_argument);
  EXPECT_EQ(second.error().detail,
            "--metrics-port, --metrics-host: cannot listen on " + (*first)->address()
              + "; expected an address of this machine and a port that is free");
  const auto nowhere = metrics_server::start({""});
  ASSERT_FALSE(nowhere);
  EXPECT_THAT(nowhere.error().detail, testing::StartsWith("--metrics-host is empty; expected"));
}

class RuntimeMetricsTest : public testing::Test {
protected:
  RuntimeMetricsTest() {
    config_.device = device_kind::host;
    config_.page_size = 4;
    config_.l1_pages = 8;
    config_.log_level = log_level::warn;
    config_.metrics.port = free_port();
    config_.storage_backend = "memory";
    EXPECT_TRUE(config_.finish(1));
  }

  result<std::unique_ptr<rank_runtime>> start() {
    return rank_runtime::start(config_, std::move(make_local_reducers(1).front()));
  }

  std::string address() const { return "127.0.0.1:" + std::to_string(config_.metrics.port); }

  rank_config config_;
};

TEST_F(RuntimeMetricsTest, ARankShowsItselfAndWhatTheEngineAdds) {
  const auto runtime = start();
  ASSERT_TRUE(runtime) << runtime.error().detail;
  EXPECT_THAT((*runtime)->description(), testing::HasSubstr("metrics at " + address()));
  const auto own = std::make_shared<prometheus::Registry>();
  prometheus::BuildCounter().Name("engine_batches_total").Register(*own).Add({}).Increment(5);
  (*runtime)->add_metrics(own);
  caf::scoped_actor {
    (*runtime)->system()
    } -> request((*runtime)->tree(), caf::infinite, atom::step_v, caf::timespan{0})
      .receive([](const step_result&) {}, [](const caf::error&) { ADD_FAILURE(); });
  const auto found = parse(scrape(address()));
  EXPECT_EQ(found.at("engine_batches_total"), 5);
  EXPECT_EQ(found.at(R"(hicache_up{rank="0"})"), 1);
  EXPECT_EQ(found.at(R"(hicache_steps_total{rank="0"})"), 1);
  EXPECT_EQ(found.at(R"(hicache_capacity_pages{rank="0",tier="l1"})"), 8);
  EXPECT_EQ(found.at(R"(hicache_capacity_pages{rank="0",tier="l2"})"), 16);
  EXPECT_EQ(found.at(R"(hicache_capacity_bytes{rank="0",tier="l2"})"), 16 * 4 * 256);
  EXPECT_EQ(found.at(R"(hicache_storage_up{rank="0",backend="memory"})"), 1);
}

TEST_F(RuntimeMetricsTest, APortThatIsTakenIsRefusedAtTheStart) {
  const auto taken = metrics_server::start(config_.metrics);
  ASSERT_TRUE(taken);
  const auto runtime = start();
  ASSERT_FALSE(runtime);
  EXPECT_THAT(runtime.error().detail, testing::StartsWith("--metrics-port"));
}

} // namespace
} // namespace hicache
