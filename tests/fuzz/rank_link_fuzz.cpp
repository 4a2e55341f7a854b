// What a stranger may send to a rank, from the first byte. The first byte of the input is the size
// of the pieces in which the rest arrives.

#include "base/check.hpp"
#include "transport/rank_link.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace {

using namespace hicache;

/// As of a rank that has not said yet who it is.
constexpr auto body_bytes = size_t{256};

constexpr auto header_bytes = size_t{16};

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0)
    return 0;
  int ends[2] = {-1, -1};
  HICACHE_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
  auto stranger = unique_fd{ends[0]};
  auto link = rank_link{unique_fd{ends[1]}, nullptr, true, body_bytes};
  auto taken = size_t{0};
  const auto take = [&] {
    link.pump();
    while (const auto frame = link.next()) {
      HICACHE_CHECK(frame->body.size() <= body_bytes);
      taken += header_bytes + frame->body.size();
    }
  };
  const auto piece = std::max<size_t>(data[0], 1);
  auto rest = std::span{data, size}.subspan(1);
  const auto sent = rest.size();
  while (!rest.empty() && link.is_open()) {
    const auto now = rest.first(std::min(piece, rest.size()));
    HICACHE_CHECK(::send(stranger.get(), now.data(), now.size(), MSG_NOSIGNAL)
                  == static_cast<ssize_t>(now.size()));
    rest = rest.subspan(now.size());
    take();
  }
  HICACHE_CHECK(taken <= sent);
  stranger = {};
  take();
  HICACHE_CHECK(!link.is_open());
  return 0;
}
