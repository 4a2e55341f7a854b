#pragma once

#include "cache/prefix/cache_settings.hpp"
#include "cache/prefix/lock_census.hpp"
#include "cache/prefix/step_facts.hpp"
#include "cache/radix/radix_tree.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace hicache::test {

/// The tiers that hold a node.
enum class held { l1, l2, both };

/// 16 pages of two tokens on L1 and on L2; no L3.
inline tree_options part_options() {
  return {.page_size = 2, .l1_pages = 16, .l2_pages = 16};
}

/// What a part of a prefix_cache works on, without the other parts: a radix tree with nodes made by
/// hand, settings and effects. A prefix is written as text, one page per letter.
struct part_tree {
  explicit part_tree(const tree_options& options = part_options())
    : settings{options}, tree({.page_size = options.page_size,
                               .overlap = options.bigram ? 1U : 0U,
                               .l1_pages = options.l1_pages,
                               .l2_pages = options.l2_pages,
                               .eviction = options.eviction,
                               .order = options.order,
                               .exports_l2 = options.storage_exports_l2}) {}

  /// Two tokens for each letter.
  static token_buffer tokens_of(std::string_view text) {
    auto tokens = std::vector<token_id>{};
    for (const auto letter : text)
      tokens.insert(tokens.end(), 2, static_cast<token_id>(letter));
    return std::make_shared<const std::vector<token_id>>(std::move(tokens));
  }

  /// Adds the part of the path that the tree lacks as one node.
  radix_node& add(std::string_view path, held where, l3_state l3 = l3_state::unknown,
                  const cache_namespace& ns = {}) {
    tree.tick();
    const auto tokens = tokens_of(path);
    auto& parent = tree.cut(tree.walk(tree.root(ns), *tokens, path.size()));
    const auto count = path.size() - parent.end();
    auto l1 = where == held::l2 ? std::vector<page_index>{} : tree.take_l1(count).value();
    auto l2 = where == held::l1 ? std::vector<page_index>{} : tree.take_l2(count).value();
    return tree.add(parent, token_span{tokens, parent.end() * 2, count * 2}, std::move(l1),
                    std::move(l2), {}, l3);
  }

  /// Pages that the tree has of a path.
  uint64_t cached(std::string_view path, const cache_namespace& ns = {}) {
    auto* root = tree.find_root(ns);
    return root == nullptr ? 0 : tree.walk(*root, *tokens_of(path), path.size()).pages;
  }

  /// Takes the effects of one kind.
  template <class Effect>
  std::vector<Effect> take() {
    auto taken = std::vector<Effect>{};
    std::erase_if(effects, [&](const tree_effect& effect) {
      const auto* wanted = std::get_if<Effect>(&effect);
      if (wanted != nullptr)
        taken.push_back(*wanted);
      return wanted != nullptr;
    });
    return taken;
  }

  /// Checks the invariants of the tree and of these parts, and that they account for all locks.
  template <class... Parts>
  void check(const Parts&... parts) const {
    tree.check_invariants();
    auto census = lock_census{};
    const auto check_part = [&census](const auto& part) {
      if constexpr (requires { part.check_invariants(); })
        part.check_invariants();
      if constexpr (requires { part.count_locks(census); })
        part.count_locks(census);
    };
    (check_part(parts), ...);
    for (const auto* node : tree.sorted_nodes()) {
      EXPECT_EQ(node->l1_locks(), census.l1_locks(*node)) << "node " << node->id();
      EXPECT_EQ(node->l2_locks(), census.l2_locks(*node)) << "node " << node->id();
    }
  }

  cache_settings settings;
  radix_tree tree;
  std::vector<tree_effect> effects;
};

/// Runs a history twice. The digests of `part` agree after each step, and each step changes them.
template <class Holder>
void expect_digest_follows(std::initializer_list<std::function<void(Holder&)>> history) {
  auto a = Holder{};
  auto b = Holder{};
  auto number = 0;
  for (const auto& step : history) {
    SCOPED_TRACE("step " + std::to_string(++number));
    const auto before = a.part.digest();
    step(a);
    step(b);
    EXPECT_NE(a.part.digest(), before);
    EXPECT_EQ(a.part.digest(), b.part.digest());
  }
}

} // namespace hicache::test
