// What a reader of pages is answered. The first byte says how: a stranger's bytes from the first
// one on, or, after a proper greeting, as headers and data of replies to what the reader asked.
// Whatever it is, the read ends, and what it says to have read has the checksum that it says.

#include "base/page_checksum.hpp"
#include "tests/fuzz/sockets.hpp"
#include "transport/page_channel.hpp"
#include "transport/page_messages.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace hicache;
using namespace hicache::test;

template <class T>
bool receive(int fd, T& x) {
  return receive_all(fd, std::as_writable_bytes(std::span{&x, 1}));
}

/// Replies to each request: the status, the states of its spans and the bytes are the input's.
void reply_to_requests(int fd, std::span<const std::byte> rest) {
  auto frame = page_frame_head{};
  auto greeting = page_greeting{};
  if (!receive(fd, frame) || !receive(fd, greeting))
    return;
  const auto said = page_frame_head{page_message::greeting, sizeof(greeting), 0};
  send_all(fd, bytes_of(said));
  send_all(fd, bytes_of(page_greeting{page_protocol, 0, 7}));
  const auto next = [&rest] {
    if (rest.empty())
      return uint8_t{0};
    const auto first = std::to_integer<uint8_t>(rest[0]);
    rest = rest.subspan(1);
    return first;
  };
  while (!rest.empty()) {
    auto asked = page_request_head{};
    auto request = page_frame_head{};
    if (!receive(fd, request) || !receive(fd, asked))
      return;
    auto spans = std::vector<page_span>(asked.count);
    if (!receive_all(fd, std::as_writable_bytes(std::span{spans})))
      return;
    const auto is_odd = next();
    const auto head = page_reply_head{page_protocol, is_odd % 8 == 1 ? next() : uint32_t{0},
                                      is_odd % 8 == 2 ? asked.id + 1 : asked.id};
    auto answers = std::vector<std::byte>{};
    auto length = size_t{0};
    for (const auto& span : spans) {
      const auto state = next() % 5;
      const auto answer = span_answer{static_cast<span_state>(state), 0, {}};
      answers.insert(answers.end(), bytes_of(answer).begin(), bytes_of(answer).end());
      length += state < 2 ? span.length : 0;
    }
    if (is_odd % 8 == 3)
      length += next();
    auto data = std::vector<std::byte>(length);
    std::ranges::generate(data, [&] { return std::byte{next()}; });
    auto header = std::vector<std::byte>(bytes_of(head).begin(), bytes_of(head).end());
    (spans.size() == 1 ? header : data)
      .insert(spans.size() == 1 ? header.end() : data.begin(), answers.begin(), answers.end());
    const auto reply
      = page_frame_head{page_message::reply, static_cast<uint32_t>(header.size()), data.size()};
    send_all(fd, bytes_of(reply));
    send_all(fd, header);
    send_all(fd, data);
  }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0)
    return 0;
  const auto listener = unique_fd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  auto where = loopback_address(INADDR_LOOPBACK, 0);
  auto length = socklen_t{sizeof(where)};
  HICACHE_CHECK(::bind(listener.get(), reinterpret_cast<sockaddr*>(&where), length) == 0);
  HICACHE_CHECK(::listen(listener.get(), 4) == 0);
  HICACHE_CHECK(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&where), &length) == 0);
  const auto rest = std::as_bytes(std::span{data, size}).subspan(1);
  auto server = std::thread{[&] {
    const auto fd
      = unique_fd{static_cast<int>(TEMP_FAILURE_RETRY(::accept(listener.get(), nullptr, nullptr)))};
    if (data[0] % 2 == 0)
      send_all(fd.get(), rest);
    else
      reply_to_requests(fd.get(), rest);
  }};
  const auto address = "127.0.0.1:" + std::to_string(ntohs(where.sin_port));
  auto client = page_client::create({page_transport::tcp, nullptr});
  HICACHE_CHECK(client);
  auto targets = std::array<std::vector<std::byte>, 3>{};
  auto parts = std::array<std::array<std::span<std::byte>, 1>, 3>{};
  auto reads = range_reads{{address}, {}};
  const auto place = std::array{range_place{}};
  // Small ones that share a request, and one that goes alone.
  for (auto i = size_t{0}; i < targets.size(); ++i) {
    targets[i].resize(i < 2 ? 10 + i : size_t{300} << 10);
    parts[i][0] = targets[i];
    reads.ranges.push_back({place, parts[i], true});
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds{10};
  const auto answers = (*client)->read(reads, deadline);
  for (auto i = size_t{0}; i < answers.size(); ++i)
    HICACHE_CHECK(!answers[i] || answers[i]->is_gone
                  || answers[i]->checksum == page_checksum(parts[i]));
  client->reset();
  server.join();
  return 0;
}
