// retention_bench TRACE [REQUESTS]: hits of a trace in L1 and L2 under each write policy, compared
// with an LRU of both tiers together and one of L2's size. Prints the table of docs/policies.md.

#include "tests/cache/tier_replay.hpp"

#include <cstdio>
#include <cstdlib>
#include <string>

using namespace hicache;
using namespace hicache::test;

namespace {

constexpr uint64_t page_tokens = 64;

struct named_policy {
  const char* name;
  write_policy write;
  bool has_l3;
};

constexpr named_policy policies[]
  = {{"write_through", write_policy::write_through, false},
     {"write_through, L3", write_policy::write_through, true},
     {"write_through_selective", write_policy::write_through_selective, false},
     {"write_back", write_policy::write_back, false}};

void print_rows(const std::vector<page_string>& all, uint64_t unique, uint64_t share,
                uint64_t ratio) {
  const auto device = unique * share / 100;
  const auto prompts = fitting(all, device);
  const auto host = ratio * device;
  const auto both = ideal_hits({device + host, 0, 0}, lru_policy(), prompts);
  const auto one = ideal_hits({host, 0, 0}, lru_policy(), prompts);
  for (const auto& policy : policies) {
    auto options = tiers(policy.write, device, host);
    options.storage_attached = policy.has_l3;
    const auto counts = replay_prompts(options, prompts);
    std::printf("| %lu %% | %lu | %s | %lu | %lu | %.1f %% | %lu | %lu | %lu | %.2f |\n", share,
                ratio, policy.name, counts.hits, both,
                100.0 * static_cast<double>(counts.hits) / static_cast<double>(both), one,
                counts.loads, counts.writes, counts.writes_per_page());
    std::fflush(stdout);
  }
}

} // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fprintf(stderr, "Usage: retention_bench TRACE [REQUESTS]\n");
    return 2;
  }
  const auto limit = argc == 3 ? std::strtoull(argv[2], nullptr, 10) : 4000;
  const auto prompts = read_trace(argv[1], limit, page_tokens);
  const auto unique = count_unique(prompts);
  auto pages = uint64_t{0};
  for (const auto& prompt : prompts)
    pages += prompt.size();
  std::printf("%zu requests, %lu pages of %lu tokens, %lu of them different\n\n", prompts.size(),
              pages, page_tokens, unique);
  std::printf(
    "| L1 | ratio | write policy | hits | LRU of both | of it | LRU of L2's size | loaded "
    "| written | written per page |\n|%s\n",
    " --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
  for (const auto share : {1, 5, 20})
    for (const auto ratio : {1, 2, 4})
      print_rows(prompts, unique, share, ratio);
  return 0;
}
