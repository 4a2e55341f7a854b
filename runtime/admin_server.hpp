#pragma once

#include "base/limits.hpp"
#include "hicache/error.hpp"
#include "runtime/storage_admin.hpp"

#include <chrono>
#include <memory>
#include <string>

namespace hicache {

/// Where and for whom an admin server answers.
struct admin_options {
  /// HOST:PORT, where port 0 picks a free one; or unix:PATH.
  std::string listen;
  /// File whose first line is the token that every request has to carry. May be empty for a Unix
  /// socket, which only this user can connect to.
  std::string token_file;
  /// How long a request may take to arrive. Tests of slow clients shorten it.
  std::chrono::nanoseconds request_time = limits::admin_request_time;
};

/// Checks the form of the address, and that a TCP address has a token. Opens nothing and reads no
/// file, which may be on rank 0's machine alone.
/// @returns invalid_argument with a sentence that names the flag (--admin-listen,
/// --admin-token-file) and what was expected.
/// @relates admin_options
result<void> check_admin_options(const admin_options& options);

/// Reads the first line of a token file, without spaces around it: 16 to 1024 visible ASCII
/// characters.
/// @returns invalid_argument with a sentence that names the file; also if anyone but its owner may
/// read or write it.
result<std::string> read_admin_token(const std::string& file);

/// What an instance offers its operators over HTTP, on threads of its own:
///
///     GET    /hicache/storage-backend   what is attached
///     PUT    /hicache/storage-backend   attaches; a JSON body with SGLang's names
///     DELETE /hicache/storage-backend   detaches
///     GET    /healthz                   "ok", without a token
///
/// On TCP it answers only requests whose Host header is an IP address or a name of this machine.
/// docs/operations.md has the bodies and the status codes. One instance has one, on rank 0.
class admin_server {
public:
  /// Checks the options, reads the token and listens.
  /// @param storage Called from several threads at once, but with one change at a time. Must
  /// outlive the server.
  /// @returns invalid_argument with one sentence: see check_admin_options and read_admin_token; or
  /// the address cannot be listened on.
  static result<std::unique_ptr<admin_server>> start(const admin_options& options,
                                                     storage_admin& storage);

  /// Waits for a change that is under way, and for no client.
  virtual ~admin_server() = default;

  /// Where it listens: HOST:PORT with the port that was chosen, or unix:PATH.
  virtual const std::string& address() const = 0;
};

} // namespace hicache
