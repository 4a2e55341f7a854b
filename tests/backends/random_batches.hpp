#pragma once

#include "hicache/storage_backend.hpp"
#include "tests/backends/backend_support.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <random>
#include <vector>

namespace hicache::test {

/// Random batches of two pages each, and what became of them.
class random_batches {
public:
  static constexpr auto keys = uint64_t{16};

  random_batches(storage_backend& store, uint64_t seed) : store_(store), random_(seed) {
    for (auto i = uint64_t{0}; i < keys; ++i)
      pages_.push_back(bytes_of(i, 256));
  }

  /// Submits one, which perhaps expires at once.
  void submit() {
    auto& x = batches_.emplace_back();
    const auto first = x.first = random_() % (keys - 1);
    const auto both = std::vector{key_of(first), key_of(first + 1)};
    const auto count = [&x](const auto&) { x.count_answer(); };
    const auto count_read = [&x](const auto& answers) {
      for (const auto& each : answers)
        x.codes.push_back(code_of(each));
      x.count_answer();
    };
    auto number = storage_backend::batch_number{0};
    if (const auto kind = random_() % 6; kind < 2)
      number = store_.write(std::vector{page_write{both[0], {}, {pages_[first]}},
                                        page_write{both[1], both[0], {pages_[first + 1]}}},
                            no_deadline, count);
    else if (kind < 4)
      number
        = store_.read(std::vector{page_read{both[0], {x.back[0]}}, page_read{both[1], {x.back[1]}}},
                      no_deadline, count_read, {});
    else if (kind == 4)
      number = store_.lookup(both, no_deadline, count);
    else
      number = store_.remove(both, no_deadline, count);
    if (random_() % 8 == 0)
      x.is_withdrawn = store_.expire(number) == storage_backend::expiry::withdrawn;
  }

  /// Waits until all are answered, so that none evicts what comes later.
  void wait() const {
    for (const auto& x : batches_)
      if (!x.is_withdrawn)
        x.answers.wait(0);
  }

  /// @pre the store is closed
  void expect_one_answer_each_and_right_bytes() const {
    for (const auto& x : batches_) {
      EXPECT_EQ(x.answers, x.is_withdrawn ? 0 : 1);
      for (auto i = size_t{0}; i < x.codes.size(); ++i)
        EXPECT_TRUE(x.codes[i] != ec::none || x.back[i] == pages_[x.first + i]);
    }
  }

private:
  struct batch {
    uint64_t first = 0;
    std::array<page_bytes, 2> back = {page_bytes(256), page_bytes(256)};
    /// Of a read.
    std::vector<ec> codes;
    std::atomic<int> answers = 0;
    bool is_withdrawn = false;

    void count_answer() {
      ++answers;
      answers.notify_all();
    }
  };

  storage_backend& store_;
  std::mt19937_64 random_;
  std::vector<page_bytes> pages_;
  std::deque<batch> batches_;
};

} // namespace hicache::test
