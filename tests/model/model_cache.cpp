// The operations of the model.

#include "tests/model/model_cache.hpp"

#include <algorithm>

namespace hicache::test {

namespace {

uint64_t ceiling(uint64_t tokens, uint64_t page_size) {
  return (tokens + page_size - 1) / page_size;
}

} // namespace

std::string model_cache::follow(const tree_operation& operation, const tree_answer& answer) {
  difference_.clear();
  std::visit([&](const auto& asked) { perform(asked, answer); }, operation);
  finish_copies();
  return difference_;
}

void model_cache::advance(int64_t now_ns) {
  now_ns_ = std::max(now_ns_, now_ns);
  for (auto& [path, pin] : pins_)
    if (pin.asked_ns) {
      const auto expiry = now_ns_ + std::min(*pin.asked_ns, INT64_MAX - now_ns_);
      pin.expiry_ns = std::max(pin.expiry_ns.value_or(expiry), expiry);
      pin.asked_ns.reset();
    }
  std::erase_if(pins_, [this](const auto& pin) {
    return pin.second.expiry_ns && *pin.second.expiry_ns <= now_ns_;
  });
}

template <class T>
const T* model_cache::agreed(ec expected, const tree_answer& answer) {
  same("error", static_cast<uint64_t>(expected),
       static_cast<uint64_t>(answer ? ec::none : answer.error().code));
  if (expected != ec::none || !answer)
    return nullptr;
  const auto* value = std::get_if<T>(&*answer);
  same("kind of answer", 1, value != nullptr ? 1 : 0);
  return value;
}

// -- requests -----------------------------------------------------------------

void model_cache::perform(const match_request& asked, const tree_answer& answer) {
  auto* session = static_cast<open_session*>(nullptr);
  auto expected = ec::none;
  if (requests_.contains(asked.request)) {
    expected = ec::invalid_argument;
  } else if (asked.session.session != 0) {
    const auto found = sessions_.find(asked.session.session);
    if (found == sessions_.end() || found->second.generation != asked.session.generation)
      expected = ec::unknown_id;
    else if (session = &found->second; session->request != 0)
      expected = ec::invalid_argument;
  }
  if (expected == ec::none && asked.limit > asked.tokens->size())
    expected = ec::invalid_argument;
  const auto* found = agreed<match_result>(expected, answer);
  if (found == nullptr)
    return;
  const auto root = root_of(asked.ns);
  const auto path = cached_part(path_of(root, *asked.tokens, asked.limit));
  const auto device = l1_part(path);
  cut(path);
  ++moment_;
  for (auto pages = uint64_t{1}; pages <= page_count(path); ++pages)
    pages_.at(first_pages(path, pages)).use.last_access = moment_;
  auto& request = requests_[asked.request];
  request = {root, {device, path == device ? model_path{} : path}, {}, *asked.tokens, 0};
  if (session != nullptr) {
    request.session = asked.session.session;
    session->request = asked.request;
  }
  same("device_tokens", tokens(page_count(device)), found->l1_tokens);
  same("host_tokens", tokens(page_count(path) - page_count(device)), found->l2_tokens);
  same_pages(device, {}, found->l1_pages);
  same_node(path, found->node);
}

void model_cache::perform(const prefetch_request& asked, const tree_answer& answer) {
  const auto is_open = requests_.contains(asked.request);
  if (const auto* found = agreed<prefetch_result>(is_open ? ec::none : ec::unknown_id, answer))
    same("prefetch tokens", 0, found->tokens);
}

void model_cache::perform(const schedule_request& asked, const tree_answer& answer) {
  const auto is_open = requests_.contains(asked.request);
  if (const auto* found = agreed<schedule_result>(is_open ? ec::none : ec::unknown_id, answer))
    same("ready", 1, found->ready ? 1 : 0);
}

void model_cache::perform(const load_request& asked, const tree_answer& answer) {
  const auto entry = requests_.find(asked.request);
  if (entry == requests_.end())
    return static_cast<void>(agreed<load_result>(ec::unknown_id, answer));
  auto& request = entry->second;
  auto& held = request.held;
  const auto before = held;
  // What others brought to the device meanwhile is the request's, too.
  if (request.owned.empty() && !held.host.empty()) {
    held.device = l1_part(held.host);
    if (held.device == held.host)
      held.host.clear();
  }
  const auto missing
    = held.host.empty() ? uint64_t{0} : page_count(held.host) - page_count(held.device);
  auto loading = uint64_t{0};
  auto expected = ec::none;
  if (missing > 0 && tokens(missing) >= options_.load_back_threshold_tokens
      && tokens(missing) <= asked.quota_tokens && request.owned.empty()) {
    if (make_l1_room(missing)) {
      loading = missing;
      load(held.host);
      held = {held.host, {}};
    } else if (pending_write_backs() > 0) {
      expected = ec::out_of_device_pages;
    }
  }
  if (expected != ec::none)
    held = before;
  const auto* found = agreed<load_result>(expected, answer);
  if (found == nullptr)
    return;
  same("device_tokens", tokens(page_count(held.device)), found->l1_tokens);
  same("loading_tokens", tokens(loading), found->loading_tokens);
  same("from_storage_tokens", 0, found->from_storage_tokens);
  same("progress", loading > 0 ? 1 : 0, found->progress != nullptr ? 1 : 0);
  same_pages(held.device, {}, found->l1_pages);
}

void model_cache::load(const model_path& path) {
  for (auto pages = uint64_t{1}; pages <= page_count(path); ++pages)
    pages_.at(first_pages(path, pages)).in_l1 = true;
}

void model_cache::perform(const allocate_request& asked, const tree_answer& answer) {
  const auto entry = requests_.find(asked.request);
  if (entry == requests_.end())
    return static_cast<void>(agreed<allocate_result>(ec::unknown_id, answer));
  auto& request = entry->second;
  const auto wanted = ceiling(asked.tokens, options_.page_size);
  const auto present = page_count(request.held.device) + request.owned.size();
  const auto more = wanted > present ? wanted - present : 0;
  const auto expected = more == 0 || make_l1_room(more) ? ec::none : ec::out_of_device_pages;
  const auto* found = agreed<allocate_result>(expected, answer);
  if (found == nullptr)
    return;
  const auto& list = *found->l1_pages;
  auto owned = request.owned;
  if (list.size() >= more)
    owned.insert(owned.end(), list.end() - static_cast<ptrdiff_t>(more), list.end());
  for (auto i = request.owned.size(); i < owned.size(); ++i)
    same("use of page " + std::to_string(owned[i]), 0, uses_of(owned[i]));
  request.owned = std::move(owned);
  same_pages(request.held.device, request.owned, found->l1_pages);
}

ec model_cache::check_insert(const insert_request& asked) const {
  const auto entry = requests_.find(asked.request);
  if (entry == requests_.end())
    return ec::unknown_id;
  const auto& request = entry->second;
  const auto overlap = options_.bigram ? 1 : 0;
  const auto span = [&](uint64_t pages) { return pages == 0 ? 0 : tokens(pages) + overlap; };
  const auto device = page_count(request.held.device);
  const auto matched = std::max(device, page_count(request.held.host));
  const auto count = asked.tokens->size();
  const auto common = static_cast<ptrdiff_t>(std::min<uint64_t>(count, span(matched)));
  if (count < span(device) || count > tokens(device + request.owned.size())
      || !std::equal(asked.tokens->begin(), asked.tokens->begin() + common, request.tokens.begin()))
    return ec::invalid_argument;
  return ec::none;
}

void model_cache::perform(const insert_request& asked, const tree_answer& answer) {
  const auto* found = agreed<insert_result>(check_insert(asked), answer);
  if (found == nullptr)
    return;
  auto& request = requests_.at(asked.request);
  const auto path = path_of(request.root, *asked.tokens, asked.tokens->size());
  const auto matched = std::max(request.held.device.size(), request.held.host.size());
  ++moment_;
  auto duplicates = uint64_t{0};
  give_pages(request, path, asked.priority, duplicates);
  request.held.device = path;
  if (path.size() >= matched) {
    request.held.host.clear();
    request.tokens = *asked.tokens;
  }
  for (auto pages = uint64_t{1}; pages <= page_count(path); ++pages) {
    auto& use = pages_.at(first_pages(path, pages)).use;
    use.last_access = moment_;
    use.hits += asked.chunked ? 0 : 1;
    use.priority = std::max(use.priority, asked.priority);
  }
  if (!asked.chunked && options_.write != write_policy::write_back)
    write(path, least_hits(), false);
  auto pinned = uint64_t{0};
  if (asked.retain.count() > 0 && page_count(path) > 0 && fits_budget(path)) {
    begin_pin(path, asked.retain);
    pinned = page_count(path);
  }
  if (request.session != 0 && page_count(path) > 0)
    sessions_.at(request.session).reference = path;
  same("duplicate_tokens", tokens(duplicates), found->duplicate_tokens);
  same("pinned_tokens", tokens(pinned), found->pinned_tokens);
  same_pages(path, request.owned, found->l1_pages);
  same_node(path, found->node);
}

/// The request's own pages go to the places of `path` that have none on the device; the others are
/// duplicates.
void model_cache::give_pages(open_request& request, const model_path& path, int32_t priority,
                             uint64_t& duplicates) {
  cut(cached_part(path));
  const auto run = ++last_run_;
  for (auto pages = page_count(request.held.device) + 1; pages <= page_count(path); ++pages) {
    const auto own = request.owned.front();
    request.owned.erase(request.owned.begin());
    const auto [entry, is_new] = pages_.try_emplace(first_pages(path, pages));
    auto& page = entry->second;
    if (is_new) {
      page.run = run;
      page.use.created = moment_;
      page.use.priority = priority;
    }
    if (page.in_l1) {
      ++duplicates;
    } else {
      page.in_l1 = true;
      page.l1_page = own;
    }
  }
}

void model_cache::perform(const release_request& asked, const tree_answer& answer) {
  const auto entry = requests_.find(asked.request);
  const auto is_open = entry != requests_.end();
  agreed<release_result>(is_open ? ec::none : ec::unknown_id, answer);
  if (!is_open)
    return;
  if (const auto session = entry->second.session; session != 0)
    sessions_.at(session).request = 0;
  requests_.erase(entry);
}

// -- without a request --------------------------------------------------------

void model_cache::perform(const evict_request& asked, const tree_answer& answer) {
  const auto wanted = ceiling(asked.tokens, options_.page_size);
  const auto is_host = asked.tier == cache_tier::l2;
  count_holders();
  const auto freed = is_host ? evict_l2(wanted) : evict_l1(wanted);
  if (const auto* found = agreed<evict_result>(ec::none, answer)) {
    same("evicted tokens", tokens(freed), found->tokens);
    same("writing_tokens", tokens(pending_write_backs()), found->writing_tokens);
  }
}

bool model_cache::fits_budget(const model_path& path) {
  count_holders();
  const auto& tenant = namespace_of(path).salt;
  auto kept = uint64_t{0};
  auto added = uint64_t{0};
  for (const auto& [each, page] : pages_) {
    kept += page.pins > 0 && namespace_of(each).salt == tenant ? 1 : 0;
    added += page.pins == 0 && begins_with(path, each) ? 1 : 0;
  }
  return kept + added <= options_.pin_budget_pages;
}

void model_cache::begin_pin(const model_path& path, std::chrono::nanoseconds ttl) {
  auto& asked = pins_[path].asked_ns;
  asked = std::max<int64_t>(asked.value_or(0), ttl.count());
  if (options_.write != write_policy::write_back)
    write(path, least_hits(), false);
}

void model_cache::perform(const pin_request& asked, const tree_answer& answer) {
  const auto path = cached_part(path_of(root_of(asked.ns), *asked.tokens, asked.tokens->size()));
  auto expected = ec::none;
  if (asked.ttl.count() <= 0)
    expected = ec::invalid_argument;
  else if (page_count(path) > 0 && !fits_budget(path))
    expected = ec::limit_reached;
  const auto* found = agreed<pin_result>(expected, answer);
  if (found == nullptr)
    return;
  same("pinned tokens", tokens(page_count(path)), found->tokens);
  if (page_count(path) > 0) {
    cut(path);
    begin_pin(path, asked.ttl);
  }
}

void model_cache::perform(const unpin_request& asked, const tree_answer& answer) {
  const auto path = path_of(root_of(asked.ns), *asked.tokens, asked.tokens->size());
  std::erase_if(pins_, [&](const auto& pin) { return begins_with(path, pin.first); });
  count_holders();
  auto still = uint64_t{0};
  for (const auto& [each, page] : pages_)
    still += begins_with(path, each) && page.pins > 0 ? 1 : 0;
  if (const auto* found = agreed<pin_result>(ec::none, answer))
    same("still pinned tokens", tokens(still), found->tokens);
}

void model_cache::perform(const open_session_request& asked, const tree_answer& answer) {
  const auto is_wrong = asked.session == 0 || sessions_.contains(asked.session);
  if (const auto* found
      = agreed<session_result>(is_wrong ? ec::invalid_argument : ec::none, answer)) {
    same("generation used before", 0, found->generation <= last_generation_ ? 1 : 0);
    last_generation_ = found->generation;
    sessions_[asked.session].generation = found->generation;
  }
}

void model_cache::perform(const close_session_request& asked, const tree_answer& answer) {
  const auto entry = sessions_.find(asked.session.session);
  auto expected = ec::none;
  if (entry == sessions_.end() || entry->second.generation != asked.session.generation)
    expected = ec::unknown_id;
  else if (entry->second.request != 0)
    expected = ec::invalid_argument;
  if (agreed<session_result>(expected, answer) != nullptr)
    sessions_.erase(entry);
}

// -- on a node ----------------------------------------------------------------

void model_cache::perform(const lock_request& asked, const tree_answer& answer) {
  const auto path = find_node(asked.node);
  if (path) {
    const auto device = l1_part(*path);
    locks_[asked.node].push_back({device, device == *path ? model_path{} : *path});
  }
  if (const auto* found = agreed<lock_result>(path ? ec::none : ec::unknown_id, answer))
    same_locks(*found);
}

void model_cache::perform(const unlock_request& asked, const tree_answer& answer) {
  const auto entry = locks_.find(asked.node);
  const auto is_locked = entry != locks_.end();
  if (is_locked) {
    entry->second.pop_front();
    if (entry->second.empty())
      locks_.erase(entry);
  }
  if (const auto* found = agreed<lock_result>(is_locked ? ec::none : ec::unknown_id, answer))
    same_locks(*found);
}

void model_cache::perform(const write_request& asked, const tree_answer& answer) {
  const auto path = find_node(asked.node);
  if (!path)
    return static_cast<void>(agreed<backup_result>(ec::unknown_id, answer));
  busy_.push_back({{}, *path});
  count_holders();
  const auto missing = missing_in_l2(*path);
  const auto has_room = missing <= l2_free() + l2_evictable();
  busy_.pop_back();
  if (has_room)
    write(*path, 0, true);
  if (const auto* found
      = agreed<backup_result>(has_room ? ec::none : ec::out_of_host_pages, answer))
    same("written_tokens", tokens(missing), found->written_tokens);
}

void model_cache::perform(const load_node_request& asked, const tree_answer& answer) {
  const auto path = find_node(asked.node);
  if (!path)
    return static_cast<void>(agreed<load_node_result>(ec::unknown_id, answer));
  const auto missing = page_count(*path) - page_count(l1_part(*path));
  auto loading = uint64_t{0};
  auto expected = ec::none;
  if (missing > 0 && tokens(missing) >= options_.load_back_threshold_tokens
      && tokens(missing) <= asked.quota_tokens) {
    busy_.push_back({l1_part(*path), *path});
    if (make_l1_room(missing)) {
      loading = missing;
      load(*path);
    } else if (pending_write_backs() > 0) {
      expected = ec::out_of_device_pages;
    }
    busy_.pop_back();
  }
  if (const auto* found = agreed<load_node_result>(expected, answer))
    same("loading_tokens", tokens(loading), found->loading_tokens);
}

void model_cache::perform(const clear_request&, const tree_answer& answer) {
  const auto is_refused = !requests_.empty() || !locks_.empty();
  if (agreed<clear_result>(is_refused ? ec::invalid_argument : ec::none, answer) == nullptr)
    return;
  pages_.clear();
  pins_.clear();
  for (auto& [id, session] : sessions_)
    session.reference.clear();
}

} // namespace hicache::test
