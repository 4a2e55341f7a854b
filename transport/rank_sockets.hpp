#pragma once

#include "base/unique_fd.hpp"
#include "hicache/error.hpp"
#include "hicache/rank_reducer.hpp"

#include <chrono>
#include <string>
#include <utility>

namespace hicache {

/// The address of the options, for people.
std::string place_of(const socket_reducer_options& options);

/// Where rank 0 waits for the others. Move-only; a socket in the file system is gone afterwards.
class rank_listener {
public:
  /// @returns invalid_argument with a sentence if the address is not this machine's or is taken
  static result<rank_listener> open(const socket_reducer_options& options);

  rank_listener(rank_listener&& other) noexcept = default;

  rank_listener& operator=(rank_listener&&) = delete;

  ~rank_listener();

  int fd() const noexcept { return socket_.get(); }

  /// A connection that waits to be accepted, and who has made it, for people; none if there is
  /// none. It does not block, nor does what it returns.
  std::pair<unique_fd, std::string> accept();

private:
  rank_listener(unique_fd socket, std::string path)
    : socket_(std::move(socket)), path_(std::move(path)) {}

  unique_fd socket_;
  /// Empty unless there is one.
  std::string path_;
};

/// Connects to where rank 0 waits. Blocks, not beyond `until`, but for looking up a name.
/// @returns peer_unreachable with a sentence
result<unique_fd> connect_to_rank(const socket_reducer_options& options,
                                  std::chrono::steady_clock::time_point until);

} // namespace hicache
