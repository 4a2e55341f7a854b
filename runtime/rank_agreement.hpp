#pragma once

#include "hicache/error.hpp"
#include "hicache/rank_reducer.hpp"

#include <string>
#include <utility>
#include <vector>

namespace hicache {

/// What the ranks of an instance settle before their actors run. All functions are collective and
/// block, up to limits::step_timeout; they use the channel `engine`.

/// Waits for the minimum of the ranks' values.
result<std::vector<int64_t>> reduce_now(rank_reducer& ranks, std::vector<int64_t> values);

/// Compares the settings of all ranks, field by field.
/// @returns configuration_mismatch with the names of the fields that differ, on rank 0;
/// ec::stopping on the others.
result<void> agree_on_settings(rank_reducer& ranks,
                               const std::vector<std::pair<std::string, std::string>>& fields);

/// How many of the ranks run on this rank's machine, by its host name; at least 1.
result<uint32_t> count_ranks_on_host(rank_reducer& ranks);

/// Succeeds if every rank did. Of those that failed, the lowest returns its own error; all other
/// ranks return ec::stopping.
result<void> agree_on_outcome(rank_reducer& ranks, const result<void>& mine);

} // namespace hicache
