#pragma once

// What the answers of op scripts look like. Only op_script.cpp and op_answers.cpp include this.

#include "cache/prefix/cache_event.hpp"
#include "cache/prefix/prefix_cache.hpp"
#include "messages/commands.hpp"

#include <nlohmann/json.hpp>

#include <vector>

namespace hicache::op_json {

/// Answers show their keys in the order of the documentation.
using answer = nlohmann::ordered_json;

answer show_event(const cache_event& event);

/// Nodes as trees. @pre Parents come before their children.
answer show_nodes(const std::vector<node_view>& nodes);

answer show_locks(const lock_result& locks);

} // namespace hicache::op_json
