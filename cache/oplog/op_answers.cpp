#include "cache/oplog/op_answers.hpp"

#include "base/overloaded.hpp"

#include <algorithm>
#include <map>
#include <utility>
#include <variant>

namespace hicache::op_json {

namespace {

answer ids_of(const std::vector<page_key>& keys) {
  auto ids = answer::array();
  for (const auto& key : keys)
    ids.push_back(event_id(key));
  return ids;
}

answer show_node(const node_view& node) {
  auto tiers = answer::array();
  if (node.in_l1)
    tiers.push_back("device");
  if (node.in_l2)
    tiers.push_back("host");
  if (node.in_storage)
    tiers.push_back("storage");
  auto shown = answer{{"node", node.id}};
  if (node.parent == 0) {
    shown["extra_key"] = node.ns.extra_key;
    shown["salt"] = node.ns.salt;
  }
  shown["tokens"] = node.tokens;
  shown["tiers"] = tiers;
  shown["locks"] = node.l1_locks;
  shown["host_locks"] = node.l2_locks;
  shown["pins"] = node.pins;
  shown["hits"] = node.use.hits;
  shown["priority"] = node.use.priority;
  shown["children"] = answer::array();
  return shown;
}

} // namespace

answer show_event(const cache_event& event) {
  const auto medium = [](cache_medium x) { return x == cache_medium::l1 ? "device" : "host"; };
  return std::visit(overloaded{
                      [&](const pages_stored& x) {
                        return answer{{"event", "stored"},
                                      {"medium", medium(x.medium)},
                                      {"extra_key", x.ns.extra_key},
                                      {"salt", x.ns.salt},
                                      {"parent", x.parent ? answer(event_id(*x.parent)) : answer()},
                                      {"pages", ids_of(x.keys)},
                                      {"tokens", x.tokens}};
                      },
                      [&](const pages_removed& x) {
                        return answer{{"event", "removed"},
                                      {"medium", medium(x.medium)},
                                      {"pages", ids_of(x.keys)}};
                      },
                      [](const cache_cleared&) {
                        return answer{{"event", "cleared"}};
                      },
                    },
                    event);
}

answer show_nodes(const std::vector<node_view>& nodes) {
  auto shown = std::map<node_id, answer>{};
  auto roots = answer::array();
  for (const auto& node : nodes)
    shown[node.id] = show_node(node);
  // Parents come before children, so in reverse order each node is complete when its parent takes
  // it. Children are collected in reverse and turned round then.
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    auto& complete = shown.at(node->id);
    std::reverse(complete["children"].begin(), complete["children"].end());
    auto& siblings = node->parent == 0 ? roots : shown.at(node->parent)["children"];
    siblings.push_back(std::move(complete));
  }
  std::reverse(roots.begin(), roots.end());
  return answer{{"nodes", std::move(roots)}};
}

answer show_locks(const lock_result& locks) {
  return {{"evictable", locks.evictable_tokens}, {"protected", locks.protected_tokens}};
}

} // namespace hicache::op_json
