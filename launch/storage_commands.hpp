#pragma once

#include "base/immovable.hpp"
#include "hicache/clock.hpp"
#include "hicache/error.hpp"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace hicache {

/// Commands of `hicachectl` for an instance's admin server: `storage show`, `storage attach`,
/// `storage detach`.
class storage_commands : immovable {
public:
  /// Adds the commands. `app` must not outlive this object.
  explicit storage_commands(CLI::App& app);

  /// Runs the command; blocks for the answer. Answers go to standard output, rejections to standard
  /// error.
  /// @returns exit_ok, or exit_failed if the server rejected the request; invalid_argument or
  /// peer_unreachable with one sentence about a bad flag or file, or an unreachable server
  result<int> perform() const;

private:
  struct http_request {
    std::string method;
    std::string path;
    std::string body;
  };

  /// The request of the command that was given.
  result<http_request> request() const;

  result<http_request> attach_request() const;

  CLI::App& app_;
  CLI::App* attach_ = nullptr;
  CLI::App* detach_ = nullptr;
  std::string admin_ = "127.0.0.1:7767";
  std::string token_file_;
  duration timeout_ = std::chrono::seconds{30};
  bool json_ = false;
  std::string backend_;
  std::string tier_;
  std::optional<uint64_t> at_;
  std::string extra_config_;
  std::string prefetch_policy_;
};

} // namespace hicache
