#pragma once

#include "base/check.hpp"
#include "messages/ids.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

namespace hicache {

/// Pages with their parents, by last use: what is evicted next is the page without a stored child
/// that was used longest ago, so that a prefix outlives its suffixes. Times are any numbers that
/// grow. Facts may come in any order: of two about one page, the later one holds, as long as
/// `keep_removed` is on. Not thread-safe.
class folder_table {
public:
  /// The page is there. Adding it again is a use.
  void add(const page_key& key, const page_key& parent, uint64_t bytes, int64_t time) {
    auto& node = node_of(key);
    auto& entry = node.second;
    if (!entry.is_present && entry.changed > time)
      return;
    unlist(node);
    if (entry.parent == nullptr && parent != page_key{} && parent != key) {
      entry.parent = &node_of(parent);
      gain_child(*entry.parent);
    }
    bytes_ += bytes - (entry.is_present ? entry.bytes : 0);
    size_ += entry.is_present ? 0 : 1;
    entry.is_present = true;
    entry.bytes = bytes;
    entry.changed = std::max(entry.changed, time);
    entry.used = std::max(entry.used, time);
    list(node);
  }

  /// The page was used.
  /// @returns when it was used before; nothing if it is not there
  std::optional<int64_t> use(const page_key& key, int64_t time) {
    const auto found = nodes_.find(key);
    if (found == nodes_.end() || !found->second.is_present)
      return std::nullopt;
    unlist(*found);
    const auto before = found->second.used;
    found->second.used = std::max(before, time);
    list(*found);
    return before;
  }

  /// The page is gone.
  void remove(const page_key& key, int64_t time) {
    if (!keeps_removed_ && !contains(key))
      return;
    auto& node = node_of(key);
    auto& entry = node.second;
    if (entry.changed > time)
      return;
    unlist(node);
    entry.changed = time;
    if (std::exchange(entry.is_present, false)) {
      bytes_ -= entry.bytes;
      --size_;
    }
    let_go(node);
  }

  /// From now on the page is not evicted, as if it had one more child.
  void hold(const page_key& key) { gain_child(node_of(key)); }

  /// Ends a `hold`.
  void release(const page_key& key) { lose_child(*nodes_.find(key)); }

  /// Whether pages that are gone are remembered, so that older facts about them are known as such.
  void keep_removed(bool keeps) {
    keeps_removed_ = keeps;
    if (keeps)
      return;
    for (const auto& key : std::exchange(gone_, {}))
      if (const auto found = nodes_.find(key); found != nodes_.end())
        forget(*found);
  }

  bool contains(const page_key& key) const {
    const auto found = nodes_.find(key);
    return found != nodes_.end() && found->second.is_present;
  }

  /// The page to evict next; nothing if all pages have children or are held.
  std::optional<page_key> oldest() const {
    return leaves_.empty() ? std::nullopt : std::optional{leaves_.begin()->second->first};
  }

  uint64_t bytes_of(const page_key& key) const { return contains(key) ? nodes_.at(key).bytes : 0; }

  uint64_t size() const noexcept { return size_; }

  uint64_t bytes() const noexcept { return bytes_; }

  /// Calls `visit(key, parent, bytes, used)` for each page.
  template <class Visit>
  void visit(Visit visit) const {
    for (const auto& [key, entry] : nodes_)
      if (entry.is_present)
        visit(key, entry.parent != nullptr ? entry.parent->first : page_key{}, entry.bytes,
              entry.used);
  }

private:
  struct page_state {
    std::pair<const page_key, page_state>* parent = nullptr;
    uint64_t bytes = 0;
    int64_t used = 0;
    /// When it was last added or removed.
    int64_t changed = 0;
    uint32_t children = 0;
    bool is_present = false;
  };

  using page_node = std::pair<const page_key, page_state>;

  struct leaf_order {
    bool operator()(const std::pair<int64_t, page_node*>& a,
                    const std::pair<int64_t, page_node*>& b) const noexcept {
      return a.first != b.first ? a.first < b.first : a.second->first < b.second->first;
    }
  };

  page_node& node_of(const page_key& key) { return *nodes_.try_emplace(key).first; }

  void list(page_node& x) {
    if (x.second.is_present && x.second.children == 0)
      leaves_.emplace(x.second.used, &x);
  }

  void unlist(page_node& x) {
    if (x.second.is_present && x.second.children == 0)
      leaves_.erase({x.second.used, &x});
  }

  void gain_child(page_node& x) {
    unlist(x);
    ++x.second.children;
  }

  void lose_child(page_node& x) {
    HICACHE_CHECK(x.second.children > 0);
    --x.second.children;
    list(x);
    let_go(x);
  }

  /// A page may be one to forget, now or when what is gone is not remembered any more.
  void let_go(page_node& x) {
    if (keeps_removed_)
      gone_.push_back(x.first);
    else
      forget(x);
  }

  /// Drops what is known of a page that is not there and has no child; and so up the path.
  void forget(page_node& x) {
    for (auto* each = &x; each != nullptr;) {
      if (each->second.is_present || each->second.children > 0)
        return;
      auto* const parent = each->second.parent;
      nodes_.erase(nodes_.find(each->first));
      if (parent != nullptr) {
        --parent->second.children;
        list(*parent);
      }
      each = parent;
    }
  }

  std::unordered_map<page_key, page_state> nodes_;
  std::set<std::pair<int64_t, page_node*>, leaf_order> leaves_;
  uint64_t size_ = 0;
  uint64_t bytes_ = 0;
  bool keeps_removed_ = false;
  /// Pages that are to be forgotten then, unless they are there again.
  std::vector<page_key> gone_;
};

} // namespace hicache
