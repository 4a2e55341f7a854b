#pragma once

#include "backends/memory_backend.hpp"
#include "backends/storage_queue.hpp"
#include "backends/tiered/tiered_backend.hpp"
#include "tests/backends/backend_support.hpp"
#include "tests/backends/faulty_store.hpp"
#include "tests/backends/waiting_store.hpp"
#include "tests/support/manual_clock.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace hicache::test {

inline error error_of(const result<void>& outcome) {
  return outcome ? error{} : outcome.error();
}

/// Tiers in memory whose faults the test chooses. Their calls run on the thread that makes them.
class tiered_test : public testing::Test {
protected:
  static constexpr auto object_bytes = size_t{256};

  std::unique_ptr<faulty_store> new_store(uint64_t max_bytes = 0) {
    return std::make_unique<faulty_store>(
      std::make_unique<storage_queue>(make_memory_backend(max_bytes, clock_), 0));
  }

  /// Adds a tier below the others.
  faulty_store& add(const tier_rules& rules = {}, uint64_t max_bytes = 0) {
    auto store = new_store(max_bytes);
    auto& added = *store;
    options_.tiers.push_back({std::move(store), rules});
    return added;
  }

  waiting_store& open() {
    options_.notice = [this](const std::string& sentence) { notices_.push_back(sentence); };
    auto made = make_tiered_backend(std::move(options_), clock_);
    EXPECT_TRUE(made) << to_string(made.error());
    tiers_ = made->get();
    store_ = std::make_unique<waiting_store>(std::move(*made));
    return *store_;
  }

  static tier_rules rules(const std::string& writes, bool promotes = true) {
    return {parse_tier_writes(writes).value(), promotes};
  }

  /// Puts an object into one tier.
  static void put_in(storage_backend& tier, uint64_t number) {
    const auto bytes = bytes_of(number, object_bytes);
    auto writes = std::vector{page_write{key_of(number), {}, {bytes}}};
    const auto done = waiting_store::wait<std::vector<result<void>>>(
      [&](auto on_done) { tier.write(std::move(writes), no_deadline, on_done); });
    ASSERT_TRUE(done[0]);
  }

  static bool has_in(storage_backend& tier, uint64_t number) {
    return waiting_store::wait<std::vector<result<store_place>>>([&](auto on_done) {
             tier.lookup(std::vector{key_of(number)}, no_deadline, on_done);
           })[0]
      .has_value();
  }

  bool is_right(uint64_t number) {
    return take(*store_, key_of(number), object_bytes) == bytes_of(number, object_bytes);
  }

  manual_clock clock_;
  tiered_options options_;
  std::vector<std::string> notices_;
  tiered_store* tiers_ = nullptr;
  std::unique_ptr<waiting_store> store_;
};

} // namespace hicache::test
