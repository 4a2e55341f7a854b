// The table beside a naive model of it, under random calls.

#include "base/limits.hpp"
#include "base/mix.hpp"
#include "tests/cache_store/test_members.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace hicache {
namespace {

using namespace std::chrono_literals;
using test::key_of;
using test::member;

constexpr auto start = time_point{};

struct model_member {
  uint64_t epoch = 0;
  uint64_t first_epoch = 0;
  time_point heard;
};

struct model_replica {
  uint64_t member = 0;
  announced_page page;
};

class IndexTableModelTest : public testing::TestWithParam<uint64_t> {
protected:
  static constexpr auto ids = uint64_t{12};
  static constexpr auto numbers = uint64_t{30};

  void forget(uint64_t id) {
    for (auto& [number, list] : replicas)
      std::erase_if(list, [&](const auto& x) { return x.member == id; });
  }

  void mount() {
    const auto id = random() % ids;
    const auto epoch = 1 + random() % 6;
    auto info = member(id, epoch);
    info.resumes = random() % 6;
    const auto done = table.mount(info, now);
    const auto at = members.find(id);
    if (at != members.end() && epoch < at->second.epoch) {
      ASSERT_FALSE(done);
      return;
    }
    ASSERT_TRUE(done);
    const auto is_known = at != members.end();
    const auto resumes
      = is_known && info.resumes >= at->second.first_epoch && info.resumes <= at->second.epoch;
    ASSERT_EQ(done->is_resumed, resumes);
    const auto keeps = resumes || (is_known && epoch == at->second.epoch);
    if (is_known && !keeps)
      forget(id);
    suspended.erase(id);
    members[id] = {epoch, keeps ? at->second.first_epoch : epoch, now};
  }

  bool is_current(uint64_t id, uint64_t epoch) const {
    const auto at = members.find(id);
    return at != members.end() && at->second.epoch == epoch && !suspended.contains(id);
  }

  void publish() {
    const auto id = random() % ids;
    const auto epoch = some_epoch(id);
    auto pages = std::vector<announced_page>{};
    auto taken = std::vector<uint64_t>{};
    for (auto i = random() % 6; i > 0; --i) {
      taken.push_back(random() % numbers);
      const auto offset = random() % 3 == 0 ? disk_offset : random() % 1000;
      pages.push_back({key_of(taken.back()), offset, static_cast<uint32_t>(random() % 9),
                       static_cast<uint32_t>(random() % 5000)});
    }
    const auto only_new = random() % 2 == 0;
    ASSERT_EQ(table.publish(id, epoch, pages, false, only_new).has_value(), is_current(id, epoch));
    if (!is_current(id, epoch))
      return;
    for (size_t i = 0; i < pages.size(); ++i) {
      auto& list = replicas[taken[i]];
      const auto old
        = std::find_if(list.begin(), list.end(), [&](const auto& x) { return x.member == id; });
      const auto is_offered = [this](const model_replica& x) {
        return !suspended.contains(x.member) && !is_on_disk(x.page.offset);
      };
      if (old != list.end())
        old->page = pages[i];
      else if (only_new && std::ranges::any_of(list, is_offered))
        continue;
      else
        list.push_back({id, pages[i]});
      if (list.size() > limits::replicas_per_key)
        list.erase(std::ranges::min_element(list, {}, [&](const auto& x) {
          return std::pair{!is_on_disk(x.page.offset), mix(first_word(pages[i].key), x.member)};
        }));
    }
  }

  void withdraw() {
    const auto id = random() % ids;
    const auto epoch = some_epoch(id);
    const auto number = random() % numbers;
    ASSERT_EQ(table.withdraw(id, epoch, std::vector{key_of(number)}), is_current(id, epoch));
    if (is_current(id, epoch))
      std::erase_if(replicas[number], [&](const auto& x) { return x.member == id; });
  }

  void drop_or_expire() {
    if (random() % 2 == 0) {
      const auto id = random() % ids;
      const auto was_offered = members.contains(id) && !suspended.contains(id);
      if (random() % 2 == 0) {
        ASSERT_EQ(table.suspend(id), was_offered);
        if (was_offered)
          suspended.insert(id);
        return;
      }
      ASSERT_EQ(table.drop(id), was_offered);
      members.erase(id);
      suspended.erase(id);
      forget(id);
      return;
    }
    auto gone = table.silent(now, 300ms);
    auto expected = std::vector<uint64_t>{};
    for (const auto& [id, x] : members)
      if (now - x.heard > 300ms)
        expected.push_back(id);
    std::sort(gone.begin(), gone.end());
    ASSERT_EQ(gone, expected);
    for (auto id : expected) {
      ASSERT_EQ(table.drop(id), !suspended.contains(id));
      suspended.erase(id);
      members.erase(id);
      forget(id);
    }
  }

  void heartbeat() {
    const auto id = random() % ids;
    const auto epoch = some_epoch(id);
    ASSERT_EQ(table.heartbeat(id, epoch, now), is_current(id, epoch));
    if (is_current(id, epoch))
      members[id].heard = now;
  }

  void compare() {
    auto counters
      = index_counters{members.size() - suspended.size(), 0, 0, 0, table.counters().refused};
    for (uint64_t number = 0; number < numbers; ++number) {
      const auto located = table.locate(std::vector{key_of(number)});
      counters.keys += replicas[number].empty() ? 0 : 1;
      auto list = replicas[number];
      std::erase_if(list, [&](const auto& x) { return suspended.contains(x.member); });
      ASSERT_EQ(located.of(0).size(), list.size());
      counters.replicas += list.size();
      for (size_t i = 0; i < list.size(); ++i) {
        const auto& got = located.of(0)[i];
        ASSERT_EQ(table.find(got.member)->member, list[i].member);
        ASSERT_EQ(got.offset, list[i].page.offset);
        ASSERT_EQ(got.generation, list[i].page.generation);
        ASSERT_EQ(got.length, list[i].page.length);
        counters.bytes += got.length;
      }
    }
    ASSERT_EQ(table.counters().members, counters.members);
    if (table.expire_replicas(random() % 4))
      ASSERT_GE(table.counters().keys, counters.keys);
    else
      ASSERT_EQ(table.counters().keys, counters.keys);
    ASSERT_EQ(table.counters().replicas, counters.replicas);
    ASSERT_EQ(table.counters().bytes, counters.bytes);
    auto of_members = uint64_t{0};
    for (const auto& x : table.members(0, 1000))
      of_members += x.bytes + x.disk_bytes;
    ASSERT_EQ(of_members, counters.bytes);
  }

  /// Mostly the epoch of the member, sometimes another.
  uint64_t some_epoch(uint64_t id) {
    const auto at = members.find(id);
    return at == members.end() || random() % 8 == 0 ? random() % 7 : at->second.epoch;
  }

  std::mt19937_64 random{GetParam()};
  index_table table;
  std::map<uint64_t, model_member> members;
  std::set<uint64_t> suspended;
  std::map<uint64_t, std::vector<model_replica>> replicas;
  time_point now = start;
};

TEST_P(IndexTableModelTest, BehavesLikeTheModel) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  for (auto step = 0; step < 3000; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    now += std::chrono::milliseconds{random() % 10};
    const auto dice = random() % 20;
    if (dice < 3)
      mount();
    else if (dice < 11)
      publish();
    else if (dice < 15)
      withdraw();
    else if (dice < 19)
      heartbeat();
    else
      drop_or_expire();
    compare();
    if (HasFatalFailure())
      return;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, IndexTableModelTest, testing::Range(uint64_t{1}, uint64_t{9}));

} // namespace
} // namespace hicache
