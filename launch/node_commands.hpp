#pragma once

#include "base/clock.hpp"
#include "base/error.hpp"

#include <CLI/CLI.hpp>

#include <chrono>
#include <string>

namespace hicache {

/// The part of `hicachectl` that talks to the node of this host: `node status`.
class node_commands {
public:
  /// Adds the command. `app` must not outlive this object.
  explicit node_commands(CLI::App& app);

  node_commands(const node_commands&) = delete;
  node_commands& operator=(const node_commands&) = delete;

  /// True if the flags asked for it.
  bool chosen() const;

  /// Does what the flags asked for. Answers go to standard output. Blocks for the node's answer.
  /// @returns exit_ok; peer_unreachable with one sentence about a node that cannot be reached
  result<int> perform() const;

private:
  CLI::App* node_ = nullptr;
  std::string socket_;
  duration timeout_ = std::chrono::seconds{5};
  bool json_ = false;
};

} // namespace hicache
