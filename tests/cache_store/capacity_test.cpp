// How much a small segment keeps of a real workload, beside an ideal LRU of the same size.

#include "cache/store/segment_table.hpp"
#include "tests/cache_store/test_keys.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <list>
#include <unordered_map>
#include <unordered_set>

namespace hicache {
namespace {

using test::key_of;

/// Requests as the names of their blocks; a name stands for all blocks before it, too.
using workload = std::vector<std::vector<uint64_t>>;

workload read_trace(const std::string& path) {
  auto requests = workload{};
  auto file = std::ifstream{path};
  for (auto line = std::string{}; std::getline(file, line);)
    requests.push_back(nlohmann::json::parse(line).at("hash_ids").get<std::vector<uint64_t>>());
  return requests;
}

uint64_t unique_blocks(const workload& requests) {
  auto blocks = std::unordered_set<uint64_t>{};
  for (const auto& request : requests)
    blocks.insert(request.begin(), request.end());
  return blocks.size();
}

/// The textbook's LRU: a request uses all of its blocks, the first one first.
class ideal_lru {
public:
  explicit ideal_lru(uint64_t capacity) : capacity_(capacity) {}

  /// @returns blocks found, up to the first that is missing
  uint64_t serve(const std::vector<uint64_t>& blocks) {
    auto hits = uint64_t{0};
    while (hits < blocks.size() && places_.contains(blocks[hits]))
      ++hits;
    for (const auto block : blocks) {
      if (const auto at = places_.find(block); at != places_.end())
        order_.erase(at->second);
      places_[block] = order_.insert(order_.end(), block);
      if (places_.size() > capacity_) {
        places_.erase(order_.front());
        order_.pop_front();
      }
    }
    return hits;
  }

private:
  uint64_t capacity_;
  std::list<uint64_t> order_;
  std::unordered_map<uint64_t, std::list<uint64_t>::iterator> places_;
};

/// A segment whose reader looks up, reads what is there, and writes the rest.
class served_segment {
public:
  explicit served_segment(uint64_t capacity) : table_(capacity, {}) {}

  uint64_t serve(const std::vector<uint64_t>& blocks) {
    auto hits = uint64_t{0};
    while (hits < blocks.size() && table_.touch(key_of(blocks[hits])))
      ++hits;
    for (auto i = hits; i < blocks.size(); ++i) {
      auto wanted = segment_request{key_of(blocks[i]), {}, 1, 1, 0, 0};
      if (i > 0)
        wanted.parent = key_of(blocks[i - 1]);
      const auto got = table_.reserve(wanted, {});
      if (got.status == reserve_status::already_there)
        table_.touch(wanted.key); // As a put of an existing key does.
      else if (got.status == reserve_status::reserved)
        table_.publish(wanted.key, got.generation);
      else
        ++refused;
    }
    return hits;
  }

  uint64_t refused = 0;

private:
  segment_table table_;
};

class CapacityTest : public testing::TestWithParam<double> {};

TEST_P(CapacityTest, ASmallSegmentHitsAtLeastAsOftenAsAnIdealLru) {
  const auto requests = read_trace(HICACHE_CONVERSATION_TRACE);
  if (requests.empty())
    GTEST_SKIP() << "there is no trace at " << HICACHE_CONVERSATION_TRACE;
  const auto capacity
    = static_cast<uint64_t>(GetParam() * static_cast<double>(unique_blocks(requests)));
  auto ideal = ideal_lru{capacity};
  auto segment = served_segment{capacity};
  auto blocks = uint64_t{0};
  auto ideal_hits = uint64_t{0};
  auto hits = uint64_t{0};
  for (const auto& request : requests) {
    blocks += request.size();
    ideal_hits += ideal.serve(request);
    hits += segment.serve(request);
  }
  const auto share = [&](uint64_t x) {
    return std::to_string(static_cast<double>(x) / static_cast<double>(blocks));
  };
  RecordProperty("hit_share", share(hits));
  RecordProperty("ideal_lru_hit_share", share(ideal_hits));
  std::printf("%.0f %% of the unique blocks: %s, ideal LRU %s\n", 100 * GetParam(),
              share(hits).c_str(), share(ideal_hits).c_str());
  EXPECT_GE(hits, ideal_hits);
  EXPECT_EQ(segment.refused, 0u) << "no write is refused because of look-ups";
}

INSTANTIATE_TEST_SUITE_P(Shares, CapacityTest, testing::Values(0.1, 0.25));

} // namespace
} // namespace hicache
