#include "cache/hash/page_hash.hpp"
#include "gpu/device.hpp"
#include "launch/kv_pattern.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

namespace hicache {
namespace {

constexpr auto shape = pool_shape{attention_kind::mha, 2, 2, 4, 6, 2, 4};

/// Runs each test with direct access to L1 and through copies.
class KvPatternTest : public ::testing::TestWithParam<bool> {
protected:
  KvPatternTest() : geometry_(shape, host_layout::layer_first, 8) {
    device_ = std::move(*make_device(device_kind::host));
    memory_ = std::move(*device_->allocate(geometry_.total_bytes()));
    std::memset(memory_->data(), 0, memory_->size());
    tokens_.resize(12);
    std::iota(tokens_.begin(), tokens_.end(), 500u);
    hashes_ = kv_pattern::prefix_hashes(tokens_, 1);
  }

  kv_pattern pattern(uint32_t first_head = 0) {
    return {geometry_, *memory_, GetParam(), first_head};
  }

  bool check(uint64_t position, uint32_t first_head = 0) {
    auto it = pattern(first_head);
    return *it.check(hashes_, pages_, position);
  }

  void compute(uint64_t begin, uint64_t end) {
    auto it = pattern();
    ASSERT_TRUE(it.compute(hashes_, pages_, begin, end));
  }

  pool_geometry geometry_;
  std::unique_ptr<device> device_;
  std::unique_ptr<device_memory> memory_;
  std::vector<token_id> tokens_;
  std::vector<uint64_t> hashes_;
  std::vector<page_index> pages_ = {3, 6, 1};
};

TEST_P(KvPatternTest, ComputedPagesAreRight) {
  for (auto position = uint64_t{0}; position < 3; ++position)
    EXPECT_FALSE(check(position));
  compute(0, 12);
  for (auto position = uint64_t{0}; position < 3; ++position)
    EXPECT_TRUE(check(position));
}

TEST_P(KvPatternTest, ComputesInPartsAsWell) {
  compute(0, 3);
  EXPECT_FALSE(check(0));
  compute(3, 9);
  EXPECT_TRUE(check(0));
  EXPECT_TRUE(check(1));
  EXPECT_FALSE(check(2));
  compute(9, 12);
  EXPECT_TRUE(check(2));
}

TEST_P(KvPatternTest, WritesNothingButItsPages) {
  std::memset(memory_->data(), 0x5a, memory_->size());
  compute(0, 12);
  for (const auto page : {0u, 2u, 4u, 5u, 7u})
    for (const auto& run : geometry_.object_runs(page, geometry_.all_heads()))
      for (auto i = uint64_t{0}; i < run.length; ++i)
        ASSERT_EQ(memory_->data()[run.offset + i], std::byte{0x5a}) << page;
}

TEST_P(KvPatternTest, EveryFlippedByteShows) {
  compute(0, 12);
  for (const auto& run : geometry_.object_runs(pages_[1], geometry_.all_heads()))
    for (auto i = uint64_t{0}; i < run.length; ++i) {
      auto& byte = memory_->data()[run.offset + i];
      byte ^= std::byte{1};
      ASSERT_FALSE(check(1)) << run.offset + i;
      byte ^= std::byte{1};
    }
  EXPECT_TRUE(check(1));
}

TEST_P(KvPatternTest, PageInAnotherPlaceShows) {
  compute(0, 12);
  std::swap(pages_[1], pages_[2]);
  EXPECT_TRUE(check(0));
  EXPECT_FALSE(check(1));
  EXPECT_FALSE(check(2));
}

TEST_P(KvPatternTest, PageBehindAnotherPrefixShows) {
  compute(0, 12);
  tokens_[0] += 1; // The page's own tokens are the same.
  hashes_ = kv_pattern::prefix_hashes(tokens_, 1);
  EXPECT_FALSE(check(2));
}

TEST_P(KvPatternTest, PageOfAnotherSeedShows) {
  compute(0, 12);
  hashes_ = kv_pattern::prefix_hashes(tokens_, 2);
  EXPECT_FALSE(check(0));
}

TEST_P(KvPatternTest, PageOfAnotherRankShows) {
  compute(0, 12);
  EXPECT_FALSE(check(0, 2));
}

TEST(KvPatternLatentTest, EveryByteOfLatentAndIndexKeyIsChecked) {
  const auto geometry
    = pool_geometry{{attention_kind::nsa, 2, 1, 5, 0, 2, 4, 7}, host_layout::layer_first, 3};
  const auto machine = std::move(*make_device(device_kind::host));
  const auto memory = std::move(*machine->allocate(geometry.total_bytes()));
  const auto tokens = std::vector<token_id>{1, 2, 3, 4};
  const auto hashes = kv_pattern::prefix_hashes(tokens, 1);
  const auto pages = std::vector<page_index>{2};
  auto pattern = kv_pattern{geometry, *memory, true, 0};
  ASSERT_TRUE(pattern.compute(hashes, pages, 0, 4));
  EXPECT_EQ(pattern.check(hashes, pages, 0), true);
  for (const auto& run : geometry.object_runs(2, geometry.all_heads()))
    for (auto i = uint64_t{0}; i < run.length; ++i) {
      auto& byte = memory->data()[run.offset + i];
      byte ^= std::byte{1};
      ASSERT_EQ(pattern.check(hashes, pages, 0), false) << run.offset + i;
      byte ^= std::byte{1};
    }
}

/// Stores outlive programs, so bytes that change need another name.
TEST(KvPatternModelTest, TheIdBelongsToTheBytes) {
  EXPECT_EQ(kv_pattern::model_id(""), "hicache-kv-pattern-1");
  EXPECT_EQ(kv_pattern::model_id("llama"), "hicache-kv-pattern-1/llama");
  const auto geometry = pool_geometry{shape, host_layout::layer_first, 2};
  const auto machine = std::move(*make_device(device_kind::host));
  const auto memory = std::move(*machine->allocate(geometry.total_bytes()));
  std::memset(memory->data(), 0, memory->size());
  const auto hashes = kv_pattern::prefix_hashes(std::vector<token_id>{1, 2, 3, 4}, 7);
  auto pattern = kv_pattern{geometry, *memory, true, 2};
  ASSERT_TRUE(pattern.compute(hashes, std::vector<page_index>{1}, 0, 4));
  EXPECT_EQ(fingerprint_of({reinterpret_cast<const char*>(memory->data()), memory->size()}),
            uint64_t{0x94b0531c7977ba41})
    << "other bytes than those of version 1: count the version up";
}

/// Exchanges two pieces of L1.
void exchange(device_memory& memory, const strided_run& a, const strided_run& b, uint64_t shift,
              uint64_t bytes) {
  for (auto row = uint64_t{0}; row < a.rows; ++row)
    std::swap_ranges(memory.data() + a.offset + row * a.stride,
                     memory.data() + a.offset + row * a.stride + bytes,
                     memory.data() + b.offset + row * b.stride + shift);
}

TEST_P(KvPatternTest, ExchangedLayersHeadsAndTokensShow) {
  const auto key = [&](uint32_t layer) { return geometry_.rows(layer, kv_part::key, pages_[0]); };
  compute(0, 12);
  exchange(*memory_, key(0), key(1), 0, key(0).row_bytes);
  EXPECT_FALSE(check(0));
  compute(0, 12);
  const auto head_bytes = key(0).row_bytes / shape.kv_heads;
  exchange(*memory_, key(0), key(0), head_bytes, head_bytes);
  EXPECT_FALSE(check(0));
  compute(0, 12);
  auto first = key(0);
  auto second = key(0);
  second.offset += second.stride;
  first.rows = second.rows = 1;
  exchange(*memory_, first, second, 0, first.row_bytes);
  EXPECT_FALSE(check(0));
}

INSTANTIATE_TEST_SUITE_P(Access, KvPatternTest, ::testing::Bool(),
                         [](const auto& of) { return of.param ? "Direct" : "ThroughCopies"; });

} // namespace
} // namespace hicache
