// What moves between the tiers on an engine's request: load back, prefetch, write-through.

#include "base/check.hpp"
#include "base/limits.hpp"
#include "cache/hi_radix_impl.hpp"
#include "cache/mix.hpp"
#include "cache/page_hash.hpp"

#include <algorithm>
#include <utility>

namespace hicache {

namespace {

page_list share(std::vector<page_index> pages) {
  return std::make_shared<const std::vector<page_index>>(std::move(pages));
}

/// Pages that [a, b) and [c, d) share.
uint64_t overlap(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
  const auto from = std::max(a, c);
  const auto to = std::min(b, d);
  return to > from ? to - from : 0;
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
  auto* device_end = request.host_end;
  while (!device_end->is_root() && !device_end->on_device())
    device_end = device_end->parent;
  if (device_end->end() <= request.device_pages)
    return;
  const auto matched = request.matched_pages();
  move_device_end(request, *device_end);
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

result<load_result> hi_radix_tree::impl::load_back(request_id id) {
  const auto found = find(id);
  if (!found)
    return tl::unexpected{found.error()};
  auto& request = **found;
  before_change(request);
  extend_device_part(request);
  auto pages = std::optional<std::vector<page_index>>{};
  const auto is_worth_it
    = request.host_pages > 0 && tokens(request.host_pages) >= options.load_back_threshold_tokens;
  if (is_worth_it && request.owned.empty() && !is_stopped)
    pages = tree.take_device(request.host_pages);
  if (!pages) {
    after_change(request);
    return load_result{tokens(request.device_pages), 0, 0, device_part(request),
                       progress_on(*request.device_end)};
  }
  const auto from = request.device_pages;
  const auto to = request.matched_pages();
  auto& end = *request.host_end;
  auto progress = std::make_shared<layer_progress>(options.layers);
  const auto load = loads.begin(end, progress);
  auto host_pages = std::vector<page_index>{};
  host_pages.reserve(pages->size());
  for (auto* node : path_nodes(end, [](const radix_node& each) { return !each.on_device(); })) {
    const auto begin = pages->begin() + static_cast<ptrdiff_t>(node->first - from);
    node->load = load;
    tree.set_device(*node, {begin, begin + static_cast<ptrdiff_t>(node->pages)});
    host_pages.insert(host_pages.end(), node->host.begin(), node->host.end());
  }
  // The load keeps both copies until it is done, whatever becomes of the request.
  tree.lock_device(end);
  tree.lock_host(end);
  move_device_end(request, end);
  drop_host_part(request);
  list_pages(request);
  after_change(request);
  effects.push_back(
    load_command{load, share(std::move(host_pages)), share(std::move(*pages)), progress});
  const auto from_storage = overlap(from, to, request.fetched_from, request.fetched_to);
  return load_result{tokens(to), tokens(to - from), tokens(from_storage), request.pages, progress};
}

// -- L1 -> L2 -----------------------------------------------------------------

void hi_radix_tree::impl::write_through(radix_node& end) {
  if (options.host_pages == 0)
    return;
  // Room for a node must not come from the nodes before or after it.
  tree.lock_host(end);
  auto command = write_command{};
  auto device_pages = std::vector<page_index>{};
  auto host_pages = std::vector<page_index>{};
  auto* last = static_cast<radix_node*>(nullptr);
  for (auto* node : path_nodes(end, [](const radix_node& each) { return each.host.empty(); })) {
    auto pages = tree.take_host(node->pages);
    if (!pages)
      break;
    node->host = std::move(*pages);
    node->write = writes.issued + 1;
    tree.changed(*node);
    device_pages.insert(device_pages.end(), node->device.begin(), node->device.end());
    host_pages.insert(host_pages.end(), node->host.begin(), node->host.end());
    last = node;
  }
  if (last != nullptr) {
    command.id = writes.begin(*last);
    command.device_pages = share(std::move(device_pages));
    command.host_pages = share(std::move(host_pages));
    tree.lock_device(*last);
    tree.lock_host(*last);
    effects.emplace_back(std::move(command));
  }
  tree.unlock_host(end);
}

// -- L3 -> L2 -----------------------------------------------------------------

uint64_t open_fetch::digest(fetch_id id) const noexcept {
  return mix(mix(id, request), mix(first, uint64_t{is_ending} << 1 | uint64_t{is_terminated}));
}

key_list hi_radix_tree::impl::keys_of_prefix(const open_request& request) const {
  const auto& end = request.host_end != nullptr ? *request.host_end : *request.device_end;
  auto keys = std::vector<page_key>(request.matched_pages());
  for (const auto* node = &end; !node->is_root(); node = node->parent)
    std::copy(node->keys.begin(), node->keys.end(),
              keys.begin() + static_cast<ptrdiff_t>(node->first));
  const auto* prior = end.keys.empty() ? nullptr : &end.keys.back();
  const auto size = options.page_size;
  const auto tail = std::span{*request.tokens}.subspan(keys.size() * size,
                                                       (request.limit_pages - keys.size()) * size);
  const auto rest = hash_pages(tail, size, prior);
  keys.insert(keys.end(), rest.begin(), rest.end());
  return std::make_shared<const std::vector<page_key>>(std::move(keys));
}

result<prefetch_result> hi_radix_tree::impl::prefetch(request_id id) {
  const auto found = find(id);
  if (!found)
    return tl::unexpected{found.error()};
  auto& request = **found;
  const auto matched = request.matched_pages();
  const auto tail = request.limit_pages > matched ? tokens(request.limit_pages - matched) : 0;
  const auto least = std::max(options.prefetch_threshold_tokens, options.page_size);
  if (is_stopped || !options.storage_attached || options.host_pages == 0 || request.had_fetch
      || tail < least || fetches.size() >= limits::prefetches_open)
    return prefetch_result{};
  before_change(request);
  request.keys = keys_of_prefix(request);
  request.keyed_tokens = request.tokens;
  request.had_fetch = true;
  request.fetch = ++fetches_issued;
  after_change(request);
  auto fetch = open_fetch{};
  fetch.request = id;
  fetch.ns = *request.root->ns;
  fetch.tokens = request.tokens;
  fetch.keys = request.keys;
  fetch.first = matched;
  fetches_digest += fetch.digest(request.fetch);
  fetches.emplace(request.fetch, std::move(fetch));
  effects.push_back(fetch_command{request.fetch, request.keys, matched});
  return prefetch_result{tail};
}

result<schedule_result> hi_radix_tree::impl::schedule(request_id id) {
  const auto found = find(id);
  if (!found)
    return tl::unexpected{found.error()};
  const auto fetch = (*found)->fetch;
  if (fetch == 0)
    return schedule_result{true};
  auto& entry = fetches.at(fetch);
  fetches_digest -= entry.digest(fetch);
  if (options.prefetch == prefetch_policy::best_effort)
    terminate(fetch, entry);
  begin_ending(fetch, entry);
  fetches_digest += entry.digest(fetch);
  return schedule_result{false};
}

void hi_radix_tree::impl::terminate(fetch_id id, open_fetch& fetch) {
  if (!std::exchange(fetch.is_terminated, true))
    effects.push_back(terminate_command{id});
}

void hi_radix_tree::impl::begin_ending(fetch_id id, open_fetch& fetch) {
  if (!std::exchange(fetch.is_ending, true))
    ending.push_back(id);
}

} // namespace hicache
