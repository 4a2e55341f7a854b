// Requests: match, allocate, insert, release.

#include "cache/prefix/hi_radix_tree.hpp"

#include "base/check.hpp"
#include "base/limits.hpp"
#include "base/mix.hpp"
#include "cache/hash/page_hash.hpp"
#include "cache/prefix/hi_radix_impl.hpp"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

namespace hicache {

namespace {

bool equal_tokens(const token_buffer& a, const token_buffer& b, uint64_t count) {
  return a == b
         || (a && b && count <= a->size() && count <= b->size()
             && std::equal(a->begin(), a->begin() + static_cast<ptrdiff_t>(count), b->begin()));
}

} // namespace

uint64_t open_request::digest() const noexcept {
  const auto flags
    = uint64_t{has_failed()} << 2 | uint64_t{is_scheduled} << 1 | uint64_t{is_overdue};
  return mix(mix(mix(id, fetch), mix(flags, static_cast<uint64_t>(stop_ns))),
             mix(mix(device_pages, host_pages), mix(owned.size(), limit_pages)));
}

hi_radix_tree::impl::impl(const tree_options& opts)
  : options(opts), tree({.page_size = opts.page_size,
                         .overlap = opts.bigram ? 1U : 0U,
                         .device_pages = opts.device_pages,
                         .host_pages = opts.host_pages,
                         .eviction = opts.eviction,
                         .order = opts.order,
                         .name_pages = opts.storage_attached || opts.events,
                         .events = opts.events,
                         .lends_host = opts.storage_lends_host}) {
  HICACHE_CHECK(std::has_single_bit(options.page_size));
  HICACHE_CHECK(options.prefetch_reserve_pages <= options.host_pages);
  HICACHE_CHECK(options.device_pages < limits::pool_pages
                && options.host_pages < limits::pool_pages);
  in_reserve.resize(uint64_t{options.host_pages} + 1);
  if (options.host_pages > 0)
    tree.set_save(
      [this](radix_node& node, std::vector<page_index> host) {
        node.host = std::move(host);
        begin_write({&node});
      },
      [this](const radix_node& node) {
        // What L2 keeps below a node would be lost with it; and what L3 has was used before.
        return options.write != write_policy::write_through_selective
               || node.use.hits >= least_hits() || node.host_children > 0
               || node.l3 == l3_state::stored;
      });
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
  request.prompt_tokens = asked.tokens->size();
  request.limit_pages = tree.whole_pages(asked.limit);
  request.root = &tree.root(asked.ns);
  request.device_end = request.root;
  tree.lock_device(*request.root);
  match_again(request, is_stopped ? 0 : request.limit_pages);
  after_change(request);
  const auto& end = request.host_end != nullptr ? *request.host_end : *request.device_end;
  return match_result{tokens(request.device_pages), tokens(request.host_pages), request.pages,
                      end.is_root() ? 0 : end.id};
}

void hi_radix_tree::impl::match_again(open_request& request, uint64_t limit) {
  auto& end = tree.cut(tree.walk(*request.root, *request.tokens, limit));
  auto& device_end = end.device_end();
  if (&device_end != &end)
    tree.lock_host(end);
  drop_host_part(request);
  move_device_end(request, device_end);
  // Locked nodes are in no eviction order, so that touching them is cheap.
  tree.touch(end, 0);
  refresh_pins(end);
  if (&device_end != &end) {
    request.host_end = &end;
    request.host_pages = end.end() - device_end.end();
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

error hi_radix_tree::impl::no_device_pages(std::string what, uint64_t pages) const {
  what += " needs " + std::to_string(pages) + " more pages";
  if (tree.leaving() > 0)
    what += "; pages are being written to L2, so try again after a step";
  return {ec::out_of_device_pages, std::move(what)};
}

result<allocate_result> hi_radix_tree::impl::allocate(const allocate_request& asked) {
  const auto id = asked.request;
  const auto token_count = asked.tokens;
  const auto found = find(id);
  if (!found)
    return tl::unexpected{found.error()};
  auto& request = **found;
  if (token_count > limits::request_tokens)
    return fail(ec::limit_reached, "request " + std::to_string(id) + " would have too many tokens");
  const auto wanted = (token_count + options.page_size - 1) / options.page_size;
  if (request.owned.empty() && wanted > 0) {
    request.has_computed = true;
    request.served_pages = std::min(wanted, request.device_pages);
  }
  const auto present = request.device_pages + request.owned.size();
  if (wanted <= present)
    return allocate_result{request.pages};
  auto pages = tree.take_device(wanted - present);
  if (!pages)
    return tl::unexpected{no_device_pages("request " + std::to_string(id), wanted - present)};
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
  if (request.device_pages > 0 && count < tree.span_size(request.device_pages))
    return fail(ec::invalid_argument, name + ": fewer tokens than its pages in the tree");
  if (count > tokens(request.device_pages + request.owned.size()))
    return fail(ec::invalid_argument, name + ": more tokens than its pages hold");
  const auto pages = request.matched_pages();
  const auto matched = pages == 0 ? 0 : std::min<uint64_t>(count, tree.span_size(pages));
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
  if (is_stopped || request.has_failed())
    return insert_result{0, request.pages};
  tree.tick();
  before_change(request);
  const auto pages = tree.whole_pages(asked.tokens->size());
  const auto matched = request.matched_pages();
  auto duplicates = uint64_t{0};
  auto& end = hand_over(request, asked, pages, duplicates);
  move_device_end(request, end);
  // A host part beyond what was inserted stays this request's.
  if (pages >= matched)
    drop_host_part(request);
  else
    request.host_pages = matched - pages;
  if (pages >= matched)
    request.tokens = asked.tokens;
  list_pages(request);
  tree.touch(end, asked.chunked ? 0 : 1);
  refresh_pins(end);
  tree.raise_priority(end, asked.priority);
  if (!asked.chunked)
    copy_inserted(end);
  after_change(request);
  return insert_result{tokens(duplicates), request.pages, end.is_root() ? 0 : end.id,
                       retain(end, asked.retain)};
}

/// What goes to the lower tiers with an insert.
void hi_radix_tree::impl::copy_inserted(radix_node& end) {
  const auto is_written = options.write != write_policy::write_back;
  if (is_written)
    write_path(end, least_hits(), false);
  // What L3 failed to take, or dropped, gets another chance with every use.
  back_up_path(end);
  if (is_written) {
    want_staged(end);
    stage();
  }
}

/// Pins what a request wants retained, if the tenant's budget allows.
uint64_t hi_radix_tree::impl::retain(radix_node& end, std::chrono::nanoseconds ttl) {
  if (ttl.count() <= 0 || end.is_root() || !fits_budget({&end, end.end()}))
    return 0;
  begin_pin(end, ttl);
  return tokens(end.end());
}

radix_node& hi_radix_tree::impl::hand_over(open_request& request, const insert_request& asked,
                                           uint64_t pages, uint64_t& duplicates) {
  const auto& tokens = asked.tokens;
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
    end = &tree.add(present, token_span{tokens, from * size, tree.span_size(pages - from)},
                    {part.begin(), part.end()}, {}, std::move(keys), l3_state::unknown);
    end->use.priority = asked.priority;
    tree.changed(*end);
  }
  request.owned.erase(request.owned.begin(),
                      request.owned.begin() + static_cast<ptrdiff_t>(pages - base));
  return *end;
}

std::vector<page_key> hi_radix_tree::impl::keys_of(const open_request& request,
                                                   const token_buffer& tokens, uint64_t from,
                                                   uint64_t to, const radix_node& parent) const {
  if (!tree.options().name_pages)
    return {};
  const auto size = options.page_size;
  const auto known = request.keys ? request.keys->size() : 0;
  // Names computed for a prefetch serve here, as far as they are names of these tokens.
  const auto reused
    = known > from
          && equal_tokens(tokens, request.keyed_tokens, tree.span_size(std::min(known, to)))
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
    = hash_pages(std::span{*tokens}.subspan(reused * size, tree.span_size(to - reused)), size,
                 prior, tree.options().overlap);
  keys.insert(keys.end(), rest.begin(), rest.end());
  return keys;
}

// -- release ------------------------------------------------------------------

request_provenance hi_radix_tree::impl::provenance(const open_request& request) const {
  auto told = request_provenance{};
  if (!request.has_computed)
    return told;
  const auto prompt = uint64_t{request.prompt_tokens};
  const auto served = std::min(tokens(std::min(request.served_pages, request.valid_pages)), prompt);
  if (!request.has_failed()) {
    told.l3_tokens = tokens(request.loaded_from_storage);
    told.l2_tokens = tokens(request.loaded_pages) - told.l3_tokens;
  }
  told.l1_tokens = served - std::min(served, told.l2_tokens + told.l3_tokens);
  told.computed_tokens = prompt - served;
  if (told.l3_tokens > 0)
    told.l3_backend = request.storage_backend;
  const auto known = std::min(tokens(std::min(request.known_pages, request.limit_pages)), prompt);
  if (known > served) {
    told.given_up_tokens = known - served;
    told.why = request.why;
  }
  return told;
}

result<void> hi_radix_tree::impl::release(request_id id) {
  const auto found = find(id);
  if (!found)
    return tl::unexpected{found.error()};
  auto& request = **found;
  before_change(request);
  if (request.fetch != 0) {
    auto& fetch = fetches.at(request.fetch);
    fetches_digest -= fetch.digest(request.fetch);
    std::erase(fetch.requests, id);
    fetches_digest += fetch.digest(request.fetch);
    if (fetch.requests.empty())
      terminate(request.fetch, fetch);
  }
  forget_stop_time(request);
  tree.device_pool().give_back(request.owned);
  drop_host_part(request);
  tree.unlock_device(*request.device_end);
  requests.erase(id);
  return {};
}

} // namespace hicache
