#pragma once

#include "hicache/ids.hpp"

#include <absl/container/flat_hash_map.h>

#include <cstdint>
#include <cstring>
#include <memory>

namespace hicache {

class radix_node;

/// The first page of a child, by which its parent finds it. Points into the child's tokens.
struct first_page {
  const token_id* tokens = nullptr;
  /// Tokens of a page: one more than the page size with bigrams.
  uint32_t size = 0;

  friend bool operator==(const first_page& a, const first_page& b) noexcept {
    return a.size == b.size && std::memcmp(a.tokens, b.tokens, a.size * sizeof(token_id)) == 0;
  }
};

struct first_page_hash {
  size_t operator()(const first_page& page) const noexcept;
};

/// The children of a node, by first page. Most nodes have at most one child, so the table is
/// created with the second. The order of a visit is unspecified: no decision may depend on it.
class radix_children {
public:
  bool empty() const noexcept { return only_ == nullptr && (!table_ || table_->empty()); }

  /// The child if there is exactly one and there was never another, else null.
  radix_node* only() const noexcept { return only_; }

  /// The child that begins with the page, or null.
  radix_node* find(const first_page& page) const {
    if (only_ != nullptr)
      return only_page_ == page ? only_ : nullptr;
    if (!table_)
      return nullptr;
    const auto entry = table_->find(page);
    return entry == table_->end() ? nullptr : entry->second;
  }

  /// @returns false if there is already a child with that page.
  bool add(const first_page& page, radix_node& child) {
    if (only_ == nullptr && !table_) {
      only_page_ = page;
      only_ = &child;
      return true;
    }
    if (!table_) {
      table_ = std::make_unique<table>();
      table_->emplace(only_page_, only_);
      only_ = nullptr;
    }
    return table_->emplace(page, &child).second;
  }

  /// Replaces the child that begins with the same page. The page's memory must outlive the entry.
  void replace(const first_page& page, radix_node& child) {
    if (only_ != nullptr)
      only_ = &child;
    else
      table_->find(page)->second = &child;
  }

  void remove(const first_page& page) {
    if (only_ != nullptr)
      only_ = nullptr;
    else
      table_->erase(page);
  }

  template <class Visit>
  void visit(Visit visit) const {
    if (only_ != nullptr)
      visit(only_page_, *only_);
    else if (table_)
      for (const auto& [page, child] : *table_)
        visit(page, *child);
  }

private:
  using table = absl::flat_hash_map<first_page, radix_node*, first_page_hash>;

  first_page only_page_;
  radix_node* only_ = nullptr;
  std::unique_ptr<table> table_;
};

} // namespace hicache
