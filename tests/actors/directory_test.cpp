// Directories of several index processes, joined by a connector that knows where each of them is.

#include "actors/directory.hpp"
#include "actors/index.hpp"
#include "tests/actors/fakes.hpp"

#include <functional>
#include <map>
#include <memory>
#include <string>

namespace hicache {
namespace {

using namespace hicache::test;
using namespace std::chrono_literals;

/// Knows the processes of the test by their addresses.
connector_actor::behavior_type
run_connector(connector_actor::pointer,
              std::shared_ptr<std::map<std::string, directory_actor>> listening) {
  return {
    [listening](atom::connect, const std::string& address) -> caf::result<caf::strong_actor_ptr> {
      const auto at = listening->find(address);
      if (at == listening->end())
        return to_caf({ec::peer_unreachable, "nobody listens there"});
      return caf::actor_cast<caf::strong_actor_ptr>(at->second);
    },
  };
}

class DirectoryTest : public actor_test {
protected:
  DirectoryTest() { connector_ = spawn(run_connector, listening_); }

  ~DirectoryTest() override { stop_all(); }

  static std::string address(uint16_t port) { return "10.0.0.1:" + std::to_string(port); }

  directory_actor start(uint16_t port, const std::vector<uint32_t>& numbers,
                        std::vector<std::string> others = {}) {
    return start(port, numbers, [others = std::move(others)] { return others; });
  }

  directory_actor start(uint16_t port, const std::vector<uint32_t>& numbers,
                        std::function<std::vector<std::string>()> others) {
    auto options = directory_options{};
    for (const auto number : numbers)
      options.shards.emplace(number, spawn(index, index_options{10s, &clock}));
    options.others = std::move(others);
    options.pause = 1s;
    options.connector = connector_;
    const auto started = spawn(directory, options);
    (*listening_)[address(port)] = started;
    tell(started, atom::start_v, address(port));
    return started;
  }

  /// As a client asks.
  shard_map map_of(const directory_actor& of) {
    return ask_value<shard_map>(of, atom::shards_v, shard_map{});
  }

  std::shared_ptr<std::map<std::string, directory_actor>> listening_
    = std::make_shared<std::map<std::string, directory_actor>>();
  connector_actor connector_;
};

TEST_F(DirectoryTest, KnowsNoShardsBeforeItKnowsItsAddress) {
  auto options = directory_options{};
  options.shards.emplace(0, spawn(index, index_options{10s, &clock}));
  options.connector = connector_;
  const auto early = spawn(directory, options);
  EXPECT_TRUE(map_of(early).shards.empty());
  tell(early, atom::start_v, std::string{"10.0.0.1:1"});
  EXPECT_EQ(map_of(early).shards.size(), 1u);
  tell(early, atom::start_v, std::string{"10.0.0.2:2"});
  EXPECT_EQ(map_of(early).shards[0].address, "10.0.0.1:1") << "a peer cannot move it";
}

TEST_F(DirectoryTest, HandsOutItsShards) {
  const auto one = start(1, {4, 7});
  EXPECT_EQ(map_of(one), (shard_map{{{4, address(1), 1}, {7, address(1), 1}}}));
  const auto shard = caf::actor_cast<index_actor>(
    ask_value<caf::strong_actor_ptr>(one, atom::locate_v, uint32_t{7}));
  EXPECT_EQ(ask_value<index_status>(shard, atom::status_v, status_query{}).keys, 0u);
  const auto other = ask<caf::strong_actor_ptr>(one, atom::locate_v, uint32_t{5});
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, ec::not_found);
}

TEST_F(DirectoryTest, ProcessesThatJoinOneAreKnownToAll) {
  const auto one = start(1, {0});
  const auto two = start(2, {1}, {address(1)});
  const auto three = start(3, {2}, {address(1)});
  advance_in_steps(2s, 2);
  const auto all = shard_map{{{0, address(1), 1}, {1, address(2), 1}, {2, address(3), 1}}};
  for (const auto& each : {one, two, three})
    EXPECT_EQ(map_of(each), all);
}

TEST_F(DirectoryTest, JoinsProcessesThatAreNamedLaterAndForgetsThoseThatAreNamedNoMore) {
  const auto named = std::make_shared<std::vector<std::string>>();
  const auto one = start(1, {0}, [named] { return *named; });
  named->push_back(address(2));
  advance_in_steps(2s, 2);
  named->clear();
  advance_in_steps(2s, 2);
  const auto two = start(2, {1});
  advance_in_steps(2s, 2);
  EXPECT_EQ(map_of(one).shards.size(), 1u);
  named->push_back(address(2));
  advance_in_steps(2s, 2);
  EXPECT_EQ(map_of(one), (shard_map{{{0, address(1), 1}, {1, address(2), 1}}}));
  EXPECT_EQ(map_of(two), map_of(one));
  named->clear();
  advance_in_steps(2s, 2);
  tell(one, atom::shards_v, shard_map{{{2, address(3), 1}}});
  advance_in_steps(2s, 2);
  EXPECT_EQ(map_of(two).shards.size(), 3u) << "whom the map names is not forgotten";
}

TEST_F(DirectoryTest, OneThatBeginsAnewIsToldByTheOthers) {
  auto one = start(1, {0});
  const auto two = start(2, {1}, {address(1)});
  stop(one);
  listening_->erase(address(1));
  advance_in_steps(10s, 10);
  EXPECT_EQ(map_of(two).shards.size(), 2u) << "a process that is gone keeps its keys";
  one = start(1, {0});
  advance_in_steps(3s, 3);
  EXPECT_EQ(map_of(one), (shard_map{{{0, address(1), 1}, {1, address(2), 1}}}));
  EXPECT_EQ(map_of(two), map_of(one));
}

TEST_F(DirectoryTest, AShardMovesToTheProcessThatClaimsItLast) {
  const auto one = start(1, {0, 1});
  start(2, {1}, {address(1)});
  advance_in_steps(2s, 2);
  EXPECT_EQ(map_of(one), (shard_map{{{0, address(1), 1}, {1, address(2), 2}}}));
}

TEST_F(DirectoryTest, OneThatBeginsAnewClaimsItsShardsBeyondWhatTheOthersKnow) {
  const auto one = start(1, {0});
  stop(start(2, {1}, {address(1)}));
  listening_->erase(address(2));
  const auto two = start(3, {1}, {address(1)});
  EXPECT_EQ(map_of(two), (shard_map{{{0, address(1), 1}, {1, address(3), 2}}}));
  advance_in_steps(2s, 2);
  EXPECT_EQ(map_of(one), map_of(two));
}

TEST_F(DirectoryTest, AClaimOfAProcessThatIsGoneIsTakenOver) {
  const auto one = start(5, {0});
  const auto of_a_client = shard_map{{{0, address(1), 7}}};
  ask_value<shard_map>(one, atom::shards_v, of_a_client);
  advance_in_steps(2s, 2);
  EXPECT_EQ(map_of(one), (shard_map{{{0, address(5), 8}}}));
  EXPECT_EQ(ask_value<shard_map>(one, atom::shards_v, of_a_client), map_of(one));
}

TEST_F(DirectoryTest, AClaimOfThisAddressIsOneOfThePast) {
  const auto one = start(1, {0});
  ask_value<shard_map>(one, atom::shards_v, shard_map{{{0, address(1), 1'700'000'000'000}}});
  EXPECT_EQ(map_of(one), (shard_map{{{0, address(1), 1'700'000'000'001}}}));
}

TEST_F(DirectoryTest, ALaterClaimOfALivingProcessStands) {
  const auto old = start(1, {0});
  const auto late = start(2, {0}, {address(1)});
  advance_in_steps(4s, 4);
  const auto agreed = shard_map{{{0, address(2), 2}}};
  EXPECT_EQ(map_of(old), agreed);
  // Nor does the old one take it back when the other one is gone for a moment.
  listening_->erase(address(2));
  stop(late);
  advance_in_steps(10s, 10);
  EXPECT_EQ(map_of(old), agreed);
}

TEST_F(DirectoryTest, AShardThatIsGivenUpIsNotClaimedAgain) {
  const auto one = start(1, {0, 1});
  ask_value<shard_map>(one, atom::shards_v, shard_map{{{1, "", 2}}});
  advance_in_steps(10s, 10);
  EXPECT_EQ(map_of(one), (shard_map{{{0, address(1), 1}, {1, "", 2}}}));
}

TEST_F(DirectoryTest, ShardsNameTheMapInTheirAnswers) {
  const auto one = start(1, {0});
  const auto shard = caf::actor_cast<index_actor>(
    ask_value<caf::strong_actor_ptr>(one, atom::locate_v, uint32_t{0}));
  const auto digest = [&] {
    return ask_value<placements>(shard, atom::locate_v, key_batch{{key_of(1)}}).shards_digest;
  };
  EXPECT_EQ(digest(), digest_of(map_of(one)));
  start(2, {1}, {address(1)});
  EXPECT_EQ(digest(), digest_of(map_of(one)));
  EXPECT_EQ(map_of(one).shards.size(), 2u);
}

} // namespace
} // namespace hicache
