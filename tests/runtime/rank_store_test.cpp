// The L3 of a rank whose tiers change.

#include "runtime/rank_store.hpp"
#include "stores/tier_list.hpp"
#include "tests/runtime/cluster_support.hpp"
#include "tests/runtime/support.hpp"

#include <gmock/gmock.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

namespace hicache::test {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr auto memory = R"({"tiers":[{"backend":"memory"}]})";

class RankStoreTest : public folder_test {
protected:
  /// @param ranks Ranks of the instance, of which this is the first.
  explicit RankStoreTest(uint32_t ranks = 1)
    : ranks_(ranks), settings_(make_settings(ranks, index_)),
      l2_(settings_.shape(ranks), settings_.mem_layout, 8), bytes_(l2_.total_bytes()),
      store_(system_, settings_, 0, ranks, l2_, bytes_.data(), nullptr, clock_) {}

  static rank_config make_settings(uint32_t ranks, const local_index& index) {
    auto settings = rank_config{};
    settings.model_id = "test";
    settings.page_size = 4;
    settings.l1_pages = 8;
    settings.kv_heads = 1;
    settings.index = index.address();
    settings.segment_bytes = 1 << 20;
    settings.device = device_kind::host;
    settings.log_level = log_level::warn;
    EXPECT_TRUE(settings.finish(ranks));
    return settings;
  }

  void open(const std::string& config) {
    config_ = config;
    const auto opened = store_.open({"tiered", config, "wait_complete"});
    ASSERT_TRUE(opened) << opened.error().detail;
  }

  result<store_change> prepare(const std::string& config) {
    return store_.change({"tiered", config, "wait_complete"}, 10s);
  }

  void change_to(const std::string& config) {
    const auto change = prepare(config);
    ASSERT_TRUE(change) << change.error().detail;
    change->adopt();
    config_ = config;
  }

  std::string with(const std::string& backend, const std::string& keys = {}) {
    return with_tier(config_, backend, keys, std::nullopt).value();
  }

  std::string with_files() { return with("file", R"({"path": ")" + folder_.string() + "/kv\"}"); }

  std::string without(const std::string& tier) { return without_tier(config_, tier).value(); }

  std::vector<std::string> tiers() {
    auto names = std::vector<std::string>{};
    for (const auto& tier : store_.tiers())
      names.push_back(tier.name);
    return names;
  }

  local_index index_;
  monotonic_clock clock_;
  system_config system_settings_;
  caf::actor_system system_{system_settings_};
  const uint32_t ranks_;
  const rank_config settings_;
  const pool_geometry l2_;
  std::vector<std::byte> bytes_;
  rank_store store_;
  /// What is attached.
  std::string config_;
};

TEST_F(RankStoreTest, TiersComeAndGo) {
  open(memory);
  EXPECT_THAT(tiers(), ElementsAre("memory"));
  change_to(with_files());
  EXPECT_THAT(tiers(), ElementsAre("memory", "file"));
  change_to(without("memory"));
  EXPECT_THAT(tiers(), ElementsAre("file"));
  change_to(with("disk", R"({"path": ")" + folder_.string() + R"(/d", "max_bytes": "64MiB"})"));
  EXPECT_THAT(tiers(), ElementsAre("file", "disk"));
}

TEST_F(RankStoreTest, WhatIsPreparedIsRevertedWithoutATrace) {
  open(memory);
  prepare(with_files())->revert();
  EXPECT_THAT(tiers(), ElementsAre("memory"));
  change_to(with_files());
  prepare(without("memory"))->revert();
  EXPECT_THAT(tiers(), ElementsAre("memory", "file"));
  change_to(without("memory"));
}

TEST_F(RankStoreTest, TheClusterIsJoinedAndLeft) {
  open(memory);
  for (auto i = 0; i < 2; ++i) {
    change_to(with("cluster"));
    EXPECT_THAT(tiers(), ElementsAre("memory", "cluster"));
    change_to(without("cluster"));
  }
  prepare(with("cluster"))->revert();
  EXPECT_THAT(prepare(with("cluster", R"({"write": "evict", "codecs": "lz4"})")).error().detail,
              HasSubstr("cannot tell how long an object is"));
  change_to(with("cluster"));
  EXPECT_TRUE(store_.close());
}

TEST_F(RankStoreTest, RefusedChangesAreNamed) {
  open(memory);
  const auto refusal = [this](const std::string& config) {
    const auto change = prepare(config);
    return change ? "none" : change.error().detail;
  };
  EXPECT_THAT(refusal(with("file", R"({"pathh": "x"})")), HasSubstr("tier 2: key 'pathh' is not"));
  EXPECT_THAT(refusal(with("file", R"({"path": "/dev/null/kv"})")), HasSubstr("tier 2 (file): "));
  EXPECT_THAT(refusal(with("floppy")), HasSubstr("'floppy' is not a store"));
  EXPECT_THAT(refusal(memory), HasSubstr("one tier more or one less"));
  EXPECT_EQ(refusal(with_tier(memory, "memory", R"({"write": "evict"})", 1).value()),
            "tier 1 takes what the tier above evicts, but that one does not tell; expected memory, "
            "disk or hf3fs there, without fp8");
  EXPECT_EQ(store_.change({"tiered", with_files(), "best_effort"}, 1s).error().detail,
            "the backend tiered is attached; expected it to be detached first");
  EXPECT_THAT(tiers(), ElementsAre("memory"));
  change_to(with("cluster"));
  EXPECT_THAT(refusal(with("cluster")), HasSubstr("several tiers are cluster"));
}

TEST_F(RankStoreTest, OneStoreHasNoTiersToChange) {
  ASSERT_TRUE(store_.open({"memory", "", "wait_complete"}));
  EXPECT_EQ(store_.change({"memory", R"({"threads": 2})", "wait_complete"}, 1s).error(),
            (error{ec::invalid_argument,
                   "the backend memory is attached; expected it to be detached first"}));
}

/// Two ranks that hold the same bytes.
class ReplicatedRankStoreTest : public RankStoreTest {
protected:
  ReplicatedRankStoreTest() : RankStoreTest(2) {}
};

TEST_F(ReplicatedRankStoreTest, TheTierByWhichTheRanksShareTheWritingStays) {
  config_ = memory;
  open(with_files());
  EXPECT_THAT(prepare(without("file")).error().detail,
              HasSubstr("the ranks share the writing, because tier 2 is shared"));
  change_to(without("memory"));
  EXPECT_THAT(tiers(), ElementsAre("file"));
}

} // namespace
} // namespace hicache::test
