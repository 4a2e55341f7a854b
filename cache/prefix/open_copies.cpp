#include "cache/prefix/open_copies.hpp"

#include "base/check.hpp"
#include "base/limits.hpp"

#include <algorithm>
#include <memory>
#include <utility>

namespace hicache {

namespace {

/// True if part of the path is being written to L2 or L3.
bool is_under_way(radix_node& end) {
  const auto moves
    = [](const radix_node& each) { return each.write() != 0 || each.l3() == l3_state::pending; };
  return !path_nodes(end, moves).empty();
}

} // namespace

// -- L1 -> L2 -----------------------------------------------------------------

void open_copies::begin_write(const std::vector<radix_node*>& nodes) {
  auto l1_pages = std::vector<page_index>{};
  auto l2_pages = std::vector<page_index>{};
  auto& last = *nodes.back();
  const auto id = writes_.begin(last);
  for (const auto* node : nodes) {
    HICACHE_CHECK(node->write() == id);
    writing_pages_ += node->pages();
    l1_pages.insert(l1_pages.end(), node->l1_pages().begin(), node->l1_pages().end());
    l2_pages.insert(l2_pages.end(), node->l2_pages().begin(), node->l2_pages().end());
  }
  tree_.lock_l1(last);
  tree_.lock_l2(last);
  effects_.emplace_back(
    write_command{id, share_pages(std::move(l1_pages)), share_pages(std::move(l2_pages))});
}

/// Takes L2 pages for a node, to be filled by the next write. @returns false if there are none.
bool open_copies::reserve_host(radix_node& node) {
  auto pages = tree_.take_l2(node.pages());
  if (pages)
    node_edit{tree_, node}.begin_write(writes_.issued + 1, std::move(*pages));
  return pages.has_value();
}

void open_copies::write(radix_node& node, std::vector<page_index> host) {
  node_edit{tree_, node}.begin_write(writes_.issued + 1, std::move(host));
  begin_write({&node});
}

uint64_t open_copies::write_path(radix_node& end, uint64_t least_hits, bool may_evict) {
  if (settings_.options.l2_pages == 0)
    return 0;
  // Room for a node must not come from other nodes of its path.
  tree_.lock_l2(end);
  auto nodes = std::vector<radix_node*>{};
  auto count = uint64_t{0};
  for (auto* node :
       path_nodes(end, [](const radix_node& each) { return each.l2_pages().empty(); })) {
    const auto has_room = may_evict || tree_.options().exports_l2 || node->pins() > 0
                          || tree_.l2_pool().free() >= node->pages();
    if (node->use().hits < least_hits || !has_room || !reserve_host(*node))
      break;
    count += node->pages();
    nodes.push_back(node);
  }
  if (!nodes.empty())
    begin_write(nodes);
  tree_.unlock_l2(end);
  return count;
}

// -- staging ------------------------------------------------------------------

void open_copies::want_staged(const radix_node& end) {
  const auto& options = settings_.options;
  if (!options.storage_attached || options.l2_pages == 0 || settings_.is_stopped || end.is_root())
    return;
  if (unstaged_.size() == limits::unstaged_paths)
    unstaged_.pop_front();
  unstaged_.push_back(end.id());
}

/// Nodes of the path, each the parent of the next, that L3 accepts once L2 has them.
std::vector<radix_node*> open_copies::unstaged_run(radix_node& end) const {
  auto run = std::vector<radix_node*>{};
  for (auto* node :
       path_nodes(end, [](const radix_node& each) { return each.l3() == l3_state::unknown; })) {
    const auto follows = run.empty() ? is_in_l3(*node->parent()) : node->parent() == run.back();
    if (!follows || !node->l2_pages().empty() || node->use().hits < settings_.least_hits())
      break;
    run.push_back(node);
  }
  return run;
}

void open_copies::stage() {
  if (settings_.is_stopped)
    unstaged_.clear();
  const auto under_way = [this] { return writing_pages_ + backups_.waiting_pages(); };
  const auto most = std::max<uint64_t>(1, settings_.options.l2_pages / limits::staging_part);
  for (auto left = unstaged_.size(); left > 0 && under_way() < most; --left) {
    const auto id = unstaged_.front();
    auto* end = tree_.find(id);
    auto run = end == nullptr ? std::vector<radix_node*>{} : unstaged_run(*end);
    auto count = under_way();
    if (!run.empty() && count > 0 && count + run.front()->pages() > most)
      return; // Until L3 has some of the staged pages.
    unstaged_.pop_front();
    // A path whose parents are in this run or in flight stays queued.
    if (end != nullptr && (!run.empty() || is_under_way(*end)))
      unstaged_.push_back(id);
    if (!run.empty() && run.front()->pages() > most)
      run = {&tree_.cut({run.front(), run.front()->first() + most})};
    auto nodes = std::vector<radix_node*>{};
    for (auto* node : run) {
      count += node->pages();
      if (count > most || !reserve_host(*node))
        break;
      nodes.push_back(node);
    }
    if (!nodes.empty())
      begin_write(nodes);
  }
}

// -- L2 -> L1 -----------------------------------------------------------------

layer_progress_ptr open_copies::load(radix_node& end, std::vector<page_index> pages) {
  auto progress = std::make_shared<layer_progress>(settings_.options.layers);
  const auto id = loads_.begin(end, progress);
  auto l2_pages = std::vector<page_index>{};
  l2_pages.reserve(pages.size());
  auto next = pages.begin();
  for (auto* node : path_nodes(end, [](const radix_node& each) { return !each.in_l1(); })) {
    const auto part = next + static_cast<ptrdiff_t>(node->pages());
    tree_.set_l1(*node, {next, part}, id);
    next = part;
    l2_pages.insert(l2_pages.end(), node->l2_pages().begin(), node->l2_pages().end());
  }
  HICACHE_CHECK(next == pages.end());
  // The load keeps both copies until it is done, whatever happens to the request.
  tree_.lock_l1(end);
  tree_.lock_l2(end);
  effects_.push_back(
    load_command{id, share_pages(std::move(l2_pages)), share_pages(std::move(pages)), progress});
  return progress;
}

/// Loads finish in order, so it suffices to wait for the latest one on the path.
layer_progress_ptr open_copies::progress_on(const radix_node& end) const {
  auto latest = operation_id{0};
  for (const auto* node = &end; node != nullptr; node = node->parent())
    latest = std::max(latest, node->load());
  return latest == 0 ? nullptr : loads_.open[latest - loads_.done - 1].progress;
}

// -- writes end ---------------------------------------------------------------

void open_copies::finish_writes(uint64_t done, bool last_failed) {
  HICACHE_CHECK(done >= writes_.done && done <= writes_.issued);
  HICACHE_CHECK(!last_failed || done > writes_.done);
  while (writes_.done < done) {
    const auto write = writes_.take_oldest();
    if (last_failed && writes_.done == done)
      fail_write(write);
    else
      finish_write(write);
  }
}

void open_copies::finish_write(const queue::copy& write) {
  // Root first, the order in which routers need the events; but leaves leave L1 first.
  auto pending_write_backs = std::vector<radix_node*>{};
  for (auto* node :
       path_nodes(*write.end, [&](const radix_node& each) { return each.write() == write.id; })) {
    tree_.finish_write(*node);
    writing_pages_ -= node->pages();
    if (node->is_write_back_pending())
      pending_write_backs.push_back(node);
  }
  tree_.unlock_l1(*write.end);
  for (auto i = pending_write_backs.rbegin(); i != pending_write_backs.rend(); ++i)
    tree_.finish_write_back(**i);
  auto* end = write.end;
  while (end->is_discarded())
    end = end->parent();
  backups_.back_up_path(*end);
  // L3 takes no page before its parent, so a written-back page needs its ancestors staged.
  if (!pending_write_backs.empty())
    want_staged(*write.end);
  tree_.unlock_l2(*write.end);
}

void open_copies::fail_write(const queue::copy& write) {
  auto pending_write_backs = std::vector<radix_node*>{};
  for (auto* node = write.end; !node->is_root(); node = node->parent()) {
    if (node->write() != write.id)
      continue;
    tree_.cancel_write(*node);
    writing_pages_ -= node->pages();
    if (node->is_write_back_pending())
      pending_write_backs.push_back(node);
  }
  tree_.unlock_l1(*write.end);
  tree_.unlock_l2(*write.end);
  // Otherwise a GPU device that cannot write would never free pages.
  for (auto* node : pending_write_backs)
    tree_.drop_unsaved(*node);
}

// -- loads end ----------------------------------------------------------------

void open_copies::finish_loads(uint64_t done, bool last_failed,
                               const std::function<void(radix_node&)>& discard) {
  HICACHE_CHECK(done >= loads_.done && done <= loads_.issued);
  HICACHE_CHECK(!last_failed || done > loads_.done);
  while (loads_.done < done) {
    const auto load = loads_.take_oldest();
    if (last_failed && loads_.done == done)
      fail_load(load, discard);
    else
      finish_load(load);
  }
}

void open_copies::finish_load(const queue::copy& load) {
  // Root first, the order in which routers need the events.
  auto waiting = std::vector<radix_node*>{};
  for (auto* node :
       path_nodes(*load.end, [&](const radix_node& each) { return each.load() == load.id; })) {
    tree_.finish_load(*node);
    // Pages computed from these and already in L2 have waited for their backup.
    if (!node->is_discarded())
      node->children().visit([&](const first_page&, radix_node& child) {
        if (child.l3() == l3_state::unknown && child.in_l1() && child.l2_resident())
          waiting.push_back(&child);
      });
  }
  backups_.back_up(std::move(waiting));
  tree_.unlock_l1(*load.end);
  tree_.unlock_l2(*load.end);
}

void open_copies::fail_load(const queue::copy& load,
                            const std::function<void(radix_node&)>& discard) {
  auto* top = static_cast<radix_node*>(nullptr);
  for (auto* node = load.end; !node->is_root(); node = node->parent())
    if (node->load() == load.id)
      top = node;
  HICACHE_CHECK(top != nullptr);
  if (!top->is_discarded())
    discard(*top);
  for (auto* node = load.end; node != top->parent(); node = node->parent())
    tree_.finish_load(*node);
  tree_.unlock_l1(*load.end);
  tree_.unlock_l2(*load.end);
}

// -- checks -------------------------------------------------------------------

void open_copies::count_locks(lock_census& census) const {
  for (const auto* list : {&writes_, &loads_})
    for (const auto& copy : list->open)
      census.add(copy.end, copy.end);
}

void open_copies::check_invariants() const {
  for (const auto* list : {&writes_, &loads_})
    HICACHE_CHECK(list->open.size() == list->issued - list->done);
  auto writing = uint64_t{0};
  for (const auto* node : tree_.sorted_nodes()) {
    writing += node->write() == 0 ? 0 : node->pages();
    HICACHE_CHECK(node->write() == 0 || node->write() > writes_.done);
    HICACHE_CHECK(node->load() == 0 || node->load() > loads_.done);
  }
  HICACHE_CHECK(writing == writing_pages_ && unstaged_.size() <= limits::unstaged_paths);
}

} // namespace hicache
