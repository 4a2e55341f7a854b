#include "base/limits.hpp"
#include "cache/store/mount_progress.hpp"
#include "tests/cache_store/test_keys.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace hicache {
namespace {

using namespace hicache::test;

/// A member that has told a shard everything.
mount_progress reported() {
  auto progress = mount_progress{};
  progress.mount(1);
  progress.confirm(1, false);
  progress.complete();
  return progress;
}

TEST(MountProgressTest, TheFirstMountResumesNothingAndReportsFromTheStart) {
  auto progress = mount_progress{};
  EXPECT_EQ(progress.mount(1), 0u);
  EXPECT_TRUE(progress.is_mounted());
  EXPECT_FALSE(progress.is_told()) << "it reports";
  EXPECT_TRUE(progress.confirm(1, false));
  EXPECT_EQ(progress.reported_to(), 0u);
  progress.complete();
  EXPECT_TRUE(progress.is_told());
}

TEST(MountProgressTest, AReportGoesOnWhereTheShardHadConfirmedIt) {
  auto progress = mount_progress{};
  progress.mount(1);
  progress.confirm(1, false);
  EXPECT_TRUE(progress.advance(1, 700));
  progress.lose();
  EXPECT_FALSE(progress.advance(1, 800)) << "the answer came late: it stands, but nothing follows";
  EXPECT_EQ(progress.mount(2), 1u);
  EXPECT_FALSE(progress.advance(1, 100)) << "of the mount before";
  EXPECT_TRUE(progress.confirm(2, true));
  EXPECT_EQ(progress.reported_to(), 800u);
}

TEST(MountProgressTest, AShardThatHasForgottenHearsOfEverything) {
  auto progress = reported();
  progress.lose();
  EXPECT_EQ(progress.mount(2), 1u);
  EXPECT_TRUE(progress.confirm(2, false));
  EXPECT_EQ(progress.reported_to(), 0u);
}

TEST(MountProgressTest, WhatChangedMeanwhileIsToldAgainEachKeyOnce) {
  auto progress = reported();
  progress.lose();
  progress.unsettle(std::vector{key_of(3), key_of(1), key_of(3)});
  progress.mount(2);
  progress.confirm(2, true);
  progress.unsettle(std::vector{key_of(1)});
  progress.complete();
  const auto told = progress.take_unsettled();
  EXPECT_EQ(told.size(), 2u);
  EXPECT_TRUE(progress.take_unsettled().empty());
}

TEST(MountProgressTest, MoreChangesThanAreNotedMeanAFullReport) {
  auto progress = reported();
  progress.lose();
  progress.unsettle(std::vector<page_key>(limits::unsettled_keys));
  EXPECT_EQ(progress.mount(2), 1u);
  progress.lose();
  progress.unsettle(std::vector<page_key>(1));
  EXPECT_EQ(progress.mount(3), 0u);
}

TEST(MountProgressTest, AnAnswerToAnOlderMountMeansNothing) {
  auto progress = mount_progress{};
  progress.mount(1);
  progress.mount(2);
  EXPECT_FALSE(progress.confirm(1, false));
  progress.lose();
  EXPECT_FALSE(progress.confirm(2, false));
  EXPECT_EQ(progress.mount(3), 0u);
}

TEST(MountProgressTest, ARewoundReportBeginsAgainThere) {
  auto progress = reported();
  EXPECT_TRUE(progress.rewind(500));
  EXPECT_TRUE(progress.is_reporting());
  EXPECT_EQ(progress.reported_to(), 500u);
  progress.complete();
  EXPECT_TRUE(progress.is_told());
}

TEST(MountProgressTest, AReportUnderWayGoesBackWithTheNextAnswer) {
  auto progress = mount_progress{};
  progress.mount(1);
  progress.confirm(1, false);
  progress.advance(1, 100);
  EXPECT_FALSE(progress.rewind(500)) << "the answer to its last part goes on with it";
  EXPECT_TRUE(progress.advance(1, 900));
  EXPECT_EQ(progress.reported_to(), 500u);
  EXPECT_TRUE(progress.advance(1, 900));
  EXPECT_EQ(progress.reported_to(), 900u) << "once";
}

TEST(MountProgressTest, WhatIsRewoundWhileTheShardIsLostIsReportedWhenItIsBack) {
  auto progress = reported();
  progress.lose();
  EXPECT_FALSE(progress.rewind(500));
  progress.mount(2);
  progress.confirm(2, true);
  EXPECT_EQ(progress.reported_to(), 500u);
}

TEST(MountProgressTest, AMemberThatForgetsResumesNothing) {
  auto progress = reported();
  progress.forget();
  EXPECT_EQ(progress.mount(2), 0u);
}

} // namespace
} // namespace hicache
