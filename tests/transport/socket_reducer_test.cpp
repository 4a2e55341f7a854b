#include "base/unique_fd.hpp"
#include "hicache/rank_reducer.hpp"
#include "rpc/tls.hpp"
#include "tests/rpc/authority.hpp"
#include "tests/transport/child_process.hpp"
#include "tests/transport/reducer_contract.hpp"
#include "transport/rank_limits.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <sched.h>
#include <sys/un.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <latch>
#include <optional>
#include <string>
#include <thread>

namespace hicache {
namespace {

using testing::HasSubstr;
using answer = std::optional<result<std::vector<int64_t>>>;
using made_reducer = result<std::unique_ptr<rank_reducer>>;

/// For what has to happen.
constexpr auto long_time = std::chrono::seconds{60};
/// For what does not happen.
constexpr auto short_time = std::chrono::milliseconds{300};

void yield() {
  ::sched_yield();
}

/// A port of the loopback address that was free a moment ago.
uint16_t free_port() {
  auto at = sockaddr_in{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const auto fd = unique_fd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  auto length = socklen_t{sizeof(at)};
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&at), length), 0);
  EXPECT_EQ(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&at), &length), 0);
  return ntohs(at.sin_port);
}

/// How ranks meet and which of them share memory.
enum class network : uint8_t {
  /// One host, by a path.
  path,
  /// One host, by a port.
  port,
  /// Each rank on a host of its own.
  hosts,
  /// Two ranks on a host, and TLS between them all.
  tls,
};

class SocketAgreementTest : public testing::Test {
protected:
  SocketAgreementTest() {
    auto name = (std::filesystem::temp_directory_path() / "hicache-ranks-XXXXXX").string();
    folder = ::mkdtemp(name.data());
  }

  ~SocketAgreementTest() override { std::filesystem::remove_all(folder); }

  /// What each rank is started with.
  std::vector<socket_reducer_options> instance(network how, uint32_t size) {
    auto ranks = std::vector<socket_reducer_options>(size);
    const auto port = how == network::path ? uint16_t{0} : free_port();
    for (uint32_t i = 0; i < size; ++i) {
      ranks[i].rank = i;
      ranks[i].size = size;
      ranks[i].host = how == network::path ? "unix:" + folder + "/ranks" : "127.0.0.1";
      ranks[i].port = port;
      ranks[i].job = "test";
      ranks[i].timeout = long_time;
      if (how == network::hosts)
        ranks[i].machine = "host" + std::to_string(i);
      if (how == network::tls) {
        ranks[i].machine = "host" + std::to_string(i / 2);
        ranks[i].tls = cluster_tls();
      }
    }
    return ranks;
  }

  std::shared_ptr<SSL_CTX> cluster_tls() {
    return *load_tls(cluster.sign_into(make_folder("tls")));
  }

  std::string make_folder(const std::string& name) {
    std::filesystem::create_directories(folder + "/" + name);
    return folder + "/" + name;
  }

  const test::authority cluster{"cluster"};
  std::string folder;
};

using rank_body = std::function<void(rank_reducer&, test::pipe_end&)>;

/// Each rank in a process of its own.
std::vector<test::child_process> start_processes(std::vector<socket_reducer_options> ranks,
                                                 const rank_body& body) {
  auto started = std::vector<test::child_process>{};
  for (const auto& options : ranks)
    started.push_back(test::child_process::start([&](test::pipe_end& parent) {
      {
        auto made = make_socket_reducer(options);
        EXPECT_TRUE(made) << to_string(made.error());
        if (made)
          body(**made, parent);
      }
      std::fflush(stdout);
      return testing::Test::HasFailure() ? 1 : 0;
    }));
  return started;
}

/// Each rank on a thread of its own.
void run_threads(const std::vector<socket_reducer_options>& ranks,
                 const std::function<void(uint32_t, made_reducer)>& body) {
  auto threads = std::vector<std::jthread>{};
  for (const auto& options : ranks)
    threads.emplace_back([&options, &body] { body(options.rank, make_socket_reducer(options)); });
}

answer reduce(rank_reducer& rank, reduction_channel channel, std::vector<int64_t> values) {
  return test::reduce(rank, channel, std::move(values), yield);
}

// -- the contract -------------------------------------------------------------

class SocketAgreementContractTest
  : public SocketAgreementTest,
    public testing::WithParamInterface<std::tuple<network, uint32_t>> {};

TEST_P(SocketAgreementContractTest, ProcessesKeepIt) {
  const auto [how, size] = GetParam();
  auto ranks
    = start_processes(instance(how, size), [how = how, size = size](rank_reducer& rank, auto&) {
        EXPECT_EQ(rank.size(), size);
        EXPECT_FALSE(rank.progress());
        if (size > 1 && how == network::path) {
          EXPECT_EQ(rank.missing(reduction_channel::step), "which rank is missing cannot be told");
        }
        test::expect_reducer_contract(rank, yield);
      });
  for (auto& rank : ranks)
    EXPECT_EQ(rank.wait(), 0);
  EXPECT_FALSE(std::filesystem::exists(folder + "/ranks")) << "the path is left";
}

INSTANTIATE_TEST_SUITE_P(Ranks, SocketAgreementContractTest,
                         testing::Combine(testing::Values(network::path, network::port,
                                                          network::hosts, network::tls),
                                          testing::Values(1, 2, 4)));

// -- ranks that come late, end, die or stop -----------------------------------

class SocketAgreementFaultTest : public SocketAgreementTest,
                                 public testing::WithParamInterface<network> {};

INSTANTIATE_TEST_SUITE_P(Networks, SocketAgreementFaultTest,
                         testing::Values(network::path, network::hosts, network::tls));

TEST_P(SocketAgreementFaultTest, ALateRankHoldsUpNobodysThread) {
  auto entered = std::latch{1};
  run_threads(instance(GetParam(), 2), [&](uint32_t me, made_reducer made) {
    ASSERT_TRUE(made) << to_string(made.error());
    auto& rank = **made;
    auto minima = answer{};
    if (me == 1)
      entered.wait();
    rank.reduce_min(reduction_channel::step, {5 + me}, [&](auto x) { minima = std::move(x); });
    if (me == 0) {
      for (auto i = 0; i < 100; ++i)
        EXPECT_TRUE(rank.progress());
      EXPECT_FALSE(minima);
      entered.count_down();
    }
    while (rank.progress())
      yield();
    ASSERT_TRUE(minima && *minima);
    EXPECT_EQ((*minima)->at(0), 5);
  });
}

TEST_P(SocketAgreementFaultTest, TheOthersAreToldOfARankThatWasKilled) {
  for (const auto lost : {0U, 2U}) {
    auto ranks = start_processes(instance(GetParam(), 4), [&](rank_reducer& rank, auto& parent) {
      EXPECT_TRUE(*reduce(rank, reduction_channel::step, {1}));
      if (rank.rank() == lost) {
        parent.send("ready");
        parent.receive(); // Until it is killed.
        return;
      }
      auto minima = answer{};
      rank.reduce_min(reduction_channel::step, {2}, [&](auto x) { minima = std::move(x); });
      EXPECT_TRUE(rank.progress());
      parent.send("ready");
      while (rank.progress())
        yield();
      const auto late = reduce(rank, reduction_channel::admin, {3});
      if (!minima || *minima || !late || *late) {
        ADD_FAILURE() << "a reduction ended without rank " << lost;
        return;
      }
      for (const auto& failed : {minima->error(), late->error()})
        EXPECT_EQ(failed.code, ec::rank_unresponsive);
      parent.send(minima->error().detail + "|" + rank.missing(reduction_channel::step));
      parent.receive(); // Nobody ends before all were told of the first.
    });
    for (auto& rank : ranks)
      EXPECT_EQ(rank.receive(), "ready");
    const auto gone = "rank " + std::to_string(lost) + " (process "
                      + std::to_string(ranks[lost].pid()) + ") is gone";
    ranks[lost].kill();
    for (uint32_t i = 0; i < ranks.size(); ++i) {
      const auto told = i == lost ? "" : ranks[i].receive();
      EXPECT_EQ(told, i == lost ? "" : gone + "|" + gone) << "rank " << i;
    }
    for (uint32_t i = 0; i < ranks.size(); ++i)
      if (i != lost) {
        ranks[i].send("end");
        EXPECT_EQ(ranks[i].wait(), 0);
      }
  }
}

/// Nobody but the one that asks is in a reduction, so nobody else looks.
TEST_P(SocketAgreementFaultTest, ADeathIsToldAlsoWhileRankZeroIsBusyElsewhere) {
  auto ranks = start_processes(instance(GetParam(), 4), [](rank_reducer& rank, auto& parent) {
    auto minima = answer{};
    if (rank.rank() == 1)
      rank.reduce_min(reduction_channel::step, {2}, [&](auto x) { minima = std::move(x); });
    parent.send("ready");
    if (rank.rank() == 1) {
      while (rank.progress())
        yield();
      parent.send(to_string(minima->error()));
    }
    parent.receive();
  });
  for (auto& rank : ranks)
    EXPECT_EQ(rank.receive(), "ready");
  const auto gone = "rank 3 (process " + std::to_string(ranks[3].pid()) + ") is gone";
  ranks[3].kill();
  EXPECT_EQ(ranks[1].receive(), "rank_unresponsive: " + gone);
}

TEST_F(SocketAgreementTest, ARankThatIsStoppedIsNamedAndMayGoOn) {
  auto ranks = start_processes(instance(network::port, 4), [](rank_reducer& rank, auto& parent) {
    EXPECT_TRUE(*reduce(rank, reduction_channel::step, {1}));
    parent.send("ready");
    parent.receive();
    auto minima = answer{};
    rank.reduce_min(reduction_channel::step, {rank.rank()}, [&](auto x) { minima = std::move(x); });
    // The one that was stopped may find the others there.
    if (rank.rank() != 2) {
      EXPECT_TRUE(rank.progress());
      parent.send("entered");
      parent.receive();
      parent.send(rank.missing(reduction_channel::step));
    }
    while (rank.progress())
      yield();
    EXPECT_TRUE(minima && *minima && (*minima)->at(0) == 0);
  });
  for (auto& rank : ranks)
    EXPECT_EQ(rank.receive(), "ready");
  ranks[2].stop();
  for (auto& rank : ranks)
    rank.send("enter");
  for (const auto i : {0, 1, 3})
    EXPECT_EQ(ranks[i].receive(), "entered");
  const auto stopped = "rank 2 (process " + std::to_string(ranks[2].pid()) + ") is stopped";
  for (const auto i : {0, 1, 3}) {
    ranks[i].send("who?");
    EXPECT_EQ(ranks[i].receive(), stopped);
  }
  ranks[2].resume();
  for (auto& rank : ranks)
    EXPECT_EQ(rank.wait(), 0);
}

TEST_F(SocketAgreementTest, RankZeroKnowsWhichHostsLackARank) {
  auto together = std::latch{4};
  auto asked = std::latch{4};
  run_threads(instance(network::tls, 4), [&](uint32_t me, made_reducer made) {
    ASSERT_TRUE(made) << to_string(made.error());
    auto& rank = **made;
    auto minima = answer{};
    const auto enter = [&] {
      rank.reduce_min(reduction_channel::step, {me}, [&](auto x) { minima = std::move(x); });
      rank.progress();
    };
    if (me != 3)
      enter();
    together.arrive_and_wait();
    const auto said = rank.missing(reduction_channel::step);
    if (me == 0) {
      EXPECT_EQ(said, "one of ranks 2, 3, which share a host, has not arrived");
    } else if (me == 1) {
      EXPECT_EQ(said, "a rank on another host has not arrived; rank 0 knows on which");
    } else if (me == 2) {
      EXPECT_THAT(said, HasSubstr("rank 3 (process "));
    }
    asked.arrive_and_wait();
    if (me == 3)
      enter();
    while (rank.progress())
      yield();
    EXPECT_TRUE(minima && *minima);
  });
}

/// A rank that goes at once when it has an answer takes from nobody the same answer.
TEST_P(SocketAgreementFaultTest, WhatEndedBeforeARankWentAwayHasEndedWell) {
  for (auto turn = 0; turn < 20; ++turn) {
    auto late = std::latch{3};
    run_threads(instance(GetParam(), 4), [&](uint32_t me, made_reducer made) {
      ASSERT_TRUE(made) << to_string(made.error());
      auto& rank = **made;
      auto minima = answer{};
      rank.reduce_min(reduction_channel::step, {me}, [&](auto x) { minima = std::move(x); });
      if (me == 3)
        late.wait(); // Looks when all others are gone.
      while (rank.progress())
        yield();
      ASSERT_TRUE(minima);
      EXPECT_TRUE(*minima) << to_string(minima->error());
      if (me == 3) {
        const auto next = reduce(rank, reduction_channel::step, {1});
        ASSERT_TRUE(next && !*next);
        EXPECT_EQ(next->error().code, ec::rank_unresponsive);
        EXPECT_THAT(next->error().detail, HasSubstr("has ended"));
      } else {
        made->reset();
        late.count_down();
      }
    });
  }
}

TEST_F(SocketAgreementTest, DestroyingAnOutstandingReductionDoesNotWait) {
  run_threads(instance(network::hosts, 2), [&](uint32_t me, made_reducer made) {
    ASSERT_TRUE(made) << to_string(made.error());
    auto minima = answer{};
    if (me == 0)
      (*made)->reduce_min(reduction_channel::engine, {1}, [&](auto x) { minima = std::move(x); });
    made->reset();
    ASSERT_EQ(minima.has_value(), me == 0);
    EXPECT_TRUE(!minima || minima->error().code == ec::stopping);
  });
}

// -- lengths ------------------------------------------------------------------

TEST_P(SocketAgreementFaultTest, UnequalLengthsFailOnEveryRankAndTheNextReductionWorks) {
  run_threads(instance(GetParam(), 4), [](uint32_t me, made_reducer made) {
    ASSERT_TRUE(made) << to_string(made.error());
    for (const auto odd : {0U, 3U}) {
      const auto minima
        = reduce(**made, reduction_channel::step, std::vector<int64_t>(me == odd ? 3 : 5));
      ASSERT_TRUE(minima && !*minima);
      EXPECT_EQ(minima->error().code, ec::configuration_mismatch);
      EXPECT_EQ(minima->error().detail, "ranks offered 3 and 5 values to one reduction");
    }
    const auto next = reduce(**made, reduction_channel::step, {7});
    EXPECT_TRUE(next && *next);
  });
}

TEST_P(SocketAgreementFaultTest, TheLongestVectorsFitAndLongerOnesAreRefused) {
  run_threads(instance(GetParam(), 4), [](uint32_t me, made_reducer made) {
    ASSERT_TRUE(made) << to_string(made.error());
    const auto mine = std::vector<int64_t>(rank_limits::values, me);
    for (const auto channel : {reduction_channel::step, reduction_channel::engine}) {
      const auto minima = reduce(**made, channel, mine);
      ASSERT_TRUE(minima && *minima);
      EXPECT_EQ(**minima, std::vector<int64_t>(rank_limits::values, 0));
    }
    const auto more
      = reduce(**made, reduction_channel::step, std::vector<int64_t>(rank_limits::values + 1, me));
    ASSERT_TRUE(more && !*more);
    EXPECT_EQ(more->error().code, ec::limit_reached);
  });
}

// -- who does not belong ------------------------------------------------------

bool is_open(const socket_reducer_options& where) {
  const auto fd = unique_fd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  auto at = sockaddr_in{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  at.sin_port = htons(where.port);
  return ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&at), sizeof(at)) == 0;
}

unique_fd connect_stranger(const socket_reducer_options& where) {
  auto fd = unique_fd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  auto at = sockaddr_in{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  at.sin_port = htons(where.port);
  while (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&at), sizeof(at)) != 0)
    yield();
  return fd;
}

TEST_P(SocketAgreementFaultTest, StrangersKeepNoRankOut) {
  const auto ranks = instance(GetParam() == network::path ? network::port : GetParam(), 2);
  auto first = made_reducer{};
  auto waiting = std::jthread{[&] { first = make_socket_reducer(ranks[0]); }};
  auto strangers = std::vector<unique_fd>{};
  const auto zeros = std::string(17, '\0');
  const auto half_hello = std::string{"\x90\0\0\0\1\0\0\0\0\0\0\0\0\0\0\0hiranks\0\1", 25};
  for (const auto& bytes : {std::string{"GET / HTTP/1.1\r\n\r\n"}, zeros, half_hello,
                            std::string(100'000, '\xff'), std::string{}})
    for (size_t i = 0; i < rank_limits::unknown_peers / 2; ++i) {
      strangers.push_back(connect_stranger(ranks[0]));
      static_cast<void>(::send(strangers.back().get(), bytes.data(), bytes.size(), MSG_NOSIGNAL));
      if (i % 2 == 0)
        strangers.pop_back();
    }
  auto second = make_socket_reducer(ranks[1]);
  waiting.join();
  ASSERT_TRUE(first) << to_string(first.error());
  ASSERT_TRUE(second) << to_string(second.error());
  EXPECT_FALSE(is_open(ranks[0])) << "all have come";
  auto other = std::jthread{[&] { EXPECT_TRUE(*reduce(**second, reduction_channel::step, {1})); }};
  EXPECT_TRUE(*reduce(**first, reduction_channel::step, {2}));
}

TEST_F(SocketAgreementTest, ARankThatDoesNotBelongIsToldWhyAndTheOthersGoOn) {
  const auto ranks = instance(network::port, 3);
  auto doubled = std::latch{1};
  auto threads = std::vector<std::jthread>{};
  const auto start = [&](const socket_reducer_options& options) {
    threads.emplace_back([&, options] {
      const auto made = make_socket_reducer(options);
      if (made) {
        EXPECT_TRUE(*reduce(**made, reduction_channel::step, {1}));
        return;
      }
      EXPECT_EQ(to_string(made.error()), "invalid_argument: rank 1 is there already; expected each "
                                         "rank from 0 to 2 once");
      doubled.count_down();
    });
  };
  const auto refusal = [](const socket_reducer_options& options) {
    const auto made = make_socket_reducer(options);
    EXPECT_FALSE(made);
    return made ? "" : to_string(made.error());
  };
  start(ranks[0]);
  auto odd = ranks[1];
  odd.size = 5;
  EXPECT_EQ(refusal(odd), "invalid_argument: rank 1 was started as one of 5 ranks, rank 0 as one "
                          "of 3; expected the same on every rank");
  odd = ranks[1];
  odd.job = "other";
  EXPECT_EQ(refusal(odd), "invalid_argument: rank 1 is of the job 'other', rank 0 of 'test'; "
                          "expected the same on every rank");
  start(ranks[1]);
  start(ranks[1]);
  doubled.wait();
  start(ranks[2]);
}

TEST_F(SocketAgreementTest, RanksThatNeverComeAreNamed) {
  auto ranks = instance(network::port, 4);
  ranks.resize(2);
  for (auto& rank : ranks)
    rank.timeout = 5 * short_time;
  ranks[1].timeout = long_time;
  run_threads(ranks, [](uint32_t, made_reducer made) {
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code, ec::rank_unresponsive);
    EXPECT_THAT(made.error().detail, HasSubstr("not all ranks of the instance have started: of 4, "
                                               "rank 2, 3 has not come to 127.0.0.1:"));
  });
}

TEST_F(SocketAgreementTest, ARankWithoutRankZeroSaysWhereItLooked) {
  auto ranks = instance(network::path, 2);
  ranks[1].timeout = short_time;
  const auto made = make_socket_reducer(ranks[1]);
  ASSERT_FALSE(made);
  EXPECT_EQ(to_string(made.error()),
            "rank_unresponsive: not all ranks of the instance have started: rank 0 is not at "
              + ranks[1].host + " (No such file or directory)");
}

TEST_F(SocketAgreementTest, WithTlsBothSidesLookAtCertificates) {
  const auto others = test::authority{"other"};
  auto ranks = instance(network::hosts, 2);
  for (auto& rank : ranks)
    rank.tls = cluster_tls();
  auto host = std::jthread{[&] {
    const auto made = make_socket_reducer(ranks[0]);
    ASSERT_TRUE(made) << to_string(made.error());
    EXPECT_TRUE(*reduce(**made, reduction_channel::step, {1}));
  }};
  // Does not trust rank 0.
  auto stranger = ranks[1];
  auto files = others.sign_into(make_folder("other"));
  stranger.tls = *load_tls(files);
  const auto refused = make_socket_reducer(stranger);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ec::invalid_argument);
  EXPECT_THAT(refused.error().detail, HasSubstr("TLS: certificate verify failed"));
  // Trusts it, but shows a certificate that rank 0 does not trust.
  files.ca = folder + "/tls/ca.crt";
  stranger.tls = *load_tls(files);
  const auto untrusted = make_socket_reducer(stranger);
  ASSERT_FALSE(untrusted);
  EXPECT_EQ(untrusted.error().code, ec::invalid_argument);
  EXPECT_THAT(untrusted.error().detail, HasSubstr("unknown ca"));
  auto in_clear = ranks[1];
  in_clear.tls = nullptr;
  in_clear.timeout = short_time;
  const auto plain = make_socket_reducer(in_clear);
  ASSERT_FALSE(plain);
  EXPECT_EQ(plain.error().code, ec::rank_unresponsive);
  const auto made = make_socket_reducer(ranks[1]);
  ASSERT_TRUE(made) << to_string(made.error());
  EXPECT_TRUE(*reduce(**made, reduction_channel::step, {2}));
}

TEST_F(SocketAgreementTest, RanksOfOneInstanceHaveOneRole) {
  const auto keys = [&](const char* role, tls_peers peers) {
    return *load_tls(cluster.sign_into(make_folder(role), {role}), peers);
  };
  auto ranks = instance(network::hosts, 2);
  ranks[0].tls = keys("hicache:reader", tls_peers::ranks);
  auto host = std::jthread{[&] {
    const auto made = make_socket_reducer(ranks[0]);
    ASSERT_TRUE(made) << to_string(made.error());
    EXPECT_TRUE(*reduce(**made, reduction_channel::step, {1}));
  }};
  auto other = ranks[1];
  other.tls = keys("hicache:member", tls_peers::ranks);
  const auto refused = make_socket_reducer(other);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ec::invalid_argument);
  ranks[1].tls = keys("hicache:reader", tls_peers::ranks);
  const auto made = make_socket_reducer(ranks[1]);
  ASSERT_TRUE(made) << to_string(made.error());
  EXPECT_TRUE(*reduce(**made, reduction_channel::step, {2}));
}

TEST_F(SocketAgreementTest, RankZeroLooksAtTheRoleOfTheOthers) {
  auto ranks = instance(network::hosts, 2);
  for (auto& rank : ranks)
    rank.tls = *load_tls(cluster.sign_into(make_folder("tls")), tls_peers::ranks);
  auto host = std::jthread{[&] {
    const auto made = make_socket_reducer(ranks[0]);
    ASSERT_TRUE(made) << to_string(made.error());
    EXPECT_TRUE(*reduce(**made, reduction_channel::step, {1}));
  }};
  // Does not look itself.
  auto stranger = ranks[1];
  stranger.tls = *load_tls(cluster.sign_into(make_folder("reader"), {"hicache:reader"}));
  const auto refused = make_socket_reducer(stranger);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ec::invalid_argument);
  const auto made = make_socket_reducer(ranks[1]);
  ASSERT_TRUE(made) << to_string(made.error());
  EXPECT_TRUE(*reduce(**made, reduction_channel::step, {2}));
}

TEST_F(SocketAgreementTest, OptionsThatCannotBeAreRefused) {
  auto options = instance(network::path, 2)[1];
  options.rank = 2;
  EXPECT_EQ(make_socket_reducer(options).error().code, ec::invalid_argument);
  options.rank = 0;
  options.host = "unix:/nowhere/ranks";
  EXPECT_THAT(make_socket_reducer(options).error().detail,
              HasSubstr("rank 0 cannot wait for the other ranks at unix:/nowhere/ranks (No such"));
  options.job = std::string(64, 'x');
  EXPECT_EQ(make_socket_reducer(options).error().code, ec::invalid_argument);
}

} // namespace
} // namespace hicache
