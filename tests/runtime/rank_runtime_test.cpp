#include "backends/storage_queue.hpp"
#include "hicache/caf_error.hpp"
#include "hicache/rank_reducer.hpp"
#include "hicache/runtime.hpp"

#include <caf/scoped_actor.hpp>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <zmq.hpp>

#include <bit>
#include <numeric>

namespace hicache {
namespace {

/// What an engine keeps: K and V of each page side by side, one block for each layer.
class engine_pool {
public:
  engine_pool(const pool_shape& shape, uint32_t pages)
    : shape_(shape), row_bytes_(uint64_t{shape.kv_heads} * shape.head_dim * shape.element_bytes),
      pages_(pages), memory_(shape.layers * layer_bytes()) {}

  device_layers layers() {
    auto all = device_layers{shape_, pages_, {}};
    for (auto part = uint64_t{0}; part < 2; ++part)
      for (auto layer = uint64_t{0}; layer < shape_.layers; ++layer)
        all.buffers.push_back(
          {std::bit_cast<uint64_t>(memory_.data()) + layer * layer_bytes() + part * half_bytes(),
           2 * half_bytes(), row_bytes_});
    return all;
  }

  /// All layers of a page, as one block each.
  std::vector<std::byte> page(page_index number) const {
    auto bytes = std::vector<std::byte>{};
    for (auto layer = uint64_t{0}; layer < shape_.layers; ++layer) {
      const auto at = memory_.begin() + static_cast<ptrdiff_t>(offset(layer, number));
      bytes.insert(bytes.end(), at, at + static_cast<ptrdiff_t>(2 * half_bytes()));
    }
    return bytes;
  }

  void fill(page_index number, uint8_t value) {
    for (auto layer = uint64_t{0}; layer < shape_.layers; ++layer)
      for (auto i = uint64_t{0}; i < 2 * half_bytes(); ++i)
        memory_[offset(layer, number) + i] = static_cast<std::byte>(value + layer * 7 + i);
  }

private:
  uint64_t half_bytes() const { return shape_.page_size * row_bytes_; }

  uint64_t layer_bytes() const { return pages_ * 2 * half_bytes(); }

  uint64_t offset(uint64_t layer, page_index number) const {
    return layer * layer_bytes() + number * 2 * half_bytes();
  }

  pool_shape shape_;
  uint64_t row_bytes_;
  uint32_t pages_;
  std::vector<std::byte> memory_;
};

class RankRuntimeTest : public testing::Test {
protected:
  RankRuntimeTest() {
    config_.device = device_kind::host;
    config_.page_size = 4;
    config_.l1_pages = 8;
    config_.log_level = log_level::warn;
    EXPECT_TRUE(config_.finish(1));
  }

  result<std::unique_ptr<rank_runtime>> start(const device_layers* registered,
                                              const rank_extensions& extensions = {}) {
    return rank_runtime::start(config_, std::move(make_local_reducers(1).front()), {}, registered,
                               extensions);
  }

  /// A request that computes 8 tokens, all alike.
  static void compute(rank_runtime& runtime, request_id id) {
    const auto tokens = tokens_of(id);
    apply(runtime, {match_request{id, {}, tokens, 8}, allocate_request{id, 8},
                    insert_request{id, tokens}, release_request{id}});
  }

  static token_buffer tokens_of(request_id id) {
    return std::make_shared<const std::vector<token_id>>(8, static_cast<token_id>(id));
  }

  static tree_answers apply(rank_runtime& runtime, std::vector<tree_operation> list) {
    auto answers = tree_answers{};
    caf::scoped_actor {
      runtime.system()
      } -> request(runtime.tree(), caf::infinite, atom::apply_v, tree_operations{std::move(list)})
        .receive([&](const tree_answers& x) { answers = x; },
                 [](const caf::error& err) { ADD_FAILURE() << to_string(from_caf(err)); });
    for (const auto& each : answers.list)
      EXPECT_TRUE(each) << to_string(each.error());
    return answers;
  }

  /// Steps until nothing is in flight.
  static void settle(rank_runtime& runtime) {
    auto in_flight = true;
    while (in_flight)
      caf::scoped_actor {
        runtime.system()
        } -> request(runtime.tree(), caf::infinite, atom::step_v, caf::timespan{50'000'000})
          .receive([&](const step_result& facts) { in_flight = facts.in_flight; },
                   [&](const caf::error& err) {
                     ADD_FAILURE() << to_string(from_caf(err));
                     in_flight = false;
                   });
  }

  rank_config config_;
};

TEST_F(RankRuntimeTest, PagesOfARegisteredPoolGoToL2AndComeBack) {
  for (const auto layout :
       {host_layout::layer_first, host_layout::page_first, host_layout::page_head})
    for (const auto io : {io_backend::direct, io_backend::kernel}) {
      SCOPED_TRACE(std::string{to_string(layout)} + " " + to_string(io));
      config_.mem_layout = layout;
      config_.io_backend = io;
      auto pool = engine_pool{config_.shape(1), 9};
      const auto layers = pool.layers();
      const auto runtime = start(&layers);
      ASSERT_TRUE(runtime) << runtime.error().detail;
      EXPECT_EQ((*runtime)->device_buffers().buffers, layers.buffers);
      const auto tokens = std::make_shared<const std::vector<token_id>>(12, 5);
      const auto taken
        = apply(**runtime, {match_request{1, {}, tokens, 12}, allocate_request{1, 12}});
      const auto pages = *std::get<allocate_result>(*taken.list[1]).l1_pages;
      ASSERT_EQ(pages.size(), 3u);
      auto expected = std::vector<std::vector<std::byte>>{};
      for (const auto page : pages) {
        pool.fill(page, static_cast<uint8_t>(page * 50));
        expected.push_back(pool.page(page));
      }
      apply(**runtime, {insert_request{1, tokens}, release_request{1}});
      settle(**runtime);
      apply(**runtime, {evict_request{cache_tier::l1, 8 * 4}});
      for (const auto page : pages)
        pool.fill(page, 1);
      const auto back = apply(**runtime, {match_request{2, {}, tokens, 12}, load_request{2}});
      const auto& loaded = std::get<load_result>(*back.list[1]);
      ASSERT_EQ(loaded.loading_tokens, 12u);
      ASSERT_TRUE(loaded.progress->wait(config_.layers - 1));
      for (auto i = size_t{0}; i < expected.size(); ++i)
        EXPECT_EQ(pool.page((*loaded.l1_pages)[i]), expected[i]);
      settle(**runtime);
      apply(**runtime, {release_request{2}});
    }
}

TEST_F(RankRuntimeTest, ARegisteredPoolThatDoesNotFitIsRefusedWithASentence) {
  auto pool = engine_pool{config_.shape(1), 9};
  auto small = pool.layers();
  small.pages = 8;
  auto flat = pool.layers();
  flat.buffers[1].page_stride = 8;
  auto missing = pool.layers();
  missing.buffers.pop_back();
  auto other = pool.layers();
  other.shape.layers += 1;
  for (const auto* layers : {&small, &flat, &missing, &other}) {
    const auto runtime = start(layers);
    ASSERT_FALSE(runtime);
    EXPECT_EQ(runtime.error().code, ec::invalid_argument);
    EXPECT_NE(runtime.error().detail.find("the registered"), std::string::npos)
      << runtime.error().detail;
  }
}

/// The first one in goes last.
class first_in_last_out final : public eviction_policy {
public:
  std::string_view name() const noexcept override { return "first_in_last_out"; }

  eviction_rank rank(const node_use& use) const noexcept override { return {~use.created, 0}; }
};

TEST_F(RankRuntimeTest, AnEvictionPolicyOfTheEnginesOwnDecides) {
  config_.hicache_ratio = 0.125; // L2 keeps next to nothing.
  ASSERT_TRUE(config_.finish(1));
  for (const auto is_own : {false, true}) {
    const auto own = is_own ? std::make_shared<const first_in_last_out>() : nullptr;
    const auto runtime = start(nullptr, {.eviction = own});
    ASSERT_TRUE(runtime) << runtime.error().detail;
    compute(**runtime, 1);
    compute(**runtime, 2);
    settle(**runtime);
    apply(**runtime, {evict_request{cache_tier::l1, 8}});
    settle(**runtime); // What L2 has room for is written first.
    for (const auto id : {request_id{1}, request_id{2}}) {
      const auto found
        = apply(**runtime, {match_request{id, {}, tokens_of(id), 8}, release_request{id}});
      EXPECT_EQ(std::get<match_result>(*found.list[0]).l1_tokens, (id == 1) == is_own ? 8u : 0u)
        << is_own;
    }
  }
}

/// Refuses every write, and notes how many objects each had.
class refusing_store final : public blocking_store {
public:
  explicit refusing_store(std::vector<size_t>& writes) : writes_(writes) {}

  std::string name() const override { return "refusing"; }

  std::vector<bool> exists(std::span<const page_key> keys, time_point) override {
    return std::vector<bool>(keys.size());
  }

  std::vector<result<void>> get(std::span<const page_read> pages, time_point) override {
    return std::vector<result<void>>(pages.size(), fail(ec::not_found));
  }

  std::vector<result<void>> set(std::span<const page_write> pages, time_point) override {
    writes_.push_back(pages.size());
    return std::vector<result<void>>(pages.size(), fail(ec::io_failure));
  }

  std::vector<result<void>> remove(std::span<const page_key> keys, time_point) override {
    return std::vector<result<void>>(keys.size());
  }

  backend_health health() override { return {}; }

private:
  std::vector<size_t>& writes_;
};

TEST_F(RankRuntimeTest, SettingsOfL3ReachIt) {
  constexpr auto heads = size_t{4}; // One object each.
  const auto writes_with = [this](const std::string& extra_config, const storage_traffic& traffic) {
    auto writes = std::vector<size_t>{};
    config_.storage_backend = "memory";
    config_.extra_config = extra_config;
    config_.traffic = traffic;
    EXPECT_TRUE(config_.finish(1));
    const auto wrap = [&writes](std::unique_ptr<storage_backend>) {
      return std::make_unique<storage_queue>(std::make_unique<refusing_store>(writes), 1);
    };
    {
      const auto runtime = start(nullptr, {.wrap = wrap}).value();
      compute(*runtime, 1); // Two pages.
      settle(*runtime);
    }
    return writes;
  };
  constexpr auto soon = std::chrono::milliseconds{1};
  EXPECT_EQ(writes_with("", {.backup_pause = soon}), (std::vector{2 * heads, 2 * heads, 2 * heads}))
    << "the breaker is open then";
  EXPECT_EQ(writes_with(R"({"breaker_failures": 9})",
                        {.batch_pages = 1, .backup_attempts = 4, .backup_pause = soon}),
            (std::vector{heads, heads, heads, heads}));
  EXPECT_EQ(writes_with(R"({"breaker_failures": 1})", {.backup_pause = soon}),
            (std::vector{2 * heads}));
}

TEST_F(RankRuntimeTest, RoutersReadWhatTheCacheCanServe) {
  config_.kv_events = "tcp://127.0.0.1:*";
  config_.kv_events_topic = "kv";
  ASSERT_TRUE(config_.finish(1));
  const auto runtime = start(nullptr);
  ASSERT_TRUE(runtime) << runtime.error().detail;
  const auto said = (*runtime)->description();
  const auto at = said.find("; events at ");
  ASSERT_NE(at, std::string::npos) << said;
  auto context = zmq::context_t{};
  auto router = zmq::socket_t{context, ZMQ_SUB};
  router.set(zmq::sockopt::subscribe, "kv");
  router.set(zmq::sockopt::rcvtimeo, 100);
  router.connect(said.substr(at + std::string_view{"; events at "}.size()));
  // What is sent before the subscription is known goes nowhere; that the cache began empty may
  // still come.
  auto frames = std::vector<zmq::message_t>(3);
  const auto miss_reason = std::chrono::steady_clock::now() + std::chrono::seconds{20};
  auto kinds = std::set<std::string>{};
  for (auto id = request_id{1};
       !kinds.contains("BlockStored") && std::chrono::steady_clock::now() < miss_reason;) {
    if (kinds.empty())
      compute(**runtime, id++);
    if (!router.recv(frames[0]))
      continue;
    ASSERT_TRUE(router.recv(frames[1]));
    ASSERT_TRUE(router.recv(frames[2]));
    EXPECT_EQ(frames[0].to_string(), "kv");
    EXPECT_EQ(frames[1].size(), 8u);
    const auto message = nlohmann::json::from_msgpack(frames[2].to_string());
    for (const auto& event : message.at(1))
      kinds.insert(event.at("type"));
  }
  EXPECT_TRUE(kinds.contains("BlockStored")) << testing::PrintToString(kinds);
  settle(**runtime);
}

TEST_F(RankRuntimeTest, AnEndpointForEventsThatIsNoneIsRefusedWithASentence) {
  config_.kv_events = "nowhere";
  const auto runtime = start(nullptr);
  ASSERT_FALSE(runtime);
  EXPECT_EQ(runtime.error().code, ec::invalid_argument);
  EXPECT_TRUE(runtime.error().detail.starts_with("--kv-events: 'nowhere' is no endpoint"))
    << runtime.error().detail;
}

} // namespace
} // namespace hicache
