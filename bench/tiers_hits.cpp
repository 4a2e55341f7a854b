// tiers_hits TRACE RESULT.json [REQUESTS]: what share of a trace's pages two tiers of L3 serve,
// with memory for 5 % of the different pages and a disk for 50 %, beside an ideal LRU of the same
// size. Objects have 64 bytes: only which of them are kept is measured, on the real stores.

#include "backends/disk/disk_backend.hpp"
#include "backends/disk/disk_files.hpp"
#include "backends/memory_backend.hpp"
#include "backends/storage_queue.hpp"
#include "backends/tiered/tiered_backend.hpp"
#include "messages/disk_record.hpp"
#include "tests/cache/tier_replay.hpp"

#include <nlohmann/json.hpp>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

using namespace hicache;
using namespace hicache::test;

namespace {

using json = nlohmann::json;

constexpr uint64_t page_tokens = 512;
constexpr uint64_t object_bytes = 64;
constexpr auto no_deadline = time_point::max();

const monotonic_clock the_clock;

template <class T>
T value_of(result<T> made) {
  if (made)
    return std::move(*made);
  std::fprintf(stderr, "tiers_hits: %s\n", to_string(made.error()).c_str());
  std::exit(1);
}

template <class Answer, class Submit>
Answer wait(Submit submit) {
  auto answer = std::promise<Answer>{};
  submit([&](Answer x) { answer.set_value(std::move(x)); });
  return answer.get_future().get();
}

/// Names of the pages of a prompt: each covers those before it.
std::vector<page_key> names_of(const page_string& prompt) {
  auto names = std::vector<page_key>{};
  auto word = uint64_t{0};
  for (const auto page : prompt) {
    auto& key = names.emplace_back();
    for (auto i = uint64_t{0}; i < 4; ++i) {
      word = (word ^ page ^ i) * 0x9E3779B97F4A7C15;
      word ^= word >> 32;
      std::memcpy(&key.bytes[8 * i], &word, sizeof(word));
    }
  }
  return names;
}

/// The stores. Batches run one after the other, on the thread that submits them.
class two_tiers {
public:
  two_tiers(const std::string& folder, uint64_t memory_pages, uint64_t disk_pages,
            const std::string& disk_writes) {
    constexpr auto segment_bytes = uint64_t{16} << 20;
    const auto live_bytes = disk_pages * disk_block_bytes;
    const auto segments = static_cast<uint32_t>(3 * live_bytes / segment_bytes + 8);
    auto device = value_of(open_disk_files(folder, segment_bytes));
    auto options = tiered_options{};
    options.tiers.push_back(
      {queued(make_memory_backend(memory_pages * object_bytes, the_clock)), {}});
    options.tiers.push_back(
      {queued(value_of(make_disk_backend(disk_options{folder, segment_bytes, segments, live_bytes},
                                         std::move(device), the_clock))),
       {parse_tier_writes(disk_writes).value()}});
    store_ = value_of(make_tiered_backend(std::move(options), the_clock));
  }

  /// Reads what is there of a prompt, as a prefetch does, and writes the rest.
  void serve(const page_string& prompt) {
    const auto names = names_of(prompt);
    const auto places = wait<std::vector<result<store_place>>>(
      [&](auto done) { store_->lookup(names, no_deadline, done); });
    auto bytes = std::vector<std::byte>(names.size() * object_bytes);
    const auto part
      = [&](size_t i) { return std::span{bytes}.subspan(i * object_bytes, object_bytes); };
    const auto parent = [&](size_t i) { return i == 0 ? page_key{} : names[i - 1]; };
    auto reads = std::vector<page_read>{};
    while (reads.size() < names.size() && places[reads.size()])
      reads.push_back(
        {names[reads.size()], {part(reads.size())}, *places[reads.size()], parent(reads.size())});
    const auto found = reads.size();
    for (const auto& read : wait<std::vector<result<void>>>(
           [&](auto done) { store_->read(reads, no_deadline, done, {}); }))
      hits_ += read ? 1 : 0;
    auto writes = std::vector<page_write>{};
    for (auto i = found; i < names.size(); ++i)
      writes.push_back({names[i], parent(i), {part(i)}});
    wait<std::vector<result<void>>>([&](auto done) { store_->write(writes, no_deadline, done); });
  }

  uint64_t hits() const noexcept { return hits_; }

  /// Of memory and disk.
  std::vector<tier_health> tiers() {
    return wait<backend_health>([&](auto done) { store_->health(done); }).tiers;
  }

private:
  static std::unique_ptr<storage_backend> queued(std::unique_ptr<blocking_store> store) {
    return std::make_unique<storage_queue>(std::move(store), 0);
  }

  std::unique_ptr<storage_backend> store_;
  uint64_t hits_ = 0;
};

double share(uint64_t part, uint64_t whole) {
  return static_cast<double>(part) / static_cast<double>(whole);
}

/// A row about hits, in percent of all pages.
json hits_row(const std::string& name, uint64_t hits, uint64_t ideal, uint64_t pages) {
  const auto ratio = share(hits, ideal);
  return {{"name", name},          {"value", 100 * share(hits, pages)},
          {"unit", "%"},           {"baseline", 100 * share(ideal, pages)},
          {"ratio", ratio},        {"target", "ratio >= 0.99"},
          {"holds", ratio >= 0.99}};
}

json plain_row(const std::string& name, double value, const std::string& unit) {
  return {{"name", name},     {"value", value},    {"unit", unit},    {"baseline", nullptr},
          {"ratio", nullptr}, {"target", nullptr}, {"holds", nullptr}};
}

} // namespace

int main(int argc, char** argv) {
  if (argc < 3 || argc > 4) {
    std::fprintf(stderr, "Usage: tiers_hits TRACE RESULT.json [REQUESTS]\n");
    return 2;
  }
  const auto limit = argc == 4 ? std::strtoull(argv[3], nullptr, 10) : 4000;
  const auto all = read_trace(argv[1], limit, page_tokens);
  const auto unique = count_unique(all);
  const auto memory_pages = unique / 20;
  const auto disk_pages = unique / 2;
  const auto prompts = fitting(all, memory_pages);
  auto pages = uint64_t{0};
  for (const auto& prompt : prompts)
    pages += prompt.size();
  const auto ideal_of = [&](uint64_t size) {
    return ideal_hits({size, 0, 0}, lru_policy(), prompts);
  };
  auto rows = json::array();
  // With `all` the disk has what memory has, too.
  for (const auto& [writes, kept] :
       {std::pair{"all", disk_pages}, std::pair{"evict", memory_pages + disk_pages},
        std::pair{"hits:2", uint64_t{0}}}) {
    const auto folder = std::string{"hicache-tiers-hits"};
    std::filesystem::remove_all(folder);
    auto tiers = std::optional<two_tiers>{std::in_place, folder, memory_pages, disk_pages, writes};
    for (const auto& prompt : prompts)
      tiers->serve(prompt);
    const auto healths = tiers->tiers();
    const auto name = std::string{"tiers: disk with rule "} + writes + ": ";
    if (kept > 0) {
      rows.push_back(
        hits_row(name + "pages served, beside an ideal LRU", tiers->hits(), ideal_of(kept), pages));
      rows.push_back(hits_row(name + "pages from memory, beside an ideal LRU",
                              healths[0].health.counters.hits, ideal_of(memory_pages), pages));
    } else {
      rows.push_back(plain_row(name + "pages served", 100 * share(tiers->hits(), pages), "%"));
    }
    const auto written = healths[1].health.objects + healths[1].health.counters.evicted;
    rows.push_back(plain_row(name + "pages written to it for each page computed",
                             share(written, pages - tiers->hits()), ""));
    tiers.reset();
    std::filesystem::remove_all(folder);
  }
  std::ofstream{argv[2]} << json{{"rows", rows}}.dump();
  return 0;
}
