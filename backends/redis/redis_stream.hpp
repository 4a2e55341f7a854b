#pragma once

#include "base/unique_fd.hpp"
#include "hicache/clock.hpp"
#include "hicache/error.hpp"
#include "rpc/endpoint.hpp"

#include <openssl/ssl.h>

#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace hicache {

/// TLS of connections to Redis.
struct redis_tls {
  bool is_used = false;
  /// Authorities (PEM) that may have signed the server's certificate; empty: the system's.
  std::string ca_file;
  /// Certificate and key (PEM) of this client; both or neither.
  std::string certificate_file;
  std::string key_file;
  /// Name that the server's certificate must carry; empty: the host of its address.
  std::string server_name;
};

using redis_tls_context = std::shared_ptr<SSL_CTX>;

/// Loads the files.
/// @returns null if TLS is not used; invalid_argument with a sentence
/// @relates redis_tls
result<redis_tls_context> load_redis_tls(const redis_tls& settings);

/// A connected socket, perhaps with TLS, whose calls do not wait. One thread.
class redis_stream {
public:
  /// Connects to one of the host's addresses and completes the TLS handshake.
  /// @param until On the machine's clock.
  /// @returns peer_unreachable with a sentence; deadline_exceeded
  static result<redis_stream> open(const rpc::endpoint& where, const redis_tls_context& context,
                                   const redis_tls& tls, time_point until);

  /// Sends the first bytes of the pieces.
  /// @returns how many; 0: none can be sent now; peer_unreachable
  result<size_t> send(std::span<const iovec> pieces);

  /// Receives some bytes.
  /// @returns how many; 0: none are there now; peer_unreachable, also at the end of the stream
  result<size_t> receive(std::span<std::byte> target);

  int socket() const noexcept { return socket_.get(); }

  /// Whether the server has closed the connection, or sent something unasked.
  bool is_stale() const noexcept;

private:
  redis_stream(unique_fd socket, std::string server)
    : socket_(std::move(socket)), server_(std::move(server)) {}

  result<void> start_tls(const rpc::endpoint& where, const redis_tls_context& context,
                         const redis_tls& tls, time_point until);
  result<size_t> send_tls(std::span<const iovec> pieces);
  result<size_t> tls_outcome(int outcome);

  unique_fd socket_;
  std::string server_;
  std::unique_ptr<SSL, void (*)(SSL*)> tls_{nullptr, SSL_free};
  /// The next record to send. An interrupted send repeats it.
  std::vector<std::byte> record_;
};

/// The machine's clock.
time_point machine_time();

/// Waits for events of poll() at one socket.
/// @param until On the machine's clock.
/// @returns false if the time passed first
bool wait_for_socket(int socket, short events, time_point until);

/// Milliseconds until then for poll(), rounded up, at most a minute.
/// @param until On the machine's clock.
int poll_time(time_point until);

} // namespace hicache
