#include "base/limits.hpp"
#include "base/unique_fd.hpp"
#include "base/units.hpp"
#include "tests/transport/page_channel_support.hpp"
#include "transport/addresses.hpp"
#include "transport/own_listeners.hpp"
#include "transport/page_messages.hpp"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <future>
#include <random>
#include <set>

namespace hicache::test {
namespace {

using namespace literals;
using namespace std::chrono_literals;

/// An address of this machine that other machines reach; empty if it has none.
std::string other_address() {
  auto* list = static_cast<ifaddrs*>(nullptr);
  if (::getifaddrs(&list) != 0)
    return {};
  auto found = std::string{};
  for (const auto* each = list; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET
        || (each->ifa_flags & IFF_LOOPBACK) != 0 || (each->ifa_flags & IFF_RUNNING) == 0)
      continue;
    auto address = sockaddr_storage{};
    std::memcpy(&address, each->ifa_addr, sizeof(sockaddr_in));
    found = split_address(format_address(address))->first;
  }
  ::freeifaddrs(list);
  return found;
}

TEST_P(PageChannelTest, ReadsRandomRanges) {
  constexpr auto seed = 20250607;
  SCOPED_TRACE("seed " + std::to_string(seed));
  auto random = std::mt19937_64{seed};
  for (auto round = 0; round < 20; ++round) {
    auto want = wanted{};
    for (auto i = random() % 200; i > 0; --i) {
      const auto length = random() % (random() % 10 == 0 ? 2_MiB : 20_KiB);
      want.add(random() % (memory.size() - length), length);
    }
    expect_readable(want);
  }
}

TEST_P(PageChannelTest, ScattersARangeOverTheParts) {
  constexpr auto seed = 20250611;
  SCOPED_TRACE("seed " + std::to_string(seed));
  auto random = std::mt19937_64{seed};
  for (const auto part_bytes : {size_t{1}, size_t{16}, size_t{250}, size_t{256}, size_t{5000}}) {
    auto want = wanted{};
    for (auto i = 0; i < 30; ++i) {
      const auto length = random() % 100_KiB;
      want.add(random() % (memory.size() - length), length, part_bytes);
    }
    // Messages end within parts.
    want.add(5, 2 * limits::transfer_bytes + 77, part_bytes * 1000 + 1);
    expect_readable(want);
  }
}

TEST_P(PageChannelTest, ReadsRangesLargerThanATransfer) {
  auto want = wanted{};
  want.add(3, 2 * limits::transfer_bytes + 77);
  want.add(memory.size() - 1, 1);
  want.add(0, limits::transfer_bytes);
  expect_readable(want);
}

TEST_P(PageChannelTest, ReadsMoreRangesThanOneRequestHolds) {
  auto want = wanted{};
  for (size_t i = 0; i < 3 * limits::transfer_ranges + 1; ++i)
    want.add(i * 200, 100);
  expect_readable(want);
}

/// The client asks again as soon as it has its bytes, which may be before the server knows that it
/// has them.
TEST_P(PageChannelTest, LongSeriesOfSmallTransfersAreNotTakenForTooMany) {
  auto want = wanted{};
  for (size_t i = 0; i < 60 * limits::transfer_ranges; ++i)
    want.add(i * 100, 50);
  for (auto round = 0; round < 5; ++round)
    expect_readable(want);
}

/// The sockets of this process, each as a number that no later one gets.
std::set<std::string> open_sockets() {
  auto found = std::set<std::string>{};
  for (const auto& entry : std::filesystem::directory_iterator{"/proc/self/fd"}) {
    auto gone = std::error_code{}; // The directory's own descriptor.
    if (const auto target = std::filesystem::read_symlink(entry, gone).string();
        target.starts_with("socket:"))
      found.insert(target);
  }
  return found;
}

TEST_P(PageChannelTest, AConnectionIsUsedAgain) {
  auto want = wanted{};
  for (size_t i = 0; i < 20; ++i)
    want.add(i * 1_MiB, 1_MiB);
  for (auto round = 0; round < 3; ++round)
    expect_readable(want);
  const auto before = open_sockets();
  for (auto round = 0; round < 5; ++round)
    expect_readable(want);
  EXPECT_EQ(open_sockets(), before);
}

TEST_P(PageChannelTest, NothingWantedIsNothingSent) {
  auto want = wanted{};
  EXPECT_TRUE(read_from(*client, "nowhere", want, in(1s)).empty());
  want.add(5, 0);
  want.add(200, 0);
  want.targets.back().parts.clear();
  expect_all(read_from(*client, "nowhere", want, in(1s)), ec::none);
}

TEST_P(PageChannelTest, RangesOutsideTheMemoryAreRefusedAndTheConnectionGoesOn) {
  for (auto offset : {memory.size() - 5, memory.size(), memory.size() + 1, ~size_t{0} - 4}) {
    auto want = wanted{};
    want.add(offset, 10);
    expect_all(read_from(*client, server->address(), want, in(10s)), ec::invalid_argument);
  }
  for (auto head : {memory.size() - sizeof(range_head) + 1, memory.size(), ~size_t{0} - 4}) {
    auto want = wanted{};
    want.add(0, 10);
    want.targets.back().place.head = head;
    expect_all(read_from(*client, server->address(), want, in(10s)), ec::invalid_argument);
  }
  auto want = wanted{};
  want.add(memory.size() - 10, 10);
  expect_readable(want);
}

TEST_P(PageChannelTest, HeadsComeAlong) {
  auto want = wanted{};
  want.add(1_MiB, 2_MiB);
  want.add(5_MiB, 100);
  want.add(6_MiB, 100);
  for (auto i = size_t{0}; i < 3; ++i)
    want.targets[i].place.head = memory.size() - sizeof(range_head) - i;
  const auto answers = read_from(*client, server->address(), want, in(30s));
  expect_all(answers, ec::none);
  for (auto i = size_t{0}; i < 3; ++i)
    EXPECT_TRUE(std::ranges::equal(
      answers[i]->head, std::span{memory}.subspan(want.targets[i].place.head, sizeof(range_head))));
}

TEST_P(PageChannelTest, WhatIsNotOfThePageThatTheReaderNamesIsNotSent) {
  const auto before = server->sent_bytes();
  auto want = wanted{};
  want.add(1_MiB, 2_MiB);
  want.add(5_MiB, 100);
  for (auto& target : want.targets)
    target.place.claim.generation = false_claim;
  const auto kept = want.bytes();
  want.add(6_MiB, 100);
  const auto answers = read_from(*client, server->address(), want, in(30s));
  expect_all(answers, ec::none);
  for (auto i = size_t{0}; i < 2; ++i) {
    EXPECT_TRUE(answers[i]->is_gone);
    EXPECT_EQ(answers[i]->head, range_head{});
    EXPECT_TRUE(want.bytes()[i] == kept[i]);
  }
  EXPECT_FALSE(answers[2]->is_gone);
  EXPECT_EQ(server->sent_bytes() - before, 100u);
}

TEST_P(PageChannelTest, AReadDoesNotWaitForAnotherOfTheSameClient) {
  // The kernel connects whoever comes, and nobody answers.
  const auto silent = unique_fd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  auto where = sockaddr_in{};
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto length = socklen_t{sizeof(where)};
  auto* address = reinterpret_cast<sockaddr*>(&where);
  ASSERT_EQ(::bind(silent.get(), address, length), 0);
  ASSERT_EQ(::listen(silent.get(), 1), 0);
  ASSERT_EQ(::getsockname(silent.get(), address, &length), 0);
  auto is_over = std::atomic<bool>{false};
  auto held_up = std::async(std::launch::async, [&] {
    auto want = wanted{};
    want.add(0, 1000);
    const auto at = "127.0.0.1:" + std::to_string(ntohs(where.sin_port));
    expect_all(read_from(*client, at, want, in(30s)), ec::peer_unreachable);
    is_over = true;
  });
  auto connection = pollfd{silent.get(), POLLIN, 0};
  ASSERT_EQ(::poll(&connection, 1, -1), 1);
  auto want = wanted{};
  want.add(0, 1000);
  expect_readable(want);
  EXPECT_FALSE(is_over);
  held_up.get();
}

TEST_P(PageChannelTest, SeveralClientsReadAtATime) {
  auto readers = std::vector<std::future<void>>{};
  for (auto i = 0; i < 3; ++i)
    readers.push_back(std::async(std::launch::async, [this, i] {
      auto own = make_client();
      for (auto round = 0; round < 3; ++round) {
        auto want = wanted{};
        want.add(static_cast<uint64_t>(i) * 1000, 20_MiB);
        expect_all(read_from(*own, server->address(), want, in(30s)), ec::none);
        want.expect_equal(memory);
      }
    }));
  for (auto& reader : readers)
    reader.get();
}

TEST_P(PageChannelTest, AServerThatEndsIsUnreachable) {
  auto want = wanted{};
  want.add(0, 1000);
  expect_readable(want);
  const auto address = server->address();
  server.reset();
  expect_all(read_from(*client, address, want, in(20s)), ec::peer_unreachable);
}

TEST_P(PageChannelTest, AClientThatLeavesDoesNotDisturbOthers) {
  for (auto i = 0; i < 5; ++i) {
    auto want = wanted{};
    want.add(0, 9_MiB);
    expect_readable(want);
    client = make_client();
  }
}

TEST_P(PageChannelTest, WrongAddresses) {
  auto want = wanted{};
  want.add(0, 10);
  for (const auto* address : {"", "nonsense", "127.0.0.1", "127.0.0.1:", "127.0.0.1:99999x", ":5"})
    expect_all(read_from(*client, address, want, in(5s)), ec::invalid_argument);
  const auto address = server->address();
  server.reset();
  // Nobody listens there any more.
  expect_all(read_from(*make_client(), address, want, in(20s)), ec::peer_unreachable);
}

TEST_P(PageChannelTest, NobodyListensWhereOtherMachinesGetIn) {
  auto want = wanted{};
  want.add(0, 1_MiB);
  expect_readable(want);
  const auto addresses = listening_addresses();
  EXPECT_EQ(std::ranges::count(addresses, server->address()), 1)
    << testing::PrintToString(addresses);
  for (const auto& address : addresses)
    EXPECT_TRUE(address.starts_with("127.0.0.1:")) << address;
}

TEST_P(PageChannelTest, AServerOfAnotherInterfaceIsReadByThatInterface) {
  const auto host = other_address();
  if (host.empty())
    GTEST_SKIP() << "this machine has no interface but that to itself";
  auto other = start_server(memory, options(), host);
  ASSERT_TRUE(other) << to_string(other.error());
  auto want = wanted{};
  want.add(0, 1_MiB);
  expect_readable(want); // By the interface to itself.
  expect_all(read_from(*client, (*other)->address(), want, in(30s)), ec::none);
  want.expect_equal(memory);
}

INSTANTIATE_TEST_SUITE_P(, PageChannelTest, testing::Values(way::clear, way::tls, way::ucx),
                         name_of);

TEST(PageTransportTest, IsUcxOnlyWhereThatFindsDevices) {
  const auto refusal = [](std::string_view name) {
    const auto parsed = parse_page_transport(name);
    return parsed ? std::string{} : parsed.error().detail;
  };
  EXPECT_EQ(parse_page_transport("auto"), page_transport::automatic);
  EXPECT_EQ(parse_page_transport("tcp"), page_transport::tcp);
  EXPECT_EQ(refusal("rdma"), "'rdma' is no transport of pages; expected auto, tcp or ucx");
  setenv("UCX_NET_DEVICES", "lo", 1);
  EXPECT_EQ(parse_page_transport("ucx"), page_transport::ucx);
  unsetenv("UCX_NET_DEVICES");
  if (!std::filesystem::exists("/sys/class/infiniband")) {
    EXPECT_EQ(refusal("ucx"), "this machine has no RDMA device for ucx; expected one, or "
                              "UCX_NET_DEVICES to name the devices that UCX may use");
  }
}

TEST(PageServerTest, RefusesAHostWithoutAddress) {
  const auto server = start_server({}, {}, "no-such-host.invalid");
  ASSERT_FALSE(server);
  EXPECT_EQ(server.error().code, ec::invalid_argument);
}

} // namespace
} // namespace hicache::test
