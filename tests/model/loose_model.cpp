#include "tests/model/loose_model.hpp"

#include <algorithm>

namespace hicache::test {

namespace {

/// FNV-1a, one byte after the other.
uint64_t hash(uint64_t state, uint64_t value) {
  for (auto i = 0; i < 8; ++i)
    state = (state ^ (value >> (8 * i) & 0xff)) * 0x100000001b3;
  return state;
}

uint64_t hash(uint64_t state, const std::string& text) {
  state = hash(state, text.size());
  for (const auto each : text)
    state = hash(state, static_cast<uint8_t>(each));
  return state;
}

uint64_t common(const std::vector<uint64_t>& a, const std::vector<uint64_t>& b) {
  return static_cast<uint64_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

} // namespace

std::vector<uint64_t> loose_model::words_of(const cache_namespace& ns,
                                            const std::vector<token_id>& tokens) const {
  const auto overlap = options_.bigram ? size_t{1} : size_t{0};
  const auto size = size_t{options_.page_size};
  auto words = std::vector<uint64_t>{};
  auto state = hash(hash(0xcbf29ce484222325, ns.extra_key), ns.salt);
  for (auto end = size; end + overlap <= tokens.size(); end += size) {
    for (auto i = end - size; i < end; ++i)
      state = hash(state, tokens[i]);
    words.push_back(overlap == 0 ? state : hash(state, tokens[end]));
  }
  return words;
}

void loose_model::prepare(const tree_operation& operation, page_memory& memory) {
  const auto* asked = std::get_if<insert_request>(&operation);
  const auto entry = asked == nullptr ? requests_.end() : requests_.find(asked->request);
  if (entry == requests_.end())
    return;
  const auto& request = entry->second;
  const auto words = words_of(request.ns, *asked->tokens);
  const auto end = std::min(words.size(), request.pages.size());
  for (auto i = request.words.size(); i < end; ++i)
    memory.device[request.pages[i]] = words[i];
}

std::string loose_model::check_contents(const std::vector<uint64_t>& words, uint64_t count,
                                        const page_list& pages, const page_memory& memory) const {
  if (count > words.size() || !pages || pages->size() < count)
    return "more pages than the tokens have, or fewer than it says";
  for (auto i = uint64_t{0}; i < count; ++i) {
    const auto page = (*pages)[i];
    if (page == 0 || page > options_.l1_pages)
      return "there is no page " + std::to_string(page);
    if (!memory.is_loading[page] && memory.device[page] != words[i])
      return "page " + std::to_string(page) + " does not hold page " + std::to_string(i)
             + " of the prefix";
  }
  return {};
}

std::string loose_model::matched(const match_request& asked, const match_result& found,
                                 const page_memory& memory) {
  auto limited = std::vector<token_id>(asked.tokens->begin(),
                                       asked.tokens->begin() + static_cast<ptrdiff_t>(asked.limit));
  auto words = words_of(asked.ns, limited);
  const auto device = found.l1_tokens / options_.page_size;
  const auto pages = device + found.l2_tokens / options_.page_size;
  if (auto wrong = check_contents(words, device, found.l1_pages, memory); !wrong.empty())
    return wrong;
  if (pages > words.size() || (pages > 0 && !inserted_.contains(words[pages - 1])))
    return "found more than was inserted";
  for (const auto& [id, other] : requests_)
    if (!other.has_failed && device < common(words, other.words))
      return "did not find what request " + std::to_string(id) + " has";
  for (const auto& pin : pins_)
    if (pages < common(words, pin.words))
      return "did not find what is pinned";
  auto& request = requests_[asked.request];
  request = {asked.ns, words, words, *found.l1_pages};
  request.words.resize(device);
  return {};
}

/// Without L2, to which pages would be written first, an allocation fails if and only if even
/// eviction cannot make room.
std::string loose_model::allocated(const allocate_request& asked, const tree_answer& answer) {
  const auto entry = requests_.find(asked.request);
  if (entry == requests_.end())
    return {};
  auto& request = entry->second;
  const auto wanted = (asked.tokens + options_.page_size - 1) / options_.page_size;
  const auto more = wanted - std::min<uint64_t>(wanted, request.pages.size());
  const auto room = before_.l1_free + before_.l1_evictable;
  if (answer ? more > room : more <= before_.l1_free)
    return "allocate and the sizes before it contradict each other";
  if (!answer)
    return more <= room && options_.l2_pages == 0 ? "allocate failed although there was room" : "";
  const auto& list = *std::get<allocate_result>(*answer).l1_pages;
  if (list.size() != request.pages.size() + more
      || !std::equal(request.pages.begin(), request.pages.end(), list.begin()))
    return "allocate changed the pages that the request had";
  request.pages = list;
  return {};
}

std::string loose_model::follow(const tree_operation& operation, const tree_answer& answer,
                                const page_memory& memory) {
  if (const auto* asked = std::get_if<allocate_request>(&operation))
    return allocated(*asked, answer);
  if (!answer)
    return {};
  if (const auto* asked = std::get_if<match_request>(&operation))
    return matched(*asked, std::get<match_result>(*answer), memory);
  if (const auto* asked = std::get_if<load_request>(&operation)) {
    auto& request = requests_.at(asked->request);
    if (request.has_failed)
      return {};
    const auto& found = std::get<load_result>(*answer);
    const auto count = found.l1_tokens / options_.page_size;
    if (count > request.words.size()) {
      request.words = request.prompt;
      request.words.resize(count);
      request.pages = *found.l1_pages;
    }
    return check_contents(request.words, count, found.l1_pages, memory);
  }
  if (const auto* asked = std::get_if<insert_request>(&operation)) {
    auto& request = requests_.at(asked->request);
    const auto& found = std::get<insert_result>(*answer);
    if (request.has_failed)
      return found.node != 0 ? "took pages that hold nothing of use" : "";
    request.words = words_of(request.ns, *asked->tokens);
    request.pages = *found.l1_pages;
    inserted_.insert(request.words.begin(), request.words.end());
    if (found.pinned_tokens > 0)
      pins_.push_back({request.words, asked->retain.count(), {}});
    return check_contents(request.words, request.words.size(), found.l1_pages, memory);
  }
  if (const auto* asked = std::get_if<pin_request>(&operation)) {
    auto words = words_of(asked->ns, *asked->tokens);
    words.resize(std::get<pin_result>(*answer).tokens / options_.page_size);
    pins_.push_back({std::move(words), asked->ttl.count(), {}});
  } else if (const auto* gone = std::get_if<release_request>(&operation)) {
    requests_.erase(gone->request);
  } else if (std::holds_alternative<unpin_request>(operation)
             || std::holds_alternative<clear_request>(operation)) {
    pins_.clear();
  }
  if (std::holds_alternative<clear_request>(operation))
    inserted_.clear();
  return {};
}

void loose_model::advance(int64_t now_ns) {
  for (auto& pin : pins_)
    if (!pin.expiry_ns)
      pin.expiry_ns = now_ns + std::min(pin.ttl_ns, INT64_MAX - now_ns);
  std::erase_if(pins_, [now_ns](const auto& pin) { return *pin.expiry_ns <= now_ns; });
}

void loose_model::lose(std::span<const request_id> requests, bool has_failed) {
  for (const auto id : requests)
    requests_.at(id).has_failed = true;
  if (has_failed)
    pins_.clear();
}

std::string loose_model::compare(const tree_stats& stats) {
  before_ = stats;
  auto owned = uint64_t{0};
  for (const auto& [id, request] : requests_)
    owned += request.pages.size() - std::min(request.words.size(), request.pages.size());
  if (stats.requests_open != requests_.size())
    return "requests_open is wrong";
  if (stats.l2_free + stats.l2_used != options_.l2_pages)
    return "host pages are lost";
  const auto used = stats.l1_free + stats.l1_evictable + stats.l1_protected;
  if (used + owned != options_.l1_pages)
    return "device pages are lost: requests have " + std::to_string(owned) + " of their own";
  return {};
}

} // namespace hicache::test
