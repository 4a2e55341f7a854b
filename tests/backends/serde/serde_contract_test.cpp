#include "backends/file_backend.hpp"
#include "backends/memory_backend.hpp"
#include "backends/serde/serde_backend.hpp"
#include "messages/page_header.hpp"
#include "tests/backends/backend_contract.hpp"
#include "tests/backends/serde/serde_support.hpp"
#include "tests/backends/temporary_folder.hpp"

#include <fstream>

namespace hicache::test {
namespace {

/// A folder with a file of keys.
std::shared_ptr<temporary_folder> folder_with_keys() {
  auto folder = std::make_shared<temporary_folder>();
  std::ofstream{folder->path() + "/keys"} << three_keys;
  return folder;
}

serde_options options_for(const char* chain, const temporary_folder& folder) {
  auto options = serde_options{};
  options.codec.chain = serde::parse_codec_chain(chain).value();
  options.codec.objects = small_objects();
  options.codec.fingerprint = 7;
  options.key_file = folder.path() + "/keys";
  // Room for a few of the contract's longest objects, so that memory is waited for.
  options.codec_bytes = uint64_t{1} << 20;
  return options;
}

opened_backend decorated(const char* chain, std::unique_ptr<storage_backend> store,
                         const clock_source& clock) {
  auto folder = folder_with_keys();
  auto made = make_serde_backend(options_for(chain, *folder), std::move(store), clock);
  EXPECT_TRUE(made) << to_string(made.error());
  return {folder, std::move(made.value())};
}

std::unique_ptr<storage_backend> memory_for(const clock_source& clock, room size) {
  return queued(
    make_memory_backend(size.pages * (size.page_bytes + serde::object_header_bytes), clock));
}

backend_factory over_memory(const char* name, const char* chain) {
  return {name, [chain](const clock_source& clock, room size) {
            return decorated(chain, memory_for(clock, size), clock);
          }};
}

/// A store that does not tell lengths: the double in front of it has no such reads.
opened_backend open_over_exact_lengths(const clock_source& clock, room size) {
  return decorated("aes-256-gcm", std::make_unique<faulty_store>(memory_for(clock, size)), clock);
}

opened_backend open_over_files(const clock_source& clock, room size) {
  auto folder = folder_with_keys();
  const auto file_bytes = size.page_bytes + serde::object_header_bytes + page_header_bytes;
  auto store = make_file_backend({{folder->path() + "/pages", size.pages * file_bytes}, 7}, clock);
  EXPECT_TRUE(store);
  auto made = make_serde_backend(options_for("zstd+aes-256-gcm", *folder),
                                 queued(std::move(*store)), clock);
  EXPECT_TRUE(made);
  return {folder, std::move(made.value())};
}

INSTANTIATE_TEST_SUITE_P(Codecs, BackendContractTest,
                         testing::Values(over_memory("zstd", "zstd"), over_memory("lz4", "lz4"),
                                         over_memory("fp8", "fp8"),
                                         over_memory("aes", "aes-256-gcm"),
                                         over_memory("all", "fp8+zstd+aes-256-gcm"),
                                         backend_factory{"exact_lengths", open_over_exact_lengths},
                                         backend_factory{"files", open_over_files}),
                         [](const auto& chosen) { return chosen.param.name; });

/// A test double: counts the batches of a store that are neither answered nor withdrawn.
class counting_store final : public storage_backend {
public:
  explicit counting_store(std::unique_ptr<storage_backend> inner) : inner_(std::move(inner)) {}

  int open() const { return open_; }

  std::string name() const override { return inner_->name(); }
  store_capabilities capabilities() const override { return inner_->capabilities(); }
  batch_number lookup(store_batch<page_key> keys, time_point deadline, lookup_done done) override {
    return inner_->lookup(std::move(keys), deadline, counted(std::move(done)));
  }
  batch_number read(store_batch<page_read> pages, time_point deadline, pages_done done,
                    read_progress progress) override {
    return inner_->read(std::move(pages), deadline, counted(std::move(done)), std::move(progress));
  }
  batch_number write(store_batch<page_write> pages, time_point deadline, pages_done done) override {
    return inner_->write(std::move(pages), deadline, counted(std::move(done)));
  }
  batch_number remove(store_batch<page_key> keys, time_point deadline, pages_done done) override {
    return inner_->remove(std::move(keys), deadline, counted(std::move(done)));
  }
  void health(health_done done) override { inner_->health(std::move(done)); }
  expiry expire(batch_number batch) override {
    const auto answer = inner_->expire(batch);
    open_ -= answer == expiry::withdrawn ? 1 : 0;
    return answer;
  }
  bool close(std::chrono::nanoseconds grace) override { return inner_->close(grace); }

private:
  template <class Answers>
  std::function<void(Answers)> counted(std::function<void(Answers)> done) {
    ++open_;
    return [this, done = std::move(done)](Answers answers) {
      done(std::move(answers));
      --open_;
    };
  }

  const std::unique_ptr<storage_backend> inner_;
  std::atomic<int> open_ = 0;
};

/// The contract puts faults in front of the codecs; here they are behind them.
TEST(SerdeOverFaultsTest, EveryBatchIsAnsweredOnceAndNoReadIsWrong) {
  for (const auto seed : {1u, 2u, 3u}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    auto clock = manual_clock{};
    auto owned = std::make_unique<faulty_store>(memory_for(clock, {random_batches::keys / 2, 256}),
                                                faults_by_chance(seed, 0.5));
    auto& faulty = *owned;
    auto opened = decorated("aes-256-gcm", std::move(owned), clock);
    auto store = counting_store{std::move(opened.store)};
    auto batches = random_batches{store, seed};
    for (auto round = 0; round < 200; ++round) {
      batches.submit();
      if (round % 4 == 0)
        faulty.release_one(store_fault::late);
    }
    // Calls reach the double when a thread of the codecs gets to them.
    while (store.open() != 0) {
      faulty.release();
      std::this_thread::yield();
    }
    // A late call whose batch has expired may have come meanwhile.
    static_cast<void>(store.close(std::chrono::hours{1}));
    batches.expect_one_answer_each_and_right_bytes();
  }
}

} // namespace
} // namespace hicache::test
