// Page servers that die or hang, and ranges that several servers have.

#include "base/limits.hpp"
#include "base/units.hpp"
#include "tests/transport/page_channel_support.hpp"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <filesystem>
#include <future>
#include <set>
#include <string>

namespace hicache::test {
namespace {

using namespace literals;
using namespace std::chrono_literals;

class PageServerProcessTest : public PageWayTest {};

INSTANTIATE_TEST_SUITE_P(, PageServerProcessTest, testing::Values(way::clear, way::tls, way::ucx),
                         name_of);

TEST_P(PageServerProcessTest, AKilledServerFailsWhatIsMissingLongBeforeTheDeadline) {
  auto child = serve(32_MiB);
  const auto address = child.receive();
  auto client = make_client();
  auto rounds = std::promise<void>{};
  auto reader = std::async(std::launch::async, [&] {
    for (auto round = 0;; ++round) {
      auto want = wanted{};
      for (size_t i = 0; i < 32; ++i)
        want.add(i * 1_MiB, 1_MiB);
      if (round == 2)
        rounds.set_value();
      auto answers = read_from(*client, address, want, in(60s));
      if (std::any_of(answers.begin(), answers.end(), [](const auto& x) { return !x; }))
        return answers;
    }
  });
  rounds.get_future().wait();
  const auto killed = std::chrono::steady_clock::now();
  child.kill();
  for (const auto& answer : reader.get())
    if (!answer) {
      EXPECT_EQ(answer.error().code, ec::peer_unreachable) << to_string(answer.error());
    }
  EXPECT_LT(std::chrono::steady_clock::now() - killed, 30s);
}

TEST_P(PageServerProcessTest, AHangingServerCostsNoMoreThanTheDeadlineAndNothingIsWrittenLater) {
  auto child = serve(32_MiB);
  const auto address = child.receive();
  const auto memory = pattern(32_MiB);
  auto client = make_client();
  auto first = wanted{};
  first.add(0, 1_MiB);
  expect_all(read_from(*client, address, first, in(20s)), ec::none);
  child.stop();
  auto late = wanted{};
  late.add(1_MiB, 20_MiB);
  const auto began = std::chrono::steady_clock::now();
  expect_all(read_from(*client, address, late, in(200ms)), ec::deadline_exceeded);
  EXPECT_LT(std::chrono::steady_clock::now() - began, 5s);
  expect_all(read_from(*client, address, late, in(-1s)), ec::deadline_exceeded);
  child.resume();
  const auto before = late.bytes();
  auto again = wanted{};
  again.add(5_MiB, 20_MiB);
  expect_all(read_from(*client, address, again, in(30s)), ec::none);
  again.expect_equal(memory);
  EXPECT_TRUE(late.bytes() == before) << "an abandoned transfer wrote to its target";
}

TEST_P(PageChannelTest, NothingIsWrittenAfterAReadThatEndsInTheMiddle) {
  auto first = wanted{};
  first.add(0, 1_MiB);
  expect_readable(first);
  // However fast this machine is, some of these deadlines come while bytes are received.
  auto cut = 0;
  for (auto allowed = 100us; allowed < 2s && cut < 20; allowed += allowed / 8) {
    auto part = wanted{};
    part.add(3_MiB, 32_MiB);
    const auto answers = read_from(*client, server->address(), part, in(allowed));
    auto& bytes = part.targets[0].bytes;
    const auto was_cut = bytes.front() != std::byte{0xee} && !answers[0];
    cut += was_cut ? 1 : 0;
    std::ranges::fill(bytes, std::byte{0xdd});
    auto again = wanted{};
    again.add(5_MiB, 4_MiB);
    expect_readable(again);
    ASSERT_EQ(std::ranges::count(bytes, std::byte{0xdd}), bytes.size())
      << "after " << allowed.count() << " us";
  }
  EXPECT_GT(cut, 0);
}

/// The ports of this process' connections to a server.
std::set<in_port_t> ports_to(const std::string& server) {
  auto ports = std::set<in_port_t>{};
  const auto server_port = std::stoi(server.substr(server.rfind(':') + 1));
  for (const auto& entry : std::filesystem::directory_iterator{"/proc/self/fd"}) {
    const auto fd = std::stoi(entry.path().filename().string());
    auto near = sockaddr_in{};
    auto far = sockaddr_in{};
    auto length = socklen_t{sizeof(near)};
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&far), &length) == 0
        && ntohs(far.sin_port) == server_port
        && ::getsockname(fd, reinterpret_cast<sockaddr*>(&near), &length) == 0)
      ports.insert(ntohs(near.sin_port));
  }
  return ports;
}

class PageUcxTest : public PageWayTest {};

INSTANTIATE_TEST_SUITE_P(, PageUcxTest, testing::Values(way::ucx), name_of);

TEST_P(PageUcxTest, AReadThatIsGivenUpLeavesTheConnectionAsItIs) {
  auto child = serve(32_MiB);
  const auto address = child.receive();
  const auto memory = pattern(32_MiB);
  const auto client = make_client();
  auto first = wanted{};
  first.add(0, 1_MiB);
  expect_all(read_from(*client, address, first, in(30s)), ec::none);
  const auto ports = ports_to(address);
  ASSERT_EQ(ports.size(), 1u);
  child.stop();
  for (auto i = 0; i < 3; ++i) {
    auto late = wanted{};
    late.add(1_MiB, 20_MiB);
    expect_all(read_from(*client, address, late, in(50ms)), ec::deadline_exceeded);
  }
  child.resume();
  auto again = wanted{};
  again.add(5_MiB, 20_MiB);
  expect_all(read_from(*client, address, again, in(30s)), ec::none);
  again.expect_equal(memory);
  EXPECT_EQ(ports_to(address), ports);
}

// -- several places for the same bytes ----------------------------------------

TEST_P(PageServerProcessTest, ReadsFromSeveralServersAtATimeOfWhichOneHangs) {
  auto near = serve(32_MiB);
  auto other = serve(32_MiB);
  auto hung = serve(32_MiB);
  const auto near_address = near.receive();
  const auto other_address = other.receive();
  const auto hung_address = hung.receive();
  const auto memory = pattern(32_MiB);
  const auto client = make_client();
  auto first = wanted{};
  first.add(0, 10);
  expect_all(read_from(*client, hung_address, first, in(20s)), ec::none);
  hung.stop();
  auto want = wanted{};
  want.add(1, 100);
  want.add(5, 3000);
  want.add(70, 12_MiB);
  auto reads = want.from({hung_address, near_address, other_address});
  for (auto i = size_t{0}; i < 3; ++i)
    reads.ranges[i].places = reads.ranges[i].places.subspan(i, 1);
  const auto answers = client->read(reads, in(60s));
  ASSERT_EQ(answers.size(), 3u);
  expect_all({answers[0]}, ec::peer_unreachable);
  expect_all({answers[1], answers[2]}, ec::none);
  want.targets.pop_front();
  want.expect_equal(memory);
  // Nobody waits for it once more.
  const auto begin = std::chrono::steady_clock::now();
  expect_all(read_from(*client, hung_address, first, in(60s)), ec::peer_unreachable);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, limits::read_stall);
  hung.resume();
}

TEST_P(PageServerProcessTest, ALateServerIsOvertakenAndThenAskedLast) {
  auto late = serve(32_MiB);
  auto other = serve(32_MiB);
  const auto servers = std::vector<std::string>{late.receive(), other.receive()};
  const auto memory = pattern(32_MiB);
  const auto client = make_client();
  auto first = wanted{};
  first.add(0, 10);
  const auto served = client->read(first.from(servers), in(20s));
  expect_all(served, ec::none);
  EXPECT_EQ(served.front()->place, 0u);
  late.stop();
  auto want = wanted{};
  want.add(3, 12_MiB);
  want.add(20_MiB, 1000);
  for (const auto is_late : {true, false}) {
    const auto begin = std::chrono::steady_clock::now();
    const auto answers = client->read(want.from(servers), in(60s));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, limits::read_stall);
    expect_all(answers, ec::none);
    for (const auto& answer : answers)
      EXPECT_EQ(answer->place, 1u);
    want.expect_equal(memory);
    if (is_late)
      late.resume();
  }
  // What it sends now is for nobody, but it still serves.
  const auto before = want.bytes();
  expect_all(read_from(*client, servers.front(), first, in(30s)), ec::none);
  EXPECT_TRUE(want.bytes() == before);
}

TEST_P(PageChannelTest, TheNextPlaceServesWhatTheFirstCannot) {
  const auto little = pattern(1_MiB);
  auto small = start_server(little);
  ASSERT_TRUE(small);
  auto gone = start_server(little);
  ASSERT_TRUE(gone);
  const auto nowhere = (*gone)->address();
  gone->reset();
  auto want = wanted{};
  want.add(2_MiB, 3_MiB);
  const auto answers
    = client->read(want.from({nowhere, (*small)->address(), server->address()}), in(30s));
  expect_all(answers, ec::none);
  EXPECT_EQ(answers.front()->place, 2u);
  want.expect_equal(memory);
}

TEST_P(PageChannelTest, WhatManyWantIsSentAFewTimesToReadersThatOfferIt) {
  auto want = wanted{};
  want.insists = false;
  want.add(4096, 100);
  auto exporters = std::vector<std::unique_ptr<page_client>>{};
  for (auto i = 0u; i < limits::demand_serves; ++i) {
    auto exporter = page_client::create(options(), true);
    ASSERT_TRUE(exporter);
    exporters.push_back(std::move(*exporter));
    // Twice: a reader counts once.
    for (auto time = 0; time < 2; ++time) {
      const auto answers = read_from(*exporters.back(), server->address(), want, in(30s));
      expect_all(answers, ec::none);
      EXPECT_EQ(answers.front()->in_demand, i > 0);
    }
  }
  want.add(1, 3);
  const auto answers = read_from(*client, server->address(), want, in(30s));
  expect_all({answers[0]}, ec::limit_reached);
  expect_all({answers[1]}, ec::none);
  want.insists = true;
  expect_readable(want);
}

} // namespace
} // namespace hicache::test
