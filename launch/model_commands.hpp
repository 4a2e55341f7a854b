#pragma once

#include "hicache/error.hpp"

#include <CLI/CLI.hpp>

#include <string>

namespace hicache {

/// The part of `hicachectl` that looks at the folder of a model: `model-id`.
class model_commands {
public:
  /// Adds the command. `app` must not outlive this object.
  explicit model_commands(CLI::App& app);

  model_commands(const model_commands&) = delete;
  model_commands& operator=(const model_commands&) = delete;

  /// True if the flags asked for it.
  bool chosen() const;

  /// Prints the id on standard output, and how far reading is on standard error.
  /// @returns exit_ok, or one sentence about a bad folder.
  result<int> perform() const;

private:
  CLI::App* model_id_ = nullptr;
  std::string folder_;
  bool full_ = false;
};

} // namespace hicache
