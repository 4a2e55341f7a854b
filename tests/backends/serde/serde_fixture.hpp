#pragma once

#include "backends/memory_backend.hpp"
#include "backends/serde/serde_backend.hpp"
#include "backends/sized_reads.hpp"
#include "backends/storage_queue.hpp"
#include "tests/backends/serde/serde_support.hpp"
#include "tests/backends/temporary_folder.hpp"
#include "tests/backends/waiting_store.hpp"
#include "tests/support/manual_clock.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hicache::test {

/// A test double: a store that several decorators share one after the other, and that the test
/// looks into. Closing it does nothing.
class shared_store final : public storage_backend, public sized_reads {
public:
  explicit shared_store(std::shared_ptr<storage_queue> inner) : inner_(std::move(inner)) {}

  std::string name() const override { return inner_->name(); }
  store_capabilities capabilities() const override {
    auto answer = inner_->capabilities();
    answer.orders_writes = true;
    return answer;
  }
  result<void> attach_memory(std::span<const std::span<std::byte>> regions) override {
    attached.assign(regions.begin(), regions.end());
    return {};
  }
  batch_number lookup(store_batch<page_key> keys, time_point deadline, lookup_done done) override {
    return inner_->lookup(std::move(keys), deadline, std::move(done));
  }
  batch_number read(store_batch<page_read> pages, time_point deadline, pages_done done,
                    read_progress progress) override {
    return inner_->read(std::move(pages), deadline, std::move(done), std::move(progress));
  }
  bool tells_lengths() const override { return true; }
  batch_number read_sized(store_batch<page_read> pages, time_point deadline,
                          sizes_done done) override {
    return inner_->read_sized(std::move(pages), deadline, std::move(done));
  }
  batch_number write(store_batch<page_write> pages, time_point deadline, pages_done done) override {
    return inner_->write(std::move(pages), deadline, std::move(done));
  }
  batch_number remove(store_batch<page_key> keys, time_point deadline, pages_done done) override {
    return inner_->remove(std::move(keys), deadline, std::move(done));
  }
  void health(health_done done) override { inner_->health(std::move(done)); }
  expiry expire(batch_number batch) override { return inner_->expire(batch); }
  bool close(std::chrono::nanoseconds) override { return true; }

  std::vector<std::span<std::byte>> attached;

private:
  const std::shared_ptr<storage_queue> inner_;
};

class serde_test : public testing::Test {
protected:
  serde_test()
    : memory_(std::make_shared<storage_queue>(make_memory_backend(0, clock_), 2)),
      bare_(std::make_unique<shared_store>(memory_)) {
    write_keys(three_keys);
  }

  void write_keys(std::string_view text) { std::ofstream{folder_.path() + "/keys"} << text; }

  serde_options options(const char* chain) const {
    auto made = serde_options{};
    made.codec.chain = serde::parse_codec_chain(chain).value();
    made.codec.objects = small_objects();
    made.codec.fingerprint = 7;
    made.key_file = folder_.path() + "/keys";
    made.codec_bytes = uint64_t{64} << 10;
    return made;
  }

  /// A decorator over a store, or over the shared one.
  waiting_store open(const serde_options& options, std::unique_ptr<storage_backend> store = {}) {
    if (store == nullptr)
      store = std::make_unique<shared_store>(memory_);
    auto made = make_serde_backend(options, std::move(store), clock_);
    EXPECT_TRUE(made) << to_string(made.error());
    return waiting_store{std::move(made.value())};
  }

  waiting_store open(const char* chain) { return open(options(chain)); }

  std::unique_ptr<waiting_store> open_owned(const serde_options& options,
                                            std::unique_ptr<storage_backend> store = {}) {
    if (store == nullptr)
      store = std::make_unique<shared_store>(memory_);
    auto made = make_serde_backend(options, std::move(store), clock_);
    EXPECT_TRUE(made) << to_string(made.error());
    return std::make_unique<waiting_store>(std::move(made.value()));
  }

  /// The encoded form of a page that a decorator stored.
  page_bytes encoded(const char* chain, uint64_t number, size_t original) {
    auto codec = one_codec{chain, small_objects()};
    auto bytes = page_bytes(codec->encoded_bytes_max(original));
    const auto reads = std::vector{page_read{codec->object_name(key_of(number)), {bytes}}};
    const auto lengths = waiting_store::wait<std::vector<result<uint64_t>>>(
      [&](auto done) { memory_->read_sized(reads, no_deadline, done); });
    EXPECT_TRUE(lengths.at(0)) << to_string(lengths.at(0).error());
    bytes.resize(lengths.at(0).value_or(0));
    return bytes;
  }

  /// Stores bytes under the name that a page has in the store.
  void replace(const char* chain, uint64_t number, const page_bytes& bytes) {
    auto codec = one_codec{chain, small_objects()};
    const auto name = codec->object_name(key_of(number));
    ASSERT_TRUE(drop(bare_, name));
    ASSERT_TRUE(put(bare_, name, bytes));
  }

  manual_clock clock_;
  temporary_folder folder_;
  std::shared_ptr<storage_queue> memory_;
  waiting_store bare_;
};

} // namespace hicache::test
