#pragma once

#include "base/immovable.hpp"
#include "hicache/error.hpp"

#include <CLI/CLI.hpp>

#include <string>

namespace hicache {

/// Commands of `hicachectl` that need no cluster: `oplog run`, `oplog replay`, `oplog diff`.
class oplog_commands : immovable {
public:
  /// Adds the commands. `app` must not outlive this object.
  explicit oplog_commands(CLI::App& app);

  /// Runs the command on standard input and output.
  /// @returns the exit code, or one sentence about a bad file
  result<int> perform() const;

private:
  CLI::App* run_ = nullptr;
  CLI::App* replay_ = nullptr;
  std::string file_;
  std::string other_file_;
};

} // namespace hicache
