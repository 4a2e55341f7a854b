// Operations of requests on a prefix_cache, from match to release.

#include "base/limits.hpp"
#include "base/try.hpp"
#include "cache/prefix/prefix_cache.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace hicache {

namespace {

std::string name_of(request_id request) {
  return "request " + std::to_string(request);
}

/// Number of pages in both [a, b) and [c, d).
uint64_t overlap(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
  const auto from = std::max(a, c);
  const auto to = std::min(b, d);
  return to > from ? to - from : 0;
}

} // namespace

result<const open_request*> prefix_cache::find(request_id request) const {
  return sessions_.inner_of(request).and_then([this](request_id id) { return requests_.find(id); });
}

// -- match --------------------------------------------------------------------

result<void> prefix_cache::check_match(const match_request& asked,
                                       const session_state* session) const {
  const auto name = name_of(asked.request);
  if (!asked.tokens || asked.limit > asked.tokens->size())
    return fail(ec::invalid_argument, name + ": the limit exceeds the tokens");
  if (requests_.contains(asked.request))
    return fail(ec::invalid_argument, name + " is open already");
  if (asked.tokens->size() > limits::request_tokens)
    return fail(ec::limit_reached, name + " has too many tokens");
  // The session's slot is reused or dropped first.
  const auto replaced = session != nullptr && session->kept ? 1 : 0;
  if (requests_.size() - replaced >= limits::requests_open)
    return fail(ec::limit_reached, "too many open requests");
  return {};
}

result<match_result> prefix_cache::match(const match_request& asked) {
  const auto found = HICACHE_TRY(sessions_.find_for(asked));
  const auto* session = found;
  HICACHE_TRY(check_match(asked, session));
  if (session == nullptr)
    return open(asked, asked.request);
  auto answer = session->is_streaming ? match_turn(asked, *session) : open(asked, asked.request);
  sessions_.begin_turn(*session, asked.request);
  return answer;
}

match_result prefix_cache::open(const match_request& asked, request_id id) {
  requests_.open(asked, id);
  const auto& request = requests_.at(id);
  return {tokens(request.l1_pages), tokens(request.l2_pages), open_requests::pages_of(request, 0),
          tree_.handle_of(request.end())};
}

match_result prefix_cache::match_turn(const match_request& asked, const session_state& session) {
  if (session.kept) {
    if (auto resumed = sessions_.resume(asked, session)) {
      resumed->l1_pages = open_requests::pages_of(requests_.at(session.inner()), 0,
                                                  settings_.pages_for(resumed->l1_tokens));
      return *resumed;
    }
    give_up_slot(session);
  }
  auto answer = open(asked, session.inner());
  auto kept = session_slot{};
  kept.ns = asked.ns;
  if (answer.l2_tokens > 0)
    kept.l2_end = answer.l1_tokens + answer.l2_tokens;
  sessions_.change(session)->kept = std::move(kept);
  return answer;
}

void prefix_cache::give_up_slot(const session_state& session) {
  close(session.inner());
  sessions_.change(session)->kept.reset();
}

// -- prefetch -----------------------------------------------------------------

result<prefetch_result> prefix_cache::prefetch(request_id id) {
  const auto found = HICACHE_TRY(find(id));
  const auto* session = sessions_.owner_of(id);
  const auto is_kept = session != nullptr && session->kept;
  if (is_kept && session->kept->resumed > 0)
    return prefetch_result{};
  const auto wanted = fetches_.begin(found->id);
  if (is_kept && wanted > 0)
    sessions_.change(*session)->kept->is_fetching = true;
  return prefetch_result{wanted};
}

result<schedule_result> prefix_cache::schedule(request_id id) {
  const auto found = HICACHE_TRY(find(id));
  return schedule_result{fetches_.schedule(found->id)};
}

// -- load back ----------------------------------------------------------------

result<load_result> prefix_cache::load_back(const load_request& asked) {
  const auto found = HICACHE_TRY(find(asked.request));
  auto loaded = load_host_part(found->id, asked);
  const auto* session = sessions_.owner_of(asked.request);
  if (loaded && session != nullptr && session->kept && session->kept->resumed > 0) {
    // Nothing to load, but the slot's pages may still be loading.
    loaded->l1_tokens = session->kept->resumed;
    loaded->l1_pages
      = open_requests::pages_of(*found, asked.known_pages, settings_.pages_for(loaded->l1_tokens));
  }
  return loaded;
}

result<load_result> prefix_cache::load_host_part(request_id id, const load_request& asked) {
  const auto& found = requests_.at(id);
  // Pages that other requests brought to L1 meanwhile need not be loaded, nor evicted for the rest.
  auto& l1_end
    = found.l2_end != nullptr && found.owned.empty() ? found.l2_end->l1_end() : *found.l1_end;
  const auto missing = found.matched_pages() - std::max(l1_end.end(), found.l1_pages);
  const auto is_short = tokens(missing) < settings_.options.load_back_threshold_tokens;
  const auto is_long = tokens(missing) > asked.quota_tokens;
  const auto is_wanted
    = missing > 0 && !is_short && !is_long && found.owned.empty() && !settings_.is_stopped;
  tree_.lock_l1(l1_end);
  auto pages = is_wanted ? tree_.take_l1(missing) : std::nullopt;
  if (is_wanted && !pages && tree_.pending_write_backs() > 0) {
    tree_.unlock_l1(l1_end);
    return tl::unexpected{no_l1_pages(name_of(asked.request), missing)};
  }
  const auto request = requests_.change(id);
  requests_.rematch_l1(*request);
  tree_.unlock_l1(l1_end);
  const auto to = request->matched_pages();
  if (!pages) {
    const auto reason = missing == 0 ? miss_reason::none
                        : is_short   ? miss_reason::too_short
                        : is_long    ? miss_reason::over_quota
                                     : miss_reason::no_room;
    request->miss(to, reason);
    return load_result{tokens(request->l1_pages), 0, 0,
                       open_requests::pages_of(*request, asked.known_pages, request->l1_pages),
                       copies_.progress_on(*request->l1_end)};
  }
  const auto from = request->l1_pages;
  auto& end = *request->l2_end;
  auto progress = copies_.load(end, std::move(*pages));
  requests_.move_l1_end(*request, end);
  requests_.drop_l2_part(*request);
  const auto from_storage = overlap(from, to, request->fetched_from, request->fetched_to);
  request->loaded_pages += to - from;
  request->loaded_from_storage += from_storage;
  return load_result{tokens(to), tokens(to - from), tokens(from_storage),
                     open_requests::pages_of(*request, asked.known_pages), std::move(progress)};
}

// -- allocate and insert ------------------------------------------------------

error prefix_cache::no_l1_pages(std::string what, uint64_t pages) const {
  what += " needs " + std::to_string(pages) + " more pages";
  if (tree_.pending_write_backs() > 0)
    what += "; pages are being written to L2, so try again after a step";
  return {ec::out_of_device_pages, std::move(what)};
}

result<allocate_result> prefix_cache::allocate(const allocate_request& asked) {
  const auto found = HICACHE_TRY(find(asked.request));
  if (asked.tokens > limits::request_tokens)
    return fail(ec::limit_reached, name_of(asked.request) + " would have too many tokens");
  const auto wanted = settings_.pages_for(asked.tokens);
  const auto present = found->l1_pages + found->owned.size();
  if (wanted == 0)
    return allocate_result{open_requests::pages_of(*found, asked.known_pages)};
  const auto request = requests_.change(found->id);
  if (!request->has_taken_pages) {
    request->has_computed = true;
    request->served_pages = std::min(wanted, request->l1_pages);
  }
  if (wanted <= present)
    return allocate_result{open_requests::pages_of(*request, asked.known_pages)};
  const auto pages = tree_.take_l1(wanted - present);
  if (!pages)
    return tl::unexpected{no_l1_pages(name_of(asked.request), wanted - present)};
  request->owned.insert(request->owned.end(), pages->begin(), pages->end());
  request->has_taken_pages = true;
  return allocate_result{open_requests::pages_of(*request, asked.known_pages)};
}

result<insert_result> prefix_cache::insert(const insert_request& asked) {
  const auto found = HICACHE_TRY(find(asked.request));
  const auto* session = sessions_.owner_of(asked.request);
  if (session != nullptr)
    HICACHE_TRY(sessions_.check_insert(asked, *session));
  HICACHE_TRY(requests_.check_insert(*found, asked));
  auto answer = insert_pages(found->id, asked);
  if (session != nullptr && session->kept) {
    sessions_.keep(asked, answer, *session);
  } else if (session != nullptr && answer.node != 0) {
    const auto older = session->reference;
    sessions_.change(*session)->reference = tree_.refer(*tree_.find(answer.node));
    if (older != 0)
      tree_.drop_reference(older);
  }
  return answer;
}

insert_result prefix_cache::insert_pages(request_id id, const insert_request& asked) {
  const auto request = requests_.change(id);
  if (settings_.is_stopped || request->has_failed() || !settings_.options.share_prefixes)
    return {0, open_requests::pages_of(*request, asked.known_pages)};
  tree_.tick();
  const auto pages = tree_.whole_pages(asked.tokens->size());
  const auto matched = request->matched_pages();
  const auto [last, duplicates] = requests_.hand_over(*request, asked, pages);
  auto& end = *last;
  requests_.move_l1_end(*request, end);
  // An L2 part beyond the insert stays with the request.
  if (pages >= matched) {
    requests_.drop_l2_part(*request);
    request->tokens = asked.tokens;
  } else {
    request->l2_pages = matched - pages;
  }
  tree_.touch(end, asked.chunked ? 0 : 1);
  pins_.refresh(end);
  tree_.raise_priority(end, asked.priority);
  if (!asked.chunked)
    copy_inserted(end);
  return {tokens(duplicates), open_requests::pages_of(*request, asked.known_pages),
          tree_.handle_of(end), retain(end, asked.retain)};
}

/// Starts to copy an insert to the lower tiers.
void prefix_cache::copy_inserted(radix_node& end) {
  const auto is_written = settings_.options.write != write_policy::write_back;
  if (is_written)
    copies_.write_path(end, settings_.least_hits(), false);
  // Every use retries backups that L3 failed to take or dropped, and repeats those it evicted.
  backups_.doubt_path(end);
  backups_.back_up_path(end);
  if (is_written) {
    copies_.want_staged(end);
    copies_.stage();
  }
}

/// Pins the inserted prefix if the tenant's budget allows. @returns the pinned tokens.
uint64_t prefix_cache::retain(radix_node& end, std::chrono::nanoseconds ttl) {
  if (ttl.count() <= 0 || end.is_root() || !pins_.fits_budget({&end, end.end()}))
    return 0;
  pins_.begin(end, ttl);
  return tokens(end.end());
}

// -- release ------------------------------------------------------------------

result<void> prefix_cache::release(request_id id) {
  const auto found = HICACHE_TRY(find(id));
  const auto* session = sessions_.owner_of(id);
  if (session == nullptr || !session->kept)
    close(found->id);
  else if (!session->kept->can_stay() || settings_.is_stopped)
    give_up_slot(*session);
  if (session != nullptr)
    sessions_.end_turn(*session);
  return {};
}

void prefix_cache::close(request_id id) {
  fetches_.leave(id);
  requests_.close(id);
}

page_list prefix_cache::pages_of(request_id request) const {
  const auto found = find(request);
  return found ? open_requests::pages_of(**found, 0) : nullptr;
}

request_extent prefix_cache::extent(request_id id) const {
  const auto found = find(id);
  return found ? request_extent{tokens((*found)->l1_pages), (*found)->prompt_tokens}
               : request_extent{};
}

result<request_provenance> prefix_cache::provenance(request_id id) const {
  const auto found = HICACHE_TRY(find(id));
  const auto* session = sessions_.owner_of(id);
  if (session == nullptr || !session->kept || session->kept->resumed == 0
      || session->kept->has_failed)
    return requests_.provenance(*found);
  auto told = request_provenance{};
  told.l1_tokens = session->kept->resumed;
  told.computed_tokens = session->kept->prompt_tokens - session->kept->resumed;
  return told;
}

} // namespace hicache
