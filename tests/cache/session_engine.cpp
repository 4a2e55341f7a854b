#include "tests/cache/session_engine.hpp"

#include "base/check.hpp"
#include "base/mix.hpp"
#include "cache/hash/page_names.hpp"

#include <gtest/gtest.h>

#include <utility>
#include <variant>

namespace hicache::test {

namespace {

/// What the slots of these tokens must hold.
std::vector<uint64_t> words_of(const tokens_t& tokens) {
  auto words = std::vector<uint64_t>(tokens.size());
  auto last = uint64_t{0};
  for (auto i = size_t{0}; i < tokens.size(); ++i)
    words[i] = last = mix(last, tokens[i] + 1);
  return words;
}

} // namespace

session_engine::session_engine(const tree_options& options)
  : cache(options), page_size_(options.page_size),
    device_(size_t{options.l1_pages + 1} * options.page_size),
    host_(size_t{options.l2_pages + 1} * options.page_size), is_shared_(options.l1_pages + 1) {
  take_effects();
}

// -- requests -----------------------------------------------------------------

session_ref session_engine::open_session(session_id name, bool streaming) {
  const auto opened = cache.open_session({name, streaming});
  HICACHE_CHECK(opened);
  return {name, opened->generation};
}

match_result session_engine::match(request_id request, const tokens_t& tokens,
                                   const session_ref& session) {
  const auto matched = cache.match(
    {.request = request, .tokens = share(tokens), .limit = tokens.size() - 1, .session = session});
  HICACHE_CHECK(matched);
  EXPECT_LT(matched->l1_tokens + matched->l2_tokens, tokens.size());
  EXPECT_EQ(matched->l1_pages->size(), (matched->l1_tokens + page_size_ - 1) / page_size_);
  check(tokens, matched->l1_tokens, matched->l1_pages);
  // A resumed turn has more pages, if the last one allocated more than it used.
  requests_[request] = {matched->l1_tokens, cache.allocate({request, 0})->l1_pages};
  return *matched;
}

load_result session_engine::load(request_id request) {
  const auto loaded = cache.load_back({request});
  take_effects();
  if (!loaded) {
    // Pages are being written to make the room: the request goes on with what it has.
    EXPECT_EQ(loaded.error().code, ec::out_of_device_pages);
    return {};
  }
  requests_[request] = {loaded->l1_tokens, loaded->l1_pages};
  return *loaded;
}

bool session_engine::compute(request_id request, const tokens_t& tokens) {
  const auto allocated = cache.allocate({request, tokens.size()});
  take_effects();
  if (!allocated)
    return false;
  auto& state = requests_.at(request);
  const auto& pages = *allocated->l1_pages;
  EXPECT_GE(pages.size() * page_size_, tokens.size());
  for (auto i = state.pages->size(); i < pages.size(); ++i)
    is_shared_[pages[i]] = false;
  state.pages = allocated->l1_pages;
  const auto words = words_of(tokens);
  for (auto i = state.known; i < tokens.size(); ++i) {
    const auto page = pages[i / page_size_];
    EXPECT_FALSE(is_shared_[page]) << "token " << i << " would be written to a shared page";
    device_[page * page_size_ + i % page_size_] = words[i];
  }
  return true;
}

insert_result session_engine::insert(request_id request, const tokens_t& tokens) {
  const auto inserted = cache.insert({.request = request, .tokens = share(tokens)});
  HICACHE_CHECK(inserted);
  take_effects();
  auto& state = requests_.at(request);
  state.known = tokens.size();
  state.pages = inserted->l1_pages;
  check(tokens, tokens.size(), state.pages);
  for (auto i = size_t{0}; inserted->node != 0 && i < tokens.size() / page_size_; ++i)
    is_shared_[(*state.pages)[i]] = true;
  return *inserted;
}

void session_engine::release(request_id request) {
  EXPECT_TRUE(cache.release(request));
  requests_.erase(request);
  take_effects();
}

bool session_engine::run(const tokens_t& tokens, const session_ref& session) {
  const auto request = next_request_++;
  match(request, tokens, session);
  const auto fits = compute(request, tokens);
  if (fits)
    insert(request, tokens);
  release(request);
  return fits;
}

uint64_t session_engine::cached(const tokens_t& tokens) {
  const auto request = next_request_++;
  const auto matched
    = cache.match({.request = request, .tokens = share(tokens), .limit = tokens.size()});
  check(tokens, matched->l1_tokens, matched->l1_pages);
  EXPECT_TRUE(cache.release(request));
  return matched->l1_tokens;
}

void session_engine::check(const tokens_t& tokens, uint64_t count, const page_list& pages) const {
  const auto words = words_of(tokens);
  for (auto i = size_t{0}; i < count; ++i)
    EXPECT_EQ(device_[(*pages)[i / page_size_] * page_size_ + i % page_size_], words[i])
      << "token " << i << " is not in its slot";
}

// -- steps --------------------------------------------------------------------

void session_engine::take_effects() {
  const auto copy
    = [this](const auto& from, const page_list& from_pages, auto& to, const page_list& to_pages) {
        for (auto i = size_t{0}; i < to_pages->size(); ++i)
          for (auto k = size_t{0}; k < page_size_; ++k)
            to[(*to_pages)[i] * page_size_ + k] = from[(*from_pages)[i] * page_size_ + k];
      };
  for (const auto& effect : cache.take_effects()) {
    if (const auto* write = std::get_if<write_command>(&effect)) {
      copy(device_, write->l1_pages, host_, write->l2_pages);
      ++facts_.writes_done;
    } else if (const auto* load = std::get_if<load_command>(&effect)) {
      copy(host_, load->l2_pages, device_, load->l1_pages);
      for (const auto page : *load->l1_pages)
        is_shared_[page] = true;
      ++facts_.loads_done;
    } else if (const auto* backup = std::get_if<backup_command>(&effect)) {
      backed_up_[backup->id] = static_cast<int64_t>(backup->names->size());
    } else if (std::holds_alternative<terminate_command>(effect)) {
      ++terminates;
    } else if (const auto* fill_staging = std::get_if<staging_command>(&effect)) {
      reserve_.insert(reserve_.end(), fill_staging->l2_pages->begin(),
                      fill_staging->l2_pages->end());
    }
  }
}

std::vector<ready_request> session_engine::step(uint64_t fetched) {
  facts_.backups.clear();
  for (const auto id : cache.backing_up())
    facts_.backups.push_back(backed_up_.at(id));
  facts_.fetches.assign(cache.fetching().size(), {static_cast<int64_t>(fetched), 0});
  auto arrived = std::vector<page_list>{};
  for (auto i = size_t{0}; i < facts_.fetches.size(); ++i) {
    const auto end = reserve_.begin() + static_cast<ptrdiff_t>(fetched);
    arrived.push_back(std::make_shared<const std::vector<page_index>>(reserve_.begin(), end));
    reserve_.erase(reserve_.begin(), end);
  }
  auto ready = cache.step(facts_, arrived);
  for (const auto& each : ready)
    requests_[each.request] = {each.l1_tokens, cache.allocate({each.request, 0})->l1_pages};
  take_effects();
  cache.check_invariants();
  return ready;
}

void session_engine::finish() {
  while (cache.in_flight())
    step();
}

} // namespace hicache::test
