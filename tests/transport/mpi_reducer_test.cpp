#include "hicache/rank_reducer.hpp"
#include "tests/transport/reducer_contract.hpp"

#include <gtest/gtest.h>
#include <mpi.h>

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <optional>
#include <string>
#include <thread>

namespace hicache {
namespace {

/// Runs on every rank of an mpirun; all ranks run the same tests in the same order.
class MpiAgreementTest : public testing::Test {
protected:
  void SetUp() override {
    auto made = make_mpi_reducer(MPI_Comm_c2f(MPI_COMM_WORLD));
    ASSERT_TRUE(made) << to_string(made.error());
    ranks = std::move(*made);
  }

  std::unique_ptr<rank_reducer> ranks;
};

TEST_F(MpiAgreementTest, KnowsItsPlace) {
  auto rank = -1;
  auto size = -1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  EXPECT_EQ(ranks->rank(), static_cast<uint32_t>(rank));
  EXPECT_EQ(ranks->size(), static_cast<uint32_t>(size));
  EXPECT_FALSE(ranks->progress());
}

TEST_F(MpiAgreementTest, KeepsTheContract) {
  test::expect_reducer_contract(*ranks, [] { std::this_thread::yield(); });
}

TEST_F(MpiAgreementTest, ALateRankHoldsUpNobodysThread) {
  auto answered = false;
  if (ranks->rank() == 0) {
    ranks->reduce_min(reduction_channel::step, {5}, [&](auto) { answered = true; });
    // The others enter only after this barrier, so this cannot finish.
    for (auto i = 0; i < 100; ++i)
      ranks->progress();
    EXPECT_EQ(answered, ranks->size() == 1);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  if (ranks->rank() != 0)
    ranks->reduce_min(reduction_channel::step, {9}, [&](auto minima) {
      answered = true;
      EXPECT_EQ(minima->at(0), 5);
    });
  while (ranks->progress())
    std::this_thread::yield();
  EXPECT_TRUE(answered);
}

/// The last rank stops, all others look, and rank 0 lets it go on.
TEST_F(MpiAgreementTest, NamesThePeerWhoseProcessIsStopped) {
  const auto nobody = std::string{"which rank is missing cannot be told"};
  EXPECT_EQ(ranks->missing(reduction_channel::step), nobody);
  const auto last = ranks->size() - 1;
  const auto stops = ranks->rank() == last;
  auto pid = static_cast<int>(::getpid());
  MPI_Bcast(&pid, 1, MPI_INT, static_cast<int>(last), MPI_COMM_WORLD);
  auto alike = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, stops ? 1 : 0, 0, &alike);
  if (stops && last > 0)
    ::raise(SIGSTOP);
  if (!stops) {
    auto named = std::string{};
    do // It takes a moment to stop.
      named = ranks->missing(reduction_channel::step);
    while (named == nobody);
    EXPECT_EQ(named,
              "rank " + std::to_string(last) + " (process " + std::to_string(pid) + ") is stopped");
    MPI_Barrier(alike);
    if (ranks->rank() == 0)
      ::kill(pid, SIGCONT);
  }
  MPI_Comm_free(&alike);
  MPI_Barrier(MPI_COMM_WORLD);
}

TEST_F(MpiAgreementTest, ASecondSessionLeavesMpiToTheFirst) {
  {
    auto second = mpi_session::start(nullptr, nullptr);
    ASSERT_TRUE(second) << to_string(second.error());
    EXPECT_EQ(second->rank(), ranks->rank());
    EXPECT_EQ(second->size(), ranks->size());
  }
  auto finalised = 1;
  MPI_Finalized(&finalised);
  EXPECT_EQ(finalised, 0);
}

/// The peers never enter, as if they had died. Rank 0 must neither hang here nor crash when the
/// abandoned reduction's peer comes to its own end.
TEST_F(MpiAgreementTest, DestroyingAnOutstandingReductionDoesNotWait) {
  if (ranks->size() == 1)
    GTEST_SKIP() << "needs a peer";
  auto answer = std::optional<result<std::vector<int64_t>>>{};
  if (ranks->rank() == 0) {
    ranks->reduce_min(reduction_channel::engine, {1}, [&](auto minima) { answer = minima; });
    EXPECT_TRUE(ranks->progress());
    ranks.reset();
    ASSERT_TRUE(answer && !*answer);
    EXPECT_EQ(answer->error().code, ec::stopping);
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

} // namespace
} // namespace hicache

int main(int argc, char** argv) {
  // Before MPI runs there is no agreement, and the sentence says what is missing.
  const auto early = hicache::make_mpi_reducer(0);
  if (early || early.error().code != hicache::ec::unsupported
      || early.error().detail.find("MPI_THREAD_MULTIPLE") == std::string::npos) {
    std::fprintf(stderr, "an agreement without MPI was not refused\n");
    return 1;
  }
  auto session = hicache::mpi_session::start(&argc, &argv);
  if (!session) {
    std::fprintf(stderr, "%s\n", to_string(session.error()).c_str());
    return 1;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
