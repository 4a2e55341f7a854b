#include "actors/index.hpp"
#include "base/limits.hpp"
#include "messages/wire.hpp"
#include "tests/actors/fakes.hpp"

#include <algorithm>
#include <numeric>

namespace hicache {
namespace {

using namespace hicache::test;
using namespace std::chrono_literals;

class IndexTest : public actor_test {
protected:
  IndexTest() { index_ = spawn(index, index_options{10s, &clock}); }

  static member_info member(uint64_t id, uint64_t epoch = 1) {
    auto info = member_info{};
    info.member = id;
    info.epoch = epoch;
    info.host = "host" + std::to_string(id);
    return info;
  }

  membership mount(uint64_t id, uint64_t epoch = 1) {
    const auto view = ask<membership>(index_, atom::mount_v, member(id, epoch));
    EXPECT_TRUE(view) << to_string(view.error());
    return view ? *view : membership{};
  }

  bool publish(uint64_t id, uint64_t epoch, std::vector<uint64_t> keys) {
    auto news = published_pages{id, epoch, {}};
    for (const auto key : keys)
      news.pages.push_back({key_of(key), key * 4096, 7, 512});
    return ask_value<membership>(index_, atom::publish_v, news).known;
  }

  bool withdraw(uint64_t id, uint64_t epoch, std::vector<uint64_t> keys) {
    auto news = withdrawn_pages{id, epoch, {}};
    for (const auto key : keys)
      news.keys.push_back(key_of(key));
    return ask_value<membership>(index_, atom::withdraw_v, news).known;
  }

  bool take_heartbeat(uint64_t id, uint64_t epoch = 1) {
    return ask_value<membership>(index_, atom::tick_v, heartbeat{id, epoch, {}}).known;
  }

  replica_list locate(uint64_t key) {
    return ask_value<placements>(index_, atom::locate_v, key_batch{{key_of(key)}}).replicas.front();
  }

  index_status status() { return ask_value<index_status>(index_, atom::status_v, status_query{}); }

  index_actor index_;
};

TEST_F(IndexTest, LocatesWhatMembersPublish) {
  const auto view = mount(1);
  EXPECT_TRUE(view.known);
  EXPECT_EQ(view.member_ttl_ms, 10000u);
  mount(2, 5);
  EXPECT_TRUE(publish(1, 1, {10, 11}));
  EXPECT_TRUE(publish(2, 5, {11}));
  const auto found
    = ask<placements>(index_, atom::locate_v, key_batch{{key_of(10), key_of(99), key_of(11)}});
  ASSERT_EQ(found->replicas.size(), 3u);
  EXPECT_EQ(found->replicas[0], (replica_list{{1, 40960, 7, 512}}));
  EXPECT_TRUE(found->replicas[1].empty());
  ASSERT_EQ(found->replicas[2].size(), 2u);
  EXPECT_EQ(found->replicas[2][1], (replica{2, 45056, 7, 512}));
}

TEST_F(IndexTest, ListsOfTheMostMembersWithTheLongestNamesComeInParts) {
  for (auto id = uint64_t{1}; id <= limits::index_members; ++id) {
    auto info = member(id);
    for (auto* name : {&info.host, &info.memory_name, &info.page_address, &info.address})
      name->assign(256, 'x');
    ask_value<membership>(index_, atom::mount_v, info);
  }
  auto listed = uint64_t{0};
  auto shown = uint64_t{0};
  for (auto has_more = true; has_more;) {
    const auto list = ask_value<member_list>(index_, atom::members_v,
                                             member_query{{}, listed + 1, limits::members_listed});
    ASSERT_TRUE(wire::codec<member_list>::decode(wire::codec<member_list>::encode(list)));
    for (const auto& x : list.members)
      ASSERT_EQ(x.member, ++listed);
    has_more = list.has_more;
  }
  for (auto has_more = true; has_more;) {
    const auto state = ask_value<index_status>(index_, atom::status_v,
                                               status_query{shown + 1, limits::members_listed});
    ASSERT_TRUE(wire::codec<index_status>::decode(wire::codec<index_status>::encode(state)));
    for (const auto& x : state.members)
      ASSERT_EQ(x.info.member, ++shown);
    has_more = state.has_more;
  }
  EXPECT_EQ(listed, limits::index_members);
  EXPECT_EQ(shown, limits::index_members);
}

TEST_F(IndexTest, OfOnlyNewPagesItRefusesAsFirstKeeperWhatAnotherMemberOffers) {
  mount(1);
  mount(2);
  publish(1, 1, {10, 11});
  const auto page = [](uint64_t key) { return announced_page{key_of(key), 0, 7, 512}; };
  // Of the last page the shard is the second keeper.
  const auto news = published_pages{2, 1, {page(10), page(12), page(11)}, 1, true};
  EXPECT_EQ(ask_value<membership>(index_, atom::publish_v, news).refused, std::vector{key_of(10)});
  EXPECT_EQ(locate(10).size(), 1u);
  EXPECT_EQ(locate(11).size(), 2u);
  EXPECT_EQ(locate(12).size(), 1u);
}

TEST_F(IndexTest, WhoAwaitsAReplicaHearsOfTheNextOne) {
  mount(1);
  mount(2);
  publish(1, 1, {10, 11});
  const auto query = awaited_pages{{key_of(10), key_of(11)}, {1, 1}, 100};
  const auto first = send_request<atom::ok>(index_, atom::await_v, query);
  const auto second = send_request<atom::ok>(index_, atom::await_v, query);
  publish(2, 1, {12});
  EXPECT_FALSE(first.arrived());
  publish(2, 1, {11});
  EXPECT_TRUE(first.get());
  EXPECT_TRUE(second.get());
  EXPECT_TRUE(ask<atom::ok>(index_, atom::await_v, query)) << "it has come before the request";
  advance(1s);
  EXPECT_EQ(state_of<index_state>(index_).waits.size(), 0u);
}

TEST_F(IndexTest, PagesOnDiskAreLocatedForReadersThatKnowThem) {
  EXPECT_TRUE(mount(1).takes_disk);
  mount(2);
  publish(1, 1, {10});
  const auto on_disk = announced_page{key_of(10), disk_offset, 0, 512};
  EXPECT_TRUE(
    ask_value<membership>(index_, atom::publish_v, published_pages{2, 1, {on_disk}}).known);
  const auto found = ask_value<placements>(index_, atom::locate_v, key_batch{{key_of(10)}, true});
  EXPECT_EQ(found.replicas.front(), (replica_list{{1, 40960, 7, 512}, {2, disk_offset, 0, 512}}));
  EXPECT_EQ(locate(10), (replica_list{{1, 40960, 7, 512}})) << "for a reader of version 5";
  const auto now = status();
  EXPECT_EQ(now.replicas, 1u);
  EXPECT_EQ(now.disk_replicas, 1u);
  EXPECT_EQ(now.members[1].pages, 0u);
  EXPECT_EQ(now.members[1].disk_pages, 1u);
  EXPECT_EQ(now.members[1].disk_bytes, 512u);
}

TEST_F(IndexTest, WhoAwaitsAReplicaDoesNotHearOfOnesOnDisk) {
  mount(1);
  mount(2);
  publish(1, 1, {10});
  const auto waits
    = send_request<atom::ok>(index_, atom::await_v, awaited_pages{{key_of(10)}, {1}, 100});
  const auto on_disk = announced_page{key_of(10), disk_offset, 0, 512};
  ask_value<membership>(index_, atom::publish_v, published_pages{2, 1, {on_disk}});
  EXPECT_FALSE(waits.arrived());
  const auto again
    = send_request<atom::ok>(index_, atom::await_v, awaited_pages{{key_of(10)}, {1}, 100});
  run();
  EXPECT_FALSE(again.arrived());
  publish(2, 1, {10});
  EXPECT_TRUE(waits.get());
  EXPECT_TRUE(again.get());
}

TEST_F(IndexTest, WhoAwaitsAReplicaInVainHearsOfThatInTime) {
  const auto wait = [this](uint32_t wait_ms) {
    return send_request<atom::ok>(index_, atom::await_v, awaited_pages{{key_of(10)}, {0}, wait_ms});
  };
  const auto brief = wait(100);
  const auto endless = wait(~uint32_t{0});
  run();
  EXPECT_FALSE(brief.arrived());
  advance(100ms);
  EXPECT_EQ(brief.code(), ec::deadline_exceeded);
  EXPECT_FALSE(endless.arrived());
  advance(limits::demand_wait);
  EXPECT_EQ(endless.code(), ec::deadline_exceeded);
  EXPECT_EQ(state_of<index_state>(index_).waits.size(), 0u);
}

TEST_F(IndexTest, PagesThatAreAwaitedAreBounded) {
  const auto query = awaited_pages{*keys_of(100, limits::awaited_pages),
                                   std::vector<uint8_t>(limits::awaited_pages), 100};
  const auto first = send_request<atom::ok>(index_, atom::await_v, query);
  const auto one_more = awaited_pages{{key_of(11)}, {0}, 100};
  EXPECT_EQ(ask<atom::ok>(index_, atom::await_v, one_more).error().code, ec::limit_reached);
  advance(100ms);
  EXPECT_EQ(first.code(), ec::deadline_exceeded);
  const auto second = send_request<atom::ok>(index_, atom::await_v, one_more);
  run();
  EXPECT_FALSE(second.arrived()) << "there is room again";
}

TEST_F(IndexTest, ForgetsWhatMembersWithdraw) {
  mount(1);
  publish(1, 1, {10, 11});
  EXPECT_TRUE(withdraw(1, 1, {10, 77}));
  EXPECT_TRUE(locate(10).empty());
  EXPECT_EQ(locate(11).size(), 1u);
}

TEST_F(IndexTest, IgnoresOtherEpochsAndStrangers) {
  mount(1, 3);
  publish(1, 3, {10});
  EXPECT_FALSE(publish(1, 2, {11}));
  EXPECT_FALSE(publish(1, 4, {11}));
  EXPECT_FALSE(withdraw(1, 2, {10}));
  EXPECT_FALSE(take_heartbeat(1, 2));
  EXPECT_FALSE(take_heartbeat(9));
  EXPECT_FALSE(publish(9, 1, {12}));
  EXPECT_EQ(locate(10).size(), 1u);
  EXPECT_TRUE(locate(11).empty());
  EXPECT_TRUE(locate(12).empty());
  EXPECT_EQ(ask<membership>(index_, atom::mount_v, member(1, 2)).error().code,
            ec::invalid_argument);
}

TEST_F(IndexTest, NothingOfAnOldEpochSurvivesANewMount) {
  mount(1, 1);
  publish(1, 1, {10});
  mount(1, 2);
  EXPECT_TRUE(locate(10).empty());
  publish(1, 2, {11});
  EXPECT_EQ(locate(11).size(), 1u);
}

TEST_F(IndexTest, SilentMembersAreForgotten) {
  mount(1);
  mount(2);
  publish(1, 1, {10});
  publish(2, 1, {20});
  advance_in_steps(6s, 6);
  EXPECT_TRUE(take_heartbeat(2));
  advance_in_steps(6s, 6);
  EXPECT_TRUE(locate(10).empty());
  EXPECT_EQ(locate(20).size(), 1u);
  EXPECT_FALSE(take_heartbeat(1)); // On which it mounts again.
  EXPECT_EQ(status().members_lost, 1u);
}

TEST_F(IndexTest, SignsOfLifeKeepMembers) {
  mount(1);
  publish(1, 1, {10});
  for (auto i = 0; i < 10; ++i) {
    advance(5s);
    EXPECT_TRUE(take_heartbeat(1));
  }
  EXPECT_EQ(locate(10).size(), 1u);
  EXPECT_EQ(status().members_lost, 0u);
}

TEST_F(IndexTest, DeadMembersAreForgottenAtOnce) {
  const auto owner = spawn(recorder, std::make_shared<recording>());
  const auto other = spawn(recorder, std::make_shared<recording>());
  send_as(owner, index_, atom::mount_v, member(1));
  send_as(other, index_, atom::mount_v, member(2));
  run();
  publish(1, 1, {10});
  publish(2, 1, {10});
  stop(owner);
  ASSERT_EQ(locate(10).size(), 1u);
  EXPECT_EQ(locate(10)[0].member, 2u);
  EXPECT_FALSE(take_heartbeat(1));
  EXPECT_EQ(status().members_lost, 1u);
}

TEST_F(IndexTest, AMemberWhoseConnectionEndedGoesOnUnderTheNextEpoch) {
  const auto first = spawn(recorder, std::make_shared<recording>());
  send_as(first, index_, atom::mount_v, member(1));
  run();
  mount(2);
  publish(1, 1, {10, 11});
  publish(2, 1, {10});
  stop(first);
  advance(8s);
  take_heartbeat(2);
  EXPECT_TRUE(locate(11).empty());
  auto again = member(1, 2);
  again.resumes = 1;
  const auto view = ask_value<membership>(index_, atom::mount_v, again);
  EXPECT_TRUE(view.known && view.resumed);
  EXPECT_EQ(locate(11).size(), 1u);
  EXPECT_EQ(locate(10).size(), 2u);
  advance(8s);
  const auto sign = ask_value<membership>(index_, atom::tick_v, heartbeat{2, 1, {}});
  EXPECT_TRUE(sign.lost.empty()) << "nothing to repair";
  EXPECT_TRUE(take_heartbeat(1, 2));
}

TEST_F(IndexTest, CopiesAreLostWhenAMemberHasBeenGoneForTooLong) {
  const auto owner = spawn(recorder, std::make_shared<recording>());
  send_as(owner, index_, atom::mount_v, member(1));
  run();
  mount(2);
  publish(1, 1, {10});
  publish(2, 1, {10});
  stop(owner);
  const auto lost = [this] {
    return ask_value<membership>(index_, atom::tick_v, heartbeat{2, 1, {}}).lost;
  };
  advance(8s);
  EXPECT_TRUE(lost().empty()) << "it may come back";
  advance(5s);
  EXPECT_EQ(lost(), std::vector{key_of(10)});
  EXPECT_EQ(status().members_lost, 1u);
  auto again = member(1, 2);
  again.resumes = 1;
  EXPECT_FALSE(ask_value<membership>(index_, atom::mount_v, again).resumed);
}

TEST_F(IndexTest, AMemberThatLeavesIsForgottenAtOnce) {
  mount(1);
  mount(2);
  publish(1, 1, {10, 11});
  publish(2, 1, {10});
  EXPECT_FALSE(ask_value<membership>(index_, atom::tick_v, heartbeat{1, 7, {}, true}).known);
  EXPECT_EQ(locate(11).size(), 1u) << "another epoch";
  EXPECT_TRUE(ask_value<membership>(index_, atom::tick_v, heartbeat{1, 1, {}, true}).known);
  EXPECT_TRUE(locate(11).empty());
  EXPECT_EQ(status().keys, 1u);
  EXPECT_EQ(status().members.size(), 1u);
  EXPECT_EQ(status().members_lost, 1u);
  const auto sign = ask_value<membership>(index_, atom::tick_v, heartbeat{2, 1, {}});
  EXPECT_EQ(sign.lost, std::vector{key_of(10)});
}

TEST_F(IndexTest, WhatAMemberLeavesBehindIsRemovedBetweenOtherMessages) {
  mount(1);
  mount(2);
  auto keys = std::vector<uint64_t>(4000);
  std::iota(keys.begin(), keys.end(), 1);
  publish(1, 1, keys);
  advance_in_steps(9s, 3);
  take_heartbeat(2);
  clock.advance(2s);
  caf::anon_send(index_, atom::poll_v);
  const auto located = send_request<placements>(index_, atom::locate_v, key_batch{{key_of(1)}});
  auto messages = 0;
  for (; !located.arrived() && sched.has_job(); ++messages) {
    // In turns: the scheduler would let the index go on until it has nothing left to do.
    std::rotate(sched.jobs.begin(), sched.jobs.begin() + 1, sched.jobs.end());
    sched.run_once();
  }
  EXPECT_LT(messages, 8) << "a lookup does not wait for the removal of 4000 pages";
  EXPECT_TRUE(located.get()->replicas[0].empty()) << "nor is any of them offered meanwhile";
  run();
  EXPECT_GT(status().keys, 3000u) << "nor does the rest follow without a pause";
  advance_in_steps(50ms, 50);
  EXPECT_EQ(status().keys, 0u);
}

TEST_F(IndexTest, NeighbouringProtocolVersionsAreAdmittedAndOlderOnesRefused) {
  auto info = member(2);
  for (const auto version : {index_protocol_minimum, index_protocol_version + 1}) {
    info.protocol_version = version;
    ++info.epoch;
    EXPECT_TRUE(ask<membership>(index_, atom::mount_v, info)) << version;
  }
  info = member(1);
  info.protocol_version = index_protocol_minimum - 1;
  const auto view = ask<membership>(index_, atom::mount_v, info);
  ASSERT_FALSE(view);
  EXPECT_EQ(view.error().code, ec::unsupported);
  EXPECT_NE(view.error().detail.find("version 3"), std::string::npos) << view.error().detail;
  EXPECT_FALSE(take_heartbeat(1));
}

TEST_F(IndexTest, PeersThatComplainDoNotEndIt) {
  mount(1);
  publish(1, 1, {10});
  tell(caf::actor_cast<caf::actor>(index_), to_caf({ec::unsupported, "what was that?"}));
  EXPECT_EQ(locate(10).size(), 1u);
}

TEST_F(IndexTest, DescribesMembers) {
  mount(1);
  mount(2);
  mount(3);
  const auto some = ask<member_list>(index_, atom::members_v, member_query{{3, 9, 1}});
  ASSERT_EQ(some->members.size(), 2u);
  EXPECT_EQ(some->members[0], member(1));
  EXPECT_EQ(some->members[1], member(3));
  EXPECT_EQ(ask_value<member_list>(index_, atom::members_v, member_query{}).members.size(), 3u);
}

TEST_F(IndexTest, StatusCountsForPeople) {
  mount(1);
  publish(1, 1, {10, 11});
  locate(10);
  locate(99);
  advance(2s);
  const auto now = status();
  ASSERT_EQ(now.members.size(), 1u);
  EXPECT_EQ(now.members[0].pages, 2u);
  EXPECT_EQ(now.members[0].bytes, 1024u);
  EXPECT_EQ(now.members[0].silent_ms, 2000u);
  EXPECT_EQ(now.keys, 2u);
  EXPECT_EQ(now.replicas, 2u);
  EXPECT_EQ(now.bytes, 1024u);
  EXPECT_EQ(now.lookups, 2u);
  EXPECT_EQ(now.keys_asked, 2u);
  EXPECT_EQ(now.keys_found, 1u);
  EXPECT_EQ(now.uptime_ms, 2000u);
}

} // namespace
} // namespace hicache
