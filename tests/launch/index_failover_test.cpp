// Two processes of the index, one of which dies or hangs.

#include "tests/backends/backend_support.hpp"
#include "tests/launch/cluster_support.hpp"

#include <chrono>
#include <optional>

namespace hicache::test {
namespace {

using namespace std::chrono_literals;

constexpr auto page_size = size_t{4096};
constexpr auto page_count = uint64_t{64};

class IndexFailoverTest : public testing::Test {
protected:
  IndexFailoverTest() {
    first_.emplace(0);
    second_.emplace(1, std::vector{first_->address()});
    wait_until([&] { return map_at(*first_).shards.size() == 2; });
    auto options = cluster_member_options{};
    options.segment_bytes = page_count * slot_bytes_for(page_size);
    options.object_bytes = page_size;
    owner_ = std::make_unique<local_member>(*first_, options);
    options.segment_bytes = 0;
    reader_ = std::make_unique<local_member>(*first_, options);
    auto store = (**owner_).open();
    for (auto number = uint64_t{0}; number < page_count; ++number) {
      const auto bytes = bytes_of(number, page_size);
      EXPECT_TRUE(store->set(std::vector{page_write{key_of(number), {}, {bytes}}}, soon()).at(0));
    }
  }

  static time_point soon() { return std::chrono::steady_clock::now() + 20s; }

  template <class Condition>
  static void wait_until(Condition condition) {
    const auto end = soon();
    while (!condition()) {
      ASSERT_LT(std::chrono::steady_clock::now(), end);
      std::this_thread::yield();
    }
  }

  static shard_map map_at(local_index& at) {
    auto self = caf::scoped_actor{at.system()};
    auto map = shard_map{};
    self->request(at.entrance(), 10s, atom::shards_v, shard_map{})
      .receive([&](shard_map& x) { map = std::move(x); }, [](const caf::error&) {});
    return map;
  }

  static uint64_t keys_of(local_index& at) {
    auto self = caf::scoped_actor{at.system()};
    auto keys = uint64_t{0};
    self->request(at.shard(), 10s, atom::status_v, status_query{})
      .receive([&](index_status& x) { keys = x.keys + x.second_keys; }, [](const caf::error&) {});
    return keys;
  }

  /// Pages that the reader finds, and how many of these it gets.
  std::pair<uint64_t, uint64_t> found() {
    auto store = (**reader_).open();
    auto keys = std::vector<page_key>{};
    for (auto number = uint64_t{0}; number < page_count; ++number)
      keys.push_back(key_of(number));
    const auto there = store->exists(keys, soon());
    auto read = uint64_t{0};
    for (const auto& key : keys) {
      auto bytes = page_bytes(page_size);
      read += store->get(std::vector{page_read{key, {bytes}}}, soon()).at(0) ? 1 : 0;
    }
    return {static_cast<uint64_t>(std::ranges::count(there, true)), read};
  }

  static constexpr auto all = std::pair{page_count, page_count};

  std::optional<local_index> first_;
  std::optional<local_index> second_;
  std::unique_ptr<local_member> owner_;
  std::unique_ptr<local_member> reader_;
};

TEST_F(IndexFailoverTest, BothProcessesKnowEachPage) {
  EXPECT_EQ(keys_of(*first_), page_count);
  EXPECT_EQ(keys_of(*second_), page_count);
  EXPECT_EQ(found(), all);
}

TEST_F(IndexFailoverTest, AProcessThatDiesCostsNoHit) {
  first_.reset();
  EXPECT_EQ(found(), all);
}

TEST_F(IndexFailoverTest, AProcessThatBeginsAnewCostsNoHit) {
  second_.reset();
  EXPECT_EQ(found(), all);
  second_.emplace(1, std::vector{first_->address()});
  EXPECT_EQ(found(), all);
  wait_until([&] { return keys_of(*second_) == page_count; });
  EXPECT_EQ(found(), all);
}

TEST_F(IndexFailoverTest, AShardThatDoesNotAnswerIsWaitedForOnceInAWhile) {
  second_->fall_silent();
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(found(), all);
  // More than sixty look-ups; without the second keepers each would take its deadline.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 15s);
}

} // namespace
} // namespace hicache::test
