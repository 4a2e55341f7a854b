#include "bench/chat.hpp"

#include <algorithm>
#include <memory>
#include <random>

namespace hicache::bench {

namespace {

constexpr token_id vocabulary = 128'000;

std::vector<token_id> random_tokens(std::mt19937& random, uint64_t count) {
  auto list = std::vector<token_id>(count);
  std::generate(list.begin(), list.end(), [&] { return random() % vocabulary; });
  return list;
}

token_buffer first_tokens(const std::vector<token_id>& conversation, uint64_t count) {
  return std::make_shared<const std::vector<token_id>>(
    conversation.begin(), conversation.begin() + static_cast<ptrdiff_t>(count));
}

} // namespace

const chat& chat::instance() {
  static const auto workload = chat{};
  return workload;
}

chat::chat() {
  auto random = std::mt19937{1};
  auto shared = std::vector<std::vector<token_id>>{};
  for (auto i = uint32_t{0}; i < prompts; ++i)
    shared.push_back(random_tokens(random, prompt_tokens));
  for (auto i = uint32_t{0}; i < sessions; ++i) {
    auto& whole = conversations_.emplace_back(shared[i % prompts]);
    const auto own = random_tokens(random, turns * 2 * part_tokens);
    whole.insert(whole.end(), own.begin(), own.end());
  }
  for (auto turn = uint32_t{0}; turn < turns; ++turn)
    for (auto i = uint32_t{0}; i < sessions; ++i) {
      const auto before = prompt_tokens + turn * 2 * part_tokens;
      const auto& whole = conversations_[i];
      all_.push_back({i, first_tokens(whole, before + part_tokens),
                      first_tokens(whole, before + 2 * part_tokens), turn == 0 ? 0 : before});
      told_tokens_ += all_.back().told->size();
      new_tokens_ += 2 * part_tokens;
    }
  new_tokens_ += prompts * prompt_tokens;
}

} // namespace hicache::bench
