#pragma once

#include "base/check.hpp"
#include "hicache/error.hpp"
#include "hicache/ids.hpp"
#include "hicache/storage_backend.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace hicache {

/// Pages and their parents, by last use. Evicts the least recently used page without a stored
/// child, so that a prefix outlives its suffixes. Times are any increasing numbers. Facts may
/// arrive in any order: with `keep_removed` the later one about a page wins. Not thread-safe.
class folder_table {
public:
  /// Records that the page exists. Adding it again is a use.
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

  /// Records a use of the page.
  /// @returns the time of the previous use; empty if the page is not stored
  std::optional<int64_t> use(const page_key& key, int64_t time) {
    auto* const found = find(key);
    if (found == nullptr || !found->second.is_present)
      return std::nullopt;
    unlist(*found);
    const auto before = found->second.used;
    found->second.used = std::max(before, time);
    list(*found);
    return before;
  }

  /// Records that the page is gone.
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

  /// Protects the page from eviction, as if it had one more child.
  void hold(const page_key& key) { gain_child(node_of(key)); }

  /// Ends a `hold`.
  void release(const page_key& key) { lose_child(*find(key)); }

  /// Whether to remember pages that are gone, so that older facts about them are recognised.
  void keep_removed(bool keeps) {
    keeps_removed_ = keeps;
    if (keeps)
      return;
    for (const auto& key : std::exchange(gone_, {}))
      if (auto* const found = find(key))
        forget(*found);
  }

  bool contains(const page_key& key) const { return present(key) != nullptr; }

  /// The page to evict next; empty if all pages have children or are held.
  std::optional<page_key> oldest() const {
    return leaves_.empty() ? std::nullopt : std::optional{leaves_.begin()->second->first};
  }

  uint64_t bytes_of(const page_key& key) const {
    const auto* const found = present(key);
    return found == nullptr ? 0 : found->bytes;
  }

  /// The time of the page's last use; 0 if it is not stored.
  int64_t used(const page_key& key) const {
    const auto* const found = present(key);
    return found == nullptr ? 0 : found->used;
  }

  /// All zero if the page is not stored, or is a first one.
  page_key parent_of(const page_key& key) const {
    const auto* const found = present(key);
    return found == nullptr || found->parent == nullptr ? page_key{} : found->parent->first;
  }

  uint64_t size() const noexcept { return size_; }

  uint64_t bytes() const noexcept { return bytes_; }

  /// Growing a hash table moves all entries, which takes more than a second for ten million pages;
  /// with many parts each takes some milliseconds.
  static constexpr auto parts = size_t{256};

  static size_t part_of(const page_key& key) noexcept {
    return std::hash<page_key>{}(key) / (SIZE_MAX / parts + 1);
  }

  /// Calls `visit(key, parent, bytes, used)` for each page.
  template <class Visit>
  void visit(Visit visit) const {
    for (auto part = size_t{0}; part < parts; ++part)
      visit_part(part, visit);
  }

  /// The same for one part of the pages.
  template <class Visit>
  void visit_part(size_t part, Visit visit) const {
    for (const auto& [key, entry] : nodes_[part])
      if (entry.is_present)
        visit(key, entry.parent != nullptr ? entry.parent->first : page_key{}, entry.bytes,
              entry.used);
  }

  /// The pages of the part that a list has come to; storage_backend::list.
  result<object_list> list(const std::string& from) const {
    auto part = size_t{0};
    const auto end = std::from_chars(from.data(), from.data() + from.size(), part);
    if (!from.empty() && (end.ptr != from.data() + from.size() || part >= parts))
      return fail(ec::invalid_argument, "there is no part '" + from + "' of the list");
    auto listed = object_list{};
    visit_part(part, [&](const page_key& key, const page_key& parent, uint64_t bytes, int64_t) {
      listed.objects.push_back({key, parent, bytes});
    });
    if (part + 1 < parts)
      listed.next = std::to_string(part + 1);
    return listed;
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

  page_node& node_of(const page_key& key) { return *nodes_[part_of(key)].try_emplace(key).first; }

  page_node* find(const page_key& key) {
    auto& part = nodes_[part_of(key)];
    const auto found = part.find(key);
    return found == part.end() ? nullptr : &*found;
  }

  /// The state of a stored page; null if it is not stored.
  const page_state* present(const page_key& key) const {
    const auto& part = nodes_[part_of(key)];
    const auto found = part.find(key);
    return found == part.end() || !found->second.is_present ? nullptr : &found->second;
  }

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

  /// Forgets a page if it is unused, at once or when `keep_removed` ends.
  void let_go(page_node& x) {
    if (keeps_removed_)
      gone_.push_back(x.first);
    else
      forget(x);
  }

  /// Drops the state of a page that is not stored and has no child, and likewise its ancestors.
  void forget(page_node& x) {
    for (auto* each = &x; each != nullptr;) {
      if (each->second.is_present || each->second.children > 0)
        return;
      auto* const parent = each->second.parent;
      nodes_[part_of(each->first)].erase(page_key{each->first});
      if (parent != nullptr) {
        --parent->second.children;
        list(*parent);
      }
      each = parent;
    }
  }

  /// By part.
  std::array<std::unordered_map<page_key, page_state>, parts> nodes_;
  std::set<std::pair<int64_t, page_node*>, leaf_order> leaves_;
  uint64_t size_ = 0;
  uint64_t bytes_ = 0;
  bool keeps_removed_ = false;
  /// Pages to forget when `keep_removed` ends, unless they are stored again.
  std::vector<page_key> gone_;
};

} // namespace hicache
