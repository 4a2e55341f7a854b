#include "cache/prefix/open_requests.hpp"

#include "base/check.hpp"
#include "base/mix.hpp"
#include "cache/radix/prefix_key.hpp"

#include <chrono>
#include <span>

namespace hicache {

namespace {

uint64_t digest_of(const open_request& request) noexcept {
  const auto flags = uint64_t{request.has_failed()} << 2 | uint64_t{request.is_scheduled} << 1
                     | uint64_t{request.is_past_deadline};
  return mix(
    mix(mix(request.id, request.fetch), mix(flags, static_cast<uint64_t>(request.deadline_ns))),
    mix(mix(request.l1_pages, request.l2_pages), mix(request.owned.size(), request.limit_pages)));
}

/// The same for a cache that shares nothing: requests have only their own pages.
uint64_t unshared_digest_of(const open_request& request) noexcept {
  return mix(request.id, request.owned.size());
}

} // namespace

open_requests::open_requests(radix_tree& tree, open_pins& pins, const cache_settings& settings)
  : tree_(tree), pins_(pins), settings_(settings),
    requests_(settings.options.share_prefixes ? &digest_of : &unshared_digest_of) {
  // nop
}

result<const open_request*> open_requests::find(request_id id) const {
  if (const auto* request = requests_.find(id))
    return request;
  return fail(ec::unknown_id, "request " + std::to_string(id) + " is not open");
}

// -- open and close -----------------------------------------------------------

void open_requests::open(const match_request& asked, request_id id) {
  tree_.tick();
  auto request = open_request{};
  request.id = id;
  request.tokens = asked.tokens;
  request.prompt_tokens = asked.tokens->size();
  request.limit_pages = tree_.whole_pages(asked.limit);
  request.root = &tree_.root(asked.ns);
  request.l1_end = request.root;
  tree_.lock_l1(*request.root);
  const auto may_hit = settings_.options.share_prefixes && !settings_.is_stopped;
  rematch(request, may_hit ? request.limit_pages : 0);
  requests_.insert(id, std::move(request));
}

void open_requests::close(request_id id) {
  auto request = requests_.take(id);
  tree_.l1_pool().give_back(request.owned);
  drop_l2_part(request);
  tree_.unlock_l1(*request.l1_end);
}

// -- the matched part ---------------------------------------------------------

void open_requests::rematch(open_request& request, uint64_t limit) {
  auto& end = tree_.cut(tree_.walk(*request.root, *request.tokens, limit));
  auto& l1_end = end.l1_end();
  if (&l1_end != &end)
    tree_.lock_l2(end);
  drop_l2_part(request);
  move_l1_end(request, l1_end);
  // Locked nodes are in no eviction order, so touching them is cheap.
  tree_.touch(end, 0);
  pins_.refresh(end);
  if (&l1_end != &end) {
    request.l2_end = &end;
    request.l2_pages = end.end() - l1_end.end();
  }
}

void open_requests::move_l1_end(open_request& request, radix_node& end) {
  tree_.lock_l1(end);
  tree_.unlock_l1(*request.l1_end);
  request.l1_end = &end;
  request.l1_pages = end.end();
}

void open_requests::drop_l2_part(open_request& request) {
  if (request.l2_end == nullptr)
    return;
  tree_.unlock_l2(*request.l2_end);
  request.l2_end = nullptr;
  request.l2_pages = 0;
}

void open_requests::rematch_l1(open_request& request) {
  if (request.l2_end == nullptr || !request.owned.empty())
    return;
  auto& l1_end = request.l2_end->l1_end();
  if (l1_end.end() <= request.l1_pages)
    return;
  const auto matched = request.matched_pages();
  move_l1_end(request, l1_end);
  request.l2_pages = matched - request.l1_pages;
  if (request.l2_pages == 0)
    drop_l2_part(request);
}

page_list open_requests::pages_of(const open_request& request, uint64_t first, uint64_t end) {
  end = std::min(end, request.l1_pages + request.owned.size());
  first = std::min(first, end);
  auto list = std::vector<page_index>(end - first);
  const auto copy = [&](const std::vector<page_index>& pages, uint64_t begin) {
    const auto from = std::max(begin, first);
    const auto to = std::min(begin + pages.size(), end);
    if (from < to)
      std::copy_n(pages.begin() + static_cast<ptrdiff_t>(from - begin), to - from,
                  list.begin() + static_cast<ptrdiff_t>(from - first));
  };
  copy(request.owned, request.l1_pages);
  for (const auto* node = request.l1_end; !node->is_root() && node->end() > first;
       node = node->parent())
    copy(node->l1_pages(), node->first());
  return share_pages(std::move(list));
}

std::vector<request_id> open_requests::lose_discarded(uint64_t valid_pages) {
  auto ids = std::vector<request_id>{};
  for (const auto& [id, request] : requests_)
    if (request.l1_end->is_discarded()
        || (request.l2_end != nullptr && request.l2_end->is_discarded()))
      ids.push_back(id);
  // The order determines which page is allocated next.
  std::ranges::sort(ids);
  auto failed = std::vector<request_id>{};
  for (const auto id : ids) {
    const auto request = requests_.change(id);
    if (request->l2_end != nullptr && request->l2_end->is_discarded()) {
      request->miss(request->matched_pages(), miss_reason::copy_failed);
      drop_l2_part(*request);
    }
    if (request->l1_end->is_discarded() && !request->has_failed()) {
      request->miss(request->l1_pages, miss_reason::copy_failed);
      request->valid_pages = valid_pages;
      failed.push_back(id);
    }
  }
  return failed;
}

// -- insert -------------------------------------------------------------------

result<void> open_requests::check_insert(const open_request& request,
                                         const insert_request& asked) const {
  const auto name = "request " + std::to_string(asked.request);
  if (!asked.tokens)
    return fail(ec::invalid_argument, name + ": no tokens");
  const auto count = asked.tokens->size();
  if (count > limits::request_tokens)
    return fail(ec::limit_reached, name + " has too many tokens");
  if (request.l1_pages > 0 && count < tree_.span_size(request.l1_pages))
    return fail(ec::invalid_argument, name + ": fewer tokens than its pages in the tree");
  if (count > settings_.tokens(request.l1_pages + request.owned.size()))
    return fail(ec::invalid_argument, name + ": more tokens than its pages hold");
  const auto pages = request.matched_pages();
  const auto matched = pages == 0 ? 0 : std::min<uint64_t>(count, tree_.span_size(pages));
  if (!begin_alike(asked.tokens, request.tokens, matched))
    return fail(ec::invalid_argument, name + ": the tokens do not begin with those of the match");
  return {};
}

std::pair<radix_node*, uint64_t>
open_requests::hand_over(open_request& request, const insert_request& asked, uint64_t pages) {
  const auto& tokens = asked.tokens;
  const auto base = request.l1_pages;
  // The request's own pages for [from, to) of the prefix.
  const auto own = [&](uint64_t from, uint64_t to) {
    return std::span{request.owned}.subspan(from - base, to - from);
  };
  auto duplicates = uint64_t{0};
  auto* end = &tree_.cut(tree_.walk(*request.l1_end, *tokens, pages));
  for (auto* node :
       path_nodes(*end, [base](const radix_node& each) { return each.first() >= base; })) {
    const auto part = own(node->first(), node->end());
    if (node->in_l1()) {
      tree_.l1_pool().give_back(part);
      duplicates += node->pages();
    } else {
      tree_.set_l1(*node, {part.begin(), part.end()});
    }
  }
  if (const auto from = end->end(); from < pages) {
    const auto size = settings_.options.page_size;
    const auto part = own(from, pages);
    end = &tree_.add(*end, token_span{tokens, from * size, tree_.span_size(pages - from)},
                     {part.begin(), part.end()}, {}, {}, l3_state::unknown);
    node_edit{tree_, *end}.set_priority(asked.priority);
  }
  request.owned.erase(request.owned.begin(),
                      request.owned.begin() + static_cast<ptrdiff_t>(pages - base));
  return {end, duplicates};
}

// -- state --------------------------------------------------------------------

request_provenance open_requests::provenance(const open_request& request) const {
  auto told = request_provenance{};
  if (!request.has_computed)
    return told;
  const auto tokens = [this](uint64_t pages) { return settings_.tokens(pages); };
  const auto prompt = uint64_t{request.prompt_tokens};
  const auto served = std::min(tokens(std::min(request.served_pages, request.valid_pages)), prompt);
  if (!request.has_failed()) {
    told.l3_tokens = tokens(request.loaded_from_storage);
    told.l2_tokens = tokens(request.loaded_pages) - told.l3_tokens;
  }
  told.l1_tokens = served - std::min(served, told.l2_tokens + told.l3_tokens);
  told.computed_tokens = prompt - served;
  if (told.l3_tokens > 0) {
    told.l3_backend = request.storage_backend;
    told.l3_tiers = tokens_by_tier(request, request.loaded_from_storage);
  }
  told.load_estimate = std::chrono::nanoseconds{request.load_ns};
  told.compute_estimate = std::chrono::nanoseconds{request.compute_ns};
  const auto known = std::min(tokens(std::min(request.known_pages, request.limit_pages)), prompt);
  if (known > served) {
    told.unserved_tokens = known - served;
    told.why = request.why;
  }
  return told;
}

/// Divides the pages that a request's prefetches brought among the tiers.
std::vector<tier_tokens> open_requests::tokens_by_tier(const open_request& request,
                                                       uint64_t pages) const {
  auto told = std::vector<tier_tokens>{};
  if (!request.tiers)
    return told;
  const auto last = request.tiers->size() - 1;
  auto before = uint64_t{0};
  for (auto tier = size_t{0}; tier <= last; ++tier) {
    const auto end = tier < last ? std::min(request.fetched_above[tier], pages) : pages;
    told.push_back({(*request.tiers)[tier], settings_.tokens(end - before)});
    before = end;
  }
  return told;
}

void open_requests::count_locks(lock_census& census) const {
  for (const auto& [id, request] : requests_)
    census.add(request.l1_end, request.l2_end);
}

void open_requests::check_invariants() const {
  requests_.check_digest();
  for (const auto& [id, request] : requests_) {
    HICACHE_CHECK(request.id == id);
    HICACHE_CHECK(request.l1_end->end() == request.l1_pages);
    HICACHE_CHECK((request.l2_end == nullptr) == (request.l2_pages == 0));
    HICACHE_CHECK(request.l2_end == nullptr || request.l2_end->end() == request.matched_pages());
  }
}

} // namespace hicache
