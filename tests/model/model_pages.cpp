// The pages of the model: paths, room, eviction.

#include "tests/model/model_cache.hpp"

#include <algorithm>
#include <tuple>

namespace hicache::test {

namespace {

bool in_l1(const model_page& page) {
  return page.in_l1;
}

bool in_l2(const model_page& page) {
  return page.in_l2;
}

bool is_copy(const model_page& page) {
  return page.in_l1 && page.in_l2;
}

} // namespace

// -- paths --------------------------------------------------------------------

uint64_t model_cache::whole_pages(uint64_t tokens) const {
  const auto overlap = options_.bigram ? uint64_t{1} : uint64_t{0};
  return tokens < overlap ? 0 : (tokens - overlap) / options_.page_size;
}

model_path model_cache::root_of(const cache_namespace& ns) {
  return {namespaces_.try_emplace(ns, namespaces_.size()).first->second};
}

const cache_namespace& model_cache::namespace_of(const model_path& path) const {
  return std::ranges::find(namespaces_, path.front(), [](const auto& each) { return each.second; })
    ->first;
}

model_path model_cache::path_of(const model_path& root, const std::vector<token_id>& tokens,
                                uint64_t limit) {
  const auto size = options_.page_size;
  const auto seen = size + (options_.bigram ? 1 : 0);
  auto path = root;
  for (auto page = uint64_t{0}; page < whole_pages(limit); ++page) {
    const auto begin = tokens.begin() + static_cast<ptrdiff_t>(page * size);
    const auto number = static_cast<uint32_t>(contents_.size());
    path.push_back(contents_.try_emplace({begin, begin + seen}, number).first->second);
  }
  return path;
}

model_path model_cache::cached_part(const model_path& path) const {
  auto pages = page_count(path);
  while (pages > 0 && !pages_.contains(first_pages(path, pages)))
    --pages;
  return first_pages(path, pages);
}

model_path model_cache::l1_part(const model_path& path) const {
  auto pages = page_count(path);
  while (pages > 0 && !pages_.at(first_pages(path, pages)).in_l1)
    --pages;
  return first_pages(path, pages);
}

std::optional<model_path> model_cache::find_node(node_id node) const {
  const auto known = runs_.find(node);
  auto end = std::optional<model_path>{};
  for (const auto& [path, page] : pages_)
    if (known != runs_.end() && page.run == known->second && (!end || path.size() > end->size()))
      end = path;
  return end;
}

// -- runs ---------------------------------------------------------------------

void model_cache::cut(const model_path& path) {
  if (page_count(path) == 0)
    return;
  const auto run = pages_.at(path).run;
  const auto goes_on = std::ranges::any_of(pages_, [&](const auto& each) {
    return each.second.run == run && each.first.size() > path.size();
  });
  if (!goes_on)
    return;
  const auto upper = ++last_run_;
  for (auto& [each, page] : pages_)
    if (page.run == run && each.size() <= path.size())
      page.run = upper;
}

std::vector<model_path> model_cache::tail_of(const model_path& path, uint64_t most) const {
  auto tail = std::vector<model_path>{};
  const auto run = pages_.at(path).run;
  for (auto pages = page_count(path); pages > 0 && tail.size() < most; --pages) {
    auto each = first_pages(path, pages);
    if (pages_.at(each).run != run)
      break;
    tail.push_back(std::move(each));
  }
  return tail;
}

/// References that end with a page that goes end one page earlier.
void model_cache::forget(const model_path& path) {
  pages_.erase(path);
  for (auto& [id, session] : sessions_)
    if (begins_with(session.reference, path))
      session.reference = first_pages(path, page_count(path) - 1);
}

// -- counting -----------------------------------------------------------------

void model_cache::count_holders() {
  auto device = std::vector<const model_path*>{};
  auto host = std::vector<const model_path*>{};
  const auto add = [&](const holder& held) {
    device.push_back(&held.device);
    host.push_back(&held.host);
  };
  for (const auto& [id, request] : requests_)
    add(request.held);
  for (const auto& [id, list] : locks_)
    std::ranges::for_each(list, add);
  std::ranges::for_each(busy_, add);
  for (const auto& [path, pin] : pins_) {
    host.push_back(&path);
    for (const auto& [each, page] : pages_)
      if (begins_with(path, each) && !page.in_l2)
        device.push_back(&each);
  }
  for (const auto& [path, page] : pages_)
    if (page.is_write_back_pending) {
      device.push_back(&path);
      host.push_back(&path);
    }
  for (auto& entry : pages_) {
    auto& page = entry.second;
    const auto is_on = [&](const model_path* each) { return begins_with(*each, entry.first); };
    page.l1_locks = static_cast<uint32_t>(std::ranges::count_if(device, is_on));
    page.l2_locks = static_cast<uint32_t>(std::ranges::count_if(host, is_on));
    page.pins = 0;
    for (const auto& [path, pin] : pins_)
      page.pins += begins_with(path, entry.first) ? 1 : 0;
    page.references = 0;
    for (const auto& [id, session] : sessions_)
      page.references += begins_with(session.reference, entry.first) ? 1 : 0;
  }
}

uint64_t model_cache::count(bool (*wanted)(const model_page&)) const {
  return static_cast<uint64_t>(
    std::ranges::count_if(pages_, [&](const auto& each) { return wanted(each.second); }));
}

uint64_t model_cache::l1_free() const {
  auto used = count([](const model_page& page) { return page.in_l1; });
  for (const auto& [id, request] : requests_)
    used += request.owned.size();
  return options_.l1_pages - used;
}

uint64_t model_cache::l2_free() const {
  return options_.l2_pages - count([](const model_page& page) { return page.in_l2; });
}

uint64_t model_cache::l1_evictable() const {
  return count([](const model_page& page) { return page.in_l1 && page.l1_locks == 0; });
}

uint64_t model_cache::l2_evictable() const {
  return count([](const model_page& page) { return page.in_l2 && page.l2_locks == 0; });
}

uint64_t model_cache::pending_write_backs() const {
  return count([](const model_page& page) { return page.is_write_back_pending; });
}

uint64_t model_cache::missing_in_l2(const model_path& path) const {
  return static_cast<uint64_t>(std::ranges::count_if(
    pages_, [&](const auto& each) { return begins_with(path, each.first) && !each.second.in_l2; }));
}

uint64_t model_cache::uses_of(page_index page) const {
  auto uses = static_cast<uint64_t>(
    std::ranges::count_if(pages_, [&](const auto& each) { return each.second.l1_page == page; }));
  for (const auto& [id, request] : requests_)
    uses += static_cast<uint64_t>(std::ranges::count(request.owned, page));
  return uses;
}

// -- eviction -----------------------------------------------------------------

template <class Predicate>
bool model_cache::has_below(page_map::const_iterator page, Predicate wanted) const {
  for (auto each = std::next(page); each != pages_.end() && begins_with(each->first, page->first);
       ++each)
    if (each->first.size() == page->first.size() + 1 && wanted(each->second))
      return true;
  return false;
}

std::optional<model_cache::place> model_cache::next_l1_victim() const {
  auto first = std::optional<place>{};
  for (auto each = pages_.begin(); each != pages_.end(); ++each) {
    const auto& page = each->second;
    if (!page.in_l1 || page.l1_locks > 0 || has_below(each, in_l1))
      continue;
    const auto group = page.references > 0 ? 2 : 1;
    // Nodes are numbered in the order in which they come into being, and so are runs.
    auto next = place{group, options_.eviction->rank(page.use), page.run, each->first};
    if (!first || next < *first)
      first = std::move(next);
  }
  return first;
}

std::optional<model_cache::place> model_cache::next_l2_victim() const {
  auto first = std::optional<place>{};
  for (auto each = pages_.begin(); each != pages_.end(); ++each) {
    const auto& page = each->second;
    if (!page.in_l2 || page.l2_locks > 0)
      continue;
    auto group = 0;
    auto rank = options_.eviction->rank(page.use);
    if (page.in_l1 && !options_.storage_exports_l2) {
      // Nothing is lost with the copy of a page that is also on the device; what goes last from
      // there goes first from here.
      if (has_below(each, is_copy))
        continue;
      rank = {~rank.major, ~rank.minor};
    } else {
      if (has_below(each, in_l2))
        continue;
      group = page.references > 0 ? 2 : 1;
    }
    auto next = place{group, rank, page.run, each->first};
    if (!first || next < *first)
      first = std::move(next);
  }
  return first;
}

/// @returns pages that are free now.
uint64_t model_cache::evict_l1(uint64_t count) {
  const auto free = l1_free();
  const auto gone = [&] { return l1_free() - free + pending_write_backs(); };
  while (gone() < count) {
    const auto victim = next_l1_victim();
    if (!victim)
      break;
    evict_tail(*victim, tail_of(std::get<model_path>(*victim), count - gone()));
    count_holders();
  }
  evicted_l1_ += l1_free() - free;
  return l1_free() - free;
}

/// @param tail Pages of one run, the last one first, of which `first` is the place.
void model_cache::evict_tail(const place& first, std::vector<model_path> tail) {
  const auto cut_off = [&] {
    const auto kept = first_pages(tail.back(), page_count(tail.back()) - 1);
    if (page_count(kept) > 0 && pages_.at(kept).run == pages_.at(tail.back()).run)
      cut(kept);
  };
  const auto& page = pages_.at(tail.front());
  if (page.in_l2) {
    cut_off();
    for (const auto& path : tail) {
      pages_.at(path).in_l1 = false;
      pages_.at(path).l1_page = 0;
    }
    return;
  }
  const auto is_worth = options_.write != write_policy::write_through_selective
                        || page.use.hits >= least_hits()
                        || has_below(pages_.find(tail.front()), in_l2);
  const auto saved
    = options_.l2_pages > 0 && is_worth ? write_back_for(first, tail.size()) : uint64_t{0};
  const auto lost = static_cast<ptrdiff_t>(tail.size() - saved);
  if (lost > 0)
    drop({tail.begin(), tail.begin() + lost});
  tail.erase(tail.begin(), tail.begin() + lost);
  if (tail.empty())
    return;
  cut_off();
  for (const auto& path : tail) {
    pages_.at(path).in_l2 = true;
    pages_.at(path).is_write_back_pending = true;
  }
}

/// Nothing keeps these pages, so what hangs below them cannot be reached any more.
void model_cache::drop(const std::vector<model_path>& tail) {
  auto lost = std::vector<model_path>{};
  for (const auto& [path, page] : pages_)
    if (begins_with(path, tail.back()))
      lost.push_back(path);
  for (auto path = lost.rbegin(); path != lost.rend(); ++path) {
    evicted_l2_ += pages_.at(*path).in_l2 ? 1 : 0;
    forget(*path);
  }
}

/// Evicts from L2 what goes before a page of L1 that leaves it: copies, what ranks below it, and
/// what hangs below it. @returns how many of the wanted pages are free.
uint64_t model_cache::write_back_for(const place& page, uint64_t wanted) {
  const auto& path = std::get<model_path>(page);
  while (l2_free() < wanted) {
    const auto victim = next_l2_victim();
    if (!victim)
      break;
    const auto is_leaf = !has_below(pages_.find(path), in_l2);
    const auto order = [](const place& each) {
      return std::tuple{std::get<0>(each), std::get<1>(each), std::get<2>(each)};
    };
    if (is_leaf && order(page) < order(*victim))
      break;
    evicted_l2_ += evict_l2_tail(std::get<model_path>(*victim), wanted - l2_free());
    count_holders();
  }
  return std::min(wanted, l2_free());
}

uint64_t model_cache::evict_l2(uint64_t count) {
  auto freed = uint64_t{0};
  while (freed < count) {
    const auto victim = next_l2_victim();
    if (!victim)
      break;
    freed += evict_l2_tail(std::get<model_path>(*victim), count - freed);
    count_holders();
  }
  evicted_l2_ += freed;
  return freed;
}

/// Takes at most so many pages of the victim's run from L2, the last ones. @returns how many.
uint64_t model_cache::evict_l2_tail(const model_path& victim, uint64_t most) {
  const auto tail = tail_of(victim, most);
  if (!pages_.at(victim).in_l1) {
    std::ranges::for_each(tail, [this](const auto& path) { forget(path); });
    return tail.size();
  }
  const auto kept = first_pages(tail.back(), page_count(tail.back()) - 1);
  if (page_count(kept) > 0 && pages_.at(kept).run == pages_.at(victim).run)
    cut(kept);
  for (const auto& path : tail)
    pages_.at(path).in_l2 = false;
  return tail.size();
}

bool model_cache::make_l1_room(uint64_t count) {
  const auto free = l1_free();
  if (count <= free)
    return true;
  count_holders();
  if (count > free + l1_evictable())
    return false;
  evict_l1(count - free);
  return count <= l1_free();
}

bool model_cache::make_l2_room(uint64_t count) {
  const auto free = l2_free();
  if (count <= free)
    return true;
  count_holders();
  if (count > free + l2_evictable())
    return false;
  evict_l2(count - free);
  return true;
}

// -- copies -------------------------------------------------------------------

uint64_t model_cache::least_hits() const {
  return options_.write == write_policy::write_through_selective ? 2 : 1;
}

/// Writes the runs of the path that L2 lacks, the first ones first, up to one with fewer hits or
/// without room. What is pinned may evict others in any case, and all may if L3 exports L2.
uint64_t model_cache::write(const model_path& path, uint64_t least_hits, bool may_evict) {
  busy_.push_back({{}, path});
  count_holders();
  auto written = uint64_t{0};
  for (auto pages = uint64_t{1}; pages <= page_count(path); ++pages) {
    const auto& first = pages_.at(first_pages(path, pages));
    if (first.in_l2)
      continue;
    auto run = std::vector<model_path>{first_pages(path, pages)};
    while (pages < page_count(path) && pages_.at(first_pages(path, pages + 1)).run == first.run)
      run.push_back(first_pages(path, ++pages));
    const auto has_room
      = may_evict || options_.storage_exports_l2 || first.pins > 0 || run.size() <= l2_free();
    if (first.use.hits < least_hits || !has_room || !make_l2_room(run.size()))
      break;
    for (const auto& each : run)
      pages_.at(each).in_l2 = true;
    written += run.size();
  }
  busy_.pop_back();
  return written;
}

void model_cache::finish_copies() {
  for (auto& [path, page] : pages_)
    if (page.is_write_back_pending) {
      page.is_write_back_pending = false;
      page.in_l1 = false;
      page.l1_page = 0;
      ++evicted_l1_;
    }
}

} // namespace hicache::test
