#pragma once

#include "base/try.hpp"
#include "cache/oplog/op_log.hpp"

#include <cstdint>
#include <span>
#include <sstream>
#include <string>
#include <vector>

namespace hicache::test {

inline result<std::vector<op_log_entry>> parse_op_log(const std::string& text) {
  auto entries = std::vector<op_log_entry>{};
  auto lines = std::istringstream{text};
  for (auto line = std::string{}; std::getline(lines, line);) {
    auto entry = HICACHE_TRY(parse_op_log_entry(line));
    entries.push_back(std::move(entry));
  }
  return entries;
}

/// Plays a whole log.
/// @returns the digest after each entry, or the first error of the player.
inline result<std::vector<uint64_t>> replay(std::span<const op_log_entry> entries) {
  auto player = op_log_player{};
  auto digests = std::vector<uint64_t>{};
  for (const auto& entry : entries) {
    const auto digest = HICACHE_TRY(player.play(entry));
    digests.push_back(digest);
  }
  return digests;
}

} // namespace hicache::test
