#include "base/limits.hpp"
#include "base/units.hpp"
#include "transport/page_link.hpp"

#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>
#include <vector>

namespace hicache::test {
namespace {

using namespace literals;

/// Two ends of a TCP connection.
struct connection {
  connection() {
    auto address = sockaddr_in{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto length = socklen_t{sizeof(address)};
    auto* named = reinterpret_cast<sockaddr*>(&address);
    const auto listener = unique_fd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    EXPECT_EQ(::bind(listener.get(), named, length), 0);
    EXPECT_EQ(::getsockname(listener.get(), named, &length), 0);
    EXPECT_EQ(::listen(listener.get(), 1), 0);
    theirs = unique_fd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    EXPECT_EQ(::connect(theirs.get(), named, length), 0);
    ours = unique_fd{::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)};
  }

  unique_fd ours;
  unique_fd theirs;
};

/// Has room for a page of 1 MiB, and counts what arrives.
class one_page final : public page_sink {
public:
  std::span<std::byte> place_for(page_message, std::span<const std::byte>, size_t) override {
    return place_;
  }

  void take(page_message, std::span<const std::byte>, std::span<const std::byte>) override {
    ++pages;
  }

  int pages = 0;

private:
  std::vector<std::byte> place_ = std::vector<std::byte>(1_MiB);
};

/// A page of which the first half has been received.
class PageLinkTest : public testing::Test {
protected:
  static constexpr auto half = 512_KiB;

  PageLinkTest() {
    const auto frame = page_frame_head{page_message::reply, 1, 2 * half};
    send(std::as_bytes(std::span{&frame, 1}));
    send(std::array<std::byte, 1>{}); // The header.
    send_and_receive(half);
  }

  void send(std::span<const std::byte> bytes) {
    ASSERT_EQ(::send(theirs_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }

  /// Whether some of what was sent is still on its way.
  bool is_sending() const {
    auto unacknowledged = 0;
    EXPECT_EQ(::ioctl(theirs_.get(), SIOCOUTQ, &unacknowledged), 0);
    return unacknowledged > 0;
  }

  /// Sends bytes of the page, and waits until they are there.
  void send_bytes(size_t count) {
    send(std::vector<std::byte>(count));
    while (is_sending())
      continue;
  }

  void send_and_receive(size_t count) {
    const auto bytes = std::vector<std::byte>(count);
    for (auto rest = std::span{bytes}; !rest.empty() || is_sending(); link_.pump(sink_))
      if (const auto sent = ::send(theirs_.get(), rest.data(), rest.size(), MSG_DONTWAIT); sent > 0)
        rest = rest.subspan(static_cast<size_t>(sent));
  }

  /// @param patience_ms 0: does not wait; -1: as long as it takes
  bool has_input(int patience_ms) const {
    auto watched = pollfd{link_.fd(), POLLIN, 0};
    return ::poll(&watched, 1, patience_ms) == 1;
  }

  connection ends_;
  unique_fd theirs_ = std::move(ends_.theirs);
  page_link link_{std::move(ends_.ours), nullptr, false};
  one_page sink_;
};

TEST_F(PageLinkTest, LongPiecesWakeTheReader) {
  send_bytes(limits::page_receive_bytes - 1);
  EXPECT_FALSE(has_input(0));
  send_bytes(1);
  EXPECT_TRUE(has_input(-1));
}

TEST_F(PageLinkTest, TheLastPieceMayBeShort) {
  send_and_receive(half - 10);
  send_bytes(9);
  EXPECT_FALSE(has_input(0));
  send_bytes(1);
  EXPECT_TRUE(has_input(-1));
  link_.pump(sink_);
  EXPECT_EQ(sink_.pages, 1);
}

TEST_F(PageLinkTest, TheNextMessageWakesTheReaderWithItsFirstByte) {
  send_and_receive(half);
  EXPECT_EQ(sink_.pages, 1);
  send_bytes(1);
  EXPECT_TRUE(has_input(-1));
}

TEST_F(PageLinkTest, TheEndOfTheConnectionWakesTheReader) {
  send_bytes(1);
  theirs_ = {};
  EXPECT_TRUE(has_input(-1));
  link_.pump(sink_);
  EXPECT_FALSE(link_.is_open());
}

} // namespace
} // namespace hicache::test
