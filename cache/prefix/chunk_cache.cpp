#include "cache/prefix/chunk_cache.hpp"

#include "base/check.hpp"
#include "base/limits.hpp"
#include "base/mix.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace hicache {

namespace {

error no_node(node_id id) {
  return {ec::unknown_id, "node " + std::to_string(id) + " cannot exist: no prefix is shared"};
}

} // namespace

chunk_cache::chunk_cache(const tree_options& options)
  : page_size_(options.page_size), host_pages_(options.host_pages), pool_(options.device_pages) {
  if (options.events)
    events_.add(cache_cleared{});
}

uint64_t chunk_cache::digest_of(request_id id, const open_request& request) noexcept {
  return mix(id, request.pages->size());
}

result<chunk_cache::open_request*> chunk_cache::find(request_id id) {
  const auto entry = requests_.find(id);
  if (entry == requests_.end())
    return fail(ec::unknown_id, "request " + std::to_string(id) + " is not open");
  return &entry->second;
}

// -- operations of a request --------------------------------------------------

result<match_result> chunk_cache::match(const match_request& asked) {
  const auto name = "request " + std::to_string(asked.request);
  if (!asked.tokens || asked.limit > asked.tokens->size())
    return fail(ec::invalid_argument, name + ": the limit exceeds the tokens");
  if (asked.tokens->size() > limits::request_tokens)
    return fail(ec::limit_reached, name + " has too many tokens");
  if (requests_.contains(asked.request))
    return fail(ec::invalid_argument, name + " is open already");
  if (requests_.size() >= limits::requests_open)
    return fail(ec::limit_reached, "too many open requests");
  auto& request = requests_[asked.request];
  request.prompt_tokens = asked.tokens->size();
  request.pages = std::make_shared<const std::vector<page_index>>();
  requests_digest_ += digest_of(asked.request, request);
  return match_result{0, 0, request.pages, 0};
}

result<prefetch_result> chunk_cache::prefetch(request_id id) {
  return find(id).map([](auto*) { return prefetch_result{}; });
}

result<schedule_result> chunk_cache::schedule(request_id id) {
  return find(id).map([](auto*) { return schedule_result{true}; });
}

result<load_result> chunk_cache::load_back(const load_request& asked) {
  return find(asked.request).map([](auto*) {
    return load_result{0, 0, 0, std::make_shared<const std::vector<page_index>>(), nullptr};
  });
}

result<allocate_result> chunk_cache::allocate(const allocate_request& asked) {
  const auto found = find(asked.request);
  if (!found)
    return tl::unexpected{found.error()};
  auto& request = **found;
  const auto name = "request " + std::to_string(asked.request);
  if (asked.tokens > limits::request_tokens)
    return fail(ec::limit_reached, name + " would have too many tokens");
  const auto wanted = (asked.tokens + page_size_ - 1) / page_size_;
  const auto present = request.pages->size();
  if (wanted <= present)
    return allocate_result{request.pages};
  const auto pages = pool_.take(wanted - present);
  if (!pages)
    return fail(ec::out_of_device_pages,
                name + " needs " + std::to_string(wanted - present) + " more pages");
  auto list = *request.pages;
  list.insert(list.end(), pages->begin(), pages->end());
  requests_digest_ -= digest_of(asked.request, request);
  request.pages = std::make_shared<const std::vector<page_index>>(std::move(list));
  requests_digest_ += digest_of(asked.request, request);
  return allocate_result{request.pages};
}

result<insert_result> chunk_cache::insert(const insert_request& asked) {
  const auto found = find(asked.request);
  if (!found)
    return tl::unexpected{found.error()};
  const auto& request = **found;
  const auto name = "request " + std::to_string(asked.request);
  if (!asked.tokens)
    return fail(ec::invalid_argument, name + ": no tokens");
  if (asked.tokens->size() > request.pages->size() * page_size_)
    return fail(ec::invalid_argument, name + ": more tokens than its pages hold");
  return insert_result{0, request.pages, 0, 0};
}

result<void> chunk_cache::release(request_id id) {
  const auto found = find(id);
  if (!found)
    return tl::unexpected{found.error()};
  requests_digest_ -= digest_of(id, **found);
  pool_.give_back(*(*found)->pages);
  requests_.erase(id);
  return {};
}

page_list chunk_cache::pages_of(request_id request) const {
  const auto entry = requests_.find(request);
  return entry == requests_.end() ? nullptr : entry->second.pages;
}

result<request_provenance> chunk_cache::provenance(request_id id) const {
  const auto entry = requests_.find(id);
  if (entry == requests_.end())
    return fail(ec::unknown_id, "request " + std::to_string(id) + " is not open");
  auto told = request_provenance{};
  if (!entry->second.pages->empty())
    told.computed_tokens = entry->second.prompt_tokens;
  return told;
}

// -- operations without a request ---------------------------------------------

result<evict_result> chunk_cache::evict(const evict_request&) {
  return evict_result{};
}

result<pin_result> chunk_cache::pin(const pin_request& asked) {
  if (!asked.tokens || asked.ttl.count() <= 0)
    return fail(ec::invalid_argument, "a pin needs tokens and a time above zero");
  return pin_result{};
}

result<pin_result> chunk_cache::unpin(const unpin_request&) {
  return pin_result{};
}

result<session_result> chunk_cache::open_session(const open_session_request&) {
  return fail(ec::unsupported, "this cache has no sessions");
}

result<session_result> chunk_cache::close_session(const close_session_request&) {
  return fail(ec::unsupported, "this cache has no sessions");
}

result<lock_result> chunk_cache::lock(node_id node) {
  return tl::unexpected{no_node(node)};
}

result<lock_result> chunk_cache::unlock(node_id node) {
  return tl::unexpected{no_node(node)};
}

result<backup_result> chunk_cache::backup(node_id node) {
  return tl::unexpected{no_node(node)};
}

result<load_node_result> chunk_cache::load_node(const load_node_request& asked) {
  return tl::unexpected{no_node(asked.node)};
}

result<uint64_t> chunk_cache::refer(node_id node) {
  return tl::unexpected{no_node(node)};
}

void chunk_cache::drop_reference(uint64_t) {
  // There are none.
}

result<void> chunk_cache::clear() {
  if (!requests_.empty())
    return fail(ec::invalid_argument, "requests are open, so nothing was cleared");
  return {};
}

// -- steps and state ----------------------------------------------------------

std::vector<ready_request> chunk_cache::step(const step_facts& facts,
                                             std::span<const page_list> arrived) {
  HICACHE_CHECK(facts.fetches.empty() && arrived.empty());
  return {};
}

std::vector<cache_event> chunk_cache::take_events() {
  return events_.take();
}

void chunk_cache::change_storage(const storage_change&) {
  // Nothing is shared, so nothing is stored.
}

void chunk_cache::stop_serving() noexcept {
  // Nothing is served from the cache as it is.
}

uint64_t chunk_cache::digest() const noexcept {
  // The 0 counted something once; recorded op logs have it.
  return mix(mix(requests_digest_, requests_.size()), mix(pool_.digest(), 0));
}

tree_stats chunk_cache::stats() const noexcept {
  auto stats = tree_stats{};
  stats.device_free = pool_.free();
  stats.host_free = host_pages_;
  stats.requests_open = requests_.size();
  return stats;
}

void chunk_cache::check_invariants() const {
  auto held = uint64_t{0};
  auto digests = uint64_t{0};
  for (const auto& [id, request] : requests_) {
    held += request.pages->size();
    digests += digest_of(id, request);
    for (const auto page : *request.pages)
      HICACHE_CHECK(pool_.is_taken(page));
  }
  HICACHE_CHECK(held + pool_.free() == pool_.capacity() && digests == requests_digest_);
}

} // namespace hicache
