#pragma once

#include "base/error.hpp"
#include "hicache_tree.h"
#include "messages/operations.hpp"

#include <span>

namespace hicache {

/// What a caller asked for.
/// @returns invalid_argument or unsupported with a sentence that names the operation
result<tree_operations> operations_of(std::span<const hc_op> ops);

} // namespace hicache
