#pragma once

#include "hicache/clock.hpp"

#include <memory>
#include <string>
#include <vector>

namespace hicache {

struct upstream_request {
  /// HOST:PORT of the instance.
  std::string address;
  std::string path;
  /// Lines such as "Authorization: Bearer x".
  std::vector<std::string> headers;
  /// Posted; empty: the path is got.
  std::string body;
  duration connect_time{};
  duration whole_time{};
  /// Socket of the client for whom this is; its end ends the call. -1: none.
  int client = -1;
};

enum class upstream_state : uint8_t {
  running,
  /// The whole answer is there.
  complete,
  /// The instance cannot be reached, or went away.
  failed,
  late,
  /// The client went away.
  abandoned,
};

/// An HTTP request to an instance. Its thread waits for the instance and the client together. One
/// thread at a time; its end closes the connection, which tells the instance to stop.
class upstream_call {
public:
  static std::unique_ptr<upstream_call> start(upstream_request request);

  virtual ~upstream_call() = default;

  /// Waits for bytes of the body.
  /// @returns them; empty if there are no more: see state()
  virtual std::string read() = 0;

  virtual upstream_state state() const = 0;

  /// Why it failed, for logs and clients.
  virtual std::string trouble() const = 0;

  /// Status of the answer; 0 before bytes of it are there.
  virtual int status() const = 0;

  /// A header of the answer; empty if it has none of that name.
  virtual std::string header(const char* name) const = 0;
};

} // namespace hicache
