// tiers_hits TRACE RESULT.json [REQUESTS]: what share of a trace's pages two tiers of L3 serve,
// with memory for 5 % of the different pages and a disk for 50 %, beside an ideal LRU of the same
// size; what the disk is written for that; and what is left of memory when prompts that come once
// pass by. What is kept and written is measured, on the real stores, not how fast: objects have 64
// bytes where only hits are counted.

#include "backends/disk/disk_backend.hpp"
#include "backends/disk/disk_files.hpp"
#include "backends/disk/disk_log.hpp"
#include "backends/memory_backend.hpp"
#include "backends/storage_queue.hpp"
#include "backends/tiered/tiered_backend.hpp"
#include "messages/disk_record.hpp"
#include "tests/cache/tier_replay.hpp"

#include <nlohmann/json.hpp>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

using namespace hicache;
using namespace hicache::test;

namespace {

using json = nlohmann::json;

constexpr uint64_t page_tokens = 512;
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

/// Passes on the transfers of a channel, and counts what is written.
class counting_channel final : public disk_channel {
public:
  counting_channel(std::unique_ptr<disk_channel> inner, std::atomic<uint64_t>& written)
    : inner_(std::move(inner)), written_(written) {}

  std::span<std::byte> memory() noexcept override { return inner_->memory(); }

  void read(uint32_t segment, uint64_t offset, std::span<std::byte> to, uint64_t tag) override {
    inner_->read(segment, offset, to, tag);
  }

  void write(uint32_t segment, uint64_t offset, std::span<const std::byte> from,
             uint64_t tag) override {
    written_ += from.size();
    inner_->write(segment, offset, from, tag);
  }

  completion wait() override { return inner_->wait(); }

  size_t depth() const noexcept override { return inner_->depth(); }

private:
  const std::unique_ptr<disk_channel> inner_;
  std::atomic<uint64_t>& written_;
};

/// A disk that counts what is written to it.
class counting_device final : public disk_device {
public:
  counting_device(std::unique_ptr<disk_device> inner, std::atomic<uint64_t>& written)
    : inner_(std::move(inner)), written_(written) {}

  std::vector<uint32_t> segments() const override { return inner_->segments(); }

  result<void> create(uint32_t segment) override { return inner_->create(segment); }

  result<void> remove(uint32_t segment) override { return inner_->remove(segment); }

  result<void> sync(uint32_t segment) override { return inner_->sync(segment); }

  result<std::unique_ptr<disk_channel>> open_channel(size_t bytes) override {
    return inner_->open_channel(bytes).map(
      [this](std::unique_ptr<disk_channel> opened) -> std::unique_ptr<disk_channel> {
        return std::make_unique<counting_channel>(std::move(opened), written_);
      });
  }

  std::string description() const override { return inner_->description(); }

private:
  const std::unique_ptr<disk_device> inner_;
  std::atomic<uint64_t>& written_;
};

/// What the tiers hold, and what is written to them.
struct tier_sizes {
  uint64_t object_bytes = 64;
  /// Share of the disk that objects may have. A tenth spares it cleaning, where only hits count.
  double live_share = 0.1;
  uint64_t memory_pages = 0;
  uint64_t disk_pages = 0;
  std::string memory_writes = "all";
  std::string disk_writes = "all";
};

/// The stores, in a folder of their own. Batches run one after the other, on the thread that
/// submits them.
class two_tiers {
public:
  explicit two_tiers(const tier_sizes& sizes) : object_bytes_(sizes.object_bytes) {
    const auto live_bytes = sizes.disk_pages * disk_blocks_for(sizes.object_bytes);
    const auto store_bytes
      = static_cast<uint64_t>(static_cast<double>(live_bytes) / sizes.live_share);
    const auto segment_bytes = disk_segment_bytes(store_bytes);
    // Two more, which are kept for cleaning.
    const auto segments = static_cast<uint32_t>(store_bytes / segment_bytes + 3);
    std::filesystem::remove_all(folder_);
    auto device = std::make_unique<counting_device>(
      value_of(open_disk_files(folder_, segment_bytes)), written_);
    auto options = tiered_options{};
    options.tiers.push_back(
      {queued(make_memory_backend(sizes.memory_pages * sizes.object_bytes, the_clock)),
       {parse_tier_writes(sizes.memory_writes).value()}});
    options.tiers.push_back({queued(value_of(make_disk_backend(
                               disk_options{"disk", folder_, segment_bytes, segments, live_bytes},
                               std::move(device), the_clock))),
                             {parse_tier_writes(sizes.disk_writes).value()}});
    store_ = value_of(make_tiered_backend(std::move(options), the_clock));
  }

  ~two_tiers() {
    store_.reset();
    std::filesystem::remove_all(folder_);
  }

  two_tiers(const two_tiers&) = delete;
  two_tiers& operator=(const two_tiers&) = delete;

  /// Reads what is there of a prompt, as a prefetch does, and writes the rest.
  void serve(const page_string& prompt) {
    const auto names = names_of(prompt);
    const auto places = wait<std::vector<result<store_place>>>(
      [&](auto done) { store_->lookup(names, no_deadline, done); });
    // All objects have the same bytes.
    auto bytes = std::vector<std::byte>(object_bytes_);
    const auto parent = [&](size_t i) { return i == 0 ? page_key{} : names[i - 1]; };
    auto reads = std::vector<page_read>{};
    while (reads.size() < names.size() && places[reads.size()])
      reads.push_back({names[reads.size()], {bytes}, *places[reads.size()], parent(reads.size())});
    const auto found = reads.size();
    for (const auto& read : wait<std::vector<result<void>>>(
           [&](auto done) { store_->read(reads, no_deadline, done, {}); }))
      hits_ += read ? 1 : 0;
    auto writes = std::vector<page_write>{};
    for (auto i = found; i < names.size(); ++i)
      writes.push_back({names[i], parent(i), {bytes}});
    wait<std::vector<result<void>>>([&](auto done) { store_->write(writes, no_deadline, done); });
  }

  uint64_t hits() const noexcept { return hits_; }

  uint64_t memory_hits() { return tiers()[0].health.counters.hits; }

  uint64_t disk_pages_written() {
    const auto disk = tiers()[1].health;
    return disk.objects + disk.counters.evicted;
  }

  /// Bytes written to the disk, with headers and what was moved.
  uint64_t disk_bytes_written() const noexcept { return written_; }

  /// Of memory and disk.
  std::vector<tier_health> tiers() {
    return wait<backend_health>([&](auto done) { store_->health(done); }).tiers;
  }

private:
  static std::unique_ptr<storage_backend> queued(std::unique_ptr<blocking_store> store) {
    return std::make_unique<storage_queue>(std::move(store), 0);
  }

  const uint64_t object_bytes_;
  const std::string folder_ = "hicache-tiers-hits";
  std::atomic<uint64_t> written_ = 0;
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

/// The prompts of the trace, and what of them is to be kept.
struct workload {
  std::vector<page_string> prompts;
  uint64_t pages = 0;
  uint64_t memory_pages = 0;
  uint64_t disk_pages = 0;

  uint64_t ideal_of(uint64_t size) const { return ideal_hits({size, 0, 0}, lru_policy(), prompts); }
};

/// What each rule of the disk serves, and what it writes.
void measure_rules(const workload& work, json& rows) {
  // With `all` the disk has what memory has, too.
  for (const auto& [writes, kept] :
       {std::pair{"all", work.disk_pages}, std::pair{"evict", work.memory_pages + work.disk_pages},
        std::pair{"hits:2", uint64_t{0}}}) {
    auto tiers = two_tiers{{64, 0.1, work.memory_pages, work.disk_pages, "all", writes}};
    for (const auto& prompt : work.prompts)
      tiers.serve(prompt);
    const auto name = std::string{"tiers: disk with rule "} + writes + ": ";
    if (kept > 0) {
      rows.push_back(hits_row(name + "pages served, beside an ideal LRU", tiers.hits(),
                              work.ideal_of(kept), work.pages));
      rows.push_back(hits_row(name + "pages from memory, beside an ideal LRU", tiers.memory_hits(),
                              work.ideal_of(work.memory_pages), work.pages));
    } else {
      rows.push_back(plain_row(name + "pages served", 100 * share(tiers.hits(), work.pages), "%"));
    }
    rows.push_back(plain_row(name + "pages written to it for each page computed",
                             share(tiers.disk_pages_written(), work.pages - tiers.hits()), ""));
  }
}

/// Bytes that wear the disk.
void measure_wear(const workload& work, json& rows) {
  constexpr auto object_bytes = uint64_t{32} << 10;
  for (const auto* const writes : {"all", "evict", "hits:2"}) {
    auto tiers = two_tiers{
      {object_bytes, disk_log::live_share, work.memory_pages, work.disk_pages, "all", writes}};
    for (const auto& prompt : work.prompts)
      tiers.serve(prompt);
    rows.push_back(
      plain_row(std::string{"tiers: disk with rule "} + writes
                  + ": bytes written to it for each byte cached there, objects of 32 KiB",
                share(tiers.disk_bytes_written(), tiers.disk_pages_written() * object_bytes), ""));
  }
}

/// Serves the trace; every `pause` requests a prompt passes by that fills half of memory, and that
/// comes once again after eight others of its kind.
/// @returns pages of the trace that memory served
uint64_t serve_beside_scans(const workload& work, const std::string& memory_writes, size_t pause) {
  auto tiers = two_tiers{{64, 0.1, work.memory_pages, 2 * work.disk_pages, memory_writes, "all"}};
  const auto scan = [&](uint64_t number) {
    auto prompt = page_string(work.memory_pages / 2);
    for (auto i = size_t{0}; i < prompt.size(); ++i)
      prompt[i] = static_cast<page_string::value_type>(~(number * prompt.size() + i));
    tiers.serve(prompt);
  };
  auto hits = uint64_t{0};
  for (auto i = size_t{0}; i < work.prompts.size(); ++i) {
    const auto before = tiers.memory_hits();
    tiers.serve(work.prompts[i]);
    hits += tiers.memory_hits() - before;
    if (pause > 0 && i % pause == pause - 1) {
      const auto number = i / pause;
      scan(number);
      if (number >= 8)
        scan(number - 8);
    }
  }
  return hits;
}

/// What memory still serves of the trace while prompts pass by that come once.
void measure_scans(const workload& work, json& rows) {
  for (const auto* const writes : {"all", "hits:2"}) {
    const auto alone = serve_beside_scans(work, writes, 0);
    const auto beside = serve_beside_scans(work, writes, 100);
    const auto ratio = share(beside, alone);
    auto row = plain_row(std::string{"tiers: memory with rule "} + writes
                           + ": pages from memory beside scans, and without them",
                         100 * share(beside, work.pages), "%");
    row["baseline"] = 100 * share(alone, work.pages);
    row["ratio"] = ratio;
    if (writes == std::string{"hits:2"}) {
      row["target"] = "ratio >= 0.95";
      row["holds"] = ratio >= 0.95;
    }
    rows.push_back(row);
  }
}

workload read_workload(const std::string& trace, size_t requests) {
  const auto all = read_trace(trace, requests, page_tokens);
  const auto unique = count_unique(all);
  auto work = workload{fitting(all, unique / 20), 0, unique / 20, unique / 2};
  for (const auto& prompt : work.prompts)
    work.pages += prompt.size();
  return work;
}

} // namespace

int main(int argc, char** argv) {
  if (argc < 3 || argc > 4) {
    std::fprintf(stderr, "Usage: tiers_hits TRACE RESULT.json [REQUESTS]\n");
    return 2;
  }
  const auto requests = argc == 4 ? std::strtoull(argv[3], nullptr, 10) : 4000;
  const auto work = read_workload(argv[1], requests);
  auto rows = json::array();
  measure_rules(work, rows);
  measure_scans(work, rows);
  measure_wear(read_workload(argv[1], requests / 8), rows);
  std::ofstream{argv[2]} << json{{"rows", rows}}.dump();
  return 0;
}
