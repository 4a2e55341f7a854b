#pragma once

#include "hicache/error.hpp"
#include "hicache/operations.hpp"
#include "hicache_tree.h"

#include <span>

namespace hicache {

/// Converts a caller's operations.
/// @returns invalid_argument or unsupported with a sentence that names the operation
result<tree_operations> operations_of(std::span<const hc_op> ops);

} // namespace hicache
