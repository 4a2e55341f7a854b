// Incrementally maintained state of radix_tree: sums, eviction orders, digest.

#include "base/check.hpp"
#include "base/mix.hpp"
#include "cache/radix/radix_tree.hpp"

// Pages are short: a call would cost more than their hash.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <utility>

namespace hicache {

namespace {

/// Groups of an eviction order: lower groups are evicted first.
constexpr uint8_t duplicate_group = 0;
constexpr uint8_t plain_group = 1;
constexpr uint8_t referenced_group = 2;

} // namespace

uint64_t radix_tree::sum_tokens(const radix_node& node, uint64_t from, uint64_t to) const {
  auto sum = uint64_t{0};
  const auto page_bytes = page_tokens_ * sizeof(token_id);
  for (auto i = from; i < to; ++i)
    sum += mix(node.first_ + i,
               XXH3_64bits(node.tokens_.data() + i * options_.page_size, page_bytes));
  return sum;
}

uint64_t radix_tree::sum_l1(const radix_node& node, uint64_t from, uint64_t to) const {
  auto sum = uint64_t{0};
  for (auto i = from; i < to && !node.l1_pages_.empty(); ++i)
    sum += mix(node.first_ + i, node.l1_pages_[i]);
  return sum;
}

/// Digest of the rarely changing fields; the others are in the light digest.
uint64_t radix_tree::heavy_digest(const radix_node& node) const {
  const auto parent = node.is_root() ? node_id{0} : node.parent_->id_;
  const auto state = std::array<uint64_t, 13>{
    node.id_,
    parent,
    node.first_,
    node.pages_,
    node.token_digest_,
    node.l1_digest_,
    node.l2_pages_.size(),
    node.use_.created,
    uint64_t{static_cast<uint32_t>(node.use_.priority)} << 32 | uint64_t{node.is_discarded_} << 9
      | uint64_t{node.is_write_back_pending_} << 8 | static_cast<uint64_t>(node.l3_),
    node.write_,
    node.load_,
    node.backup(),
    0};
  return XXH3_64bits(state.data(), sizeof(state));
}

order_key radix_tree::l1_key_of(const radix_node& node) const {
  if (!node.in_l1() || node.is_discarded_ || node.l1_locks_ > 0 || node.l1_children_ > 0)
    return {};
  return {node.references_ > 0 ? referenced_group : plain_group,
          options_.eviction->rank(node.use_)};
}

/// Copies of L1 pages are evicted first, even if nodes below are only in L2: nothing is lost with
/// them. Among these, L1's last victims go first, because L1 needs their copy last; and none before
/// those below it, so that a path has one position. If L2 is exported, peers would lose the copy,
/// so it ranks like any other page.
order_key radix_tree::l2_key_of(const radix_node& node) const {
  if (!node.l2_resident() || node.is_discarded_ || node.l2_locks_ > 0)
    return {};
  const auto rank = options_.eviction->rank(node.use_);
  if (node.in_l1() && !options_.exports_l2)
    return node.copy_children_ > 0 ? order_key{}
                                   : order_key{duplicate_group, {~rank.major, ~rank.minor}};
  if (node.l2_children_ > 0)
    return {};
  return {node.references_ > 0 ? referenced_group : plain_group, rank};
}

void radix_tree::reorder(eviction_order& order, radix_node& node, order_key& key,
                         const order_key& next) {
  if (key == next)
    return;
  if (key.is_present())
    order.erase(order_entry{key, &node});
  if (next.is_present())
    order.insert(order_entry{next, &node});
  key = next;
}

void radix_tree::update_l1(radix_node& node) {
  auto& record = node.record_;
  const auto pages = node.in_l1() ? node.pages_ : 0;
  const auto evictable = node.l1_locks_ == 0 && !node.is_discarded_ ? pages : 0;
  totals_.l1_evictable += evictable - record.l1_evictable;
  totals_.l1_protected += (pages - evictable) - record.l1_protected;
  record.l1_evictable = evictable;
  record.l1_protected = pages - evictable;
  if (node.l1_children_ > 0 && !record.l1_key.is_present())
    return;
  reorder(l1_leaves_, node, record.l1_key, l1_key_of(node));
}

void radix_tree::update_l2(radix_node& node) {
  auto& record = node.record_;
  const auto evictable
    = node.l2_resident() && node.l2_locks_ == 0 && !node.is_discarded_ ? node.pages_ : 0;
  totals_.l2_evictable += evictable - record.l2_evictable;
  record.l2_evictable = evictable;
  const auto followers
    = node.in_l1() && !options_.exports_l2 ? node.copy_children_ : node.l2_children_;
  if (followers > 0 && !record.l2_key.is_present())
    return;
  reorder(l2_victims_, node, record.l2_key, l2_key_of(node));
}

void radix_tree::changed(radix_node& node) {
  auto& record = node.record_;
  const auto digest = heavy_digest(node);
  totals_.digest += digest - record.digest;
  record.digest = digest;
  update_l1(node);
  update_l2(node);
  const auto in_l1 = node.in_l1();
  const auto in_l2 = !node.l2_pages_.empty();
  const auto is_copy = node.is_copy();
  if (node.is_root())
    return;
  const auto was_in_l1 = std::exchange(record.in_l1, in_l1);
  const auto was_in_l2 = std::exchange(record.in_l2, in_l2);
  const auto was_copy = std::exchange(record.is_copy, is_copy);
  if (!node.is_child())
    return;
  if (in_l1 != was_in_l1) {
    node.parent_->l1_children_ += in_l1 ? 1 : -1;
    update_l1(*node.parent_);
  }
  if (in_l2 != was_in_l2 || is_copy != was_copy) {
    node.parent_->l2_children_ += uint32_t{in_l2} - uint32_t{was_in_l2};
    node.parent_->copy_children_ += uint32_t{is_copy} - uint32_t{was_copy};
    update_l2(*node.parent_);
  }
}

uint64_t radix_tree::digest() const noexcept {
  return mix(mix(totals_.digest, l1_pool_.digest()),
             mix(mix(l2_pool_.free(), clock_), mix(last_id_, last_reference_)));
}

std::vector<radix_node*> radix_tree::sorted_nodes() const {
  auto list = std::vector<radix_node*>{};
  list.reserve(nodes_.size());
  for (const auto& [id, node] : nodes_)
    list.push_back(node.get());
  std::sort(list.begin(), list.end(), [](const auto* a, const auto* b) { return a->id_ < b->id_; });
  return list;
}

// -- checks -------------------------------------------------------------------

node_record radix_tree::desired_record(const radix_node& node) const {
  auto record = node_record{};
  record.in_l1 = node.in_l1();
  record.in_l2 = !node.l2_pages_.empty();
  record.is_copy = node.is_copy();
  if (record.in_l1)
    (node.l1_locks_ == 0 && !node.is_discarded_ ? record.l1_evictable : record.l1_protected)
      = node.pages_;
  if (node.l2_resident() && node.l2_locks_ == 0 && !node.is_discarded_)
    record.l2_evictable = node.pages_;
  record.digest = heavy_digest(node);
  record.l1_key = l1_key_of(node);
  record.l2_key = l2_key_of(node);
  return record;
}

void radix_tree::check_node(const radix_node& node) const {
  HICACHE_CHECK(node.record_ == desired_record(node));
  auto in_l1 = uint32_t{0};
  auto in_l2 = uint32_t{0};
  auto copies = uint32_t{0};
  node.children_.visit([&](const first_page& page, const radix_node& child) {
    HICACHE_CHECK(child.parent_ == &node);
    HICACHE_CHECK(page.tokens == child.tokens_.data() && child.first_ == node.end());
    HICACHE_CHECK(child.l1_locks_ <= node.l1_locks_ && child.l2_locks_ <= node.l2_locks_);
    HICACHE_CHECK(node.is_root()
                  || (child.pins_ <= node.pins_ && child.references_ <= node.references_));
    in_l1 += child.in_l1() ? 1 : 0;
    in_l2 += child.l2_pages_.empty() ? 0 : 1;
    copies += child.is_copy() ? 1 : 0;
  });
  HICACHE_CHECK(node.l1_children_ == in_l1 && node.l2_children_ == in_l2
                && node.copy_children_ == copies);
  if (node.is_root()) {
    HICACHE_CHECK(node.l1_pages_.empty() && node.l2_pages_.empty() && node.pages_ == 0);
    HICACHE_CHECK(!node.children_.empty() || node.l1_locks_ > 0 || node.l2_locks_ > 0);
    return;
  }
  HICACHE_CHECK(node.pages_ > 0 && node.tokens_.size() == span_size(node.pages_));
  HICACHE_CHECK(node.token_digest_ == sum_tokens(node, 0, node.pages_));
  HICACHE_CHECK(node.l1_digest_ == sum_l1(node, 0, node.pages_));
  for (const auto& names : {node.names_, node.event_names_})
    HICACHE_CHECK(names.count == 0 || names.count == node.pages_);
  HICACHE_CHECK(node.in_l1() || node.l2_resident());
  HICACHE_CHECK(!node.in_l1() || node.l1_pages_.size() == node.pages_);
  HICACHE_CHECK(node.l2_pages_.empty() || node.l2_pages_.size() == node.pages_);
  HICACHE_CHECK(!node.is_discarded_ || node.l1_locks_ > 0 || node.l2_locks_ > 0);
  HICACHE_CHECK(!node.is_child() || !node.in_l1() || node.parent_->is_root()
                || node.parent_->in_l1());
  HICACHE_CHECK(node.is_discarded_ || node.l2_locks_ == 0 || !node.l2_pages_.empty()
                || node.l1_locks_ > 0);
  HICACHE_CHECK(node.use_.last_access > 0 && node.use_.last_access <= clock_);
  HICACHE_CHECK(node.has_pin_lock_ == (node.pins_ > 0 && !node.l2_resident()));
  HICACHE_CHECK(!node.has_pin_lock_ || node.l1_locks_ > 0);
  HICACHE_CHECK(node.pins_ == 0 || node.l2_locks_ >= node.pins_);
  if (node.write_ != 0)
    HICACHE_CHECK(node.in_l1() && !node.l2_pages_.empty() && node.l1_locks_ > 0
                  && node.l2_locks_ > 0);
  HICACHE_CHECK(!node.is_write_back_pending_ || node.write_ != 0);
  HICACHE_CHECK(node.load_ == 0 || (node.in_l1() && node.l2_resident() && node.l1_locks_ > 0));
  HICACHE_CHECK((node.backup() != 0) == (node.l3_ == l3_state::pending));
  HICACHE_CHECK(!options_.exports_l2 || node.l3_ != l3_state::stored || !node.l2_pages_.empty());
  HICACHE_CHECK(node.backup() == 0 || (node.l2_resident() && node.l2_locks_ > 0));
}

void radix_tree::check_references() const {
  auto ends = size_t{0};
  for (const auto& [node, list] : reference_ends_) {
    HICACHE_CHECK(!list.empty() && node->references_ >= (node->is_root() ? 0 : list.size()));
    for (const auto reference : list)
      HICACHE_CHECK(references_.at(reference) == node);
    ends += list.size();
  }
  HICACHE_CHECK(ends == references_.size());
}

void radix_tree::check_invariants() const {
  auto sums = radix_totals{};
  auto l1_leaves = size_t{0};
  auto l2_victims = size_t{0};
  auto roots = size_t{0};
  auto pending_write_backs = uint64_t{0};
  for (auto* node : sorted_nodes()) {
    check_node(*node);
    const auto& record = node->record_;
    sums.l1_evictable += record.l1_evictable;
    sums.l1_protected += record.l1_protected;
    sums.l2_evictable += record.l2_evictable;
    sums.digest += record.digest + node->light_digest();
    pending_write_backs += node->is_write_back_pending_ ? node->pages_ : 0;
    if (record.l1_key.is_present()) {
      ++l1_leaves;
      HICACHE_CHECK(l1_leaves_.contains(order_entry{record.l1_key, node}));
    }
    if (record.l2_key.is_present()) {
      ++l2_victims;
      HICACHE_CHECK(l2_victims_.contains(order_entry{record.l2_key, node}));
    }
    if (node->is_root()) {
      ++roots;
      HICACHE_CHECK(roots_.at(*node->ns_) == node);
    } else if (node->is_child()) {
      HICACHE_CHECK(node->parent_->children_.find(first_page_of(*node)) == node);
    }
  }
  HICACHE_CHECK(l1_leaves == l1_leaves_.size() && l2_victims == l2_victims_.size());
  HICACHE_CHECK(roots == roots_.size() && pending_write_backs == pending_write_backs_);
  HICACHE_CHECK(sums == totals_);
  check_references();
}

} // namespace hicache
