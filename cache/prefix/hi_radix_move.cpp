// What moves between L1 and L2 on an engine's request: load back, write-through.

#include "base/check.hpp"
#include "cache/prefix/hi_radix_impl.hpp"

#include <algorithm>
#include <utility>

namespace hicache {

namespace {

/// Inserts along a node from which write_through_selective keeps it (SGLang's default).
constexpr uint64_t selective_hits = 2;

page_list share(std::vector<page_index> pages) {
  return std::make_shared<const std::vector<page_index>>(std::move(pages));
}

/// Pages that [a, b) and [c, d) share.
uint64_t overlap(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
  const auto from = std::max(a, c);
  const auto to = std::min(b, d);
  return to > from ? to - from : 0;
}

error no_node(node_id id) {
  return {ec::unknown_id, "node " + std::to_string(id) + " is not in the tree (any more)"};
}

/// The pages that the cache holds, without those that the request allocated.
page_list device_part(const open_request& request) {
  if (request.owned.empty())
    return request.pages;
  const auto begin = request.pages->begin();
  return share({begin, begin + static_cast<ptrdiff_t>(request.device_pages)});
}

} // namespace

// -- L2 -> L1 -----------------------------------------------------------------

void hi_radix_tree::impl::extend_device_part(open_request& request) {
  if (request.host_end == nullptr || !request.owned.empty())
    return;
  auto& device_end = request.host_end->device_end();
  if (device_end.end() <= request.device_pages)
    return;
  const auto matched = request.matched_pages();
  move_device_end(request, device_end);
  request.host_pages = matched - request.device_pages;
  if (request.host_pages == 0)
    drop_host_part(request);
  list_pages(request);
}

/// A request that shares pages with a load must wait for it, too. Loads finish in order, so the
/// latest one on the path does.
layer_progress_ptr hi_radix_tree::impl::progress_on(const radix_node& end) const {
  auto latest = operation_id{0};
  for (const auto* node = &end; node != nullptr; node = node->parent)
    latest = std::max(latest, node->load);
  return latest == 0 ? nullptr : loads.in_flight[latest - loads.done - 1].progress;
}

layer_progress_ptr hi_radix_tree::impl::begin_load(radix_node& end, std::vector<page_index> pages) {
  auto progress = std::make_shared<layer_progress>(options.layers);
  const auto load = loads.begin(end, progress);
  auto host_pages = std::vector<page_index>{};
  host_pages.reserve(pages.size());
  auto next = pages.begin();
  for (auto* node : path_nodes(end, [](const radix_node& each) { return !each.on_device(); })) {
    const auto part = next + static_cast<ptrdiff_t>(node->pages);
    node->load = load;
    tree.set_device(*node, {next, part});
    next = part;
    host_pages.insert(host_pages.end(), node->host.begin(), node->host.end());
  }
  HICACHE_CHECK(next == pages.end());
  // The load keeps both copies until it is done, whatever becomes of the request.
  tree.lock_device(end);
  tree.lock_host(end);
  effects.push_back(
    load_command{load, share(std::move(host_pages)), share(std::move(pages)), progress});
  return progress;
}

result<load_result> hi_radix_tree::impl::load_back(const load_request& asked) {
  const auto found = find(asked.request);
  if (!found)
    return tl::unexpected{found.error()};
  auto& request = **found;
  // What others brought to the device meanwhile need not be loaded, nor make room for the rest.
  auto& device_end = request.host_end != nullptr && request.owned.empty()
                       ? request.host_end->device_end()
                       : *request.device_end;
  const auto missing = request.matched_pages() - std::max(device_end.end(), request.device_pages);
  const auto is_short = tokens(missing) < options.load_back_threshold_tokens;
  const auto is_long = tokens(missing) > asked.quota_tokens;
  const auto is_wanted
    = missing > 0 && !is_short && !is_long && request.owned.empty() && !is_stopped;
  tree.lock_device(device_end);
  auto pages = is_wanted ? tree.take_device(missing) : std::nullopt;
  if (is_wanted && !pages && tree.leaving() > 0) {
    tree.unlock_device(device_end);
    return tl::unexpected{no_device_pages("request " + std::to_string(request.id), missing)};
  }
  before_change(request);
  extend_device_part(request);
  tree.unlock_device(device_end);
  if (!pages) {
    if (missing > 0)
      request.why = std::min(request.why, is_short  ? give_up::too_short
                                          : is_long ? give_up::over_quota
                                                    : give_up::no_room);
    request.known_pages = std::max(request.known_pages, request.matched_pages());
    after_change(request);
    return load_result{tokens(request.device_pages), 0, 0, device_part(request),
                       progress_on(*request.device_end)};
  }
  const auto from = request.device_pages;
  const auto to = request.matched_pages();
  auto& end = *request.host_end;
  auto progress = begin_load(end, std::move(*pages));
  move_device_end(request, end);
  drop_host_part(request);
  list_pages(request);
  after_change(request);
  const auto from_storage = overlap(from, to, request.fetched_from, request.fetched_to);
  request.loaded_pages += to - from;
  request.loaded_from_storage += from_storage;
  return load_result{tokens(to), tokens(to - from), tokens(from_storage), request.pages,
                     std::move(progress)};
}

result<load_node_result> hi_radix_tree::impl::load_node(const load_node_request& asked) {
  auto* end = tree.find(asked.node);
  if (end == nullptr)
    return tl::unexpected{no_node(asked.node)};
  const auto count = end->end() - end->device_end().end();
  if (count == 0 || tokens(count) < options.load_back_threshold_tokens
      || tokens(count) > asked.quota_tokens || is_stopped)
    return load_node_result{};
  // Neither half of the path may make room for the other.
  auto& device_end = end->device_end();
  tree.lock_device(device_end);
  tree.lock_host(*end);
  auto pages = tree.take_device(count);
  if (pages)
    begin_load(*end, std::move(*pages));
  tree.unlock_host(*end);
  tree.unlock_device(device_end);
  if (!pages && tree.leaving() > 0)
    return tl::unexpected{no_device_pages("node " + std::to_string(asked.node), count)};
  return load_node_result{pages ? tokens(count) : 0};
}

// -- L1 -> L2 -----------------------------------------------------------------

void hi_radix_tree::impl::begin_write(const std::vector<radix_node*>& nodes) {
  auto device_pages = std::vector<page_index>{};
  auto host_pages = std::vector<page_index>{};
  auto& last = *nodes.back();
  const auto id = writes.begin(last);
  for (auto* node : nodes) {
    node->write = id;
    tree.changed(*node);
    writing_pages += node->pages;
    device_pages.insert(device_pages.end(), node->device.begin(), node->device.end());
    host_pages.insert(host_pages.end(), node->host.begin(), node->host.end());
  }
  tree.lock_device(last);
  tree.lock_host(last);
  effects.emplace_back(
    write_command{id, share(std::move(device_pages)), share(std::move(host_pages))});
}

uint64_t hi_radix_tree::impl::least_hits() const noexcept {
  switch (options.write) {
    case write_policy::write_through:
      return 1;
    case write_policy::write_through_selective:
      return selective_hits;
    case write_policy::write_back:
      return 0;
  }
  return 0;
}

bool hi_radix_tree::impl::take_copy(radix_node& node) {
  auto pages = tree.take_host(node.pages);
  if (!pages)
    return false;
  node.host = std::move(*pages);
  // Reserved pages are not resident; the write that makes them so begins next.
  node.write = writes.issued + 1;
  tree.changed(node);
  return true;
}

uint64_t hi_radix_tree::impl::write_path(radix_node& end, uint64_t least_hits, bool may_evict) {
  if (options.host_pages == 0)
    return 0;
  // Room for a node must not come from the nodes before or after it.
  tree.lock_host(end);
  auto nodes = std::vector<radix_node*>{};
  auto count = uint64_t{0};
  for (auto* node : path_nodes(end, [](const radix_node& each) { return each.host.empty(); })) {
    const auto has_room = may_evict || tree.options().lends_host || node->pins > 0
                          || tree.host_pool().free() >= node->pages;
    if (node->use.hits < least_hits || !has_room || !take_copy(*node))
      break;
    count += node->pages;
    nodes.push_back(node);
  }
  if (!nodes.empty())
    begin_write(nodes);
  tree.unlock_host(end);
  return count;
}

result<backup_result> hi_radix_tree::impl::backup(node_id id) {
  auto* end = tree.find(id);
  if (end == nullptr)
    return tl::unexpected{no_node(id)};
  auto missing = uint64_t{0};
  for (const auto* node = end; !node->is_root(); node = node->parent)
    missing += node->host.empty() ? node->pages : 0;
  tree.lock_host(*end);
  const auto available = tree.host_pool().free() + tree.totals().host_evictable;
  tree.unlock_host(*end);
  if (missing > available)
    return fail(ec::out_of_host_pages, "node " + std::to_string(id) + " needs "
                                         + std::to_string(missing) + " more pages of L2");
  return backup_result{tokens(write_path(*end, 0, true))};
}

} // namespace hicache
