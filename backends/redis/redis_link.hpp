#pragma once

#include "backends/redis/redis_commands.hpp"
#include "backends/redis/redis_reply.hpp"
#include "backends/redis/redis_stream.hpp"
#include "hicache/error.hpp"
#include "rpc/endpoint.hpp"

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace hicache {

/// As whom, and how, to connect.
struct redis_access {
  /// User of the ACL; empty: the server's default user.
  std::string user;
  /// File with the password in its first line, read for each connection; empty: none.
  std::string password_file;
  /// Environment variable with the password, read for each connection; empty: none.
  std::string password_variable;
  redis_tls tls;

  /// The password; empty if none is configured.
  /// @returns invalid_argument with a sentence that names the file or variable
  result<std::string> password() const;
};

/// An authenticated connection to one server. One thread at a time.
class redis_link {
public:
  /// @param until On the machine's clock.
  /// @returns peer_unreachable, deadline_exceeded, or io_failure if the server refuses the user;
  /// with a sentence that never contains the password
  static result<std::unique_ptr<redis_link>> open(const rpc::endpoint& where,
                                                  const redis_access& access,
                                                  const redis_tls_context& tls, time_point until);

  /// Sends commands and waits for their replies.
  /// @param until On the machine's clock.
  /// @pre nothing is queued, and all replies were taken
  result<std::vector<redis_reply>> ask(const redis_commands& commands, time_point until);

  // -- steps that do not wait -------------------------------------------------

  /// Appends commands to what is to be sent. They must outlive their sending.
  void queue(const redis_commands& commands) { commands.append_to(unsent_); }

  bool has_unsent() const noexcept { return first_unsent_ < unsent_.size(); }

  /// Sends what can be sent now.
  result<void> send();

  /// Receives some bytes.
  /// @returns false if none are there now
  result<bool> receive();

  /// As redis_reply_reader::next.
  result<std::optional<redis_reply>> next(const redis_reply_reader::string_sink& sink) {
    return replies_.next(sink);
  }

  int socket() const noexcept { return stream_.socket(); }

  bool is_stale() const noexcept { return stream_.is_stale(); }

private:
  redis_link(redis_stream stream, std::string server);

  result<void> authenticate(const redis_access& access, time_point until);

  redis_stream stream_;
  const std::string server_;
  redis_reply_reader replies_;
  std::vector<iovec> unsent_;
  size_t first_unsent_ = 0;
  std::vector<std::byte> received_;
};

} // namespace hicache
