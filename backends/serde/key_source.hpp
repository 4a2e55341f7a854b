#pragma once

#include "backends/serde/key_ring.hpp"
#include "hicache/error.hpp"

#include <chrono>
#include <string>

namespace hicache::serde {

/// Reads the keys of a file. The text is wiped.
/// @returns io_failure if it cannot be read; as key_ring::parse
result<key_ring> read_key_file(const std::string& path);

/// Runs a command by /bin/sh and reads the keys from its standard output, for key stores. The text
/// is wiped. The command and its children are killed if it has not ended in time.
/// @returns io_failure if it fails, or says more than key_text_bytes; deadline_exceeded; as
/// key_ring::parse
result<key_ring> run_key_command(const std::string& command, std::chrono::milliseconds time);

} // namespace hicache::serde
