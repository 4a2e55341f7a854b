#include "cache/prefix/request_table.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

using namespace hicache;

using requests = std::vector<request_id>;
using rows = std::vector<row_index>;
using slots = std::vector<slot_index>;

namespace {

slots read(const request_table& table, row_index row, uint32_t from, uint32_t count) {
  const auto span = table.read(row, from, count);
  EXPECT_TRUE(span) << to_string(span.error());
  return span ? slots(span->begin(), span->end()) : slots{};
}

template <class T>
std::string refusal(const result<T>& answer) {
  EXPECT_FALSE(answer);
  return answer ? std::string{} : to_string(answer.error());
}

} // namespace

TEST(RequestTable, GivesRowsFromZeroUp) {
  auto table = request_table{4, 8};
  EXPECT_EQ(table.take(requests{70, 50, 60}), (rows{0, 1, 2}));
  EXPECT_EQ(table.free(), 1);
  EXPECT_EQ(table.find(50), 1);
  EXPECT_EQ(table.find(51), std::nullopt);
}

TEST(RequestTable, ServesAllOfABatchOrNone) {
  auto table = request_table{3, 8};
  ASSERT_TRUE(table.take(requests{1}));
  EXPECT_EQ(table.take(requests{2, 3, 4}), std::nullopt);
  EXPECT_EQ(table.free(), 2);
  EXPECT_EQ(table.find(2), std::nullopt);
  EXPECT_EQ(table.take(requests{4, 3}), (rows{1, 2}));
}

TEST(RequestTable, ARequestKeepsItsRow) {
  auto table = request_table{3, 8};
  ASSERT_TRUE(table.take(requests{1, 2}));
  ASSERT_TRUE(table.write(1, 0, slots{9}));
  EXPECT_EQ(table.take(requests{3, 2}), (rows{2, 1}));
  EXPECT_EQ(read(table, 1, 0, 1), slots{9});
  EXPECT_EQ(table.take(requests{3, 1, 2}), (rows{2, 0, 1}));
  EXPECT_EQ(table.take(requests{3, 4}), std::nullopt);
  EXPECT_EQ(table.find(3), 2) << "a batch that fails takes no row away";
}

TEST(RequestTable, ARequestThatIsTwiceInABatchGetsOneRow) {
  auto table = request_table{2, 8};
  EXPECT_EQ(table.take(requests{5, 5, 6}), (rows{0, 0, 1}));
}

TEST(RequestTable, ReusesTheRowFreedLastFirst) {
  auto table = request_table{4, 8};
  ASSERT_TRUE(table.take(requests{1, 2, 3}));
  ASSERT_TRUE(table.give_back(0));
  ASSERT_TRUE(table.give_back(2));
  EXPECT_EQ(table.find(1), std::nullopt);
  EXPECT_EQ(table.free(), 3);
  EXPECT_EQ(table.take(requests{1, 4, 5}), (rows{2, 0, 3}));
}

TEST(RequestTable, ReadsWhatWasWritten) {
  auto table = request_table{2, 6};
  ASSERT_TRUE(table.take(requests{1, 2}));
  ASSERT_TRUE(table.write(0, 0, slots{4, 5, 6, 7}));
  ASSERT_TRUE(table.write(1, 2, slots{8, 9, 10, 11}));
  ASSERT_TRUE(table.write(0, 3, slots{12, 13}));
  EXPECT_EQ(read(table, 0, 0, 6), (slots{4, 5, 6, 12, 13, 0}));
  EXPECT_EQ(read(table, 1, 0, 6), (slots{0, 0, 8, 9, 10, 11}));
  EXPECT_EQ(read(table, 1, 3, 2), (slots{9, 10}));
  EXPECT_EQ(read(table, 1, 6, 0), slots{});
}

TEST(RequestTable, ANewOwnerDoesNotSeeOldSlots) {
  auto table = request_table{2, 4};
  ASSERT_TRUE(table.take(requests{1, 2}));
  ASSERT_TRUE(table.write(0, 1, slots{5, 6, 7}));
  ASSERT_TRUE(table.write(0, 0, slots{4}));
  ASSERT_TRUE(table.write(1, 0, slots{8}));
  ASSERT_TRUE(table.give_back(0));
  ASSERT_EQ(table.take(requests{3}), rows{0});
  EXPECT_EQ(read(table, 0, 0, 4), (slots{0, 0, 0, 0}));
  EXPECT_EQ(read(table, 1, 0, 1), slots{8});
}

TEST(RequestTable, NamesTheRowThatNobodyHas) {
  auto table = request_table{2, 4};
  ASSERT_TRUE(table.take(requests{1}));
  EXPECT_EQ(refusal(table.write(1, 0, slots{4})), "unknown_id: row 1 of 2 is not in use");
  EXPECT_EQ(refusal(table.read(2, 0, 1)), "unknown_id: row 2 of 2 is not in use");
  EXPECT_EQ(refusal(table.give_back(UINT32_MAX)), "unknown_id: row 4294967295 of 2 is not in use");
  ASSERT_TRUE(table.give_back(0));
  EXPECT_EQ(refusal(table.give_back(0)), "unknown_id: row 0 of 2 is not in use");
  EXPECT_EQ(table.free(), 2);
}

TEST(RequestTable, NamesTheRowThatIsTooShort) {
  auto table = request_table{2, 4};
  ASSERT_TRUE(table.take(requests{1, 2}));
  EXPECT_EQ(refusal(table.write(0, 2, slots{4, 5, 6})),
            "invalid_argument: row 0 has 4 slots, not 5");
  EXPECT_EQ(refusal(table.read(1, UINT32_MAX, UINT32_MAX)),
            "invalid_argument: row 1 has 4 slots, not 8589934590");
  EXPECT_EQ(read(table, 0, 0, 4), (slots{0, 0, 0, 0}));
  EXPECT_EQ(read(table, 1, 0, 4), (slots{0, 0, 0, 0}));
}
