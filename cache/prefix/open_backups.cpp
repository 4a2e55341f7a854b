#include "cache/prefix/open_backups.hpp"

#include "base/check.hpp"
#include "base/limits.hpp"
#include "cache/hash/page_hash.hpp"

#include <algorithm>

namespace hicache {

// -- backups begin ------------------------------------------------------------

void open_backups::doubt_path(radix_node& end) {
  const auto is_doubtful = [lost_ns = settings_.lost_ns](const radix_node& each) {
    return each.l3() == l3_state::stored && each.stored_ns() <= lost_ns;
  };
  if (settings_.lost_ns > 0)
    for (auto* node : path_nodes(end, is_doubtful))
      node_edit{tree_, *node}.end_backup(l3_state::unknown);
}

void open_backups::back_up_path(radix_node& end) {
  if (!settings_.options.storage_attached || settings_.is_stopped)
    return;
  // Pages computed from pages that are still loading may turn out to be invalid.
  auto* last = &end;
  for (auto* node = &end; !node->is_root(); node = node->parent())
    if (node->load() != 0)
      last = node;
  auto run = std::vector<radix_node*>{};
  for (auto* node :
       path_nodes(*last, [](const radix_node& each) { return each.l3() == l3_state::unknown; })) {
    const auto follows = run.empty() ? is_in_l3(*node->parent()) : node->parent() == run.back();
    if (follows && node->l2_resident())
      run.push_back(node);
    else if (!run.empty())
      break;
  }
  if (!run.empty())
    begin(run);
}

void open_backups::back_up(std::vector<radix_node*> children) {
  // Visits of children have an unspecified order.
  std::ranges::sort(children, {}, &radix_node::id);
  for (auto* child : children)
    back_up_path(*child);
}

void open_backups::begin(const std::vector<radix_node*>& nodes) {
  auto names = std::vector<name_run>{};
  auto pages = std::vector<page_index>{};
  const auto id = ++issued_;
  auto& end = *nodes.back();
  auto* bare = nodes.front()->parent();
  while (!bare->is_root() && bare->l2_resident())
    bare = bare->parent();
  if (!bare->is_root())
    tree_.lock_l1(*bare);
  tree_.lock_l2(end);
  for (auto* node : nodes) {
    node_edit{tree_, *node}.begin_backup(id);
    names.push_back(tree_.names_of(*node));
    pages.insert(pages.end(), node->l2_pages().begin(), node->l2_pages().end());
  }
  waiting_pages_ += pages.size();
  const auto shared_pages = share_pages(std::move(pages));
  backups_.emplace(id, open_backup{&end, shared_pages, settings_.storage_epoch, settings_.now_ns,
                                   bare->is_root() ? nullptr : bare});
  order_.insert(order_.end() - static_cast<ptrdiff_t>(held_), id);
  auto& parent = *nodes.front()->parent();
  effects_.push_back(
    backup_command{id,
                   std::make_shared<const path_names>(
                     std::move(names), parent.is_root() ? name_run{} : tree_.names_of(parent)),
                   shared_pages, tenant_of(end.ns().salt)});
  const auto limit = settings_.options.backup_limit_pages;
  for (auto oldest = backups_.begin(); waiting_pages_ > limit; ++oldest)
    drop(oldest->first, oldest->second);
}

void open_backups::drop(operation_id id, open_backup& backup) {
  if (std::exchange(backup.is_dropped, true))
    return;
  waiting_pages_ -= backup.page_count();
  effects_.push_back(drop_command{id});
}

void open_backups::drop_all() {
  for (auto& [id, backup] : backups_)
    drop(id, backup);
}

// -- backups end --------------------------------------------------------------

std::span<const operation_id> open_backups::next() const noexcept {
  return std::span{order_}.first(std::min(order_.size(), limits::step_backups));
}

std::vector<open_backups::fact> open_backups::name(std::span<const int64_t> stored) const {
  HICACHE_CHECK(stored.size() == next().size());
  auto facts = std::vector<fact>{};
  for (auto i = size_t{0}; i < stored.size(); ++i)
    if (stored[i] >= 0 || stored[i] == backup_given_up)
      facts.emplace_back(order_[i], stored[i]);
  return facts;
}

void open_backups::finish(std::span<const fact> facts) {
  for (const auto& [id, pages] : facts) {
    const auto is_held = backups_.at(id).is_in_quarantine;
    if (pages >= 0 && is_held)
      end_quarantine(id);
    else if (pages >= 0)
      end(id, static_cast<uint64_t>(pages));
    else if (!is_held)
      quarantine(id);
  }
}

void open_backups::end(operation_id id, uint64_t stored) {
  const auto backup = take(id);
  HICACHE_CHECK(stored <= backup.page_count());
  if (!backup.is_dropped)
    waiting_pages_ -= backup.page_count();
  const auto is_valid = settings_.is_attached_since(backup.epoch);
  auto done = uint64_t{0};
  auto waiting = std::vector<radix_node*>{};
  for (auto* node :
       path_nodes(*backup.end, [id](const radix_node& each) { return each.backup() == id; })) {
    done += node->pages();
    const auto is_stored = is_valid && done <= stored;
    node_edit{tree_, *node}.end_backup(is_stored ? l3_state::stored : l3_state::unknown,
                                       backup.begun_ns);
    if (is_stored && !node->is_discarded())
      node->children().visit([&](const first_page&, radix_node& child) {
        if (child.l3() == l3_state::unknown && child.l2_resident())
          waiting.push_back(&child);
      });
  }
  HICACHE_CHECK(done == backup.page_count());
  unlock(backup);
  back_up(std::move(waiting));
}

void open_backups::quarantine(operation_id id) {
  auto& backup = backups_.at(id);
  drop(id, backup); // Ranks that have not begun it can skip it.
  backup.is_in_quarantine = true;
  quarantined_pages_ += backup.page_count();
  std::erase(order_, id);
  order_.push_back(id);
  ++held_;
  for (auto* node :
       path_nodes(*backup.end, [id](const radix_node& each) { return each.backup() == id; }))
    node_edit{tree_, *node}.end_backup(l3_state::unknown);
  tree_.l2_pool().hold(*backup.pages);
  unlock(backup);
  backup.end = backup.l1_end = nullptr;
}

void open_backups::end_quarantine(operation_id id) {
  const auto backup = take(id);
  --held_;
  quarantined_pages_ -= backup.page_count();
  tree_.l2_pool().release(*backup.pages);
}

open_backups::open_backup open_backups::take(operation_id id) {
  std::erase(order_, id);
  return backups_.extract(id).mapped();
}

void open_backups::unlock(const open_backup& backup) {
  tree_.unlock_l2(*backup.end);
  if (backup.l1_end != nullptr)
    tree_.unlock_l1(*backup.l1_end);
}

// -- checks -------------------------------------------------------------------

void open_backups::count_locks(lock_census& census) const {
  for (const auto& [id, backup] : backups_)
    census.add(backup.l1_end, backup.end);
}

void open_backups::check_invariants() const {
  auto ids = std::vector<operation_id>{};
  auto waiting = uint64_t{0};
  auto held = uint64_t{0};
  auto held_pages = uint64_t{0};
  for (const auto& [id, backup] : backups_) {
    ids.push_back(id);
    waiting += backup.is_dropped ? 0 : backup.page_count();
    held += backup.is_in_quarantine ? 1 : 0;
    held_pages += backup.is_in_quarantine ? backup.page_count() : 0;
  }
  HICACHE_CHECK(std::ranges::is_permutation(order_, ids));
  HICACHE_CHECK(held == held_ && held_pages == quarantined_pages_);
  HICACHE_CHECK(waiting == waiting_pages_
                && waiting_pages_ <= settings_.options.backup_limit_pages);
}

} // namespace hicache
