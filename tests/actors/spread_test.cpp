// Members that have others copy their pages: when they are drained, and when copies are lost.

#include "actors/index.hpp"
#include "actors/segment.hpp"
#include "base/limits.hpp"
#include "base/mix.hpp"
#include "tests/actors/fakes.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>

namespace hicache {
namespace {

using namespace hicache::test;
using namespace std::chrono_literals;

constexpr auto slot_bytes = uint64_t{192};

/// Takes what it is asked for without reading any bytes, and counts how often it was asked.
replicator_actor::behavior_type run_replicator(replicator_actor::pointer self, int* asked) {
  return {[self, asked](atom::copy, const page_copies& pages, const caf::strong_actor_ptr& to) {
    ++*asked;
    auto promise = self->make_response_promise<page_totals>();
    const auto into = caf::actor_cast<segment_actor>(to);
    auto wanted = segment_pages{};
    for (const auto& x : pages.pages)
      wanted.list.push_back(
        {x.page.key, x.parent, x.page.length, x.fingerprint, x.tenant, x.copies});
    const auto fail = [promise](const caf::error& err) mutable { promise.deliver(err); };
    auto publish = [=](const segment_slots& slots) {
      auto answer = page_totals{};
      for (const auto& slot : slots.list)
        if (slot.what == segment_slot::state::full)
          answer.left_out.push_back(slot.key);
        else
          answer.bytes += slot_bytes;
      answer.pages = slots.list.size() - answer.left_out.size();
      auto pin = [=](const key_batch&) mutable {
        for (const auto& x : pages.pages)
          if (x.pin != 0)
            caf::anon_send(into, atom::pin_v, page_pins{x.pin, x.pin_ttl_ms, {x.page.key}});
        promise.deliver(answer);
      };
      self->request(into, caf::infinite, atom::publish_v, slots).then(pin, fail);
    };
    self->request(into, caf::infinite, atom::reserve_v, wanted).then(publish, fail);
    return promise;
  }};
}

class SpreadTest : public actor_test {
protected:
  SpreadTest() { index_ = spawn(index, index_options{10s, &clock}); }

  ~SpreadTest() override { stop_all(); }

  struct member {
    std::vector<std::byte> memory;
    int asked = 0;
    replicator_actor replicator;
    segment_actor segment;
    std::shared_ptr<member_figures> figures = std::make_shared<member_figures>();
  };

  /// Starts a member that has room for so many pages.
  void start(uint64_t id, const std::string& host, uint32_t slots = 16) {
    auto& at = members_[id];
    at.memory.assign(slots * slot_bytes, std::byte{0xee});
    at.replicator = spawn(run_replicator, &at.asked);
    auto options = segment_options{};
    options.mounts.member.member = id;
    options.mounts.member.host = host;
    options.mounts.member.capacity_bytes = at.memory.size();
    options.mounts.index = [this] {
      return std::make_shared<const index_view>(index_view{{{0, index_, "here"}}});
    };
    options.mounts.index_lost = [](const index_actor&) {};
    options.mounts.index_heard = [](uint64_t) {};
    options.mounts.reach = [this](const member_info& other) {
      return caf::actor_cast<member_actor>(members_.at(other.member).segment);
    };
    options.mounts.timeout = 2s;
    options.memory = at.memory;
    options.replicator = at.replicator;
    options.figures = at.figures;
    options.repair = repair_;
    options.clock = &clock;
    at.segment = spawn(segment, options);
  }

  /// A member that says that it has a page.
  void offer(uint64_t id, uint64_t key) {
    auto info = member_info{};
    info.member = id;
    ask_value<membership>(index_, atom::mount_v, info);
    ask_value<membership>(index_, atom::publish_v,
                          published_pages{id, 0, {{key_of(key), 0, 1, 64}}});
  }

  void kill(uint64_t id) {
    stop(members_.at(id).segment);
    stop(members_.at(id).replicator);
  }

  void store(uint64_t id, std::vector<uint64_t> keys, uint8_t copies = 1) {
    auto pages = segment_pages{};
    for (const auto key : keys)
      pages.list.push_back({key_of(key), {}, 64, 0, 0, copies});
    const auto& at = members_.at(id).segment;
    ask_value<key_batch>(at, atom::publish_v, ask_value<segment_slots>(at, atom::reserve_v, pages));
  }

  page_totals pin(uint64_t id, uint64_t key, pin_kind kind) {
    return ask_value<page_totals>(members_.at(id).segment, atom::pin_v,
                                  page_pins{static_cast<uint8_t>(kind), 60000, {key_of(key)}});
  }

  result<drain_report> drain(uint64_t id, bool force = false) {
    return ask<drain_report>(members_.at(id).segment, atom::drain_v, drain_request{force});
  }

  /// The members that the index offers a page from.
  std::set<uint64_t> holders(uint64_t key) {
    auto ids = std::set<uint64_t>{};
    const auto found = ask_value<placements>(index_, atom::locate_v, key_batch{{key_of(key)}});
    for (const auto& copy : found.replicas.front())
      ids.insert(copy.member);
    return ids;
  }

  bool takes_pages(uint64_t id) {
    const auto pages = segment_pages{{{key_of(999), {}, 64, 0, 0}}};
    const auto slots = ask_value<segment_slots>(members_.at(id).segment, atom::reserve_v, pages);
    tell(members_.at(id).segment, atom::abort_v, slots);
    return slots.list.front().what == segment_slot::state::reserved;
  }

  pin_kind pin_of(uint64_t id, uint64_t key) const {
    const auto kept = state_of<segment_state>(members_.at(id).segment).table->describe(key_of(key));
    return kept ? kept->pin : pin_kind::none;
  }

  drain_progress progress(uint64_t id) {
    return ask_value<drain_progress>(members_.at(id).segment, atom::status_v, status_query{});
  }

  index_actor index_;
  std::map<uint64_t, member> members_;
  /// Set before start().
  repair_policy repair_;
};

// -- copies that nobody finds -------------------------------------------------

/// Members that rank higher for a page than member 1, or lower.
std::vector<uint64_t> ranked(uint64_t key, bool higher, size_t count) {
  const auto rank = [&](uint64_t id) { return mix(first_word(key_of(key)), id); };
  auto ids = std::vector<uint64_t>{};
  for (auto id = uint64_t{100}; ids.size() < count; ++id)
    if ((rank(id) > rank(1)) == higher)
      ids.push_back(id);
  return ids;
}

TEST_F(SpreadTest, ACopyThatTheIndexRefusesIsNotKept) {
  for (const auto id : ranked(10, true, limits::replicas_per_key))
    offer(id, 10);
  start(1, "a");
  const auto pages = segment_pages{{{key_of(10), {}, 64, 0, 0}, {key_of(11), {}, 64, 0, 0}}};
  const auto& at = members_.at(1).segment;
  const auto slots = ask_value<segment_slots>(at, atom::reserve_v, pages);
  EXPECT_EQ(ask_value<key_batch>(at, atom::publish_v, slots).keys, std::vector{key_of(10)})
    << "its owner learns it";
  const auto& table = *state_of<segment_state>(at).table;
  EXPECT_EQ(table.counters().pages, 1u);
  EXPECT_EQ(table.counters().used_bytes, slot_bytes);
  EXPECT_EQ(holders(10).size(), limits::replicas_per_key);
  EXPECT_EQ(holders(11), std::set<uint64_t>{1});
}

TEST_F(SpreadTest, ACopyThatGivesWayToOthersIsNotKeptEither) {
  start(1, "a");
  store(1, {10, 11});
  for (const auto id : ranked(10, false, limits::replicas_per_key))
    offer(id, 10);
  EXPECT_TRUE(holders(10).contains(1)) << "it ranks highest";
  for (const auto id : ranked(10, true, limits::replicas_per_key))
    offer(id, 10);
  EXPECT_FALSE(holders(10).contains(1));
  advance_in_steps(3s, 12);
  const auto& table = *state_of<segment_state>(members_.at(1).segment).table;
  EXPECT_FALSE(table.find(key_of(10))) << "its owner has learnt it";
  EXPECT_TRUE(table.find(key_of(11)));
}

// -- draining -----------------------------------------------------------------

TEST_F(SpreadTest, DrainingFailsWhileNobodyTakesAPinnedPage) {
  start(1, "a");
  store(1, {10, 11});
  pin(1, 10, pin_kind::hard);
  const auto refused = drain(1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ec::store_full);
  EXPECT_NE(refused.error().detail.find("1 pinned page"), std::string::npos)
    << refused.error().detail;
  EXPECT_EQ(holders(10), std::set<uint64_t>{1}) << "nothing is withdrawn";
  EXPECT_EQ(holders(11), std::set<uint64_t>{1});
  EXPECT_FALSE(takes_pages(1));
  start(2, "b");
  EXPECT_EQ(*drain(1), (drain_report{1, 2})) << "tried again, with somebody who takes it";
  EXPECT_EQ(holders(10), std::set<uint64_t>{2});
  EXPECT_EQ(pin_of(2, 10), pin_kind::hard);
}

TEST_F(SpreadTest, DrainingByForceGivesPinnedPagesUp) {
  start(1, "a");
  store(1, {10, 11});
  pin(1, 10, pin_kind::soft);
  EXPECT_EQ(*drain(1, true), (drain_report{0, 2}));
  EXPECT_TRUE(holders(10).empty());
}

TEST_F(SpreadTest, APageThatOneMemberRefusesGoesToTheNext) {
  start(1, "a");
  store(1, {10});
  pin(1, 10, pin_kind::hard);
  for (auto id = uint64_t{2}; id < 5; ++id) {
    start(id, "host" + std::to_string(id), 1);
    store(id, {id * 100});
  }
  // All but one are full of what may not go.
  for (auto id = uint64_t{2}; id < 4; ++id)
    drain(id);
  EXPECT_EQ(*drain(1), (drain_report{1, 1}));
  EXPECT_EQ(holders(10), std::set<uint64_t>{4});
}

TEST_F(SpreadTest, AHolderThatHasThePageAlreadyKeepsThePin) {
  start(1, "a");
  start(2, "b");
  start(3, "c");
  store(1, {10});
  store(3, {10});
  pin(1, 10, pin_kind::hard);
  EXPECT_EQ(*drain(1), (drain_report{1, 1}));
  EXPECT_EQ(holders(10), std::set<uint64_t>{3}) << "no further copy is needed";
  EXPECT_EQ(pin_of(3, 10), pin_kind::hard);
}

TEST_F(SpreadTest, TheIndexSaysWhoTakesNoMorePages) {
  start(1, "a");
  const auto is_closed = [this] {
    return ask_value<member_list>(index_, atom::members_v, member_query{}).members.at(0).is_closed;
  };
  EXPECT_FALSE(is_closed());
  drain(1);
  EXPECT_TRUE(is_closed());
  advance_in_steps(10s, 40);
  EXPECT_TRUE(is_closed());
  ask_value<drain_progress>(members_.at(1).segment, atom::resume_v, drain_request{});
  EXPECT_FALSE(is_closed());
}

TEST_F(SpreadTest, APageThatOnlyMembersBeingDrainedHaveGoesToAnother) {
  for (auto id = uint64_t{1}; id < 4; ++id)
    start(id, "host" + std::to_string(id));
  for (const auto id : {1, 2}) {
    store(static_cast<uint64_t>(id), {10}, 2);
    pin(static_cast<uint64_t>(id), 10, pin_kind::soft);
  }
  for (const auto id : {1, 2})
    static_cast<void>(send_request<drain_report>(members_.at(static_cast<uint64_t>(id)).segment,
                                                 atom::drain_v, drain_request{}));
  run();
  EXPECT_EQ(holders(10), std::set<uint64_t>{3}) << "neither counts on the other";
}

TEST_F(SpreadTest, DrainingCanBeUndone) {
  start(1, "a");
  store(1, {10});
  drain(1);
  EXPECT_FALSE(takes_pages(1));
  EXPECT_EQ(progress(1), (drain_progress{false, true, 0, 0, 0}));
  ask_value<drain_progress>(members_.at(1).segment, atom::resume_v, drain_request{});
  EXPECT_TRUE(takes_pages(1));
  store(1, {20});
  EXPECT_EQ(holders(20), std::set<uint64_t>{1});
}

TEST_F(SpreadTest, DrainingCanBeWatchedAndUndoneWhileItRuns) {
  start(1, "a");
  start(2, "b", 400);
  auto keys = std::vector<uint64_t>{};
  for (auto key = uint64_t{1000}; key < 1000 + 300; ++key)
    keys.push_back(key);
  start(3, "c", 400);
  store(3, keys);
  for (const auto key : keys)
    pin(3, key, pin_kind::soft);
  const auto answer
    = send_request<drain_report>(members_.at(3).segment, atom::drain_v, drain_request{});
  // Until the first batch is through.
  while (state_of<segment_state>(members_.at(3).segment).progress().tried == 0)
    ASSERT_TRUE(sched.try_run_once());
  const auto seen = state_of<segment_state>(members_.at(3).segment).progress();
  EXPECT_EQ(seen, (drain_progress{true, true, 300, 128, 128}));
  const auto undone
    = send_request<drain_progress>(members_.at(3).segment, atom::resume_v, drain_request{});
  run();
  ASSERT_TRUE(answer.arrived());
  EXPECT_EQ(answer.code(), ec::stopping);
  EXPECT_TRUE(undone.get()->is_draining);
  EXPECT_TRUE(takes_pages(3));
  EXPECT_EQ(holders(1299), std::set<uint64_t>{3});
}

// -- copies that are lost -----------------------------------------------------

TEST_F(SpreadTest, ACopyThatIsLostWithItsMemberIsMadeAnew) {
  for (auto id = uint64_t{1}; id < 5; ++id)
    start(id, "host" + std::to_string(id));
  for (const auto id : {1, 2}) {
    store(static_cast<uint64_t>(id), {10, 11}, 2);
    store(static_cast<uint64_t>(id), {12}, 1);
  }
  kill(1);
  advance_in_steps(6s, 24);
  EXPECT_EQ(holders(10), std::set<uint64_t>{2}) << "not at once: it may have been cut off only";
  advance_in_steps(14s, 56);
  EXPECT_EQ(holders(10).size(), 2u);
  EXPECT_EQ(holders(11).size(), 2u);
  EXPECT_EQ(holders(12), std::set<uint64_t>{2}) << "one copy is all that it shall have";
  // Its new holder knows what it shall have, too.
  kill(2);
  advance_in_steps(20s, 80);
  EXPECT_EQ(holders(10).size(), 2u);
}

TEST_F(SpreadTest, AHardPinSurvivesItsOwner) {
  for (auto id = uint64_t{1}; id < 5; ++id)
    start(id, "host" + std::to_string(id));
  for (const auto id : {1, 2}) {
    store(static_cast<uint64_t>(id), {10}, 2);
    pin(static_cast<uint64_t>(id), 10, pin_kind::hard);
  }
  for (const auto id : {1, 2, 3}) {
    kill(static_cast<uint64_t>(id));
    advance_in_steps(20s, 80);
    ASSERT_FALSE(holders(10).empty()) << "after the death of " << id;
    for (const auto holder : holders(10))
      EXPECT_EQ(pin_of(holder, 10), pin_kind::hard);
  }
}

TEST_F(SpreadTest, APageThatNobodyTakesIsTriedAgainLaterAndLaterUntilSomebodyDoes) {
  for (auto id = uint64_t{1}; id < 3; ++id) {
    start(id, "host" + std::to_string(id));
    store(id, {10, 11}, 2);
  }
  const auto& figures = *members_.at(2).figures;
  kill(1);
  advance_in_steps(20s, 80);
  EXPECT_EQ(figures.repair_failures, 2u);
  EXPECT_EQ(figures.unrepaired, 2u);
  for (const auto failures : {4u, 6u, 8u}) { // After 30, 60 and 120 seconds.
    advance_in_steps(std::chrono::seconds{30 << (failures / 2 - 2)}, 240);
    EXPECT_EQ(figures.repair_failures, failures);
  }
  start(3, "host3");
  advance_in_steps(200s, 400);
  EXPECT_EQ(holders(10), std::set<uint64_t>{2}) << "not before it is time";
  advance_in_steps(40s, 80);
  EXPECT_EQ(holders(10), (std::set<uint64_t>{2, 3}));
  EXPECT_EQ(holders(11), (std::set<uint64_t>{2, 3}));
  EXPECT_EQ(figures.repaired, 2u);
  EXPECT_EQ(figures.repair_failures, 8u);
  EXPECT_EQ(figures.unrepaired, 0u);
}

TEST_F(SpreadTest, APageThatHasOneOfItsCopiesStillLacksTheOther) {
  for (auto id = uint64_t{1}; id < 4; ++id) {
    start(id, "host" + std::to_string(id));
    store(id, {10}, 3);
  }
  kill(1);
  advance_in_steps(20s, 80);
  const auto failures = [&] {
    return members_.at(2).figures->repair_failures + members_.at(3).figures->repair_failures;
  };
  EXPECT_EQ(failures(), 1u) << "there is no third host";
  start(4, "host4");
  advance_in_steps(31s, 124);
  EXPECT_EQ(holders(10), (std::set<uint64_t>{2, 3, 4}));
  EXPECT_EQ(failures(), 1u);
}

TEST_F(SpreadTest, LostCopiesAreNotMadeWhereAMemberIsDrained) {
  for (auto id = uint64_t{1}; id < 6; ++id)
    start(id, "host" + std::to_string(id));
  for (const auto id : {1, 2})
    store(static_cast<uint64_t>(id), {10, 11, 12, 13}, 2);
  drain(3);
  drain(4);
  kill(1);
  advance_in_steps(20s, 80);
  for (const auto key : {10, 11, 12, 13})
    EXPECT_EQ(holders(static_cast<uint64_t>(key)), (std::set<uint64_t>{2, 5}));
  EXPECT_EQ(members_.at(3).asked + members_.at(4).asked, 0);
}

TEST_F(SpreadTest, CopiesThatAreBackInTimeAreNotMadeAnew) {
  for (auto id = uint64_t{1}; id < 4; ++id)
    start(id, "host" + std::to_string(id));
  for (const auto id : {1, 2})
    store(static_cast<uint64_t>(id), {10}, 2);
  kill(1);
  advance_in_steps(4s, 16);
  start(9, "host1");
  store(9, {10}, 2);
  advance_in_steps(30s, 120);
  EXPECT_EQ(holders(10), (std::set<uint64_t>{2, 9}));
}

TEST_F(SpreadTest, LostCopiesAreMadeAnewNoFasterThanTheirRate) {
  constexpr auto pages = uint64_t{3} * limits::storage_batch_pages;
  start(1, "a", pages);
  start(2, "b", pages);
  start(3, "c", pages);
  auto keys = std::vector<uint64_t>{};
  for (auto key = uint64_t{0}; key < pages; ++key)
    keys.push_back(1000 + key);
  store(1, keys, 2);
  store(2, keys, 2);
  kill(1);
  advance_in_steps(9s, 36);
  const auto made = [&] {
    return std::ranges::count_if(keys, [&](uint64_t x) { return holders(x).size() == 2; });
  };
  while (made() == 0)
    advance(50ms);
  EXPECT_EQ(made(), static_cast<int64_t>(limits::storage_batch_pages)) << "a batch, then a pause";
  advance_in_steps(2s, 20);
  for (const auto key : keys)
    EXPECT_EQ(holders(key).size(), 2u);
}

TEST_F(SpreadTest, LostCopiesAreMadeAnewAsThePolicySays) {
  constexpr auto pages = uint64_t{2} * limits::storage_batch_pages;
  repair_ = {.bytes_per_second = 64, .delay = 1min};
  for (auto id = uint64_t{1}; id < 4; ++id)
    start(id, "host" + std::to_string(id), pages);
  auto keys = std::vector<uint64_t>(pages);
  std::iota(keys.begin(), keys.end(), uint64_t{1000});
  for (const auto id : {1, 2})
    store(static_cast<uint64_t>(id), keys, 2);
  kill(1);
  const auto made = [&] {
    return std::ranges::count_if(keys, [&](uint64_t x) { return holders(x).size() == 2; });
  };
  advance_in_steps(60s, 240);
  EXPECT_EQ(made(), 0);
  advance_in_steps(30s, 120); // The index has waited for member 1 as well.
  EXPECT_EQ(made(), static_cast<int64_t>(limits::storage_batch_pages)) << "a batch, then a pause";
  advance_in_steps(10min, 600);
  EXPECT_EQ(made(), static_cast<int64_t>(pages));
}

} // namespace
} // namespace hicache
