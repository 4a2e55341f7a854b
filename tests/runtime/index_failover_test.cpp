// Two processes of the index, one of which dies or hangs; and an index that is found anew.

#include "backends/cluster/index_addresses.hpp"
#include "tests/backends/backend_support.hpp"
#include "tests/runtime/cluster_support.hpp"

#include <gmock/gmock.h>

#include <chrono>
#include <mutex>
#include <optional>
#include <thread>

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

/// Says what the test wants it to say.
class told_source final : public address_source {
public:
  struct place {
    std::mutex mutex;
    std::vector<std::string> addresses;
  };

  explicit told_source(std::shared_ptr<place> where) : where_(std::move(where)) {}

  result<address_answer> ask(const std::string&, interruption&) override {
    const auto lock = std::lock_guard{where_->mutex};
    return address_answer{where_->addresses, 60s, {}};
  }

private:
  std::shared_ptr<place> where_;
};

class IndexDiscoveryTest : public testing::Test {
protected:
  /// From now on the index is said to be there.
  void tell(const std::string& address) {
    {
      const auto lock = std::lock_guard{told_->mutex};
      told_->addresses = {address};
    }
    // Makes it ask at once.
    addresses_->announce(std::to_string(++times_));
  }

  std::string reached() const {
    const auto view = link_.view();
    return view->is_whole() ? view->addresses.front() : std::string{};
  }

  void wait_until_reached(const std::string& address) const {
    const auto end = std::chrono::steady_clock::now() + 20s;
    while (reached() != address) {
      ASSERT_LT(std::chrono::steady_clock::now(), end);
      std::this_thread::yield();
    }
  }

  std::shared_ptr<told_source::place> told_ = std::make_shared<told_source::place>();
  uint64_t times_ = 0;
  system_config config_;
  caf::actor_system system_{config_};
  rpc_network network_{system_, {}};
  std::shared_ptr<index_addresses> addresses_
    = std::make_shared<index_addresses>("the source", std::make_unique<told_source>(told_));
  index_link link_{system_, network_.connector(), addresses_};
};

TEST_F(IndexDiscoveryTest, NoAddressIsOneSentenceAboutTheSource) {
  const auto refused = link_.connect(100ms);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ec::peer_unreachable);
  EXPECT_THAT(refused.error().detail, testing::HasSubstr("no index answers at the source"));
}

TEST_F(IndexDiscoveryTest, AnAddressThatComesLaterIsReached) {
  const auto index = local_index{};
  tell(index.address());
  EXPECT_TRUE(link_.connect(20s));
  EXPECT_EQ(reached(), index.address());
}

TEST_F(IndexDiscoveryTest, AnIndexThatDiesIsLookedForWhereTheSourceSaysThen) {
  auto first = std::make_optional<local_index>();
  tell(first->address());
  ASSERT_TRUE(link_.connect(20s));
  first.reset();
  // Its shard has the same number and begins with the same epoch, and nobody tells it of the other.
  const auto second = local_index{};
  tell(second.address());
  wait_until_reached(second.address());
}

} // namespace
} // namespace hicache::test
