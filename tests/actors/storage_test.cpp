#include "actors/storage.hpp"
#include "tests/actors/fakes.hpp"

#include <algorithm>

namespace hicache {
namespace {

using namespace hicache::test;

constexpr auto shape = pool_shape{attention_kind::mha, 2, 2, 4, 4, 2, 4};
constexpr auto plenty = caf::timespan{std::chrono::seconds{5}};
constexpr auto pool_size = uint32_t{16};

/// A storage actor with an L2 of its own.
struct storage_rank {
  explicit storage_rank(host_layout layout) : geometry(shape, layout, pool_size) {
    memory.resize(geometry.total_bytes());
  }

  void fill(page_index page, uint8_t value) {
    for (const auto& run : geometry.object_runs(page))
      std::fill_n(memory.begin() + static_cast<ptrdiff_t>(run.offset), run.length,
                  std::byte{value});
  }

  bool holds(page_index page, uint8_t value) const {
    for (const auto& run : geometry.object_runs(page))
      for (auto i = uint64_t{0}; i < run.length; ++i)
        if (memory[run.offset + i] != std::byte{value})
          return false;
    return true;
  }

  pool_geometry geometry;
  std::vector<std::byte> memory;
  storage_actor actor;
};

class StorageTest : public actor_test {
protected:
  ~StorageTest() override { stop_all(); }

  storage_rank& start(const std::string& shard, host_layout layout = host_layout::page_first,
                      const std::string& fingerprint = "model=m") {
    auto& rank = ranks_.emplace_back(layout);
    rank.actor = spawn(
      storage, storage_options{fingerprint, shard, rank.geometry, rank.memory.data(), &clock},
      std::make_unique<storage_queue>(store_.open(), 0));
    return rank;
  }

  /// Pages `first`... of ten keys, from or to L2 pages 1, 2, ...
  static storage_batch batch(uint64_t first, uint64_t count) {
    return {keys_of(1, 10), keys_of(0, 10), first, count, page_run(1, 10), first};
  }

  std::vector<ec> set(storage_rank& rank, storage_batch x, caf::timespan timeout = plenty) {
    return ask_value<storage_outcome>(rank.actor, atom::set_v, x, timeout).pages;
  }

  std::vector<ec> get(storage_rank& rank, storage_batch x, caf::timespan timeout = plenty) {
    return ask_value<storage_outcome>(rank.actor, atom::get_v, x, timeout).pages;
  }

  uint64_t exists(storage_rank& rank, storage_batch x, caf::timespan timeout = plenty) {
    return ask_value<uint64_t>(rank.actor, atom::exists_v, x, timeout);
  }

  shared_store store_{clock};
  std::deque<storage_rank> ranks_;
};

const auto all_well = [](const std::vector<ec>& codes) {
  return std::all_of(codes.begin(), codes.end(), [](ec code) { return code == ec::none; });
};

TEST_F(StorageTest, PagesComeBackAsTheyWere) {
  for (const auto layout :
       {host_layout::layer_first, host_layout::page_first, host_layout::page_first_direct}) {
    SCOPED_TRACE(to_string(layout));
    auto& rank = start(to_string(layout), layout);
    for (auto page = page_index{1}; page <= 10; ++page)
      rank.fill(page, static_cast<uint8_t>(page));
    EXPECT_TRUE(all_well(set(rank, batch(0, 10))));
    for (auto page = page_index{1}; page <= 10; ++page)
      rank.fill(page, 0);
    auto back = batch(2, 3);
    back.host_pages = pages_of({15, 12, 7});
    back.host_first = 0;
    EXPECT_TRUE(all_well(get(rank, back)));
    EXPECT_TRUE(rank.holds(15, 3));
    EXPECT_TRUE(rank.holds(12, 4));
    EXPECT_TRUE(rank.holds(7, 5));
    EXPECT_TRUE(rank.holds(14, 0));
  }
}

TEST_F(StorageTest, ExistsCountsLeadingPages) {
  auto& rank = start("heads 0+1");
  set(rank, batch(0, 3));
  set(rank, batch(4, 2));
  EXPECT_EQ(exists(rank, batch(0, 10)), 3u);
  EXPECT_EQ(exists(rank, batch(4, 6)), 2u);
  EXPECT_EQ(exists(rank, batch(3, 7)), 0u);
  EXPECT_EQ(exists(rank, batch(0, 2)), 2u);
}

TEST_F(StorageTest, MissesAreToldPerPage) {
  auto& rank = start("heads 0+1");
  set(rank, batch(1, 1));
  EXPECT_EQ(get(rank, batch(0, 3)), (std::vector<ec>{ec::not_found, ec::none, ec::not_found}));
}

TEST_F(StorageTest, RemovedPagesAreGone) {
  auto& rank = start("heads 0+1");
  set(rank, batch(0, 4));
  const auto removed = ask<storage_outcome>(rank.actor, atom::remove_v, batch(2, 1), plenty);
  ASSERT_TRUE(removed);
  EXPECT_TRUE(all_well(removed->pages));
  EXPECT_EQ(exists(rank, batch(0, 10)), 2u);
}

TEST_F(StorageTest, ShardsAndModelsDoNotShareObjects) {
  auto& first = start("heads 0+1");
  auto& second = start("heads 1+1");
  auto& other = start("heads 0+1", host_layout::page_first, "model=n");
  auto& same = start("heads 0+1");
  first.fill(1, 7);
  set(first, batch(0, 1));
  EXPECT_EQ(exists(second, batch(0, 1)), 0u);
  EXPECT_EQ(exists(other, batch(0, 1)), 0u);
  EXPECT_EQ(exists(same, batch(0, 1)), 1u);
  EXPECT_TRUE(all_well(get(same, batch(0, 1))));
  EXPECT_TRUE(same.holds(1, 7));
}

TEST_F(StorageTest, ParentsAreNamedAsTheirObjects) {
  // A store that evicts leaves first must see the parent under the name it was stored by.
  class spy final : public storage_backend {
  public:
    explicit spy(std::vector<std::pair<page_key, page_key>>& seen) : seen_(seen) {}
    std::string name() const override { return "spy"; }
    std::vector<bool> exists(std::span<const page_key> keys, time_point) override {
      return std::vector<bool>(keys.size());
    }
    std::vector<result<void>> get(std::span<const page_read> pages, time_point) override {
      return std::vector<result<void>>(pages.size());
    }
    std::vector<result<void>> set(std::span<const page_write> pages, time_point) override {
      for (const auto& page : pages)
        seen_.emplace_back(page.parent, page.key);
      return std::vector<result<void>>(pages.size());
    }
    std::vector<result<void>> remove(std::span<const page_key> keys, time_point) override {
      return std::vector<result<void>>(keys.size());
    }
    backend_health health() override { return {}; }

  private:
    std::vector<std::pair<page_key, page_key>>& seen_;
  };
  auto seen = std::vector<std::pair<page_key, page_key>>{};
  auto& rank = ranks_.emplace_back(host_layout::page_first);
  rank.actor = spawn(storage, storage_options{"m", "s", rank.geometry, rank.memory.data(), &clock},
                     std::make_unique<storage_queue>(std::make_unique<spy>(seen), 0));
  auto x = batch(0, 3);
  x.parents = std::make_shared<const std::vector<page_key>>(
    std::vector<page_key>{page_key{}, key_of(1), key_of(2)});
  set(rank, x);
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_EQ(seen[0].first, page_key{});
  EXPECT_EQ(seen[1].first, seen[0].second);
  EXPECT_EQ(seen[2].first, seen[1].second);
  stop(rank.actor);
}

TEST_F(StorageTest, PassedDeadlinesAreToldAsSuch) {
  auto& rank = start("heads 0+1");
  set(rank, batch(0, 2));
  const auto late = caf::timespan{-1};
  EXPECT_EQ(get(rank, batch(0, 2), late), (std::vector<ec>(2, ec::deadline_exceeded)));
  EXPECT_EQ(set(rank, batch(2, 1), late), (std::vector<ec>{ec::deadline_exceeded}));
  EXPECT_EQ(exists(rank, batch(0, 2), late), 0u);
}

TEST_F(StorageTest, FailuresOfTheStoreComeThrough) {
  auto& rank = start("heads 0+1");
  store_.fault_on_set = [](const page_key&) { return ec::store_full; };
  EXPECT_EQ(set(rank, batch(0, 1)), (std::vector<ec>{ec::store_full}));
  store_.fault_on_set = nullptr;
  set(rank, batch(0, 1));
  store_.fault_on_get = [](const page_key&) { return ec::corrupt_page; };
  EXPECT_EQ(get(rank, batch(0, 1)), (std::vector<ec>{ec::corrupt_page}));
}

TEST_F(StorageTest, RequestsUnderWayAtOnceGetTheirOwnAnswers) {
  auto& rank = start("heads 0+1");
  set(rank, batch(0, 1));
  const auto a = send_request<uint64_t>(rank.actor, atom::exists_v, batch(0, 5), plenty);
  const auto b = send_request<storage_outcome>(rank.actor, atom::get_v, batch(1, 2), plenty);
  const auto c = send_request<storage_outcome>(rank.actor, atom::get_v, batch(0, 1), plenty);
  run();
  EXPECT_EQ(*a.get(), 1u);
  EXPECT_EQ(b.get()->pages, (std::vector<ec>(2, ec::not_found)));
  EXPECT_EQ(c.get()->pages, (std::vector<ec>{ec::none}));
}

} // namespace
} // namespace hicache
