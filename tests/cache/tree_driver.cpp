#include "tests/cache/tree_driver.hpp"

#include "base/check.hpp"
#include "cache/hash/page_names.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace hicache::test {

namespace {

uint64_t word_of(const page_key& key) {
  return first_word(key);
}

} // namespace

tokens_t range(token_id from, token_id to) {
  auto tokens = tokens_t(to - from);
  std::iota(tokens.begin(), tokens.end(), from);
  return tokens;
}

tokens_t operator+(tokens_t a, const tokens_t& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

token_buffer share(tokens_t tokens) {
  return std::make_shared<const tokens_t>(std::move(tokens));
}

tree_driver::tree_driver(const tree_options& options)
  : tree(options), page_size_(options.page_size), overlap_(options.bigram ? 1 : 0),
    layers_(options.layers), device_memory_(options.l1_pages + 1),
    host_memory_(options.l2_pages + 1), is_loading_(options.l1_pages + 1) {
  settle();
}

// -- whole requests -----------------------------------------------------------

tree_driver::hit tree_driver::match(const tokens_t& tokens, const cache_namespace& ns) {
  const auto request = open(tokens, ns);
  const auto result = hit{matched(request).l1_tokens, matched(request).l2_tokens};
  close(request);
  return result;
}

uint64_t tree_driver::insert(const tokens_t& tokens, const cache_namespace& ns) {
  return insert(tokens, ns, {});
}

uint64_t tree_driver::insert(const tokens_t& tokens, const cache_namespace& ns,
                             insert_request hints) {
  const auto request = open(tokens, ns);
  const auto cached = matched(request).l1_tokens + matched(request).l2_tokens;
  auto fits = compute(request, tokens);
  while (!fits && let_pages_leave())
    fits = compute(request, tokens);
  EXPECT_TRUE(fits);
  hints.request = request;
  hints.tokens = share(tokens);
  last_insert = insert_open(hints);
  close(request);
  return cached;
}

void tree_driver::finish() {
  while (tree.in_flight()) {
    run_all();
    poll();
  }
}

uint64_t tree_driver::evict(uint64_t tokens) {
  const auto result = tree.evict({cache_tier::l1, tokens});
  settle();
  return result->tokens;
}

uint64_t tree_driver::evict_l2(uint64_t tokens) {
  const auto result = tree.evict({cache_tier::l2, tokens});
  settle();
  return result->tokens;
}

uint64_t tree_driver::load_back(const tokens_t& tokens) {
  const auto request = open(tokens);
  const auto loading = load(request).loading_tokens;
  close(request);
  return loading;
}

// -- parts of requests --------------------------------------------------------

request_id tree_driver::open(const tokens_t& tokens, const cache_namespace& ns) {
  const auto id = next_request_++;
  auto result = tree.match({id, ns, share(tokens), tokens.size()});
  HICACHE_CHECK(result);
  const auto& state = requests_[id] = {tokens, ns, *result};
  check_device(state, result->l1_pages, result->l1_tokens);
  settle();
  return id;
}

void tree_driver::close(request_id request) {
  EXPECT_TRUE(tree.release(request));
  requests_.erase(request);
  settle();
}

load_result tree_driver::load(request_id request) {
  auto result = tree.load_back({request});
  settle();
  if (!result) {
    // Pages are being written to make the room: the request goes on with what it has.
    EXPECT_EQ(result.error().code, ec::out_of_device_pages);
    return {};
  }
  EXPECT_EQ(result->l1_tokens / page_size_, result->l1_pages->size());
  if (result->loading_tokens > 0) {
    EXPECT_EQ(result->progress->layers(), layers_);
  }
  auto& state = requests_.at(request);
  state.matched.l1_tokens = result->l1_tokens;
  check_device(state, result->l1_pages, result->l1_tokens);
  return *result;
}

bool tree_driver::compute(request_id request, const tokens_t& tokens) {
  const auto result = tree.allocate({request, tokens.size()});
  settle();
  if (!result)
    return false;
  // Only the request's own pages are written; the others may be in use by anyone.
  auto words = contents(tokens, requests_.at(request).ns);
  words.resize(result->l1_pages->size());
  const auto previous = requests_.at(request).matched.l1_tokens / page_size_;
  for (auto i = previous; i < words.size(); ++i)
    device_memory_[(*result->l1_pages)[i]] = words[i];
  return true;
}

insert_result tree_driver::insert_open(request_id request, const tokens_t& tokens) {
  return insert_open({request, share(tokens)});
}

insert_result tree_driver::insert_open(const insert_request& asked) {
  const auto request = asked.request;
  const auto& tokens = *asked.tokens;
  auto result = tree.insert(asked);
  HICACHE_CHECK(result);
  auto& state = requests_.at(request);
  state.tokens = tokens;
  const auto units = tokens.size() - std::min<size_t>(tokens.size(), overlap_);
  const auto whole = units / page_size_ * page_size_;
  check_device(state, result->l1_pages, whole);
  state.matched.l1_tokens = whole;
  settle();
  return *result;
}

void tree_driver::check_device(const open_state& request, const page_list& pages,
                               uint64_t tokens) const {
  const auto words = contents(request.tokens, request.ns);
  EXPECT_EQ(tokens % page_size_, 0);
  EXPECT_GE(pages->size(), tokens / page_size_);
  for (auto i = size_t{0}; i < tokens / page_size_; ++i)
    if (const auto page = (*pages)[i]; !is_loading_[page]) {
      EXPECT_EQ(device_memory_[page], words[i]) << "page " << i << " of the prefix is wrong";
    }
}

std::vector<uint64_t> tree_driver::contents(const tokens_t& tokens,
                                            const cache_namespace& ns) const {
  const auto seed = namespace_seed(ns);
  auto words = std::vector<uint64_t>{};
  for (const auto& key : hash_pages(tokens, page_size_, seed ? &*seed : nullptr, overlap_))
    words.push_back(word_of(key));
  return words;
}

// -- copies and steps ---------------------------------------------------------

void tree_driver::settle() {
  for (auto& effect : tree.take_effects()) {
    if (auto* write = std::get_if<write_command>(&effect)) {
      EXPECT_EQ(write->l1_pages->size(), write->l2_pages->size());
      writes.push_back(write->l1_pages->size());
      EXPECT_EQ(write->id, writes.size());
      pending_writes_.push_back(*write);
    } else if (auto* load = std::get_if<load_command>(&effect)) {
      EXPECT_EQ(load->l1_pages->size(), load->l2_pages->size());
      loads.push_back(load->l1_pages->size());
      EXPECT_EQ(load->id, loads.size());
      for (const auto page : *load->l1_pages)
        is_loading_[page] = true;
      pending_loads_.push_back(*load);
    } else if (auto* backup = std::get_if<backup_command>(&effect)) {
      EXPECT_EQ(backup->names->size(), backup->l2_pages->size());
      backups.push_back(backup->names->size());
      EXPECT_EQ(backup->id, backups.size());
      pending_backups_.emplace(backup->id, *backup);
    } else if (const auto* drop = std::get_if<drop_command>(&effect)) {
      ++drops;
      dropped_.insert(drop->id);
    } else if (std::holds_alternative<reclaim_command>(effect)) {
      reserve.clear();
      is_reclaimed = true;
    } else if (auto* fetch = std::get_if<fetch_command>(&effect)) {
      EXPECT_EQ(fetch->id, ++fetches);
      fetches_[fetch->id].command = *fetch;
    } else if (std::holds_alternative<terminate_command>(effect)) {
      ++terminates;
    } else if (auto* fill_staging = std::get_if<staging_command>(&effect)) {
      reserve.insert(reserve.end(), fill_staging->l2_pages->begin(), fill_staging->l2_pages->end());
    }
  }
  tree.check_invariants();
}

void tree_driver::run_writes(size_t count) {
  for (; count > 0 && !pending_writes_.empty(); --count, ++writes_run_) {
    const auto& write = pending_writes_.front();
    for (auto i = size_t{0}; i < write.l2_pages->size(); ++i)
      host_memory_[(*write.l2_pages)[i]] = device_memory_[(*write.l1_pages)[i]];
    pending_writes_.pop_front();
  }
}

void tree_driver::run_loads(size_t count) {
  for (; count > 0 && !pending_loads_.empty(); --count, ++loads_run_) {
    const auto& load = pending_loads_.front();
    for (auto i = size_t{0}; i < load.l2_pages->size(); ++i) {
      device_memory_[(*load.l1_pages)[i]] = host_memory_[(*load.l2_pages)[i]];
      is_loading_[(*load.l1_pages)[i]] = false;
    }
    load.progress->advance(load.progress->layers());
    pending_loads_.pop_front();
  }
}

void tree_driver::run_backups(size_t count) {
  for (; count > 0 && !pending_backups_.empty(); --count) {
    const auto& [id, backup] = *pending_backups_.begin();
    const auto wanted = dropped_.contains(id) ? 0 : backup_length(id, backup.names->size());
    for (auto i = size_t{0}; i < wanted; ++i) {
      const auto key = backup.names->get(i, 1).front();
      const auto parent = backup.names->before(i);
      EXPECT_EQ(host_memory_[(*backup.l2_pages)[i]], word_of(key)) << "a wrong page goes to L3";
      EXPECT_TRUE(parent == page_key{} || store.contains(parent)) << "a page without its parent";
      store[key] = word_of(key);
    }
    stored_[id] = static_cast<int64_t>(wanted);
    pending_backups_.erase(id);
  }
}

void tree_driver::give_up_backup() {
  if (pending_backups_.empty())
    return;
  const auto oldest = pending_backups_.begin();
  stored_[oldest->first] = backup_given_up;
  late_backups_.push_back(oldest->second);
  pending_backups_.erase(oldest);
}

void tree_driver::end_late_backups() {
  for (const auto& backup : std::exchange(late_backups_, {})) {
    for (auto i = size_t{0}; i < backup.names->size(); ++i)
      EXPECT_EQ(host_memory_[(*backup.l2_pages)[i]], word_of(backup.names->get(i, 1).front()))
        << "a page changed under a late call";
    stored_[backup.id] = 0;
  }
}

void tree_driver::run_fetches() {
  for (auto& [id, fetch] : fetches_) {
    const auto keys = fetch.command.names->get(0, fetch.command.names->size());
    auto found = int64_t{0};
    while (found < std::ssize(keys) && store.contains(keys[static_cast<size_t>(found)]))
      ++found;
    const auto wanted = fetch_length(id, found);
    if (fetch.is_run || wanted < 0)
      continue;
    fetch.is_run = true;
    fetch.found = found;
    const auto count = std::min<size_t>(static_cast<size_t>(wanted), reserve.size());
    for (auto i = size_t{0}; i < count; ++i) {
      const auto page = reserve.front();
      reserve.pop_front();
      host_memory_[page] = store.at(keys[i]);
      fetch.arrived.push_back(page);
    }
  }
}

bool tree_driver::let_pages_leave() {
  settle();
  const auto begun = !pending_writes_.empty();
  run_writes();
  poll();
  return begun;
}

void tree_driver::run_all() {
  run_writes();
  run_loads();
  run_backups();
  end_late_backups();
  run_fetches();
}

step_facts tree_driver::offer() const {
  auto facts = step_facts{writes_run_, loads_run_, {}, {}, now_ns};
  for (const auto id : tree.backing_up())
    facts.backups.push_back(stored_.contains(id) ? stored_.at(id) : -1);
  for (const auto id : tree.fetching()) {
    const auto& fetch = fetches_.at(id);
    if (fetch.is_run)
      facts.fetches.push_back(
        {static_cast<int64_t>(fetch.arrived.size()), fetch.found, miss_reason::none});
    else
      facts.fetches.emplace_back();
  }
  const auto later = tree.fetching_later();
  const auto is_run = [this](fetch_id id) { return fetches_.at(id).is_run; };
  if (const auto first = std::ranges::find_if(later, is_run); first != later.end())
    facts.next_fetch = first - later.begin();
  return facts;
}

std::vector<ready_request> tree_driver::apply(const step_facts& facts) {
  auto arrived = std::vector<page_list>{};
  const auto fetching = std::vector<fetch_id>(tree.fetching().begin(), tree.fetching().end());
  for (auto i = size_t{0}; i < fetching.size(); ++i) {
    arrived.push_back(
      std::make_shared<const std::vector<page_index>>(fetches_.at(fetching[i]).arrived));
    if (facts.fetches[i].arrived >= 0)
      fetches_.erase(fetching[i]);
  }
  auto ready = tree.step(facts, arrived);
  for (const auto& each : ready)
    requests_.at(each.request).matched.l1_tokens = each.l1_tokens;
  settle();
  return ready;
}

std::vector<ready_request> tree_driver::poll() {
  return apply(offer());
}

} // namespace hicache::test
