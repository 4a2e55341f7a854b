#include "tests/cache/tier_replay.hpp"

#include "base/check.hpp"
#include "cache/hash/page_names.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <map>
#include <utility>

namespace hicache::test {

namespace {

/// Tokens that one hash id of a trace stands for.
constexpr uint64_t block_tokens = 512;

class tier_replay {
  template <class Call>
  auto with_room(Call call) {
    auto answered = call();
    while (!answered && answered.error().code == ec::out_of_device_pages && step())
      answered = call();
    return answered;
  }

public:
  explicit tier_replay(const tree_options& options)
    : cache_(std::make_unique<prefix_cache>(options)) {
    take_effects();
  }

  void serve(const page_string& prompt) {
    const auto tokens = std::make_shared<const std::vector<token_id>>(prompt.begin(), prompt.end());
    const auto id = ++last_request_;
    HICACHE_CHECK(cache_->match({id, {}, tokens, tokens->size()}));
    const auto loaded = with_room([&] { return cache_->load_back({id}); });
    HICACHE_CHECK(loaded);
    HICACHE_CHECK(with_room([&] { return cache_->allocate({id, tokens->size()}); }));
    HICACHE_CHECK(cache_->insert({.request = id, .tokens = tokens}));
    HICACHE_CHECK(cache_->release(id));
    counts_.pages += prompt.size();
    counts_.hits += loaded->l1_tokens;
    counts_.loads += loaded->loading_tokens;
    do
      step();
    while (cache_->in_flight());
  }

  const replay_counts& counts() const { return counts_; }

  uint64_t copies() const {
    auto copies = uint64_t{0};
    for (const auto& node : cache_->nodes())
      copies += node.in_l1 && node.in_l2 ? node.tokens.size() : 0;
    return copies;
  }

private:
  void take_effects() {
    for (const auto& effect : cache_->take_effects()) {
      if (const auto* write = std::get_if<write_command>(&effect)) {
        counts_.writes += write->l1_pages->size();
        ++facts_.writes_done;
      } else if (std::holds_alternative<load_command>(effect)) {
        ++facts_.loads_done;
      } else if (const auto* backup = std::get_if<backup_command>(&effect)) {
        counts_.backups += backup->names->size();
        stored_[backup->id] = static_cast<int64_t>(backup->names->size());
      }
    }
  }

  /// @returns whether anything had begun.
  bool step() {
    take_effects();
    const auto had_begun = cache_->in_flight();
    facts_.backups.clear();
    for (const auto id : cache_->backing_up())
      facts_.backups.push_back(stored_.at(id));
    cache_->step(facts_, {});
    take_effects();
    return had_begun;
  }

  std::unique_ptr<prefix_cache> cache_;
  request_id last_request_ = 0;
  step_facts facts_;
  std::map<operation_id, int64_t> stored_;
  replay_counts counts_;
};

} // namespace

tree_options tiers(write_policy write, uint64_t l1_pages, uint64_t l2_pages) {
  const auto device = static_cast<uint32_t>(l1_pages);
  return {.page_size = 1,
          .l1_pages = device,
          .l2_pages = static_cast<uint32_t>(l2_pages),
          .write = write,
          .load_back_threshold_tokens = 1,
          .l1_room = {device / 100, device / 50}};
}

replay_counts replay_prompts(const tree_options& options, const std::vector<page_string>& prompts) {
  auto replay = tier_replay{options};
  for (const auto& prompt : prompts)
    replay.serve(prompt);
  auto counts = replay.counts();
  counts.copies = replay.copies();
  return counts;
}

uint64_t ideal_hits(const ideal_sizes& sizes, const eviction_policy_ptr& policy,
                    const std::vector<page_string>& prompts) {
  auto ideal = ideal_cache{sizes, policy};
  auto hits = uint64_t{0};
  for (const auto& prompt : prompts)
    hits += ideal.serve(prompt);
  return hits;
}

ideal_sizes ideal_of(const tree_options& options) {
  if (options.write == write_policy::write_through_selective)
    return {options.l1_pages, options.l2_pages, 2};
  return {uint64_t{options.l1_pages} + options.l2_pages, 0, 0};
}

std::vector<page_string> read_trace(const std::string& path, size_t limit, uint64_t page_tokens) {
  auto prompts = std::vector<page_string>{};
  auto file = std::ifstream{path};
  const auto pages_per_block = block_tokens / page_tokens;
  for (auto line = std::string{}; prompts.size() < limit && std::getline(file, line);) {
    const auto request = nlohmann::json::parse(line);
    const auto pages = request.at("input_length").get<uint64_t>() / page_tokens;
    auto prompt = page_string{};
    for (const auto& block : request.at("hash_ids"))
      for (auto i = uint64_t{0}; i < pages_per_block && prompt.size() < pages; ++i)
        prompt.push_back(static_cast<uint32_t>(block.get<uint64_t>() * pages_per_block + i));
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

std::vector<page_string> fitting(std::vector<page_string> prompts, uint64_t l1_pages) {
  std::erase_if(prompts, [=](const auto& prompt) { return prompt.size() > l1_pages; });
  return prompts;
}

uint64_t count_unique(const std::vector<page_string>& prompts) {
  auto ideal = ideal_cache{{UINT32_MAX, 0, 0}, lru_policy()};
  auto unique = uint64_t{0};
  for (const auto& prompt : prompts)
    unique += prompt.size() - ideal.serve(prompt);
  return unique;
}

} // namespace hicache::test
