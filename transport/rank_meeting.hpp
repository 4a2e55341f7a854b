#pragma once

#include "hicache/error.hpp"
#include "hicache/rank_reducer.hpp"
#include "transport/rank_link.hpp"
#include "transport/rank_process.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

namespace hicache {

struct rank_hello {
  std::array<char, 8> magic{'h', 'i', 'r', 'a', 'n', 'k', 's', '\0'};
  uint32_t version = 1;
  uint32_t rank = 0;
  uint32_t size = 0;
  /// Descriptor of its shared memory, in its process.
  int32_t memory_fd = -1;
  /// Zero-terminated.
  std::array<char, 64> job{};
  /// `machine` is equal where memory can be shared.
  rank_process process;
};
static_assert(std::is_trivially_copyable_v<rank_hello>);

/// All ranks, once connected.
struct rank_meeting {
  /// Element r is rank r's.
  std::vector<rank_hello> ranks;
  /// At rank 0: element r connects to rank r, element 0 is null. Elsewhere: one link, to rank 0.
  std::vector<std::unique_ptr<rank_link>> links;
};

/// Blocks until all ranks are connected, or until options.timeout.
/// @param mine This rank.
/// @returns as make_socket_reducer
result<rank_meeting> meet(const socket_reducer_options& options, const rank_hello& mine);

} // namespace hicache
