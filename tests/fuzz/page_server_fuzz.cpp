// What arrives at the page port of a rank. The first byte says who sends the rest: a stranger, as
// it is, or a reader that has greeted, as spans of requests that show what the reader was told.
// Whatever it is, the server goes on, and the connection ends soon after the peer has hung up.

#include "tests/fuzz/sockets.hpp"
#include "transport/page_channel.hpp"
#include "transport/page_messages.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

namespace {

using namespace hicache;
using namespace hicache::test;

class served_pages {
public:
  served_pages() {
    spdlog::set_level(spdlog::level::off);
    const auto is_true = [](const range_claim& claim, uint64_t, const range_head&, uint64_t,
                            uint64_t) { return claim.generation % 2 == 0; };
    auto started
      = page_server::start(memory_, is_true, "127.0.0.1", {page_transport::tcp, nullptr});
    HICACHE_CHECK(started);
    server_ = std::move(*started);
    const auto& address = server_->address();
    port_ = static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
  }

  uint16_t port() const noexcept { return port_; }

private:
  std::vector<std::byte> memory_ = std::vector<std::byte>(1 << 16);
  std::unique_ptr<page_server> server_;
  uint16_t port_ = 0;
};

/// @returns what the server says that requests have to show
uint64_t greet(int fd) {
  const auto greeting = page_greeting{};
  auto frame = page_frame_head{page_message::greeting, sizeof(greeting), 0};
  send_all(fd, bytes_of(frame));
  send_all(fd, bytes_of(greeting));
  auto said = page_greeting{};
  HICACHE_CHECK(receive_all(fd, std::as_writable_bytes(std::span{&frame, 1})));
  HICACHE_CHECK(receive_all(fd, std::as_writable_bytes(std::span{&said, 1})));
  return said.secret;
}

/// Requests of up to four spans each, whose first byte says how many.
void ask(int fd, std::span<const std::byte> rest) {
  const auto secret = greet(fd);
  for (auto id = uint64_t{0}; !rest.empty(); ++id) {
    const auto count = std::to_integer<uint32_t>(rest[0]) % 4 + 1;
    rest = rest.subspan(1);
    auto spans = std::vector<page_span>(count);
    const auto size = std::min(rest.size(), count * sizeof(page_span));
    std::memcpy(spans.data(), rest.data(), size);
    rest = rest.subspan(size);
    const auto head = page_request_head{page_protocol, count, id, secret};
    const auto frame
      = page_frame_head{page_message::request, sizeof(head), count * sizeof(page_span)};
    send_all(fd, bytes_of(frame));
    send_all(fd, bytes_of(head));
    send_all(fd, std::as_bytes(std::span{spans}));
  }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0)
    return 0;
  static const auto* const pages = new served_pages; // Nobody waits for its thread at the end.
  const auto fd = connect_from_anywhere(pages->port());
  const auto rest = std::as_bytes(std::span{data, size}).subspan(1);
  if (data[0] % 2 == 0)
    send_all(fd.get(), rest);
  else
    ask(fd.get(), rest);
  expect_the_end(fd.get());
  return 0;
}
