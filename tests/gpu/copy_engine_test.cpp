#include "gpu/device.hpp"
#include "gpu/host_device.hpp"
#include "tests/gpu/reference_pool.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <future>
#include <mutex>
#include <numeric>

namespace hicache {
namespace {

using test::byte_position;
using test::l1_form;
using test::random_bytes;
using test::reference_address;
using test::reference_l1;
using test::reference_page_bytes;

constexpr auto all_layouts = {host_layout::layer_first, host_layout::page_first,
                              host_layout::page_first_direct, host_layout::page_head};

page_list pages(std::vector<page_index> list) {
  return std::make_shared<const std::vector<page_index>>(std::move(list));
}

struct engine_choice {
  const char* name;
  device_kind kind;
  copy_options options;
};

constexpr auto engine_choices = std::array{
  engine_choice{"host_direct_inline", device_kind::host, {.inline_copies = true}},
  engine_choice{"host_direct_1", device_kind::host, {}},
  engine_choice{"host_direct_3", device_kind::host, {.host_threads = 3}},
  engine_choice{
    "host_kernel_inline", device_kind::host, {.io = io_backend::kernel, .inline_copies = true}},
  engine_choice{"host_kernel_1", device_kind::host, {.io = io_backend::kernel}},
  engine_choice{"host_kernel_3", device_kind::host, {.io = io_backend::kernel, .host_threads = 3}},
  engine_choice{"cuda_direct", device_kind::cuda, {}},
  engine_choice{"cuda_kernel", device_kind::cuda, {.io = io_backend::kernel}},
};

/// An L1 and an L2 pool at the start of two memories, their engine, and the bytes that the
/// reference expects in them.
class pool_pair {
public:
  pool_pair(device& on, device_memory& l1_memory, device_memory& l2_memory,
            const pool_shape& pool_shape, host_layout layout, l1_form form,
            const copy_options& options, uint32_t l1_pages = 9, uint32_t l2_pages = 11)
    : shape(pool_shape), l1(pool_shape, l1_pages, form), l2(pool_shape, layout, l2_pages),
      l1_memory_(l1_memory), l2_memory_(l2_memory) {
    const auto registered = l1.layers(reinterpret_cast<uintptr_t>(l1_memory.data()));
    EXPECT_TRUE(registered.check());
    EXPECT_LE(l1.bytes(), l1_memory.size());
    EXPECT_LE(l2.total_bytes(), l2_memory.size());
    engine = on.make_copy_engine(registered, l2, l2_memory, options).value();
  }

  void fill(std::mt19937_64& random) {
    l1_bytes = random_bytes(l1.bytes(), random);
    l2_bytes = random_bytes(l2.pages() * reference_page_bytes(shape), random);
    EXPECT_TRUE(l1_memory_.write(0, l1_bytes));
    EXPECT_TRUE(l2_memory_.write(0, l2_bytes));
  }

  /// Copies in the expected bytes.
  void expect_copy(copy_direction direction, const std::vector<page_index>& l1_pages,
                   const std::vector<page_index>& l2_pages) {
    for (auto i = size_t{0}; i < l1_pages.size(); ++i)
      test::for_each_byte(shape, 0, shape.layers, [&](byte_position at) {
        at.page = l1_pages[i];
        auto& in_l1 = l1_bytes[l1.address(at)];
        at.page = l2_pages[i];
        auto& in_l2 = l2_bytes[reference_address(shape, l2.layout(), l2.pages(), at)];
        if (direction == copy_direction::store)
          in_l2 = in_l1;
        else
          in_l1 = in_l2;
      });
  }

  /// Compares every byte of both pools, gaps and other pages included.
  void expect_contents() const {
    expect_equal(l1_memory_, l1_bytes, "L1");
    expect_equal(l2_memory_, l2_bytes, "L2");
  }

  pool_shape shape;
  reference_l1 l1;
  pool_geometry l2;
  std::unique_ptr<copy_engine> engine;
  std::vector<std::byte> l1_bytes;
  std::vector<std::byte> l2_bytes;

private:
  static void expect_equal(const device_memory& memory, const std::vector<std::byte>& expected,
                           const char* tier) {
    auto bytes = std::vector<std::byte>(expected.size());
    EXPECT_TRUE(memory.read(0, bytes));
    const auto [wrong, right] = std::mismatch(bytes.begin(), bytes.end(), expected.begin());
    EXPECT_TRUE(wrong == bytes.end())
      << tier << " differs first at byte " << wrong - bytes.begin() << " of " << bytes.size();
  }

  device_memory& l1_memory_;
  device_memory& l2_memory_;
};

constexpr auto small_shape = pool_shape{
  .layers = 3, .kv_heads = 2, .head_dim = 4, .v_head_dim = 6, .element_bytes = 2, .page_size = 4};

/// Layers of pages of 16 KiB: seventeen of them are shared by several threads.
constexpr auto large_shape = pool_shape{
  .layers = 4, .kv_heads = 8, .head_dim = 64, .v_head_dim = 64, .element_bytes = 2, .page_size = 8};

/// Rows of odd numbers of elements, for each kind of attention.
pool_shape odd_shape(attention_kind attention, uint32_t element_bytes, uint32_t page_size) {
  auto shape = pool_shape{.attention = attention,
                          .layers = 3,
                          .kv_heads = 1,
                          .head_dim = 7,
                          .element_bytes = element_bytes,
                          .page_size = page_size};
  if (attention == attention_kind::mha) {
    shape.kv_heads = 2;
    shape.head_dim = 3;
    shape.v_head_dim = 5;
  }
  if (attention == attention_kind::nsa)
    shape.index_key_bytes = 132;
  return shape;
}

/// The first `count` entries of a random permutation of 1..pages-1: page 0 is never copied.
std::vector<page_index> some_pages(uint32_t pages, size_t count, std::mt19937_64& random) {
  auto all = std::vector<page_index>(pages - 1);
  std::iota(all.begin(), all.end(), 1);
  std::shuffle(all.begin(), all.end(), random);
  all.resize(count);
  return all;
}

/// Cuts a list into lists of the given lengths.
std::vector<page_list> ragged(const std::vector<page_index>& list, std::vector<size_t> lengths) {
  auto lists = std::vector<page_list>{};
  auto begin = list.begin();
  for (const auto length : lengths) {
    const auto end = begin + static_cast<ptrdiff_t>(length);
    lists.push_back(pages({begin, end}));
    begin = end;
  }
  return lists;
}

class CopyEngineTest : public testing::TestWithParam<engine_choice> {
protected:
  static constexpr auto memory_bytes = uint64_t{3} << 20;

  void SetUp() override {
    auto made = make_device(GetParam().kind);
    if (!made)
      GTEST_SKIP() << made.error().detail;
    device_ = std::move(*made);
    // Allocated once, because pinning takes long.
    l1_memory_ = device_->allocate(memory_bytes).value();
    l2_memory_ = device_->allocate_host(memory_bytes, {}).value();
  }

  pool_pair make_pools(const pool_shape& shape, host_layout layout, l1_form form = l1_form::packed,
                       uint32_t l1_pages = 9, uint32_t l2_pages = 11) {
    return {*device_, *l1_memory_,        *l2_memory_, shape,   layout,
            form,     GetParam().options, l1_pages,    l2_pages};
  }

  /// Stores pages in one call of several commands, loads as many to other pages, and compares.
  static void check_round_trip(pool_pair& pools, size_t count, std::mt19937_64& random) {
    pools.fill(random);
    const auto from = some_pages(pools.l1.pages(), count, random);
    const auto host = some_pages(pools.l2.pages(), count, random);
    const auto to = some_pages(pools.l1.pages(), count, random);
    auto failed = std::atomic<int>{0};
    const auto done = [&](operation_id, const result<void>& outcome) { failed += !outcome; };

    const auto lengths = std::vector<size_t>{count / 2, 0, count - count / 2};
    auto writes = std::vector<write_command>{};
    auto loads = std::vector<load_command>{};
    for (auto i = size_t{0}; i < lengths.size(); ++i) {
      writes.push_back({i, ragged(from, lengths)[i], ragged(host, lengths)[i]});
      loads.push_back({i, ragged(host, lengths)[i], ragged(to, lengths)[i],
                       std::make_shared<layer_progress>(pools.shape.layers)});
    }
    pools.engine->store(writes, done);
    pools.engine->drain();
    pools.expect_copy(copy_direction::store, from, host);
    pools.expect_contents();
    pools.engine->load(loads, done);
    pools.engine->drain();
    pools.expect_copy(copy_direction::load, to, host);
    pools.expect_contents();
    EXPECT_EQ(failed, 0);
    for (const auto& load : loads)
      EXPECT_EQ(load.progress->done(), pools.shape.layers);
  }

  std::unique_ptr<device> device_;
  std::unique_ptr<device_memory> l1_memory_;
  std::unique_ptr<device_memory> l2_memory_;
};

std::string describe(const pool_pair& pools, l1_form form) {
  return std::string{to_string(pools.shape.attention)} + " " + to_string(pools.l2.layout())
         + " element_bytes " + std::to_string(pools.shape.element_bytes) + " head_dim "
         + std::to_string(pools.shape.head_dim) + " page_size "
         + std::to_string(pools.shape.page_size)
         + (form == l1_form::packed ? " packed" : " interleaved");
}

TEST_P(CopyEngineTest, MovesExactlyTheBytesOfTheReference) {
  const auto seed = uint64_t{20};
  SCOPED_TRACE("seed " + std::to_string(seed));
  auto random = std::mt19937_64{seed};
  for (const auto attention : {attention_kind::mha, attention_kind::mla, attention_kind::nsa})
    for (const auto layout : all_layouts)
      for (const auto element_bytes : {1u, 2u, 4u})
        for (const auto page_size : {1u, 16u, 64u})
          for (const auto form : {l1_form::packed, l1_form::interleaved}) {
            auto pools = make_pools(odd_shape(attention, element_bytes, page_size), layout, form);
            SCOPED_TRACE(describe(pools, form));
            check_round_trip(pools, 5, random);
          }
}

TEST_P(CopyEngineTest, MovesRowsOfAllLengths) {
  const auto seed = uint64_t{21};
  SCOPED_TRACE("seed " + std::to_string(seed));
  auto random = std::mt19937_64{seed};
  // In bytes: below a word, beside and on the length of a cache line, a latent of DeepSeek-V3, and
  // beside and on the length of a piece.
  for (const auto head_dim : {1u, 3u, 8u, 63u, 64u, 127u, 128u, 191u, 193u, 1152u, 4096u, 4100u})
    for (const auto layout : all_layouts)
      for (const auto form : {l1_form::packed, l1_form::interleaved}) {
        auto shape = small_shape;
        shape.layers = 2;
        shape.head_dim = head_dim;
        shape.element_bytes = 1;
        shape.page_size = 3;
        auto pools = make_pools(shape, layout, form, 5, 6);
        SCOPED_TRACE(describe(pools, form));
        check_round_trip(pools, 3, random);
      }
}

TEST_P(CopyEngineTest, MovesLargeLayersInParts) {
  const auto seed = uint64_t{22};
  SCOPED_TRACE("seed " + std::to_string(seed));
  auto random = std::mt19937_64{seed};
  for (const auto layout : all_layouts)
    for (const auto form : {l1_form::packed, l1_form::interleaved}) {
      auto shape = large_shape;
      // Rows that no share of a thread ends with.
      shape.v_head_dim = 61;
      auto pools = make_pools(shape, layout, form, 21, 22);
      SCOPED_TRACE(describe(pools, form));
      check_round_trip(pools, 19, random);
    }
}

TEST_P(CopyEngineTest, MovesRunsOfNeighbouringPages) {
  auto random = std::mt19937_64{4};
  auto pools = make_pools(small_shape, host_layout::layer_first);
  pools.fill(random);
  const auto from = std::vector<page_index>{2, 3, 4, 7, 8, 1};
  const auto to = std::vector<page_index>{5, 6, 7, 8, 9, 10};
  pools.engine->store({{1, pages(from), pages(to)}}, [](auto, const auto&) {});
  pools.engine->drain();
  pools.expect_copy(copy_direction::store, from, to);
  pools.expect_contents();
}

TEST_P(CopyEngineTest, CompletesCommandsOfOneDirectionInIssueOrder) {
  constexpr auto batches = 200;
  const auto seed = uint64_t{23};
  SCOPED_TRACE("seed " + std::to_string(seed));
  auto random = std::mt19937_64{seed};
  auto pools = make_pools(small_shape, host_layout::page_first);
  auto mutex = std::mutex{};
  auto stored = std::vector<operation_id>{};
  auto loaded = std::vector<operation_id>{};
  const auto record = [&mutex](std::vector<operation_id>& order) {
    return [&](operation_id id, const result<void>& outcome) {
      EXPECT_TRUE(outcome);
      const auto lock = std::scoped_lock{mutex};
      order.push_back(id);
    };
  };
  auto stores = operation_id{0};
  auto loads = operation_id{0};
  for (auto i = 0; i < batches; ++i) {
    // Long, short and empty commands; the two directions touch different pages.
    auto writes = std::vector<write_command>{};
    auto reads = std::vector<load_command>{};
    auto free = some_pages(5, 4, random);
    const auto take = [&](size_t count) {
      count = std::min(count, free.size());
      const auto taken
        = std::vector<page_index>(free.end() - static_cast<ptrdiff_t>(count), free.end());
      free.resize(free.size() - count);
      return taken;
    };
    for (auto left = random() % 4; left > 0; --left) {
      const auto written = take(random() % 5);
      writes.push_back({stores++, pages(written), pages(written)});
      auto read = written;
      for (auto& page : read)
        page += 4;
      reads.push_back(
        {loads++, pages(read), pages(read), std::make_shared<layer_progress>(small_shape.layers)});
    }
    pools.engine->store(std::move(writes), record(stored));
    pools.engine->load(std::move(reads), record(loaded));
  }
  pools.engine->drain();
  auto expected = std::vector<operation_id>(stores);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(stored, expected);
  EXPECT_EQ(loaded, expected);
}

TEST_P(CopyEngineTest, ALayerIsReadableOnceItsProgressSaysSo) {
  auto random = std::mt19937_64{6};
  auto pools = make_pools(large_shape, host_layout::page_first_direct, l1_form::packed, 21, 21);
  pools.fill(random);
  const auto list = some_pages(21, 20, random);
  const auto progress = std::make_shared<layer_progress>(large_shape.layers);
  pools.engine->load({{1, pages(list), pages(list), progress}}, [](auto, const auto&) {});
  pools.expect_copy(copy_direction::load, list, list);
  for (auto layer = uint32_t{0}; layer < large_shape.layers; ++layer) {
    ASSERT_TRUE(progress->wait(layer));
    for (const auto page : list)
      for (const auto part : {0u, 1u}) {
        const auto at = pools.l1.address({.part = part, .layer = layer, .page = page});
        auto bytes = std::vector<std::byte>(test::reference_row_bytes(large_shape, part)
                                            * large_shape.page_size);
        ASSERT_TRUE(l1_memory_->read(at, bytes));
        ASSERT_TRUE(std::equal(bytes.begin(), bytes.end(),
                               pools.l1_bytes.begin() + static_cast<ptrdiff_t>(at)))
          << "layer " << layer << " part " << part << " page " << page;
      }
  }
  pools.engine->drain();
}

TEST_P(CopyEngineTest, DrainWaitsForEitherDirection) {
  auto pools = make_pools(large_shape, host_layout::page_first, l1_form::packed, 21, 21);
  auto random = std::mt19937_64{8};
  const auto list = pages(some_pages(21, 20, random));
  auto finished = std::atomic<int>{0};
  const auto done = [&](auto, const auto&) { ++finished; };
  pools.engine->store({{1, list, list}}, done);
  pools.engine->drain();
  EXPECT_EQ(finished, 1);
  pools.engine->load({{1, list, list, std::make_shared<layer_progress>(large_shape.layers)}}, done);
  pools.engine->drain();
  EXPECT_EQ(finished, 2);
}

TEST_P(CopyEngineTest, ALateStoreDoesNotHoldUpALoad) {
  if (GetParam().options.inline_copies)
    GTEST_SKIP() << "inline copies run on the caller's thread";
  auto pools = make_pools(small_shape, host_layout::page_first);
  auto release = std::promise<void>{};
  auto loaded = std::promise<void>{};
  pools.engine->store({{1, pages({1}), pages({1})}},
                      [&](auto, const auto&) { release.get_future().wait(); });
  pools.engine->load(
    {{1, pages({2}), pages({2}), std::make_shared<layer_progress>(small_shape.layers)}},
    [&](auto, const auto&) { loaded.set_value(); });
  loaded.get_future().wait();
  release.set_value();
  pools.engine->drain();
}

TEST_P(CopyEngineTest, ADestroyedEngineFinishesWhatWasSubmitted) {
  auto random = std::mt19937_64{7};
  auto pools = make_pools(large_shape, host_layout::page_first);
  pools.fill(random);
  const auto list = std::vector<page_index>{1, 2, 3, 4, 5, 6, 7, 8};
  auto finished = 0;
  // Holds the first store up until the engine is about to go, so that the others still wait then.
  auto going = std::atomic<bool>{GetParam().options.inline_copies};
  for (auto i = operation_id{0}; i < 8; ++i)
    pools.engine->store({{i, pages(list), pages(list)}}, [&](auto, const auto& outcome) {
      going.wait(false);
      finished += outcome.has_value();
    });
  going = true;
  going.notify_all();
  pools.engine.reset();
  EXPECT_EQ(finished, 8);
  pools.expect_copy(copy_direction::store, list, list);
  pools.expect_contents();
}

INSTANTIATE_TEST_SUITE_P(Devices, CopyEngineTest, testing::ValuesIn(engine_choices),
                         [](const auto& chosen) { return std::string{chosen.param.name}; });

TEST(HostMoverTest, FinishesLayersOneByOneAndNoneBefore) {
  auto random = std::mt19937_64{9};
  for (const auto io : {io_backend::direct, io_backend::kernel})
    for (const auto layout : all_layouts) {
      SCOPED_TRACE(std::string{to_string(io)} + " " + to_string(layout));
      const auto l1 = reference_l1{small_shape, 6, l1_form::interleaved};
      const auto l2 = pool_geometry{small_shape, layout, 6};
      auto l2_bytes = random_bytes(l2.total_bytes(), random);
      auto l1_bytes = random_bytes(l1.bytes(), random);
      auto expected = l1_bytes;
      const auto mover = make_host_mover(l1.layers(reinterpret_cast<uintptr_t>(l1_bytes.data())),
                                         l2, l2_bytes.data(), {.io = io});
      const auto from = std::vector<page_index>{3};
      const auto to = std::vector<page_index>{2};
      ASSERT_TRUE(mover->begin(copy_direction::load, 1, to, from));
      EXPECT_TRUE(mover->layer_events(1).empty());
      EXPECT_EQ(l1_bytes, expected);
      for (auto layer = uint32_t{0}; layer < small_shape.layers; ++layer) {
        ASSERT_TRUE(mover->finish_layer(copy_direction::load, 1, layer));
        test::for_each_byte(small_shape, layer, layer + 1, [&](byte_position at) {
          at.page = 3;
          const auto source = l2_bytes[reference_address(small_shape, layout, 6, at)];
          at.page = 2;
          expected[l1.address(at)] = source;
        });
        EXPECT_EQ(l1_bytes, expected) << "layer " << layer;
      }
    }
}

TEST(CopyEngineDeathTest, RefusesPagesThatDoNotExist) {
  const auto on = make_device(device_kind::host).value();
  const auto memory = on->allocate_host(uint64_t{1} << 20, {}).value();
  auto pools = pool_pair{*on,
                         *memory,
                         *memory,
                         small_shape,
                         host_layout::page_first,
                         l1_form::packed,
                         {.inline_copies = true},
                         4,
                         6};
  const auto progress = std::make_shared<layer_progress>(small_shape.layers);
  const auto store = [&](std::vector<page_index> l1_pages, std::vector<page_index> l2_pages) {
    pools.engine->store({{1, pages(l1_pages), pages(l2_pages)}}, [](auto, const auto&) {});
  };
  const auto load = [&](std::vector<page_index> l2_pages, std::vector<page_index> l1_pages) {
    pools.engine->load({{1, pages(l2_pages), pages(l1_pages), progress}}, [](auto, const auto&) {});
  };
  EXPECT_DEATH(store({4}, {1}), "l1_pages_");
  EXPECT_DEATH(store({1}, {6}), "l2_pages_");
  EXPECT_DEATH(load({1}, {4}), "l1_pages_");
  EXPECT_DEATH(load({6}, {1}), "l2_pages_");
  EXPECT_DEATH(load({1, 2}, {1}), "size");
}

TEST(CopyEngineDeathTest, RefusesMemoryThatIsSmallerThanThePool) {
  const auto on = make_device(device_kind::host).value();
  const auto memory = on->allocate_host(4096, {}).value();
  const auto l1 = reference_l1{small_shape, 40, l1_form::packed};
  const auto l2 = pool_geometry{small_shape, host_layout::page_first, 40};
  EXPECT_DEATH(static_cast<void>(on->make_copy_engine(l1.layers(4096), l2, *memory, {})), "size");
}

} // namespace
} // namespace hicache
