#include "cache/prefix/digested_map.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>

using namespace hicache;

namespace {

struct counted {
  uint64_t value = 0;
};

using counted_map = digested_map<std::map<int, counted>>;

uint64_t digest_of(const counted& x) noexcept {
  return x.value * 1000003;
}

class DigestedMapTest : public testing::Test {
protected:
  /// Changes a value and leaves early, as an operation that fails halfway.
  bool change_and_leave(int key, uint64_t value) {
    auto edit = map_.change(key);
    edit->value = value;
    if (value > 0)
      return false;
    edit->value = 1;
    return true;
  }

  counted_map map_{digest_of};
};

TEST_F(DigestedMapTest, SumsTheDigestsOfItsValues) {
  EXPECT_EQ(map_.digest(), 0u);
  map_.insert(1, {5});
  map_.insert(2, {7});
  EXPECT_EQ(map_.digest(), digest_of({5}) + digest_of({7}));
  map_.check_digest();
}

TEST_F(DigestedMapTest, CountsWhatIsChangedWhileAValueIsInserted) {
  map_.insert(1, {5})->value = 6;
  EXPECT_EQ(map_.digest(), digest_of({6}));
}

TEST_F(DigestedMapTest, FollowsAChangeThatLeavesEarly) {
  map_.insert(1, {5});
  map_.insert(2, {7});
  EXPECT_FALSE(change_and_leave(1, 9));
  EXPECT_EQ(map_.digest(), digest_of({9}) + digest_of({7}));
  map_.check_digest();
}

TEST_F(DigestedMapTest, LosesTheDigestOfWhatIsTaken) {
  map_.insert(1, {5});
  map_.insert(2, {7});
  EXPECT_EQ(map_.take(1).value, 5u);
  EXPECT_EQ(map_.digest(), digest_of({7}));
  EXPECT_EQ(map_.find(1), nullptr);
}

using DigestedMapDeathTest = DigestedMapTest;

TEST_F(DigestedMapDeathTest, AllowsOneEditAtATime) {
  map_.insert(1, {5});
  map_.insert(2, {7});
  const auto open = map_.change(1);
  EXPECT_DEATH(map_.change(2), "is_edited_");
  EXPECT_DEATH(map_.insert(3, {1}), "is_edited_");
  EXPECT_DEATH(map_.take(2), "is_edited_");
}

} // namespace
