#pragma once

#include "hicache/error.hpp"
#include "hicache/rank_reducer.hpp"

#include <string>
#include <utility>
#include <vector>

namespace hicache {

/// Rank reductions at startup, before the actors run. All functions are collective, block for up to
/// limits::step_timeout and use the channel `engine`.

/// Reduces `values` to their minimum over the ranks.
result<std::vector<int64_t>> reduce_now(rank_reducer& ranks, std::vector<int64_t> values);

/// Compares the settings of all ranks, field by field.
/// @returns configuration_mismatch with the names of the fields that differ, on rank 0;
/// ec::stopping on the others.
result<void> agree_on_settings(rank_reducer& ranks,
                               const std::vector<std::pair<std::string, std::string>>& fields);

/// Number of ranks with this rank's host name; at least 1.
result<uint32_t> count_ranks_on_host(rank_reducer& ranks);

/// Succeeds if every rank did. Of the failed ranks the lowest returns its own error; all other
/// ranks return ec::stopping.
result<void> agree_on_outcome(rank_reducer& ranks, const result<void>& mine);

} // namespace hicache
