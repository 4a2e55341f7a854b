#include "base/limits.hpp"
#include "base/page_checksum.hpp"
#include "base/units.hpp"
#include "tests/transport/child_process.hpp"
#include "transport/own_listeners.hpp"
#include "transport/page_channel.hpp"
#include "transport/page_messages.hpp"
#include "transport/ucx.hpp"

#include <gtest/gtest.h>

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <filesystem>
#include <future>
#include <random>
#include <set>

namespace hicache {
namespace {

using namespace literals;
using namespace std::chrono_literals;

time_point in(duration time) {
  return std::chrono::steady_clock::now() + time;
}

/// Bytes that tell their place.
std::vector<std::byte> pattern(size_t size) {
  auto bytes = std::vector<std::byte>(size);
  for (size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::byte>((i * 2654435761u) >> 13);
  return bytes;
}

/// Ranges with targets of their own, and where they come from: from the same place of each server.
struct wanted {
  struct target {
    range_place place;
    std::vector<range_place> places;
    std::vector<std::byte> bytes;
    std::vector<std::span<std::byte>> parts;
  };

  std::deque<target> targets;
  bool insists = true;

  /// @param part_bytes Into parts of how many bytes the target is cut; 0 leaves it whole.
  void add(uint64_t offset, size_t length, size_t part_bytes = 0) {
    auto& x = targets.emplace_back();
    x.place.offset = offset;
    x.bytes.assign(length, std::byte{0xee});
    auto rest = std::span{x.bytes};
    for (; part_bytes != 0 && rest.size() > part_bytes; rest = rest.subspan(part_bytes))
      x.parts.push_back(rest.first(part_bytes));
    x.parts.push_back(rest);
  }

  range_reads from(std::vector<std::string> servers) {
    auto reads = range_reads{std::move(servers), {}};
    for (auto& x : targets) {
      x.places.assign(reads.servers.size(), x.place);
      for (auto i = size_t{0}; i < x.places.size(); ++i)
        x.places[i].server = i;
      reads.ranges.push_back({x.places, x.parts, insists});
    }
    return reads;
  }

  std::vector<std::vector<std::byte>> bytes() const {
    auto all = std::vector<std::vector<std::byte>>{};
    for (const auto& x : targets)
      all.push_back(x.bytes);
    return all;
  }

  void expect_equal(std::span<const std::byte> memory) const {
    for (const auto& x : targets)
      ASSERT_TRUE(std::equal(x.bytes.begin(), x.bytes.end(),
                             memory.begin() + static_cast<std::ptrdiff_t>(x.place.offset)))
        << x.bytes.size() << " bytes at " << x.place.offset;
  }
};

void expect_all(const std::vector<result<range_answer>>& answers, ec code) {
  for (const auto& answer : answers) {
    ASSERT_EQ(answer.has_value(), code == ec::none)
      << (answer ? std::string{} : to_string(answer.error()));
    if (!answer) {
      EXPECT_EQ(answer.error().code, code) << to_string(answer.error());
    }
  }
}

/// The pages of these tests are bytes without headers; claims of this generation are false.
constexpr auto false_claim = uint32_t{7};

result<std::unique_ptr<page_server>> start_server(std::span<const std::byte> memory,
                                                  const std::string& host = "127.0.0.1") {
  const auto guard = [](const range_claim& claim, uint64_t, const range_head&, uint64_t, uint64_t) {
    return claim.generation != false_claim;
  };
  return page_server::start(memory, guard, host);
}

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

/// A server in a process of its own, so that it can be stopped and killed.
test::child_process serve(size_t size) {
  return test::child_process::start([size](test::pipe_end& parent) {
    const auto memory = pattern(size);
    auto server = start_server(memory);
    parent.send(server ? (*server)->address() : to_string(server.error()));
    parent.receive();
    return 0;
  });
}

std::unique_ptr<page_client> make_client() {
  auto client = page_client::create();
  EXPECT_TRUE(client) << to_string(client.error());
  return std::move(*client);
}

/// Reads from one server.
std::vector<result<range_answer>> read_from(page_client& client, const std::string& address,
                                            wanted& want, time_point deadline) {
  return client.read(want.from({address}), deadline);
}

class PageChannelTest : public testing::Test {
protected:
  void SetUp() override {
    auto started = start_server(memory);
    ASSERT_TRUE(started) << to_string(started.error());
    server = std::move(*started);
    client = make_client();
  }

  /// Reads and expects the memory's bytes.
  void expect_readable(wanted& want) {
    const auto answers = read_from(*client, server->address(), want, in(30s));
    expect_all(answers, ec::none);
    want.expect_equal(memory);
    for (auto i = size_t{0}; i < answers.size(); ++i)
      ASSERT_EQ(answers[i]->checksum, page_checksum(want.targets[i].parts));
  }

  std::vector<std::byte> memory = pattern(48_MiB);
  std::unique_ptr<page_server> server;
  std::unique_ptr<page_client> client;
};

TEST_F(PageChannelTest, ReadsRandomRanges) {
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

TEST_F(PageChannelTest, ScattersARangeOverTheParts) {
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

TEST_F(PageChannelTest, ReadsRangesLargerThanATransfer) {
  auto want = wanted{};
  want.add(3, 2 * limits::transfer_bytes + 77);
  want.add(memory.size() - 1, 1);
  want.add(0, limits::transfer_bytes);
  expect_readable(want);
}

TEST_F(PageChannelTest, ReadsMoreRangesThanOneRequestHolds) {
  auto want = wanted{};
  for (size_t i = 0; i < 3 * limits::transfer_ranges + 1; ++i)
    want.add(i * 200, 100);
  expect_readable(want);
}

/// The client asks again as soon as it has its bytes, which may be before the server knows that it
/// has them.
TEST_F(PageChannelTest, LongSeriesOfSmallTransfersAreNotTakenForTooMany) {
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

TEST_F(PageChannelTest, AConnectionIsUsedAgain) {
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

TEST_F(PageChannelTest, NothingWantedIsNothingSent) {
  auto want = wanted{};
  EXPECT_TRUE(read_from(*client, "nowhere", want, in(1s)).empty());
  want.add(5, 0);
  want.add(200, 0);
  want.targets.back().parts.clear();
  expect_all(read_from(*client, "nowhere", want, in(1s)), ec::none);
}

TEST_F(PageChannelTest, RangesOutsideTheMemoryAreRefusedAndTheConnectionGoesOn) {
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

TEST_F(PageChannelTest, HeadsComeAlong) {
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

TEST_F(PageChannelTest, WhatIsNotOfThePageThatTheReaderNamesIsNotSent) {
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

TEST_F(PageChannelTest, SeveralClientsReadAtATime) {
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

TEST_F(PageChannelTest, AServerThatEndsIsUnreachable) {
  auto want = wanted{};
  want.add(0, 1000);
  expect_readable(want);
  const auto address = server->address();
  server.reset();
  expect_all(read_from(*client, address, want, in(20s)), ec::peer_unreachable);
}

TEST_F(PageChannelTest, AClientThatLeavesDoesNotDisturbOthers) {
  for (auto i = 0; i < 5; ++i) {
    auto want = wanted{};
    want.add(0, 9_MiB);
    expect_readable(want);
    client = make_client();
  }
}

TEST_F(PageChannelTest, WrongAddresses) {
  auto want = wanted{};
  want.add(0, 10);
  for (const auto* address : {"", "nonsense", "127.0.0.1", "127.0.0.1:", "127.0.0.1:99999x", ":5"})
    expect_all(read_from(*client, address, want, in(5s)), ec::invalid_argument);
  const auto address = server->address();
  server.reset();
  // Nobody listens there any more.
  expect_all(read_from(*make_client(), address, want, in(20s)), ec::peer_unreachable);
}

TEST_F(PageChannelTest, NobodyListensWhereOtherMachinesGetIn) {
  auto want = wanted{};
  want.add(0, 1_MiB);
  expect_readable(want);
  const auto addresses = listening_addresses();
  EXPECT_EQ(std::ranges::count(addresses, server->address()), 1)
    << testing::PrintToString(addresses);
  for (const auto& address : addresses)
    EXPECT_TRUE(address.starts_with("127.0.0.1:")) << address;
}

TEST_F(PageChannelTest, AServerOfAnotherInterfaceIsReadByThatInterface) {
  const auto host = other_address();
  if (host.empty())
    GTEST_SKIP() << "this machine has no interface but that to itself";
  auto other = start_server(memory, host);
  ASSERT_TRUE(other) << to_string(other.error());
  auto want = wanted{};
  want.add(0, 1_MiB);
  expect_readable(want); // By the interface to itself.
  expect_all(read_from(*client, (*other)->address(), want, in(30s)), ec::none);
  want.expect_equal(memory);
}

TEST(PageServerTest, RefusesAHostWithoutAddress) {
  const auto server = start_server({}, "no-such-host.invalid");
  ASSERT_FALSE(server);
  EXPECT_EQ(server.error().code, ec::invalid_argument);
}

TEST(PageServerProcessTest, AKilledServerFailsWhatIsMissingLongBeforeTheDeadline) {
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

TEST(PageServerProcessTest, AHangingServerCostsNoMoreThanTheDeadlineAndNothingIsWrittenLater) {
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

TEST_F(PageChannelTest, NothingIsWrittenAfterAReadThatEndsInTheMiddle) {
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

// -- readers that do not keep to the protocol ---------------------------------

/// A reader that says what the test wants.
class rude_reader {
public:
  static interface_names here() {
    return interfaces_with(*resolve("127.0.0.1", "0", AI_NUMERICHOST));
  }

  explicit rude_reader(const std::string& address)
    : context_(*make_ucx_context(here())), worker_(*make_ucx_worker(context_)) {
    EXPECT_TRUE(receive_messages(worker_, page_reply_message, count_reply, &replies_));
    const auto parts = split_address(address);
    EXPECT_TRUE(connect(worker_, *resolve(parts->first, parts->second, AI_NUMERICHOST), link_));
  }

  /// Sends and waits until the server closed the connection. @returns false if it answered instead
  bool is_expelled_after(const page_request_head& head, size_t header_length,
                         const std::vector<page_span>& spans, unsigned flags, int times = 1) {
    auto params = ucp_request_param_t{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = UCP_AM_SEND_FLAG_REPLY | flags;
    for (auto i = 0; i < times; ++i) {
      auto* request
        = ucp_am_send_nbx(link_.endpoint.get(), page_request_message, &head, header_length,
                          spans.data(), spans.size() * sizeof(page_span), &params);
      if (UCS_PTR_IS_PTR(request))
        sent_.push_back(request);
    }
    const auto deadline = in(20s);
    while (link_.failure == UCS_OK && replies_ < times
           && std::chrono::steady_clock::now() < deadline)
      if (ucp_worker_progress(worker_.get()) == 0)
        wait_for_events(worker_, -1, 100ms);
    for (auto* request : sent_)
      ucp_request_free(request);
    sent_.clear();
    return link_.failure != UCS_OK;
  }

private:
  static ucs_status_t count_reply(void* count, const void*, size_t, void*, size_t,
                                  const ucp_am_recv_param_t*) {
    ++*static_cast<int*>(count);
    return UCS_OK;
  }

  int replies_ = 0;
  ucx_context context_;
  ucx_worker worker_;
  ucx_connection link_;
  std::vector<void*> sent_;
};

TEST_F(PageChannelTest, MalformedRequestsCloseTheConnectionAndNothingElse) {
  const auto whole = sizeof(page_request_head);
  const auto one = std::vector<page_span>{{0, 0, 10}};
  const auto eager = UCP_AM_SEND_FLAG_EAGER;
  const auto expelled = [&](const page_request_head& head, size_t length,
                            const std::vector<page_span>& spans, unsigned flags) {
    return rude_reader{server->address()}.is_expelled_after(head, length, spans, flags);
  };
  EXPECT_FALSE(expelled({page_protocol, 1, 7}, whole, one, eager))
    << "a proper request is answered";
  EXPECT_TRUE(expelled({page_protocol, 1, 7}, whole - 1, one, eager));
  EXPECT_TRUE(expelled({page_protocol, 1, 7}, 0, one, eager));
  EXPECT_TRUE(expelled({page_protocol + 1, 1, 7}, whole, one, eager));
  EXPECT_TRUE(expelled({page_protocol, 2, 7}, whole, one, eager)) << "more spans than came";
  EXPECT_TRUE(expelled({page_protocol, 0, 7}, whole, {}, eager));
  EXPECT_TRUE(expelled({page_protocol, ~uint32_t{0}, 7}, whole, one, eager));
  EXPECT_TRUE(expelled({page_protocol, 1, 7}, whole, {{0, 0, limits::transfer_bytes + 1}}, eager));
  EXPECT_TRUE(expelled({page_protocol, 2, 7}, whole, {{0, 0, ~uint32_t{0}}, {0, 0, 2}}, eager))
    << "lengths that overflow";
  EXPECT_TRUE(expelled({page_protocol, 1, 7}, whole, one, UCP_AM_SEND_FLAG_RNDV));
  auto want = wanted{};
  want.add(100, 3_MiB);
  expect_readable(want);
}

TEST_F(PageChannelTest, AReaderThatAsksForTooMuchAtATimeIsClosed) {
  const auto spans = std::vector<page_span>{{0, 0, limits::transfer_bytes}};
  EXPECT_TRUE(rude_reader{server->address()}.is_expelled_after(
    {page_protocol, 1, 7}, sizeof(page_request_head), spans, UCP_AM_SEND_FLAG_EAGER, 200));
  auto want = wanted{};
  want.add(100, 3_MiB);
  expect_readable(want);
}

// -- several places for the same bytes ----------------------------------------

TEST(PageChannelProcessTest, ReadsFromSeveralServersAtATimeOfWhichOneHangs) {
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

TEST(PageChannelProcessTest, ALateServerIsOvertakenAndThenAskedLast) {
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

TEST_F(PageChannelTest, TheNextPlaceServesWhatTheFirstCannot) {
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

TEST_F(PageChannelTest, WhatManyWantIsSentAFewTimesToReadersThatOfferIt) {
  auto want = wanted{};
  want.insists = false;
  want.add(4096, 100);
  auto lender = page_client::create(true);
  ASSERT_TRUE(lender);
  for (auto i = 0u; i < limits::demand_serves; ++i) {
    const auto answers = read_from(**lender, server->address(), want, in(30s));
    expect_all(answers, ec::none);
    EXPECT_EQ(answers.front()->in_demand, i > 0);
  }
  want.add(1, 3);
  const auto answers = read_from(*client, server->address(), want, in(30s));
  expect_all({answers[0]}, ec::limit_reached);
  expect_all({answers[1]}, ec::none);
  want.insists = true;
  expect_readable(want);
}

} // namespace
} // namespace hicache
