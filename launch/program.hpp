#pragma once

#include "hicache/error.hpp"

#include <CLI/CLI.hpp>

#include <functional>
#include <string>

namespace hicache {

/// Exit codes of every program.
inline constexpr int exit_ok = 0;
/// The program ran and found something wrong: mismatches, errors, a rank that went away.
inline constexpr int exit_failed = 1;
/// Bad input: a flag, a file, an address. Nothing was changed.
inline constexpr int exit_usage = 2;

/// What main does in every program: adds --version, parses the flags, runs `body`. A bad flag is
/// one sentence on standard error and exit code 2; so is an error that `body` returns. Exceptions
/// end here.
/// @param on_bad_flags What to do about bad flags; complains if absent.
int run_program(CLI::App& app, int argc, char** argv, const std::function<result<int>()>& body,
                const std::function<int(const error&)>& on_bad_flags = {});

/// One sentence on standard error, behind the program's name.
void complain(const CLI::App& app, const error& what);

/// Versions of hicache and of the libraries that this process runs on.
std::string version_text();

/// True on the one rank that speaks for its instance before MPI is started (rank 0, or no mpirun).
bool speaks_for_instance();

/// True if mpirun started this process.
bool started_by_mpirun();

/// Lets this process have as many descriptors as the system allows it.
void raise_descriptor_limit();

/// Sets the level and a line format that shows the rank; logs go to standard error.
void start_logging(const std::string& level, uint32_t rank, uint32_t ranks);

} // namespace hicache
