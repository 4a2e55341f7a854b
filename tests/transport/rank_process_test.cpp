#include "tests/transport/child_process.hpp"
#include "transport/rank_process.hpp"

#include <gtest/gtest.h>

#include <sys/prctl.h>

#include <cstring>

namespace hicache {
namespace {

/// A process that says who it is and lives until it is told to end.
class RankProcessTest : public testing::Test {
protected:
  RankProcessTest()
    : child(test::child_process::start([](test::pipe_end& parent) {
        // A name that looks like the end of the name and a state.
        ::prctl(PR_SET_NAME, "x) Z (y");
        auto text = std::string(sizeof(rank_process), '\0');
        const auto mine = rank_process::self();
        std::memcpy(text.data(), &mine, sizeof(mine));
        parent.send(text);
        parent.receive();
        return 0;
      })) {
    const auto text = child.receive();
    if (text.size() == sizeof(other))
      std::memcpy(&other, text.data(), sizeof(other));
  }

  test::child_process child;
  rank_process other;
};

TEST_F(RankProcessTest, KnowsItself) {
  EXPECT_EQ(other.pid, child.pid());
  EXPECT_GT(other.start_time, 0u);
  EXPECT_EQ(look_at(rank_process::self()), process_state::alive);
}

TEST_F(RankProcessTest, SeesAStoppedProcessUntilItGoesOn) {
  EXPECT_EQ(look_at(other), process_state::alive);
  child.stop();
  EXPECT_EQ(look_at(other), process_state::stopped);
  child.resume();
  child.send("end");
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(look_at(other), process_state::gone);
}

TEST_F(RankProcessTest, AZombieIsGone) {
  child.send("end");
  auto status = siginfo_t{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child.pid()), &status, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(look_at(other), process_state::gone);
}

TEST_F(RankProcessTest, AnotherProcessOfTheSameNumberIsNotIt) {
  --other.start_time;
  EXPECT_EQ(look_at(other), process_state::gone);
}

TEST_F(RankProcessTest, SaysNothingOfOtherMachines) {
  child.kill();
  other.machine.front() ^= 1;
  EXPECT_EQ(look_at(other), process_state::unknown);
}

TEST_F(RankProcessTest, NamesThoseThatAreStoppedOrGone) {
  const auto alive = rank_process::self();
  auto gone = alive;
  ++gone.start_time;
  const auto number = [](const rank_process& x) { return std::to_string(x.pid); };
  EXPECT_EQ(describe_lost({alive, other}, 0), "which rank is missing cannot be told");
  child.stop();
  EXPECT_EQ(describe_lost({alive, other}, 0), "rank 1 (process " + number(other) + ") is stopped");
  EXPECT_EQ(describe_lost({alive, alive, other, gone}, 1), "rank 2 (process " + number(other)
                                                             + ") is stopped; rank 3 (process "
                                                             + number(gone) + ") is gone");
  EXPECT_EQ(describe_lost({gone, alive}, 0), "which rank is missing cannot be told")
    << "whoever asks is there";
}

} // namespace
} // namespace hicache
