#pragma once

#include "base/limits.hpp"
#include "hicache/error.hpp"
#include "runtime/storage_admin.hpp"

#include <chrono>
#include <memory>
#include <string>

namespace hicache {

/// Address and access control of an admin server.
struct admin_options {
  /// HOST:PORT (port 0 picks a free one) or unix:PATH.
  std::string listen;
  /// File whose first line is the token that every request must carry. May be empty for a Unix
  /// socket, to which only this user can connect.
  std::string token_file;
  /// Time limit for receiving a request. Tests of slow clients shorten it.
  std::chrono::nanoseconds request_time = limits::admin_request_time;
};

/// Checks the form of the address, and that a TCP address has a token. Opens nothing and reads no
/// file, because the token file may exist on rank 0's machine only.
/// @returns invalid_argument with a sentence that names the flag (--admin-listen,
/// --admin-token-file) and what was expected
/// @relates admin_options
result<void> check_admin_options(const admin_options& options);

/// Reads the token: the first line of the file, trimmed; 16 to 1024 visible ASCII characters.
/// @returns invalid_argument with a sentence that names the file, also if group or others may read
/// or write it
result<std::string> read_admin_token(const std::string& file);

/// Administration of an instance over HTTP, on its own threads:
///
///     GET    /hicache/storage-backend              what is attached
///     PUT    /hicache/storage-backend              attaches; a JSON body with SGLang's names
///     DELETE /hicache/storage-backend              detaches
///     POST   /hicache/storage-backend/tiers        adds a tier; a body with the same names
///     DELETE /hicache/storage-backend/tiers/TIER   takes a tier out, by its store or number
///     GET    /healthz                              "ok", without a token
///
/// On TCP it accepts only requests whose Host header is an IP address or a name of this machine.
/// docs/operations.md lists bodies and status codes. One per instance, on rank 0.
class admin_server {
public:
  /// Checks the options, reads the token and listens.
  /// @param storage Called concurrently from several threads, but with one change at a time. Must
  /// outlive the server.
  /// @returns invalid_argument with one sentence: as check_admin_options and read_admin_token, or
  /// the address cannot be bound
  static result<std::unique_ptr<admin_server>> start(const admin_options& options,
                                                     storage_admin& storage);

  /// Waits for a change in progress, but not for clients.
  virtual ~admin_server() = default;

  /// The bound address: HOST:PORT with the actual port, or unix:PATH.
  virtual const std::string& address() const = 0;
};

} // namespace hicache
