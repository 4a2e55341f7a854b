#pragma once

#include "hicache/error.hpp"

#include <CLI/CLI.hpp>

#include <functional>
#include <string>

namespace hicache {

/// Exit codes of every program.
inline constexpr int exit_ok = 0;
/// The run detected a failure: mismatches, errors, a lost rank.
inline constexpr int exit_failed = 1;
/// Bad input: a flag, a file, an address. Nothing was changed.
inline constexpr int exit_usage = 2;

/// Common main function: adds --version, parses the flags, runs `body` and catches exceptions. A
/// bad flag or an error of `body` prints one sentence to standard error and yields exit code 2.
/// @param on_bad_flags Handles bad flags; default: complain.
int run_program(CLI::App& app, int argc, char** argv, const std::function<result<int>()>& body,
                const std::function<int(const error&)>& on_bad_flags = {});

/// Prints one sentence to standard error, prefixed with the program's name.
void complain(const CLI::App& app, const error& what);

/// Versions of hicache and of the libraries in use.
std::string version_text();

/// True on the rank that reports for its instance before MPI is started (rank 0, or no mpirun).
bool speaks_for_instance();

/// True if mpirun started this process.
bool started_by_mpirun();

/// Raises the limit of open descriptors to the hard limit.
void raise_descriptor_limit();

/// Sets the log level and a line format that includes the rank; logs go to standard error.
void start_logging(const std::string& level, uint32_t rank, uint32_t ranks);

} // namespace hicache
