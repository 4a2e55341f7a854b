#pragma once

#include "base/immovable.hpp"
#include "hicache/clock.hpp"
#include "hicache/error.hpp"
#include "runtime/rank_config.hpp"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace hicache {

/// Commands of `hicachectl` that look up pages in the cluster store and control members: `lookup`,
/// `pin`, `unpin`, `clear`, `drain`, `retire`.
class cluster_commands : immovable {
public:
  /// Adds the commands. `app` must not outlive this object.
  explicit cluster_commands(CLI::App& app);

  /// Runs the command; blocks. Answers go to standard output.
  /// @returns exit_ok, or exit_failed if a member refused or did not answer, or nothing has that
  /// name; invalid_argument or peer_unreachable with one sentence about a bad flag or an
  /// unreachable index
  result<int> perform() const;

private:
  /// Keys of the objects that the flags name.
  result<std::vector<page_key>> keys() const;

  CLI::App& app_;
  CLI::App* lookup_ = nullptr;
  CLI::App* pin_ = nullptr;
  CLI::App* unpin_ = nullptr;
  CLI::App* clear_ = nullptr;
  CLI::App* drain_ = nullptr;
  CLI::App* retire_ = nullptr;
  /// Index address and, with tokens, the settings that page names depend on.
  rank_config config_;
  duration timeout_ = std::chrono::seconds{30};
  /// Longer, because draining copies pages before it answers.
  duration drain_timeout_ = std::chrono::hours{1};
  bool json_ = false;
  std::vector<std::string> objects_;
  std::string tokens_file_;
  std::string extra_key_;
  std::string salt_;
  uint32_t ranks_ = 1;
  duration ttl_ = std::chrono::hours{1};
  bool hard_ = false;
  std::string namespace_;
  std::string member_;
  bool force_ = false;
  bool undo_ = false;
  uint32_t shard_ = 0;
};

} // namespace hicache
