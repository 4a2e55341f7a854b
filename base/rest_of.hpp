#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <span>

namespace hicache {

/// What is left of pieces whose first bytes were transferred; it does not begin with an empty one.
/// Changes a piece that was transferred in part.
/// @pre the pieces have so many bytes
inline std::span<iovec> rest_of(std::span<iovec> pieces, size_t bytes) {
  while (!pieces.empty() && bytes >= pieces.front().iov_len) {
    bytes -= pieces.front().iov_len;
    pieces = pieces.subspan(1);
  }
  if (bytes > 0) {
    auto& first = pieces.front();
    first.iov_base = static_cast<std::byte*>(first.iov_base) + bytes;
    first.iov_len -= bytes;
  }
  return pieces;
}

} // namespace hicache
