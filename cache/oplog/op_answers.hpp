#pragma once

// The answers of op scripts. Included only by op_script.cpp and op_answers.cpp.

#include "cache/prefix/cache_event.hpp"
#include "cache/prefix/prefix_cache.hpp"
#include "messages/commands.hpp"

#include <nlohmann/json.hpp>

#include <vector>

namespace hicache::op_json {

/// Keeps its keys in insertion order, that of the documentation.
using answer = nlohmann::ordered_json;

answer show_event(const cache_event& event);

/// Nodes as trees. @pre parents come before their children
answer show_nodes(const std::vector<node_view>& nodes);

answer show_locks(const lock_result& locks);

} // namespace hicache::op_json
