#include "gpu/device.hpp"
#include "gpu/host_device.hpp"
#include "tests/gpu/reference_pool.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <mutex>
#include <numeric>
#include <tuple>

namespace hicache {
namespace {

using test::random_bytes;
using test::reference_copy;

page_list pages(std::vector<page_index> list) {
  return std::make_shared<const std::vector<page_index>>(std::move(list));
}

struct device_choice {
  const char* name;
  device_kind kind;
  copy_threads threads;
};

constexpr device_choice host_threads{"host_threads", device_kind::host,
                                     copy_threads::one_per_direction};
constexpr device_choice host_inline{"host_inline", device_kind::host, copy_threads::none};
constexpr device_choice cuda{"cuda", device_kind::cuda, copy_threads::one_per_direction};

/// An L1 and an L2 pool on one device, and their engine.
struct pool_pair {
  pool_pair(device& on, const pool_shape& shape, host_layout layout, uint32_t l1_pages,
            uint32_t l2_pages)
    : l1(shape, host_layout::layer_first, l1_pages), l2(shape, layout, l2_pages) {
    l1_memory = on.allocate(l1.total_bytes()).value();
    l2_memory = on.allocate_host(l2.total_bytes()).value();
    engine = on.make_copy_engine(l1, *l1_memory, l2, *l2_memory).value();
  }

  static std::vector<std::byte> contents(const device_memory& memory) {
    auto bytes = std::vector<std::byte>(memory.size());
    EXPECT_TRUE(memory.read(0, bytes));
    return bytes;
  }

  pool_geometry l1;
  pool_geometry l2;
  std::unique_ptr<device_memory> l1_memory;
  std::unique_ptr<device_memory> l2_memory;
  std::unique_ptr<copy_engine> engine;
};

class CopyEngineTest : public testing::TestWithParam<device_choice> {
protected:
  void SetUp() override {
    auto made = make_device(GetParam().kind, GetParam().threads);
    if (!made)
      GTEST_SKIP() << made.error().detail;
    device_ = std::move(*made);
  }

  std::unique_ptr<device> device_;
};

constexpr auto small_shape = pool_shape{
  .layers = 3, .kv_heads = 2, .head_dim = 4, .v_head_dim = 6, .element_bytes = 2, .page_size = 4};

/// Pages of 256 KiB: a copy of several takes longer than the calls that follow its submission.
constexpr auto large_shape = pool_shape{.layers = 16,
                                        .kv_heads = 8,
                                        .head_dim = 64,
                                        .v_head_dim = 64,
                                        .element_bytes = 2,
                                        .page_size = 8};

/// The first `count` entries of a random permutation of 1..pages-1: page 0 is never copied.
std::vector<page_index> some_pages(uint32_t pages, size_t count, std::mt19937_64& random) {
  auto all = std::vector<page_index>(pages - 1);
  std::iota(all.begin(), all.end(), 1);
  std::shuffle(all.begin(), all.end(), random);
  all.resize(count);
  return all;
}

TEST_P(CopyEngineTest, MovesExactlyTheBytesOfTheReferenceInBothDirections) {
  const auto seed = uint64_t{20};
  SCOPED_TRACE("seed " + std::to_string(seed));
  auto random = std::mt19937_64{seed};
  for (const auto layout :
       {host_layout::layer_first, host_layout::page_first, host_layout::page_first_direct})
    for (const auto page_size : {1u, 4u, 16u})
      for (const auto v_head_dim : {4u, 6u})
        for (const auto count : {0u, 1u, 5u, 9u}) {
          SCOPED_TRACE(std::string{to_string(layout)} + " page_size " + std::to_string(page_size)
                       + " v_head_dim " + std::to_string(v_head_dim) + " pages "
                       + std::to_string(count));
          auto shape = small_shape;
          shape.page_size = page_size;
          shape.v_head_dim = v_head_dim;
          auto pools = pool_pair{*device_, shape, layout, 12, 17};
          auto l1 = random_bytes(pools.l1.total_bytes(), random);
          auto l2 = random_bytes(pools.l2.total_bytes(), random);
          ASSERT_TRUE(pools.l1_memory->write(0, l1));
          ASSERT_TRUE(pools.l2_memory->write(0, l2));

          const auto from = some_pages(12, count, random);
          const auto host = some_pages(17, count, random);
          auto stored = std::promise<result<void>>{};
          pools.engine->store(pages(from), pages(host), [&](auto done) { stored.set_value(done); });
          ASSERT_TRUE(stored.get_future().get());
          reference_copy(pools.l1, l1, from, pools.l2, l2, host);
          EXPECT_EQ(pool_pair::contents(*pools.l2_memory), l2);
          EXPECT_EQ(pool_pair::contents(*pools.l1_memory), l1);

          const auto to = some_pages(12, count, random);
          auto loaded = std::promise<result<void>>{};
          const auto progress = std::make_shared<layer_progress>(shape.layers);
          pools.engine->load(pages(host), pages(to), progress,
                             [&](auto done) { loaded.set_value(done); });
          ASSERT_TRUE(loaded.get_future().get());
          EXPECT_EQ(progress->done(), shape.layers);
          reference_copy(pools.l2, l2, host, pools.l1, l1, to);
          EXPECT_EQ(pool_pair::contents(*pools.l1_memory), l1);
          EXPECT_EQ(pool_pair::contents(*pools.l2_memory), l2);
        }
}

TEST_P(CopyEngineTest, MovesRunsOfNeighbouringPages) {
  auto random = std::mt19937_64{4};
  auto pools = pool_pair{*device_, small_shape, host_layout::layer_first, 12, 12};
  const auto l1 = random_bytes(pools.l1.total_bytes(), random);
  auto l2 = std::vector<std::byte>(pools.l2.total_bytes());
  ASSERT_TRUE(pools.l1_memory->write(0, l1));
  ASSERT_TRUE(pools.l2_memory->write(0, l2));
  const auto from = std::vector<page_index>{2, 3, 4, 7, 8, 1};
  const auto to = std::vector<page_index>{5, 6, 7, 8, 9, 10};
  pools.engine->store(pages(from), pages(to), [](auto) {});
  pools.engine->drain();
  reference_copy(pools.l1, l1, from, pools.l2, l2, to);
  EXPECT_EQ(pool_pair::contents(*pools.l2_memory), l2);
}

TEST_P(CopyEngineTest, CompletesOperationsOfOneDirectionInIssueOrder) {
  constexpr auto count = 200;
  auto pools = pool_pair{*device_, small_shape, host_layout::page_first, 12, 12};
  auto mutex = std::mutex{};
  auto stores = std::vector<int>{};
  auto loads = std::vector<int>{};
  for (auto i = 0; i < count; ++i) {
    // Long and short operations in turn; the two directions touch different pages.
    const auto stored = i % 2 == 0 ? pages({1, 2, 3, 4, 5, 6}) : pages({1});
    const auto loaded = i % 2 == 0 ? pages({7, 8, 9, 10, 11}) : pages({7});
    const auto record = [&mutex, i](std::vector<int>& order) {
      const auto lock = std::scoped_lock{mutex};
      order.push_back(i);
    };
    pools.engine->store(stored, stored, [&, record](auto) { record(stores); });
    pools.engine->load(loaded, loaded, std::make_shared<layer_progress>(small_shape.layers),
                       [&, record](auto) { record(loads); });
  }
  pools.engine->drain();
  auto expected = std::vector<int>(count);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(stores, expected);
  EXPECT_EQ(loads, expected);
}

TEST_P(CopyEngineTest, ALayerIsReadableOnceItsProgressSaysSo) {
  auto random = std::mt19937_64{6};
  const auto layers = large_shape.layers;
  auto pools = pool_pair{*device_, large_shape, host_layout::page_first_direct, 33, 33};
  const auto l2 = random_bytes(pools.l2.total_bytes(), random);
  ASSERT_TRUE(pools.l2_memory->write(0, l2));
  const auto list = some_pages(33, 32, random);
  const auto expect_layer = [&](uint32_t layer) {
    for (const auto page : list)
      for (const auto half : {kv_half::key, kv_half::value}) {
        const auto device_rows = pools.l1.rows(layer, half, page);
        const auto host_rows = pools.l2.rows(layer, half, page);
        auto bytes = std::vector<std::byte>(device_rows.row_bytes * device_rows.rows);
        ASSERT_TRUE(pools.l1_memory->read(device_rows.offset, bytes));
        const auto from = l2.begin() + static_cast<ptrdiff_t>(host_rows.offset);
        ASSERT_TRUE(std::equal(bytes.begin(), bytes.end(), from))
          << "layer " << layer << " page " << page;
      }
  };
  ASSERT_TRUE(pools.l1_memory->write(0, std::vector<std::byte>(pools.l1.total_bytes())));
  const auto progress = std::make_shared<layer_progress>(layers);
  pools.engine->load(pages(list), pages(list), progress, [](auto) {});
  for (auto layer = uint32_t{0}; layer < layers; ++layer) {
    ASSERT_TRUE(progress->wait(layer));
    expect_layer(layer);
  }
  pools.engine->drain();
}

TEST_P(CopyEngineTest, DrainWaitsForEitherDirection) {
  auto pools = pool_pair{*device_, large_shape, host_layout::page_first, 17, 17};
  auto random = std::mt19937_64{8};
  const auto list = pages(some_pages(17, 16, random));
  auto finished = std::atomic<int>{0};
  pools.engine->store(list, list, [&](auto) { ++finished; });
  pools.engine->drain();
  EXPECT_EQ(finished, 1);
  pools.engine->load(list, list, std::make_shared<layer_progress>(large_shape.layers),
                     [&](auto) { ++finished; });
  pools.engine->drain();
  EXPECT_EQ(finished, 2);
}

TEST_P(CopyEngineTest, ALateStoreDoesNotHoldUpALoad) {
  if (GetParam().threads == copy_threads::none)
    GTEST_SKIP() << "inline copies run on the caller's thread";
  auto pools = pool_pair{*device_, small_shape, host_layout::page_first, 4, 4};
  auto release = std::promise<void>{};
  auto loaded = std::promise<void>{};
  pools.engine->store(pages({1}), pages({1}), [&](auto) { release.get_future().wait(); });
  pools.engine->load(pages({2}), pages({2}), std::make_shared<layer_progress>(small_shape.layers),
                     [&](auto) { loaded.set_value(); });
  loaded.get_future().wait();
  release.set_value();
  pools.engine->drain();
}

TEST_P(CopyEngineTest, ADestroyedEngineFinishesWhatWasSubmitted) {
  auto random = std::mt19937_64{7};
  auto pools = pool_pair{*device_, large_shape, host_layout::page_first, 12, 12};
  const auto l1 = random_bytes(pools.l1.total_bytes(), random);
  auto l2 = random_bytes(pools.l2.total_bytes(), random);
  ASSERT_TRUE(pools.l1_memory->write(0, l1));
  ASSERT_TRUE(pools.l2_memory->write(0, l2));
  const auto list = std::vector<page_index>{1, 2, 3, 4, 5, 6, 7, 8};
  // Several rounds, because a fast engine may be done before it is told to go.
  for (auto round = 0; round < 10; ++round) {
    auto finished = 0;
    // Holds the first store up until the engine is about to go, so that the others are still
    // waiting then.
    auto going = std::atomic<bool>{GetParam().threads == copy_threads::none};
    for (auto i = 0; i < 5; ++i)
      pools.engine->store(pages(list), pages(list), [&](auto done) {
        going.wait(false);
        finished += done.has_value();
      });
    going = true;
    going.notify_all();
    pools.engine.reset();
    EXPECT_EQ(finished, 5) << "round " << round;
    pools.engine
      = device_->make_copy_engine(pools.l1, *pools.l1_memory, pools.l2, *pools.l2_memory).value();
  }
  reference_copy(pools.l1, l1, list, pools.l2, l2, list);
  EXPECT_EQ(pool_pair::contents(*pools.l2_memory), l2);
}

TEST(HostMoverTest, TellsOfALayerWhenItHasArrivedAndTheNextHasNot) {
  auto random = std::mt19937_64{9};
  for (const auto layout :
       {host_layout::layer_first, host_layout::page_first, host_layout::page_first_direct}) {
    const auto l1 = pool_geometry{small_shape, host_layout::layer_first, 6};
    const auto l2 = pool_geometry{small_shape, layout, 6};
    auto l2_bytes = random_bytes(l2.total_bytes(), random);
    const auto before = random_bytes(l1.total_bytes(), random);
    auto l1_bytes = before;
    const auto mover = make_host_mover(l1, l1_bytes.data(), l2, l2_bytes.data());
    auto told = uint32_t{0};
    const auto loaded
      = mover->load(std::vector<page_index>{3}, std::vector<page_index>{2}, [&](uint32_t layers) {
          EXPECT_EQ(layers, ++told);
          auto expected = before;
          test::for_each_byte(small_shape, 0, layers, [&](test::byte_position at) {
            at.page = 3;
            const auto source = l2_bytes[test::reference_address(small_shape, layout, 6, at)];
            at.page = 2;
            expected[test::reference_address(small_shape, l1.layout(), 6, at)] = source;
          });
          EXPECT_EQ(l1_bytes, expected) << layers << " layers, " << to_string(layout);
        });
    EXPECT_TRUE(loaded);
    EXPECT_EQ(told, small_shape.layers);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, CopyEngineTest, testing::Values(host_threads, host_inline, cuda),
                         [](const auto& chosen) { return std::string{chosen.param.name}; });

TEST(CopyEngineDeathTest, RefusesPagesThatDoNotExist) {
  auto made = make_device(device_kind::host, copy_threads::none);
  auto pools = pool_pair{**made, small_shape, host_layout::page_first, 4, 6};
  const auto progress = std::make_shared<layer_progress>(small_shape.layers);
  EXPECT_DEATH(pools.engine->store(pages({4}), pages({1}), [](auto) {}), "l1_pages_");
  EXPECT_DEATH(pools.engine->store(pages({1}), pages({6}), [](auto) {}), "l2_pages_");
  EXPECT_DEATH(pools.engine->load(pages({6}), pages({1}), progress, [](auto) {}), "l2_pages_");
  EXPECT_DEATH(pools.engine->load(pages({1, 2}), pages({1}), progress, [](auto) {}), "size");
}

} // namespace
} // namespace hicache
