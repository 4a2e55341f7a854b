#pragma once

#include "hicache/clock.hpp"
#include "hicache/config.hpp"
#include "hicache/error.hpp"
#include "launch/router/instance_table.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace hicache {

struct router_options {
  std::string listen = "127.0.0.1:8080";
  bool insecure = false;
  /// Empty: nowhere.
  std::string admin_socket;
  std::vector<instance_options> instances;
  bool shares_l3 = false;
  uint32_t max_requests = 256;
  uint32_t retries = 2;
  duration connect_time = std::chrono::seconds{2};
  duration request_time = std::chrono::minutes{10};
  duration probe_period = std::chrono::seconds{1};
  duration probe_pause_max = std::chrono::seconds{15};
  route_weights weights;
  duration shutdown_grace = std::chrono::seconds{30};
  hicache::log_level log_level = log_level::info;
};

/// OpenAI's completions API in front of several instances: `POST /v1/completions`,
/// `GET /v1/models`, `GET /health`, `GET /metrics`. At the admin socket:
///
///     GET    /instances                  all of them, as JSON
///     POST   /instances                  adds one; the body is as after --instance
///     DELETE /instances/HOST:PORT        its completions under way go on
///     POST   /instances/HOST:PORT/drain  no new completions; /undrain ends that
class router_server {
public:
  /// Checks the options, follows the instances and listens.
  /// @returns invalid_argument with one sentence that names the flag
  static result<std::unique_ptr<router_server>> start(const router_options& options);

  /// Ends completions under way.
  virtual ~router_server() = default;

  /// The bound HOST:PORT.
  virtual const std::string& address() const = 0;

  /// Refuses new completions, and waits until none is under way. Call once.
  /// @returns false if `time` passes first
  virtual bool drain(duration time) = 0;
};

} // namespace hicache
