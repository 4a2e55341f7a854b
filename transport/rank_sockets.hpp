#pragma once

#include "base/unique_fd.hpp"
#include "hicache/error.hpp"
#include "hicache/rank_reducer.hpp"

#include <chrono>
#include <string>
#include <utility>

namespace hicache {

/// The address of the options, for messages.
std::string place_of(const socket_reducer_options& options);

/// The listening socket of rank 0. Move-only; removes a socket in the file system at the end.
class rank_listener {
public:
  /// @returns invalid_argument with a sentence if the address is not local or is in use
  static result<rank_listener> open(const socket_reducer_options& options);

  rank_listener(rank_listener&& other) noexcept = default;

  rank_listener& operator=(rank_listener&&) = delete;

  ~rank_listener();

  int fd() const noexcept { return socket_.get(); }

  /// Accepts a pending connection and describes its peer for messages; empty if there is none.
  /// Non-blocking, as is the returned socket.
  std::pair<unique_fd, std::string> accept();

private:
  rank_listener(unique_fd socket, std::string path)
    : socket_(std::move(socket)), path_(std::move(path)) {}

  unique_fd socket_;
  /// Empty unless the socket is in the file system.
  std::string path_;
};

/// Connects to rank 0. Blocks at most until `until`, apart from name resolution.
/// @returns peer_unreachable with a sentence
result<unique_fd> connect_to_rank(const socket_reducer_options& options,
                                  std::chrono::steady_clock::time_point until);

} // namespace hicache
