// Requests: match, allocate, insert, release.

#include "cache/hi_radix_tree.hpp"

#include "base/check.hpp"
#include "base/limits.hpp"
#include "cache/hi_radix_impl.hpp"
#include "cache/mix.hpp"
#include "cache/page_hash.hpp"

#include <algorithm>
#include <bit>
#include <string>

namespace hicache {

namespace {

bool equal_tokens(const token_buffer& a, const token_buffer& b, uint64_t count) {
  return a == b
         || (a && b && count <= a->size() && count <= b->size()
             && std::equal(a->begin(), a->begin() + static_cast<ptrdiff_t>(count), b->begin()));
}

} // namespace

uint64_t open_request::digest() const noexcept {
  return mix(mix(id, fetch), mix(mix(device_pages, host_pages), mix(owned.size(), limit_pages)));
}

hi_radix_tree::impl::impl(const tree_options& opts)
  : options(opts), tree(opts.page_size, opts.device_pages, opts.host_pages, opts.storage_attached) {
  HICACHE_CHECK(std::has_single_bit(options.page_size));
  HICACHE_CHECK(options.prefetch_reserve_pages <= options.host_pages);
  HICACHE_CHECK(options.device_pages < limits::pool_pages
                && options.host_pages < limits::pool_pages);
  if (!options.storage_attached)
    options.prefetch_reserve_pages = 0;
  in_reserve.resize(uint64_t{options.host_pages} + 1);
  refill({});
}

result<open_request*> hi_radix_tree::impl::find(request_id id) {
  const auto entry = requests.find(id);
  if (entry == requests.end())
    return fail(ec::unknown_id, "request " + std::to_string(id) + " is not open");
  return &entry->second;
}

// -- match --------------------------------------------------------------------

result<match_result> hi_radix_tree::impl::match(const match_request& asked) {
  if (!asked.tokens || asked.limit > asked.tokens->size())
    return fail(ec::invalid_argument,
                "request " + std::to_string(asked.request) + ": the limit exceeds the tokens");
  if (requests.contains(asked.request))
    return fail(ec::invalid_argument,
                "request " + std::to_string(asked.request) + " is open already");
  if (asked.tokens->size() > limits::request_tokens)
    return fail(ec::limit_reached,
                "request " + std::to_string(asked.request) + " has too many tokens");
  if (requests.size() >= limits::requests_open)
    return fail(ec::limit_reached, "too many open requests");
  tree.tick();
  auto& request = requests[asked.request];
  request.id = asked.request;
  request.tokens = asked.tokens;
  request.limit_pages = asked.limit / options.page_size;
  request.root = &tree.root(asked.ns);
  request.device_end = request.root;
  tree.lock_device(*request.root);
  match_again(request, is_stopped ? 0 : request.limit_pages, 1);
  after_change(request);
  return match_result{tokens(request.device_pages), tokens(request.host_pages), request.pages};
}

void hi_radix_tree::impl::match_again(open_request& request, uint64_t limit, uint64_t hits) {
  auto& end = tree.cut(tree.walk(*request.root, *request.tokens, limit));
  tree.touch(end, hits);
  auto* device_end = &end;
  while (!device_end->is_root() && !device_end->on_device())
    device_end = device_end->parent;
  if (device_end != &end)
    tree.lock_host(end);
  drop_host_part(request);
  move_device_end(request, *device_end);
  if (device_end != &end) {
    request.host_end = &end;
    request.host_pages = end.end() - device_end->end();
  }
  list_pages(request);
}

void hi_radix_tree::impl::move_device_end(open_request& request, radix_node& end) {
  tree.lock_device(end);
  tree.unlock_device(*request.device_end);
  request.device_end = &end;
  request.device_pages = end.end();
}

void hi_radix_tree::impl::drop_host_part(open_request& request) {
  if (request.host_end == nullptr)
    return;
  tree.unlock_host(*request.host_end);
  request.host_end = nullptr;
  request.host_pages = 0;
}

void hi_radix_tree::impl::list_pages(open_request& request) {
  auto list = std::vector<page_index>(request.device_pages + request.owned.size());
  for (const auto* node = request.device_end; !node->is_root(); node = node->parent)
    std::copy(node->device.begin(), node->device.end(),
              list.begin() + static_cast<ptrdiff_t>(node->first));
  std::copy(request.owned.begin(), request.owned.end(),
            list.begin() + static_cast<ptrdiff_t>(request.device_pages));
  request.pages = std::make_shared<const std::vector<page_index>>(std::move(list));
}

// -- allocate and insert ------------------------------------------------------

result<allocate_result> hi_radix_tree::impl::allocate(request_id id, uint64_t token_count) {
  const auto found = find(id);
  if (!found)
    return tl::unexpected{found.error()};
  auto& request = **found;
  if (token_count > limits::request_tokens)
    return fail(ec::limit_reached, "request " + std::to_string(id) + " would have too many tokens");
  const auto wanted = (token_count + options.page_size - 1) / options.page_size;
  const auto present = request.device_pages + request.owned.size();
  if (wanted <= present)
    return allocate_result{request.pages};
  auto pages = tree.take_device(wanted - present);
  if (!pages)
    return fail(ec::out_of_device_pages, "request " + std::to_string(id) + " needs "
                                           + std::to_string(wanted - present) + " more pages");
  before_change(request);
  request.owned.insert(request.owned.end(), pages->begin(), pages->end());
  list_pages(request);
  after_change(request);
  return allocate_result{request.pages};
}

result<void> hi_radix_tree::impl::check_insert(const open_request& request,
                                               const insert_request& asked) const {
  const auto name = "request " + std::to_string(request.id);
  if (!asked.tokens)
    return fail(ec::invalid_argument, name + ": no tokens");
  const auto count = asked.tokens->size();
  if (count > limits::request_tokens)
    return fail(ec::limit_reached, name + " has too many tokens");
  if (count < tokens(request.device_pages))
    return fail(ec::invalid_argument, name + ": fewer tokens than its pages in the tree");
  if (count > tokens(request.device_pages + request.owned.size()))
    return fail(ec::invalid_argument, name + ": more tokens than its pages hold");
  const auto matched = std::min<uint64_t>(count, tokens(request.matched_pages()));
  if (!equal_tokens(asked.tokens, request.tokens, matched))
    return fail(ec::invalid_argument, name + ": the tokens do not begin with those of the match");
  return {};
}

result<insert_result> hi_radix_tree::impl::insert(const insert_request& asked) {
  const auto found = find(asked.request);
  if (!found)
    return tl::unexpected{found.error()};
  auto& request = **found;
  if (auto valid = check_insert(request, asked); !valid)
    return tl::unexpected{std::move(valid.error())};
  if (is_stopped)
    return insert_result{0, request.pages};
  tree.tick();
  before_change(request);
  const auto pages = asked.tokens->size() / options.page_size;
  const auto matched = request.matched_pages();
  auto duplicates = uint64_t{0};
  auto& end = hand_over(request, asked.tokens, pages, duplicates);
  move_device_end(request, end);
  // A host part beyond what was inserted stays this request's.
  if (pages >= matched)
    drop_host_part(request);
  else
    request.host_pages = matched - pages;
  if (pages >= matched)
    request.tokens = asked.tokens;
  list_pages(request);
  tree.touch(end, 0);
  write_through(end);
  after_change(request);
  return insert_result{tokens(duplicates), request.pages};
}

radix_node& hi_radix_tree::impl::hand_over(open_request& request, const token_buffer& tokens,
                                           uint64_t pages, uint64_t& duplicates) {
  const auto base = request.device_pages;
  // The request's own pages for [from, to) of the prefix.
  const auto own = [&](uint64_t from, uint64_t to) {
    return std::span{request.owned}.subspan(from - base, to - from);
  };
  auto& present = tree.cut(tree.walk(*request.device_end, *tokens, pages));
  for (auto* node :
       path_nodes(present, [base](const radix_node& each) { return each.first >= base; })) {
    const auto part = own(node->first, node->end());
    if (node->on_device()) {
      tree.device_pool().give_back(part);
      duplicates += node->pages;
    } else {
      tree.set_device(*node, {part.begin(), part.end()});
    }
  }
  auto* end = &present;
  if (const auto from = present.end(); from < pages) {
    const auto size = options.page_size;
    const auto part = own(from, pages);
    auto keys = keys_of(request, tokens, from, pages, present);
    end = &tree.add(present, token_span{tokens, from * size, (pages - from) * size},
                    {part.begin(), part.end()}, {}, std::move(keys), l3_state::unknown);
  }
  request.owned.erase(request.owned.begin(),
                      request.owned.begin() + static_cast<ptrdiff_t>(pages - base));
  return *end;
}

std::vector<page_key> hi_radix_tree::impl::keys_of(const open_request& request,
                                                   const token_buffer& tokens, uint64_t from,
                                                   uint64_t to, const radix_node& parent) const {
  if (!options.storage_attached)
    return {};
  const auto size = options.page_size;
  const auto known = request.keys ? request.keys->size() : 0;
  // Names computed for a prefetch serve here, as far as they are names of these tokens.
  const auto reused
    = known > from && equal_tokens(tokens, request.keyed_tokens, std::min(known, to) * size)
        ? std::min(known, to)
        : from;
  auto keys = std::vector<page_key>{};
  keys.reserve(to - from);
  for (auto i = from; i < reused; ++i)
    keys.push_back((*request.keys)[i]);
  const auto* prior = !keys.empty()         ? &keys.back()
                      : parent.keys.empty() ? nullptr
                                            : &parent.keys.back();
  const auto rest
    = hash_pages(std::span{*tokens}.subspan(reused * size, (to - reused) * size), size, prior);
  keys.insert(keys.end(), rest.begin(), rest.end());
  return keys;
}

// -- release ------------------------------------------------------------------

result<void> hi_radix_tree::impl::release(request_id id) {
  const auto found = find(id);
  if (!found)
    return tl::unexpected{found.error()};
  auto& request = **found;
  before_change(request);
  if (request.fetch != 0) {
    auto& fetch = fetches.at(request.fetch);
    fetches_digest -= fetch.digest(request.fetch);
    fetch.request = 0;
    terminate(request.fetch, fetch);
    begin_ending(request.fetch, fetch);
    fetches_digest += fetch.digest(request.fetch);
  }
  tree.device_pool().give_back(request.owned);
  drop_host_part(request);
  tree.unlock_device(*request.device_end);
  requests.erase(id);
  return {};
}

// -- the handle ---------------------------------------------------------------

hi_radix_tree::hi_radix_tree(const tree_options& options) : impl_(std::make_unique<impl>(options)) {
  // nop
}

hi_radix_tree::~hi_radix_tree() = default;

hi_radix_tree::hi_radix_tree(hi_radix_tree&&) noexcept = default;

hi_radix_tree& hi_radix_tree::operator=(hi_radix_tree&&) noexcept = default;

result<match_result> hi_radix_tree::match(const match_request& request) {
  return impl_->match(request);
}

result<prefetch_result> hi_radix_tree::prefetch(request_id request) {
  return impl_->prefetch(request);
}

result<schedule_result> hi_radix_tree::schedule(request_id request) {
  return impl_->schedule(request);
}

result<load_result> hi_radix_tree::load_back(request_id request) {
  return impl_->load_back(request);
}

result<allocate_result> hi_radix_tree::allocate(request_id request, uint64_t tokens) {
  return impl_->allocate(request, tokens);
}

result<insert_result> hi_radix_tree::insert(const insert_request& request) {
  return impl_->insert(request);
}

result<void> hi_radix_tree::release(request_id request) {
  return impl_->release(request);
}

bool hi_radix_tree::in_flight() const noexcept {
  const auto pending = [](const operation_queue& queue) { return !queue.in_flight.empty(); };
  return pending(impl_->writes) || pending(impl_->loads) || pending(impl_->backups)
         || !impl_->ending.empty();
}

std::span<const fetch_id> hi_radix_tree::ending() const noexcept {
  return impl_->ending;
}

std::vector<ready_request> hi_radix_tree::step(const step_facts& facts,
                                               std::span<const page_list> arrived) {
  return impl_->step(facts, arrived);
}

std::vector<tree_effect> hi_radix_tree::take_effects() {
  return std::exchange(impl_->effects, {});
}

void hi_radix_tree::stop_serving() noexcept {
  impl_->is_stopped = true;
}

uint64_t hi_radix_tree::digest() const noexcept {
  return impl_->digest();
}

tree_stats hi_radix_tree::stats() const noexcept {
  const auto& tree = impl_->tree;
  const auto host_free = tree.host_pool().free();
  return {.nodes = tree.node_count(),
          .device_free = tree.device_pool().free(),
          .device_evictable = tree.totals().device_evictable,
          .device_protected = tree.totals().device_protected,
          .host_free = host_free,
          .host_used = tree.host_pool().capacity() - host_free,
          .evicted_device = tree.evicted_device(),
          .evicted_host = tree.evicted_host(),
          .requests_open = impl_->requests.size()};
}

void hi_radix_tree::check_invariants() const {
  impl_->check_invariants();
}

#ifdef HICACHE_TEST_HOOKS
void hi_radix_tree::corrupt_for_test() noexcept {
  for (auto* node : impl_->tree.sorted_nodes())
    if (!node->is_root()) {
      ++node->hits;
      return impl_->tree.changed(*node);
    }
  ++impl_->damage;
}
#endif

} // namespace hicache
