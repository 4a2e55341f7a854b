#pragma once

#include "base/immovable.hpp"
#include "hicache/error.hpp"

#include <CLI/CLI.hpp>

#include <string>

namespace hicache {

/// Command of `hicachectl` that reads a model folder: `model-id`.
class model_commands : immovable {
public:
  /// Adds the command. `app` must not outlive this object.
  explicit model_commands(CLI::App& app);

  /// Prints the id to standard output and the progress to standard error.
  /// @returns exit_ok, or one sentence about a bad folder
  result<int> perform() const;

private:
  std::string folder_;
};

} // namespace hicache
