// What the default layout of L2 and the default objects cost in writes to L3 and reads from it,
// compared with all other choices.

#include "backends/memory_backend.hpp"
#include "base/check.hpp"
#include "bench/step_rows.hpp"
#include "cache/hash/page_hash.hpp"
#include "hicache/clock.hpp"
#include "hicache/config.hpp"
#include "hicache/geometry.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <memory>

namespace hicache::bench {

namespace {

using namespace std::chrono_literals;

constexpr auto rounds = 7;
constexpr auto page_count = uint32_t{32};

struct model {
  const char* name;
  pool_shape shape;
};

/// One rank's part of the models, pages of 64 tokens.
constexpr auto models = std::array{
  model{"Llama 8B, TP 1", {attention_kind::mha, 32, 8, 128, 128, 2, 64, 0}},
  model{"Llama 8B, TP 8", {attention_kind::mha, 32, 1, 128, 128, 2, 64, 0}},
  model{"DeepSeek V3, any TP", {attention_kind::mla, 61, 1, 576, 0, 2, 64, 0}},
};

/// A layout of L2, and heads per object in L3.
struct choice {
  host_layout layout;
  uint32_t heads;

  friend auto operator<=>(const choice&, const choice&) = default;
};

/// L2 in one layout beside a store in this process's memory.
class candidate {
public:
  candidate(const pool_shape& shape, choice what)
    : geometry_(shape, what.layout, page_count + 1), memory_(geometry_.total_bytes()),
      groups_(geometry_.head_groups(0, what.heads)), store_(make_memory_backend(0, clock_)) {
    // Not zeros, which the operating system may keep in one page.
    for (auto i = size_t{0}; i < memory_.size(); i += 512)
      memory_[i] = static_cast<std::byte>(i >> 9);
  }

  /// Writes all pages and reads them again.
  /// @returns GiB/s
  double run() {
    auto writes = std::vector<page_write>{};
    auto reads = std::vector<page_read>{};
    const auto begin = bench_clock::now();
    for (auto page = page_index{1}; page <= page_count; ++page)
      for (const auto& group : groups_) {
        const auto key
          = object_key(hash_page(std::span{&page, 1}, nullptr), object_mask("bench", group.name));
        auto& write = writes.emplace_back(page_write{key, {}, {}});
        auto& read = reads.emplace_back(page_read{key, {}});
        for (const auto& run : geometry_.object_runs(page, group.heads)) {
          write.parts.emplace_back(memory_.data() + run.offset, run.length);
          read.parts.emplace_back(memory_.data() + run.offset, run.length);
        }
      }
    const auto until = clock_.now() + 60s;
    HICACHE_CHECK(
      std::ranges::all_of(store_->set(writes, until), [](const auto& x) { return x.has_value(); }));
    HICACHE_CHECK(
      std::ranges::all_of(store_->get(reads, until), [](const auto& x) { return x.has_value(); }));
    const auto seconds = microseconds_since(begin) / 1e6;
    auto keys = std::vector<page_key>{};
    for (const auto& read : reads)
      keys.push_back(read.key);
    store_->remove(keys, until);
    return static_cast<double>(geometry_.page_bytes()) * page_count * 2 / (1U << 30) / seconds;
  }

private:
  monotonic_clock clock_;
  pool_geometry geometry_;
  std::vector<std::byte> memory_;
  std::vector<head_group> groups_;
  std::unique_ptr<blocking_store> store_;
};

row compare(const model& of) {
  auto choices = std::vector<choice>{};
  for (const auto layout : {host_layout::layer_first, host_layout::page_first,
                            host_layout::page_first_direct, host_layout::page_head})
    for (const auto heads : {1U, of.shape.kv_heads})
      if (const auto next = choice{layout, heads};
          std::ranges::find(choices, next) == choices.end())
        choices.push_back(next);
  const auto usual = choice{rank_config{}.mem_layout, 1};
  auto rates = std::map<choice, std::vector<double>>{};
  for (auto round = 0; round < rounds; ++round)
    for (const auto& each : choices)
      rates[each].push_back(candidate{of.shape, each}.run());
  auto best = usual;
  for (const auto& [each, list] : rates)
    if (median(list) > median(rates.at(best)))
      best = each;
  auto ratios = std::vector<double>{};
  for (auto round = size_t{0}; round < rounds; ++round)
    ratios.push_back(rates.at(usual)[round] / rates.at(best)[round]);
  return {.name = std::string{of.name}
                  + ": pages to L3 and back, default layout and objects, over the best ("
                  + to_string(best.layout) + ", " + std::to_string(best.heads) + " heads each)",
          .value = median(rates.at(usual)),
          .unit = "GiB/s",
          .baseline = median(rates.at(best)),
          .ratio = median(ratios),
          .target = bound{bound::side::ratio_at_least, 0.9}};
}

} // namespace

std::vector<row> measure_layouts() {
  auto rows = std::vector<row>{};
  std::ranges::transform(models, std::back_inserter(rows), compare);
  return rows;
}

} // namespace hicache::bench
