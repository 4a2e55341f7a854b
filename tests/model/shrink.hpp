#pragma once

#include "tests/model/sequence.hpp"

#include <cstdint>
#include <filesystem>
#include <functional>

namespace hicache::test {

/// What becomes of a child's standard error.
enum class child_output : uint8_t { shown, silent };

/// Runs `body` in a child process, so that a failed check, which aborts, is an outcome like any
/// other.
/// @returns true if it came back with true.
bool passes_in_child(const std::function<bool()>& body, child_output output);

/// True if a sequence shows the fault.
using fault_test = std::function<bool(const sequence&)>;

/// Leaves out actions as long as the fault shows without them (delta debugging): of those that are
/// left none can be left out.
/// @pre shows(from)
sequence shrink(sequence from, const fault_test& shows);

/// Writes a sequence as an op log; up to the action that aborts, if one does.
void write_log(const sequence& played, const std::filesystem::path& path,
               const apply_function& apply = hicache::apply);

} // namespace hicache::test
