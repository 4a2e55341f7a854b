#pragma once

#include "base/immovable.hpp"
#include "hicache/clock.hpp"
#include "hicache/error.hpp"
#include "hicache/tls_files.hpp"
#include "messages/node_protocol.hpp"

#include <CLI/CLI.hpp>

#include <chrono>
#include <string>
#include <vector>

namespace hicache {

/// Formats a node's activity between two statuses: rates per client, the busiest first.
/// @param before Earlier status of the same node; empty if there is none.
/// @param between Above 0.
std::string node_activity(const node_status& before, const node_status& now, duration between);

/// Commands of `hicachectl` for a node: `node status`, `node top`, `node why` and `node clear`.
class node_commands : immovable {
public:
  /// Adds the command. `app` must not outlive this object.
  explicit node_commands(CLI::App& app);

  /// Runs the command; answers go to standard output. Blocks for the node's answer; `top` until
  /// SIGINT or SIGTERM. Call before other threads start.
  /// @returns exit_ok; peer_unreachable with one sentence about a node that cannot be reached
  result<int> perform() const;

private:
  /// The node's address for a connector.
  std::string place() const;

  result<int> show_status() const;

  result<int> show_activity() const;

  result<int> explain() const;

  result<int> clear() const;

  CLI::App* top_ = nullptr;
  CLI::App* why_ = nullptr;
  CLI::App* clear_ = nullptr;
  std::vector<std::string> whose_;
  std::string socket_;
  std::string address_;
  tls_files tls_;
  duration timeout_ = std::chrono::seconds{5};
  bool json_ = false;
  bool evict_first_ = false;
  duration interval_ = std::chrono::seconds{1};
};

} // namespace hicache
