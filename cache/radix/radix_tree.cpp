// Structure and use of a radix_tree: walking, splitting, adding, locking.

#include "cache/radix/radix_tree.hpp"

#include "base/mix.hpp"
#include "cache/hash/page_hash.hpp"
#include "cache/radix/prefix_key.hpp"

// Pages are short: a call would cost more than their hash.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <tuple>

namespace hicache {

namespace {

/// Moves elements [from, end) of `list` into a new list.
template <class T>
std::vector<T> take_tail(std::vector<T>& list, uint64_t from) {
  if (list.empty())
    return {};
  auto tail = std::vector<T>(list.begin() + static_cast<ptrdiff_t>(from), list.end());
  list.resize(from);
  return tail;
}

/// Nodes that are noted for join_nodes() at most; the others stay as they are.
constexpr auto most_joins = size_t{1} << 16;

name_run known_names(std::vector<page_key> keys) {
  const auto count = keys.size();
  return {std::make_shared<const page_names>(std::move(keys)), 0, count};
}

uint64_t hash_namespace(const cache_namespace& ns) {
  return mix(XXH3_64bits(ns.extra_key.data(), ns.extra_key.size()),
             XXH3_64bits(ns.salt.data(), ns.salt.size()));
}

} // namespace

size_t first_page_hash::operator()(const first_page& page) const noexcept {
  return XXH3_64bits(page.tokens, page.size * sizeof(token_id));
}

radix_tree::radix_tree(const radix_options& options)
  : options_(options), page_tokens_(options.page_size + options.overlap),
    l1_pool_(options.l1_pages, options.order), l2_pool_(options.l2_pages, options.order) {
  HICACHE_CHECK(options_.page_size > 0 && options_.overlap <= 1 && options_.eviction);
  if (options_.events)
    changes_.emplace_back(cache_cleared{});
}

// -- structure ----------------------------------------------------------------

radix_node& radix_tree::make_node() {
  auto owner = std::make_unique<radix_node>();
  owner->id_ = ++last_id_;
  owner->salt_ = mix(last_id_, last_id_) | 1;
  return *nodes_.emplace(owner->id_, std::move(owner)).first->second;
}

radix_node& radix_tree::root(const cache_namespace& ns) {
  auto [entry, is_new] = roots_.try_emplace(ns, nullptr);
  if (is_new) {
    auto& node = make_node();
    entry->second = &node;
    node.ns_ = &entry->first;
    node.token_digest_ = hash_namespace(ns);
    const auto seed = namespace_seed(ns);
    if (seed)
      node.names_ = known_names({*seed});
    if (const auto other = event_seed(ns); other != seed && options_.events)
      node.event_names_ = known_names({*other});
    changed(node);
  }
  return *entry->second;
}

radix_node* radix_tree::find_root(const cache_namespace& ns) noexcept {
  const auto entry = roots_.find(ns);
  return entry == roots_.end() ? nullptr : entry->second;
}

radix_node* radix_tree::find(node_id id) noexcept {
  const auto entry = nodes_.find(id);
  if (entry == nodes_.end() || entry->second->is_root() || entry->second->is_discarded())
    return nullptr;
  return entry->second.get();
}

path_end radix_tree::walk(radix_node& start, std::span<const token_id> tokens,
                          uint64_t limit) const {
  HICACHE_CHECK(limit <= whole_pages(tokens.size()));
  auto end = path_end{&start, start.end()};
  while (end.pages < limit) {
    const auto* wanted = tokens.data() + end.pages * options_.page_size;
    auto* child = end.node->children_.only();
    if (child == nullptr)
      child = end.node->children_.find(first_page{wanted, page_tokens_});
    if (child == nullptr)
      break;
    // Prefetches the node after the next one during the comparison of tokens.
    if (const auto* next = child->children_.only())
      __builtin_prefetch(&next->tokens_);
    const auto equal
      = equal_pages(wanted, child->tokens_.data(), std::min(child->pages_, limit - end.pages),
                    options_.page_size, options_.overlap);
    if (equal == 0)
      break;
    end.node = child;
    end.pages += equal;
    if (end.pages < child->end())
      break;
  }
  return end;
}

radix_node& radix_tree::cut(const path_end& end) {
  return end.pages == end.node->end() ? *end.node : split(*end.node, end.pages - end.node->first_);
}

radix_node& radix_tree::add(radix_node& parent, token_span tokens, std::vector<page_index> device,
                            std::vector<page_index> host, name_run names, l3_state l3) {
  auto& node = make_node();
  node.parent_ = &parent;
  node.tokens_ = std::move(tokens);
  node.first_ = parent.end();
  node.pages_ = whole_pages(node.tokens_.size());
  HICACHE_CHECK(node.pages_ > 0 && node.tokens_.size() == span_size(node.pages_));
  HICACHE_CHECK(!device.empty() || !host.empty());
  HICACHE_CHECK(device.empty() || parent.in_l1() || parent.is_root());
  HICACHE_CHECK(names.count == 0 || names.count == node.pages_);
  node.l2_pages_ = std::move(host);
  node.names_ = std::move(names);
  node.l3_ = l3;
  node.use_.created = node.use_.last_access = clock_;
  node.token_digest_ = sum_tokens(node, 0, node.pages_);
  if (!device.empty()) {
    node.l1_pages_ = std::move(device);
    node.l1_digest_ = sum_l1(node, 0, node.pages_);
    emit_stored(cache_medium::l1, node);
  }
  if (!node.l2_pages_.empty())
    emit_stored(cache_medium::l2, node);
  HICACHE_CHECK(parent.children_.add(first_page_of(node), node));
  totals_.digest += node.light_digest();
  changed(node);
  return node;
}

void radix_tree::set_l1(radix_node& node, std::vector<page_index> pages, operation_id load) {
  HICACHE_CHECK(!node.in_l1() && pages.size() == node.pages_);
  const auto edit = node_edit{*this, node};
  node.load_ = load;
  node.l1_pages_ = std::move(pages);
  node.l1_digest_ = sum_l1(node, 0, node.pages_);
  if (load == 0)
    emit_stored(cache_medium::l1, node);
}

void radix_tree::finish_write(radix_node& node) {
  {
    const auto edit = node_edit{*this, node};
    node.write_ = 0;
    if (!node.is_discarded_)
      emit_stored(cache_medium::l2, node);
  }
  update_pin_lock(node);
}

void radix_tree::cancel_write(radix_node& node) {
  const auto edit = node_edit{*this, node};
  node.write_ = 0;
  l2_pool_.give_back(node.l2_pages_);
  node.l2_pages_.clear();
}

void radix_tree::finish_load(radix_node& node) {
  const auto edit = node_edit{*this, node};
  node.load_ = 0;
  if (!node.is_discarded_)
    emit_stored(cache_medium::l1, node);
}

/// The new node becomes the upper part, so that `node` stays valid as the end of a path. It
/// inherits all marks: whatever completes the lower part by walking up its path completes both.
radix_node& radix_tree::split(radix_node& node, uint64_t pages) {
  HICACHE_CHECK(pages > 0 && pages < node.pages_ && !node.is_discarded_);
  auto& upper = make_node();
  const auto lower_is_smaller = node.pages_ - pages < pages;
  const auto from = lower_is_smaller ? pages : 0;
  const auto to = lower_is_smaller ? node.pages_ : pages;
  const auto tokens_part = sum_tokens(node, from, to);
  const auto l1_part = sum_l1(node, from, to);
  upper.token_digest_ = lower_is_smaller ? node.token_digest_ - tokens_part : tokens_part;
  upper.l1_digest_ = lower_is_smaller ? node.l1_digest_ - l1_part : l1_part;
  node.token_digest_ -= upper.token_digest_;
  node.l1_digest_ -= upper.l1_digest_;
  upper.parent_ = node.parent_;
  upper.first_ = node.first_;
  upper.pages_ = pages;
  node.first_ += pages;
  node.pages_ -= pages;
  upper.tokens_ = node.tokens_.cut_front(pages * options_.page_size, options_.overlap);
  upper.l1_pages_ = std::move(node.l1_pages_);
  node.l1_pages_ = take_tail(upper.l1_pages_, pages);
  upper.l2_pages_ = std::move(node.l2_pages_);
  node.l2_pages_ = take_tail(upper.l2_pages_, pages);
  for (const auto names : {&radix_node::names_, &radix_node::event_names_})
    if ((node.*names).count > 0)
      upper.*names = (node.*names).cut_front(pages);
  upper.l1_locks_ = node.l1_locks_;
  upper.l2_locks_ = node.l2_locks_;
  upper.pins_ = node.pins_;
  upper.references_ = node.references_;
  upper.use_ = node.use_;
  upper.write_ = node.write_;
  upper.load_ = node.load_;
  upper.l3_ = node.l3_;
  upper.l3_mark_ = node.l3_mark_;
  upper.is_write_back_pending_ = node.is_write_back_pending_;
  // The upper part shares the buffer, so the parent's key still points to its first page.
  upper.parent_->children_.replace(first_page_of(upper), upper);
  upper.children_.add(first_page_of(node), node);
  node.parent_ = &upper;
  upper.record_.in_l1 = node.record_.in_l1;
  upper.record_.in_l2 = node.record_.in_l2;
  upper.record_.is_copy = node.record_.is_copy;
  upper.l1_children_ = node.record_.in_l1 ? 1 : 0;
  upper.l2_children_ = node.record_.in_l2 ? 1 : 0;
  upper.copy_children_ = node.record_.is_copy ? 1 : 0;
  totals_.digest += upper.light_digest();
  changed(upper);
  changed(node);
  update_pin_lock(upper);
  return upper;
}

void radix_tree::want_join(const radix_node& node) {
  if (options_.join_nodes && !node.is_root() && may_join_.size() < most_joins)
    may_join_.push_back(node.id_);
}

void radix_tree::join_nodes() {
  for (const auto id : std::exchange(may_join_, {}))
    if (auto* upper = find(id); upper != nullptr)
      if (auto* lower = upper->children_.only(); lower != nullptr && can_join(*upper, *lower))
        join(*upper, *lower);
}

/// True if both could be the halves of one split: a lock, pin, reference or operation that ended at
/// `upper` would be missing in `lower`.
bool radix_tree::can_join(const radix_node& upper, const radix_node& lower) const {
  const auto marks = [](const radix_node& x) {
    return std::tuple{x.in_l1(),       x.l1_locks_,     x.l2_locks_,
                      x.pins_,         x.references_,   x.l3_,
                      x.is_discarded_, x.has_pin_lock_, x.is_write_back_pending_};
  };
  const auto is_idle
    = [](const radix_node& x) { return x.l2_resident() && x.load_ == 0 && x.backup() == 0; };
  return !upper.has_handle_ && is_idle(upper) && is_idle(lower) && marks(upper) == marks(lower)
         && upper.use_ == lower.use_ && upper.tokens_.continues_in(lower.tokens_, options_.overlap);
}

/// The opposite of split.
void radix_tree::join(radix_node& upper, radix_node& lower) {
  const auto append = [](std::vector<page_index>& front, std::vector<page_index>& back) {
    front.insert(front.end(), back.begin(), back.end());
    back = std::exchange(front, {});
  };
  append(upper.l1_pages_, lower.l1_pages_);
  append(upper.l2_pages_, lower.l2_pages_);
  lower.tokens_.prepend(upper.tokens_, options_.overlap);
  for (const auto names : {&radix_node::names_, &radix_node::event_names_}) {
    const auto& front = upper.*names;
    auto& back = lower.*names;
    // Otherwise they are made anew when asked for.
    const auto are_one
      = front.names == back.names && front.first + front.count == back.first && back.count > 0;
    back = are_one ? name_run{back.names, front.first, front.count + back.count} : name_run{};
  }
  lower.l3_mark_ = std::min(lower.l3_mark_, upper.l3_mark_);
  lower.token_digest_ += upper.token_digest_;
  lower.l1_digest_ += upper.l1_digest_;
  lower.first_ = upper.first_;
  lower.pages_ += upper.pages_;
  // The parent counts the lower node in the place of the upper one.
  upper.record_.in_l1 = upper.record_.in_l2 = upper.record_.is_copy = false;
  changed(upper);
  totals_.digest -= upper.record_.digest + upper.light_digest();
  lower.parent_ = upper.parent_;
  lower.parent_->children_.replace(first_page_of(lower), lower);
  nodes_.erase(upper.id_);
  changed(lower);
}

void radix_tree::remove(radix_node& node) {
  HICACHE_CHECK(node.children_.empty() && node.l1_locks_ == 0 && node.l2_locks_ == 0);
  HICACHE_CHECK(node.l1_pages_.empty() && node.l2_pages_.empty());
  slide_references(node);
  changed(node);
  totals_.digest -= node.record_.digest + node.light_digest();
  auto& parent = *node.parent_;
  parent.children_.remove(first_page_of(node));
  nodes_.erase(node.id_);
  want_join(parent);
  drop_unused_root(parent);
}

void radix_tree::drop_unused_root(radix_node& node) {
  if (!node.is_root() || !node.children_.empty() || node.l1_locks_ > 0 || node.l2_locks_ > 0)
    return;
  HICACHE_CHECK(node.pins_ == 0);
  for (const auto reference : reference_ends_[&node])
    references_.erase(reference);
  reference_ends_.erase(&node);
  totals_.digest -= node.record_.digest + node.light_digest();
  roots_.erase(roots_.find(*node.ns_));
  nodes_.erase(node.id_);
}

// -- pages that hold no valid bytes -------------------------------------------

void radix_tree::discard(radix_node& top) {
  auto& parent = *top.parent_;
  parent.children_.remove(first_page_of(top));
  parent.l1_children_ -= top.record_.in_l1 ? 1 : 0;
  parent.l2_children_ -= top.record_.in_l2 ? 1 : 0;
  parent.copy_children_ -= top.record_.is_copy ? 1 : 0;
  auto list = descendants(top);
  list.insert(list.begin(), &top);
  for (auto* node : list) {
    HICACHE_CHECK(node->pins_ == 0);
    if (node->in_l1() && node->load_ == 0)
      emit_removed(cache_medium::l1, *node, 0);
    if (node->l2_resident())
      emit_removed(cache_medium::l2, *node, 0);
    if (std::exchange(node->is_write_back_pending_, false))
      pending_write_backs_ -= node->pages_;
    node->is_discarded_ = true;
    changed(*node);
  }
  for (auto each = list.rbegin(); each != list.rend(); ++each)
    free_discarded(**each);
  changed(parent);
}

/// Frees a discarded node once it is unlocked; then everything below it is unlocked, too.
void radix_tree::free_discarded(radix_node& node) {
  if (!node.is_discarded_ || node.l1_locks_ > 0 || node.l2_locks_ > 0)
    return;
  HICACHE_CHECK(node.children_.empty());
  slide_references(node);
  l1_pool_.give_back(node.l1_pages_);
  l2_pool_.give_back(node.l2_pages_);
  node.l1_pages_.clear();
  node.l2_pages_.clear();
  changed(node);
  totals_.digest -= node.record_.digest + node.light_digest();
  if (node.parent_->is_discarded_)
    node.parent_->children_.remove(first_page_of(node));
  nodes_.erase(node.id_);
}

// -- all nodes ----------------------------------------------------------------

void radix_tree::clear() {
  HICACHE_CHECK(totals_.l1_protected == 0 && pending_write_backs_ == 0);
  for (auto* node : sorted_nodes()) {
    l1_pool_.give_back(node->l1_pages_);
    l2_pool_.give_back(node->l2_pages_);
  }
  references_.clear();
  reference_ends_.clear();
  l1_leaves_.clear();
  l2_victims_.clear();
  may_join_.clear();
  roots_.clear();
  nodes_.clear();
  totals_ = {};
  if (options_.events)
    changes_.emplace_back(cache_cleared{});
}

void radix_tree::set_exports_l2(bool exports_l2) {
  if (std::exchange(options_.exports_l2, exports_l2) == exports_l2)
    return;
  for (const auto& [id, node] : nodes_)
    update_l2(*node);
}

// -- use ----------------------------------------------------------------------

void radix_tree::touch(radix_node& node, uint64_t hits) {
  for (auto* each = &node; !each->is_root(); each = each->parent_) {
    totals_.digest -= each->light_digest();
    each->use_.last_access = clock_;
    each->use_.hits += hits;
    totals_.digest += each->light_digest();
    if (each->record_.l1_key.is_present())
      update_l1(*each);
    if (each->record_.l2_key.is_present())
      update_l2(*each);
  }
}

void radix_tree::raise_priority(radix_node& node, int32_t priority) {
  for (auto* each = &node; !each->is_root(); each = each->parent_)
    if (each->use_.priority < priority)
      node_edit{*this, *each}.set_priority(priority);
}

void radix_tree::lock_l1(radix_node& node) {
  for (auto* each = &node; each != nullptr; each = each->parent_) {
    totals_.digest += each->salt_ * light_factors::l1_locks;
    if (each->l1_locks_++ == 0)
      update_l1(*each);
  }
}

void radix_tree::unlock_l1(radix_node& node) {
  auto* top = &node;
  for (auto* each = &node; each != nullptr;) {
    auto* const next = each->parent_;
    HICACHE_CHECK(each->l1_locks_ > 0);
    totals_.digest -= each->salt_ * light_factors::l1_locks;
    if (--each->l1_locks_ == 0)
      update_l1(*each);
    top = each;
    free_discarded(*each);
    each = next;
  }
  drop_unused_root(*top);
}

void radix_tree::lock_l2(radix_node& node) {
  for (auto* each = &node; each != nullptr; each = each->parent_) {
    totals_.digest += each->salt_ * light_factors::l2_locks;
    if (each->l2_locks_++ == 0)
      update_l2(*each);
  }
}

void radix_tree::unlock_l2(radix_node& node) {
  auto* top = &node;
  for (auto* each = &node; each != nullptr;) {
    auto* const next = each->parent_;
    HICACHE_CHECK(each->l2_locks_ > 0);
    totals_.digest -= each->salt_ * light_factors::l2_locks;
    if (--each->l2_locks_ == 0)
      update_l2(*each);
    top = each;
    free_discarded(*each);
    each = next;
  }
  drop_unused_root(*top);
}

// -- pins and references ------------------------------------------------------

void radix_tree::pin(radix_node& node) {
  lock_l2(node);
  for (auto* each = &node; !each->is_root(); each = each->parent_) {
    ++each->pins_;
    totals_.digest += each->salt_ * light_factors::pins;
    update_pin_lock(*each);
  }
}

void radix_tree::unpin(radix_node& node) {
  for (auto* each = &node; !each->is_root(); each = each->parent_) {
    HICACHE_CHECK(each->pins_ > 0);
    --each->pins_;
    totals_.digest -= each->salt_ * light_factors::pins;
    update_pin_lock(*each);
  }
  unlock_l2(node);
}

/// Pins keep pages on one tier: each pin holds an L2 lock, and an L1 lock while L2 lacks the pages.
void radix_tree::update_pin_lock(radix_node& node) {
  const auto is_needed = node.pins_ > 0 && !node.l2_resident();
  if (is_needed == node.has_pin_lock_)
    return;
  node.has_pin_lock_ = is_needed;
  if (is_needed)
    lock_l1(node);
  else
    unlock_l1(node);
}

uint64_t radix_tree::refer(radix_node& node) {
  for (auto* each = &node; !each->is_root(); each = each->parent_) {
    ++each->references_;
    totals_.digest += each->salt_ * light_factors::references;
    update_l1(*each);
    update_l2(*each);
  }
  references_.emplace(++last_reference_, &node);
  reference_ends_[&node].push_back(last_reference_);
  return last_reference_;
}

void radix_tree::drop_reference(uint64_t reference) {
  const auto entry = references_.find(reference);
  if (entry == references_.end())
    return; // Everything it referred to was evicted.
  auto& node = *entry->second;
  references_.erase(entry);
  const auto ends = reference_ends_.find(&node);
  std::erase(ends->second, reference);
  if (ends->second.empty())
    reference_ends_.erase(ends);
  for (auto* each = &node; !each->is_root(); each = each->parent_) {
    --each->references_;
    totals_.digest -= each->salt_ * light_factors::references;
    update_l1(*each);
    update_l2(*each);
  }
}

/// Moves the references that end at a removed node to its parent.
void radix_tree::slide_references(radix_node& node) {
  const auto entry = reference_ends_.find(&node);
  if (entry == reference_ends_.end())
    return;
  const auto list = std::move(entry->second);
  reference_ends_.erase(entry);
  for (const auto reference : list)
    references_[reference] = node.parent_;
  auto& ends = reference_ends_[node.parent_];
  ends.insert(ends.end(), list.begin(), list.end());
}

// -- names --------------------------------------------------------------------

name_run radix_tree::names_after(const name_run& prior, const token_span& tokens) const {
  auto names
    = std::make_shared<const page_names>(prior, tokens, options_.page_size, options_.overlap);
  const auto count = names->size();
  return {std::move(names), 0, count};
}

const name_run& radix_tree::name_path(radix_node& node, name_run radix_node::*names) const {
  auto unnamed = std::vector<radix_node*>{};
  for (auto* each = &node; !each->is_root() && (each->*names).count == 0; each = each->parent_)
    unnamed.push_back(each);
  for (; !unnamed.empty(); unnamed.pop_back()) {
    auto& next = *unnamed.back();
    next.*names = names_after(next.parent_->*names, next.tokens_);
  }
  return node.*names;
}

// -- events -------------------------------------------------------------------

const name_run& radix_tree::event_names_of(radix_node& node) const {
  const auto has_own = node.root().event_names_.count > 0;
  return name_path(node, has_own ? &radix_node::event_names_ : &radix_node::names_);
}

void radix_tree::emit_stored(cache_medium medium, radix_node& node) {
  if (!options_.events)
    return;
  auto& parent = *node.parent_;
  changes_.emplace_back(stored_change{medium, node.ns(),
                                      parent.is_root() ? name_run{} : event_names_of(parent),
                                      event_names_of(node), node.tokens_, options_.overlap});
}

void radix_tree::emit_removed(cache_medium medium, radix_node& node, uint64_t from) {
  if (!options_.events || from == node.pages_)
    return;
  auto names = event_names_of(node);
  static_cast<void>(names.cut_front(from));
  changes_.emplace_back(removed_change{medium, std::move(names)});
}

} // namespace hicache
