// What strangers, and readers that do not keep to the protocol, send to a page server: it closes
// their connections and serves on.

#include "base/limits.hpp"
#include "base/unique_fd.hpp"
#include "base/units.hpp"
#include "tests/transport/page_channel_support.hpp"
#include "transport/addresses.hpp"
#include "transport/page_messages.hpp"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstring>

namespace hicache::test {
namespace {

using namespace literals;
using namespace std::chrono_literals;

using bytes = std::vector<std::byte>;

template <class T>
bytes bytes_of(const T& x) {
  const auto all = std::as_bytes(std::span{&x, 1});
  return {all.begin(), all.end()};
}

bytes joined(bytes first, const bytes& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

/// A message as it travels.
bytes framed(page_message kind, const bytes& header, const bytes& data = {}) {
  const auto head = page_frame_head{kind, static_cast<uint32_t>(header.size()), data.size()};
  return joined(joined(bytes_of(head), header), data);
}

bytes framed_greeting(uint32_t protocol = page_protocol) {
  return framed(page_message::greeting, bytes_of(page_greeting{protocol, 0, 0}));
}

bytes framed_request(const page_request_head& head, const std::vector<page_span>& spans) {
  const auto data = std::as_bytes(std::span{spans});
  return framed(page_message::request, bytes_of(head), {data.begin(), data.end()});
}

/// A connection without any manners.
class stranger {
public:
  explicit stranger(const std::string& address, int receive_bytes = 0) {
    const auto parts = split_address(address);
    const auto to = *resolve(parts->first, parts->second, AI_NUMERICHOST);
    socket_ = unique_fd{::socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    if (receive_bytes != 0)
      ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof(receive_bytes));
    EXPECT_EQ(::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&to), address_length(to)),
              0);
  }

  /// Sends as much as the server takes.
  void send(std::span<const std::byte> rest) {
    while (!rest.empty()) {
      const auto put = ::send(socket_.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
      if (put <= 0)
        return;
      rest = rest.subspan(static_cast<size_t>(put));
    }
  }

  void hang_up() { ::shutdown(socket_.get(), SHUT_WR); }

  /// Reads so many bytes; fewer if the server hangs up before.
  bytes receive(size_t count) {
    auto got = bytes(count);
    auto at = size_t{0};
    for (; at < count && wait(); ++at) {
      const auto step = ::recv(socket_.get(), got.data() + at, count - at, 0);
      if (step <= 0)
        break;
      at += static_cast<size_t>(step) - 1;
    }
    got.resize(std::min(at, count));
    return got;
  }

  /// Greets. @returns what the server says that requests have to show
  uint64_t greet() {
    send(framed_greeting());
    const auto answer = receive(framed_greeting().size());
    auto said = page_greeting{};
    EXPECT_EQ(answer.size(), framed_greeting().size());
    if (answer.size() == framed_greeting().size())
      std::memcpy(&said, answer.data() + answer.size() - sizeof(said), sizeof(said));
    return said.secret;
  }

  /// Reads on until the server closes the connection. @returns how many bytes came before
  size_t read_to_the_end() {
    auto got = size_t{0};
    for (auto chunk = bytes(64_KiB); wait();) {
      const auto count = ::recv(socket_.get(), chunk.data(), chunk.size(), 0);
      if (count <= 0)
        return got;
      got += static_cast<size_t>(count);
    }
    ADD_FAILURE() << "the connection is still open";
    return got;
  }

  /// Waits until the server does not know the connection any more, taking nothing: what is sent to
  /// it then is answered so.
  bool is_given_up_before(time_point deadline) {
    auto watched = pollfd{socket_.get(), POLLRDHUP, 0};
    while (::poll(&watched, 1, 100) == 0) {
      if (std::chrono::steady_clock::now() > deadline)
        return false;
      send(bytes(1));
    }
    return true;
  }

private:
  bool wait() const {
    constexpr auto patience_ms = 20000;
    auto watched = pollfd{socket_.get(), POLLIN, 0};
    return ::poll(&watched, 1, patience_ms) == 1;
  }

  unique_fd socket_;
};

class PageStrangersTest : public PageChannelTest {
protected:
  /// Sends this after a greeting. @returns whether the connection ends, without a byte more
  bool is_expelled_after(const std::function<bytes(uint64_t secret)>& message) {
    auto one = stranger{server->address()};
    one.send(message(one.greet()));
    return one.read_to_the_end() == 0;
  }

  void expect_serving() {
    auto want = wanted{};
    want.add(100, 3_MiB);
    expect_readable(want);
  }
};

INSTANTIATE_TEST_SUITE_P(, PageStrangersTest, testing::Values(way::clear), name_of);

TEST_P(PageStrangersTest, AFewZerosAreNoReasonToEnd) {
  for (auto count : {0, 1, 15, 16, 17, 18, 31, 32, 33, 64, 100, 4096, 100000}) {
    SCOPED_TRACE(std::to_string(count) + " zeros");
    auto one = stranger{server->address()};
    one.send(bytes(static_cast<size_t>(count)));
    one.hang_up();
    EXPECT_EQ(one.read_to_the_end(), 0u);
  }
  expect_serving();
}

TEST_P(PageStrangersTest, EveryBeginningOfAConversationMayBeItsEnd) {
  auto witness = stranger{server->address()};
  const auto secret = witness.greet();
  const auto whole = joined(
    framed_greeting(), framed_request({page_protocol, 2, 7, secret}, {{0, 0, 10}, {0, 50, 10}}));
  for (auto length = size_t{0}; length < whole.size(); ++length) {
    auto one = stranger{server->address()};
    one.send(std::span{whole}.first(length));
    one.hang_up();
    const auto got = one.read_to_the_end();
    EXPECT_TRUE(got == 0 || got == framed_greeting().size()) << length << " bytes: " << got;
  }
  expect_serving();
}

TEST_P(PageStrangersTest, WhoHasNotGreetedIsNotAnswered) {
  auto witness = stranger{server->address()};
  const auto request = framed_request({page_protocol, 1, 7, witness.greet()}, {{0, 0, 10}});
  auto one = stranger{server->address()};
  one.send(request);
  EXPECT_EQ(one.read_to_the_end(), 0u);
  // Nor is one who shows what somebody else was told.
  EXPECT_TRUE(is_expelled_after([&](uint64_t) { return request; }));
  expect_serving();
}

TEST_P(PageStrangersTest, WhoSaysNothingIsSentAway) {
  auto one = stranger{server->address()};
  EXPECT_EQ(one.read_to_the_end(), 0u);
}

TEST_P(PageStrangersTest, MalformedRequestsCloseTheConnectionAndNothingElse) {
  auto good = stranger{server->address()};
  good.send(framed_request({page_protocol, 1, 7, good.greet()}, {{0, 0, 10}}));
  const auto answered
    = framed(page_message::reply, bytes(sizeof(page_reply_head) + sizeof(span_answer)), bytes(10));
  EXPECT_EQ(good.receive(answered.size()).size(), answered.size())
    << "a proper request is answered";

  const auto one = std::vector<page_span>{{0, 0, 10}};
  const auto is_refused = [&](page_request_head head, const std::vector<page_span>& spans) {
    return is_expelled_after([&](uint64_t secret) {
      head.secret = secret;
      return framed_request(head, spans);
    });
  };
  EXPECT_TRUE(is_refused({page_protocol + 1, 1, 7, 0}, one));
  EXPECT_TRUE(is_refused({page_protocol, 2, 7, 0}, one)) << "more spans than came";
  EXPECT_TRUE(is_refused({page_protocol, 0, 7, 0}, {}));
  EXPECT_TRUE(is_refused({page_protocol, ~uint32_t{0}, 7, 0}, one));
  EXPECT_TRUE(is_refused({page_protocol, 1, 7, 0}, {{0, 0, limits::transfer_bytes + 1}}));
  EXPECT_TRUE(is_refused({page_protocol, 2, 7, 0}, {{0, 0, ~uint32_t{0}}, {0, 0, 2}}))
    << "lengths that overflow";
  EXPECT_TRUE(is_expelled_after([](uint64_t secret) {
    auto head = bytes_of(page_request_head{page_protocol, 1, 7, secret});
    head.pop_back();
    return framed(page_message::request, head, bytes(sizeof(page_span)));
  }))
    << "a short header";
  EXPECT_TRUE(
    is_expelled_after([](uint64_t) { return framed(page_message::request, bytes(129), {}); }))
    << "a long header";
  EXPECT_TRUE(is_expelled_after(
    [](uint64_t) { return framed(page_message::request, bytes(16), bytes(request_bytes + 1)); }))
    << "more data than any request has";
  EXPECT_TRUE(
    is_expelled_after([](uint64_t) { return framed(page_message::reply, bytes(16), bytes(10)); }))
    << "no request";
  EXPECT_TRUE(is_expelled_after([](uint64_t) { return framed_greeting(); })) << "a second greeting";
  auto other = stranger{server->address()};
  other.send(framed_greeting(page_protocol - 1));
  EXPECT_EQ(other.read_to_the_end(), 0u) << "another version";
  expect_serving();
}

TEST_P(PageStrangersTest, AReaderThatAsksForTooMuchAtATimeIsClosed) {
  auto one = stranger{server->address(), 4096};
  const auto request
    = framed_request({page_protocol, 1, 7, one.greet()}, {{0, 0, limits::transfer_bytes}});
  for (auto i = 0; i < 200; ++i)
    one.send(request);
  EXPECT_LT(one.read_to_the_end(), 200 * limits::transfer_bytes);
  expect_serving();
}

TEST_P(PageStrangersTest, AReaderThatTakesNothingHoldsUpNobody) {
  auto idlers = std::vector<std::unique_ptr<stranger>>{};
  for (auto i = 0; i < 40; ++i) {
    auto& idler = *idlers.emplace_back(std::make_unique<stranger>(server->address(), 4096));
    const auto secret = idler.greet();
    for (auto asked = size_t{0}; asked < limits::transfers_in_flight; ++asked)
      idler.send(
        framed_request({page_protocol, 1, asked, secret}, {{0, 0, limits::transfer_bytes}}));
  }
  for (auto round = 0; round < 5; ++round)
    expect_serving();
  const auto deadline = in(30s);
  for (auto& idler : idlers)
    ASSERT_TRUE(idler->is_given_up_before(deadline));
}

TEST_P(PageStrangersTest, WhatIsOverwrittenWhileAReaderDalliesIsNotSent) {
  // Claims are true until the test says otherwise, as when the owner gives the place to another
  // page.
  auto is_there = std::atomic<bool>{true};
  const auto secret_page = bytes(48_MiB, std::byte{0x5a});
  auto holder = page_server::start(
    secret_page,
    [&](const range_claim&, uint64_t, const range_head&, uint64_t, uint64_t) {
      return is_there.load();
    },
    "127.0.0.1", options());
  ASSERT_TRUE(holder) << to_string(holder.error());
  auto one = stranger{(*holder)->address(), 4096};
  const auto secret = one.greet();
  const auto ask = [&](uint64_t id) {
    one.send(framed_request({page_protocol, 1, id, secret}, {{0, 0, limits::transfer_bytes}}));
  };
  // More than the sockets hold between them.
  for (auto id = uint64_t{0}; id < limits::transfers_in_flight; ++id)
    ask(id);
  const auto head_bytes
    = framed(page_message::reply, bytes(sizeof(page_reply_head) + sizeof(span_answer))).size();
  static_cast<void>(one.receive(head_bytes + 1000));
  is_there = false;
  auto last = one.receive(limits::transfer_bytes - 1000);
  for (auto id = uint64_t{1}; id < limits::transfers_in_flight; ++id) {
    auto head = page_reply_head{};
    auto answer = span_answer{};
    const auto reply = one.receive(head_bytes);
    ASSERT_EQ(reply.size(), head_bytes);
    std::memcpy(&head, reply.data() + head_bytes - sizeof(answer) - sizeof(head), sizeof(head));
    std::memcpy(&answer, reply.data() + head_bytes - sizeof(answer), sizeof(answer));
    EXPECT_EQ(head.id, id);
    if (has_bytes(answer.state))
      last = one.receive(limits::transfer_bytes);
  }
  EXPECT_EQ(last.back(), std::byte{0}) << "bytes of a page that is not there any more";
}

TEST(PageAuthorityTest, WhoseCertificateIsOfAnotherAuthorityGetsNothing) {
  const auto folder = temporary_folder{};
  const auto context = [&](const char* name) {
    const auto made = *load_tls(authority{name}.sign_into(folder.path()));
    return [made] { return result<std::shared_ptr<SSL_CTX>>{made}; };
  };
  const auto memory = pattern(1_MiB);
  auto server = start_server(memory, {page_transport::tcp, context("cluster")});
  ASSERT_TRUE(server) << to_string(server.error());
  auto want = wanted{};
  want.add(0, 1000);
  auto other = make_client({page_transport::tcp, context("other")});
  auto clear = make_client({page_transport::tcp, nullptr});
  for (auto* client : {other.get(), clear.get()})
    expect_all(read_from(*client, (*server)->address(), want, in(10s)), ec::peer_unreachable);
  EXPECT_EQ((*server)->sent_bytes(), 0u);
}

TEST(PageAuthorityTest, EveryRoleReadsAndPagesComeFromMembersOnly) {
  const auto folder = temporary_folder{};
  const auto ours = authority{"ours"};
  const auto context = [&](const char* role) {
    const auto made = *load_tls(ours.sign_into(folder.path(), {role}));
    return [made] { return result<std::shared_ptr<SSL_CTX>>{made}; };
  };
  const auto memory = pattern(1_MiB);
  auto want = wanted{};
  want.add(0, 1000);
  for (const auto* owner : {"hicache:member", "hicache:reader", "hicache:operator"}) {
    auto server = start_server(memory, {page_transport::tcp, context(owner)});
    ASSERT_TRUE(server) << to_string(server.error());
    const auto expected
      = std::string_view{owner} == "hicache:member" ? ec::none : ec::peer_unreachable;
    for (const auto* role : {"hicache:member", "hicache:reader", "hicache:operator"}) {
      auto client = make_client({page_transport::tcp, context(role)});
      expect_all(read_from(*client, (*server)->address(), want, in(10s)), expected);
    }
  }
}

} // namespace
} // namespace hicache::test
