// What is remembered of the index's answers: the latest, for a time, up to a number of pages.

#include "backends/cluster/recent_placements.hpp"
#include "tests/backends/backend_support.hpp"

#include <gtest/gtest.h>

namespace hicache::test {
namespace {

using namespace std::chrono_literals;

constexpr auto most_pages = size_t{8};

using members = std::vector<uint64_t>;

/// A replica that tells whose it is.
replica held_by(uint64_t member) {
  return {member, member * 64, static_cast<uint32_t>(member), 4096};
}

class RecentPlacementsTest : public testing::Test {
protected:
  static std::vector<page_key> keys(const std::vector<uint64_t>& numbers) {
    auto made = std::vector<page_key>{};
    for (const auto number : numbers)
      made.push_back(key_of(number));
    return made;
  }

  /// The index says of each page which members have it.
  void answer(const std::vector<uint64_t>& pages, const std::vector<members>& holders) {
    auto where = placements{};
    for (const auto& some : holders) {
      auto& replicas = where.replicas.emplace_back();
      for (const auto member : some)
        replicas.push_back(held_by(member));
    }
    recent_.enter({keys(pages), where, now_ + 1s});
  }

  /// The members that are known to have a page.
  members holders(uint64_t page) {
    auto found = members{};
    const auto where = recent_.recall(keys({page}), now_);
    for (const auto& one : where.replicas.at(0)) {
      EXPECT_EQ(one, held_by(one.member));
      found.push_back(one.member);
    }
    return found;
  }

  time_point now_{};
  recent_placements recent_{most_pages};
};

TEST_F(RecentPlacementsTest, RecallsEachPageOfAnAnswer) {
  answer({1, 2, 3}, {{7}, members{}, {8, 9}});
  const auto where = recent_.recall(keys({3, 2, 4, 1}), now_);
  ASSERT_EQ(where.replicas.size(), 4u);
  EXPECT_EQ(where.replicas[0], (replica_list{held_by(8), held_by(9)}));
  EXPECT_TRUE(where.replicas[1].empty());
  EXPECT_TRUE(where.replicas[2].empty());
  EXPECT_EQ(where.replicas[3], replica_list{held_by(7)});
}

TEST_F(RecentPlacementsTest, TheLatestAnswerCounts) {
  answer({1, 2}, {{7}, {7}});
  EXPECT_EQ(holders(1), members{7});
  answer({1}, {{8}});
  answer({2}, {members{}});
  EXPECT_EQ(holders(1), members{8});
  EXPECT_EQ(holders(2), members{});
}

TEST_F(RecentPlacementsTest, AnswersAreForgottenInTime) {
  answer({1}, {{7}});
  now_ += 600ms;
  answer({2}, {{8}});
  now_ += 399ms;
  EXPECT_EQ(holders(1), members{7});
  now_ += 1ms;
  EXPECT_EQ(holders(1), members{});
  EXPECT_EQ(holders(2), members{8});
}

TEST_F(RecentPlacementsTest, ALaterAnswerOutlivesAnEarlierOne) {
  answer({1}, {{7}});
  now_ += 600ms;
  answer({1}, {{8}});
  EXPECT_EQ(holders(1), members{8});
  now_ += 600ms;
  EXPECT_EQ(holders(1), members{8});
}

TEST_F(RecentPlacementsTest, TheOldestAreForgottenWhereTheyAreTooMany) {
  answer({1, 2, 3}, {{7}, {7}, {7}});
  EXPECT_EQ(holders(1), members{7});
  answer({4, 5, 6, 7, 8}, {{7}, {7}, {7}, {7}, {7}});
  EXPECT_EQ(holders(1), members{7});
  answer({9}, {{7}});
  EXPECT_EQ(holders(1), members{});
  EXPECT_EQ(holders(4), members{7});
  EXPECT_EQ(holders(9), members{7});
  // Never looked into before they go.
  for (auto page = uint64_t{10}; page < 40; ++page)
    answer({page}, {{page}});
  EXPECT_EQ(holders(31), members{});
  EXPECT_EQ(holders(32), members{32});
  EXPECT_EQ(holders(39), members{39});
}

} // namespace
} // namespace hicache::test
