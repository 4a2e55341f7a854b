#include "cache/hash/page_hash.hpp"
#include "tests/backends/faulty_store.hpp"
#include "tests/backends/serde/serde_fixture.hpp"

#include <future>
#include <latch>
#include <string>
#include <thread>
#include <vector>

namespace hicache::test {
namespace {

class SerdeBackendTest : public serde_test {};

// -- what is stored ---------------------------------------------------------------

TEST_F(SerdeBackendTest, TheStoreHoldsEncodedObjectsUnderOtherNames) {
  auto store = open("zstd+aes-256-gcm");
  ASSERT_TRUE(put(store, key_of(1), page_bytes(4096)));
  EXPECT_FALSE(has(bare_, key_of(1)));
  const auto header = serde::decode_object_header(encoded("aes-256-gcm", 1, 4096));
  ASSERT_TRUE(header) << to_string(header.error());
  EXPECT_EQ(header->compression, serde::compression::zstd);
  EXPECT_EQ(header->key_id, "new");
  EXPECT_LT(bare_.health().bytes, 300u);
  EXPECT_EQ(take(store, key_of(1), 4096), page_bytes(4096));
}

TEST_F(SerdeBackendTest, ATenantsObjectsHaveItsKey) {
  auto store = open("aes-256-gcm");
  const auto bytes = bytes_of(1, 64);
  const auto tenant = tenant_of("a tenant");
  ASSERT_TRUE(store.set(std::vector{page_write{key_of(1), {}, {bytes}, tenant}}, no_deadline)[0]);
  EXPECT_EQ(serde::decode_object_header(encoded("aes-256-gcm", 1, 64))->key_id, "its");
  EXPECT_EQ(take(store, key_of(1), 64), bytes);
}

TEST_F(SerdeBackendTest, AnObjectWithoutAKeyFailsAloneAndIsNotStored) {
  write_keys("a tenant its " + std::string(64, '3') + "\n");
  auto store = open("aes-256-gcm");
  const auto bytes = bytes_of(1, 64);
  const auto answers
    = store.set(std::vector{page_write{key_of(1), {}, {bytes}, 0},
                            page_write{key_of(2), {}, {bytes}, tenant_of("a tenant")}},
                no_deadline);
  EXPECT_EQ(code_of(answers[0]), ec::invalid_argument);
  EXPECT_TRUE(answers[1]);
  EXPECT_EQ(store.health().objects, 1u);
  EXPECT_EQ(store.health().counters.errors, 1u);
}

TEST_F(SerdeBackendTest, AParentsNameIsTheStoresName) {
  // With room for two, the memory evicts the page that was set first; names must agree for the
  // second one to be its child. The memory backend ignores parents, so look at what it gets.
  auto seen = std::vector<page_write>{};
  class recorder final : public blocking_store {
  public:
    explicit recorder(std::vector<page_write>& seen) : seen_(seen) {}
    std::string name() const override { return "recorder"; }
    std::vector<bool> exists(std::span<const page_key> keys, time_point) override {
      return std::vector<bool>(keys.size());
    }
    std::vector<result<void>> get(std::span<const page_read> pages, time_point) override {
      return std::vector<result<void>>(pages.size(), fail(ec::not_found));
    }
    std::vector<result<void>> set(std::span<const page_write> pages, time_point) override {
      seen_.assign(pages.begin(), pages.end());
      return std::vector<result<void>>(pages.size());
    }
    std::vector<result<void>> remove(std::span<const page_key> keys, time_point) override {
      return std::vector<result<void>>(keys.size());
    }
    backend_health health() override { return {}; }

  private:
    std::vector<page_write>& seen_;
  };
  auto store = open(options("aes-256-gcm"),
                    std::make_unique<storage_queue>(std::make_unique<recorder>(seen), 1));
  const auto bytes = bytes_of(1, 64);
  ASSERT_TRUE(store.set(std::vector{page_write{key_of(1), {}, {bytes}, 5},
                                    page_write{key_of(2), key_of(1), {bytes}, 5}},
                        no_deadline)[1]);
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_EQ(seen[0].parent, page_key{});
  EXPECT_EQ(seen[1].parent, seen[0].key);
  EXPECT_EQ(seen[1].tenant, 5u);
}

TEST_F(SerdeBackendTest, APromotionIsOneInTheStoreToo) {
  auto inner = std::make_unique<faulty_store>(
    std::make_unique<storage_queue>(make_memory_backend(0, clock_), 1));
  auto& seen = *inner;
  auto store = open(options("aes-256-gcm"), std::move(inner));
  const auto bytes = bytes_of(1, 64);
  ASSERT_TRUE(put(store, key_of(1), bytes));
  EXPECT_EQ(seen.promotions(), 0u);
  const auto promoted = waiting_store::wait<std::vector<result<void>>>([&](auto done) {
    store.backend().promote(std::vector{page_write{key_of(2), {}, {bytes}}}, no_deadline, done);
  });
  EXPECT_TRUE(promoted.at(0));
  EXPECT_EQ(seen.promotions(), 1u);
  EXPECT_EQ(take(store, key_of(2), 64), bytes);
}

TEST_F(SerdeBackendTest, ReadsDoNotWaitForTheEncodingOfWrites) {
  auto settings = options("aes-256-gcm");
  settings.codec_threads = 1;
  const auto bytes = bytes_of(1, 64);
  const auto writes = std::vector{page_write{key_of(1), {}, {bytes}}};
  auto back = page_bytes(64);
  auto entered = std::promise<void>{};
  auto released = std::promise<void>{};
  auto ended = std::latch{3};
  auto order = std::vector<std::string>{}; // The lists, as the codecs' thread makes them.
  const auto make_writes = [&] {
    order.emplace_back("write");
    return writes;
  };
  const auto make_reads = [&] {
    order.emplace_back("read");
    return std::vector{page_read{key_of(1), {back}}};
  };
  const auto end = [&ended](const auto&) { ended.count_down(); };
  auto store = open(settings);
  auto& backend = store.backend();
  backend.write({1,
                 [&] {
                   entered.set_value();
                   released.get_future().wait();
                   return writes;
                 }},
                no_deadline, end);
  entered.get_future().wait();
  backend.write({1, make_writes}, no_deadline, end);
  backend.read({1, make_reads}, no_deadline, end, {});
  released.set_value();
  ended.wait();
  EXPECT_EQ(order, (std::vector<std::string>{"read", "write"}));
}

TEST_F(SerdeBackendTest, LossyAndLosslessOpenAndEncryptedObjectsAreNotMixed) {
  const auto object = elements_of(1, serde::element_type::bf16, object_bytes(small_objects()));
  for (const auto* writes : {"zstd", "fp8", "aes-256-gcm", "fp8+aes-256-gcm"}) {
    auto writer = open(writes);
    ASSERT_TRUE(put(writer, key_of(1), object));
    for (const auto* reads : {"zstd", "fp8", "aes-256-gcm", "fp8+aes-256-gcm"}) {
      auto reader = open(reads);
      EXPECT_EQ(has(reader, key_of(1)), reads == std::string_view{writes})
        << writes << " " << reads;
    }
    ASSERT_TRUE(drop(writer, key_of(1)));
  }
  // But the compression may change.
  ASSERT_TRUE(put(*open_owned(options("zstd")), key_of(1), object));
  EXPECT_EQ(take(*open_owned(options("lz4")), key_of(1), object.size()), object);
}

TEST_F(SerdeBackendTest, QuantisedObjectsTakeHalfTheBytes) {
  EXPECT_TRUE(open("fp8").backend().capabilities().is_lossy);
  EXPECT_FALSE(open("zstd").backend().capabilities().is_lossy);
  const auto object = elements_of(1, serde::element_type::bf16, object_bytes(small_objects()));
  auto store = open("fp8");
  ASSERT_TRUE(put(store, key_of(1), object));
  EXPECT_EQ(bare_.health().bytes, serde::object_header_bytes + 8 + object.size() / 2);
  EXPECT_TRUE(take(store, key_of(1), object.size()));
}

// -- damage -----------------------------------------------------------------------

TEST_F(SerdeBackendTest, AnObjectThatDoesNotDecodeIsCorruptGoneAndCounted) {
  for (const auto* chain : {"zstd", "aes-256-gcm"}) {
    auto store = open(chain);
    ASSERT_TRUE(put(store, key_of(1), bytes_of(1, 100)));
    auto damaged = encoded(chain, 1, 100);
    damaged.back() ^= std::byte{1};
    replace(chain, 1, damaged);
    const auto before = store.health().counters;
    const auto read = take(store, key_of(1), 100);
    ASSERT_EQ(code_of(read), ec::corrupt_page);
    EXPECT_FALSE(read.error().detail.empty());
    auto expected = before;
    ++expected.corrupt;
    EXPECT_EQ(store.health().counters, expected);
    EXPECT_FALSE(has(store, key_of(1)));
    ASSERT_TRUE(put(store, key_of(1), bytes_of(1, 100)));
    EXPECT_EQ(take(store, key_of(1), 100), bytes_of(1, 100));
    ASSERT_TRUE(drop(store, key_of(1)));
  }
}

TEST_F(SerdeBackendTest, SwappedObjectsDoNotDecode) {
  auto store = open("aes-256-gcm");
  ASSERT_TRUE(put(store, key_of(1), bytes_of(1, 100)));
  ASSERT_TRUE(put(store, key_of(2), bytes_of(2, 100)));
  const auto first = encoded("aes-256-gcm", 1, 100);
  replace("aes-256-gcm", 1, encoded("aes-256-gcm", 2, 100));
  replace("aes-256-gcm", 2, first);
  EXPECT_EQ(code_of(take(store, key_of(1), 100)), ec::corrupt_page);
  EXPECT_EQ(code_of(take(store, key_of(2), 100)), ec::corrupt_page);
}

TEST_F(SerdeBackendTest, KeysRotateWhenTheStoreIsOpenedAgain) {
  const auto old_key = "* old " + std::string(64, '1') + "\n";
  const auto new_key = "* new " + std::string(64, '2') + "\n";
  write_keys(old_key);
  ASSERT_TRUE(put(*open_owned(options("aes-256-gcm")), key_of(1), bytes_of(1, 9)));
  write_keys(old_key + new_key);
  {
    auto store = open("aes-256-gcm");
    EXPECT_EQ(take(store, key_of(1), 9), bytes_of(1, 9));
    ASSERT_TRUE(put(store, key_of(2), bytes_of(2, 9)));
  }
  write_keys(new_key);
  auto store = open("aes-256-gcm");
  EXPECT_EQ(take(store, key_of(2), 9), bytes_of(2, 9));
  EXPECT_EQ(code_of(take(store, key_of(1), 9)), ec::corrupt_page);
  EXPECT_FALSE(has(store, key_of(1)));
}

TEST_F(SerdeBackendTest, TakesKeysFromACommand) {
  auto by_command = options("aes-256-gcm");
  by_command.key_command = "cat '" + by_command.key_file + "'";
  by_command.key_file.clear();
  auto store = open(by_command);
  ASSERT_TRUE(put(store, key_of(1), bytes_of(1, 9)));
  EXPECT_EQ(take(*open_owned(options("aes-256-gcm")), key_of(1), 9), bytes_of(1, 9));
}

// -- threads and memory -----------------------------------------------------------

TEST_F(SerdeBackendTest, BatchesAreMadeAndTransformedOnOtherThreads) {
  auto store = open("zstd");
  const auto bytes = bytes_of(1, 64);
  auto made_on = std::thread::id{};
  const auto answers = waiting_store::wait<std::vector<result<void>>>([&](auto done) {
    store.backend().write({1,
                           [&] {
                             made_on = std::this_thread::get_id();
                             return std::vector{page_write{key_of(1), {}, {bytes}}};
                           }},
                          no_deadline, done);
  });
  EXPECT_TRUE(answers[0]);
  EXPECT_NE(made_on, std::thread::id{});
  EXPECT_NE(made_on, std::this_thread::get_id());
}

TEST_F(SerdeBackendTest, ABatchLargerThanTheMemoryMovesInChunks) {
  constexpr auto pages = size_t{100};
  constexpr auto length = size_t{10'000};
  auto store = open("zstd+aes-256-gcm"); // 64 KiB for a megabyte.
  auto contents = std::vector<page_bytes>{};
  auto back = std::vector<page_bytes>(pages, page_bytes(length));
  auto writes = std::vector<page_write>{};
  auto reads = std::vector<page_read>{};
  for (auto i = size_t{0}; i < pages; ++i)
    contents.push_back(bytes_of(i, length));
  for (auto i = size_t{0}; i < pages; ++i) {
    writes.push_back({key_of(i), i == 0 ? page_key{} : key_of(i - 1), {contents[i]}});
    reads.push_back({key_of(i), {back[i]}});
  }
  EXPECT_EQ(errors_of(store.set(writes, no_deadline)), std::vector<error>(pages));
  auto reported = std::vector<int>(pages);
  const auto answers = waiting_store::wait<std::vector<result<void>>>([&](auto done) {
    store.backend().read(reads, no_deadline, done,
                         [&](size_t first, std::span<const result<void>> outcomes) {
                           for (auto i = first; i < first + outcomes.size(); ++i)
                             reported[i] += back[i] == contents[i] ? 1 : 1000;
                         });
  });
  EXPECT_EQ(errors_of(answers), std::vector<error>(pages));
  EXPECT_EQ(back, contents);
  EXPECT_EQ(reported, std::vector<int>(pages, 1));
}

TEST_F(SerdeBackendTest, AnObjectLongerThanTheMemoryFailsAlone) {
  auto store = open("lz4");
  const auto fits = bytes_of(1, 60'000);
  const auto too_long = bytes_of(2, 66'000);
  const auto answers = store.set(std::vector{page_write{key_of(1), {}, {fits}},
                                             page_write{key_of(2), {}, {too_long}},
                                             page_write{key_of(3), {}, {fits}}},
                                 no_deadline);
  EXPECT_TRUE(answers[0]);
  EXPECT_EQ(code_of(answers[1]), ec::limit_reached);
  EXPECT_TRUE(answers[2]);
  EXPECT_EQ(store.health().counters.errors, 1u);
}

TEST_F(SerdeBackendTest, TheStoreRegistersTheMemoryOfTheCodecs) {
  auto owned = std::make_unique<shared_store>(memory_);
  auto& inner = *owned;
  auto store = open(options("zstd"), std::move(owned));
  auto callers = page_bytes(4096);
  ASSERT_TRUE(store.backend().attach_memory(std::array{std::span{callers}}));
  ASSERT_EQ(inner.attached.size(), 1u);
  EXPECT_EQ(inner.attached[0].size(), uint64_t{64} << 10);
  EXPECT_NE(inner.attached[0].data(), callers.data());
  // Batches pass each other on the way to the store.
  EXPECT_TRUE(inner.capabilities().orders_writes);
  EXPECT_FALSE(store.capabilities().orders_writes);
}

TEST_F(SerdeBackendTest, AListThatThrowsFailsItsBatch) {
  auto store = open("zstd");
  const auto answers = waiting_store::wait<std::vector<result<void>>>([&](auto done) {
    store.backend().read(
      {2, []() -> std::vector<page_read> { throw std::runtime_error{"no list"}; }}, no_deadline,
      done, {});
  });
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[1].error(), (error{ec::io_failure, "a batch threw: no list"}));
  ASSERT_TRUE(put(store, key_of(1), bytes_of(1, 9)));
}

// -- stores that hang -------------------------------------------------------------

/// A decorator over a store whose reads return when the test says so.
class HangingStoreTest : public SerdeBackendTest {
protected:
  HangingStoreTest() {
    auto owned = std::make_unique<faulty_store>(std::make_unique<shared_store>(memory_));
    faulty_ = owned.get();
    auto made = options("aes-256-gcm");
    made.codec_bytes = uint64_t{16} << 10;
    store_ = open_owned(made, std::move(owned));
    EXPECT_TRUE(put(*store_, key_of(1), bytes_of(1, 10'000)));
    faulty_->set_faults([this](batch_kind kind) {
      if (kind != batch_kind::read)
        return store_fault::none;
      arrived_.set_value();
      return store_fault::late;
    });
  }

  /// Submits a read and waits until the store has it.
  storage_backend::batch_number read_into(page_bytes& back,
                                          std::promise<std::vector<result<void>>>& answer) {
    arrived_ = {};
    const auto number
      = store_->backend().read(std::vector{page_read{key_of(1), {back}}}, no_deadline,
                               [&](auto answers) { answer.set_value(std::move(answers)); }, {});
    arrived_.get_future().wait();
    return number;
  }

  faulty_store* faulty_ = nullptr;
  std::unique_ptr<waiting_store> store_;
  std::promise<void> arrived_;
};

TEST_F(HangingStoreTest, AnExpiredReadIsAnsweredAndItsMemoryIsFreeAtOnce) {
  auto back = page_bytes(10'000, std::byte{7});
  auto answer = std::promise<std::vector<result<void>>>{};
  const auto number = read_into(back, answer);
  // Whether a thread of the codecs still hands the call over depends on the moment; the answer does
  // not.
  EXPECT_NE(store_->backend().expire(number), storage_backend::expiry::withdrawn);
  const auto answers = answer.get_future().get();
  EXPECT_EQ(code_of(answers.at(0)), ec::deadline_exceeded);
  EXPECT_EQ(store_->backend().expire(number), storage_backend::expiry::finished);
  // The store brings the object later, into memory of the codecs.
  while (!faulty_->release_one(store_fault::late))
    std::this_thread::yield();
  EXPECT_EQ(back, page_bytes(10'000, std::byte{7}));
  faulty_->set_faults({});
  EXPECT_EQ(take(*store_, key_of(1), 10'000), bytes_of(1, 10'000));
}

TEST_F(HangingStoreTest, ReadsThatFindNoMemoryExpireAndLeaveTheQueue) {
  auto back = std::vector<page_bytes>(3, page_bytes(10'000));
  auto first = std::promise<std::vector<result<void>>>{};
  const auto stuck = read_into(back[0], first);
  // The stuck call holds 12 of 16 KiB.
  auto second = std::promise<std::vector<result<void>>>{};
  const auto waits
    = store_->backend().read(std::vector{page_read{key_of(1), {back[1]}}}, no_deadline,
                             [&](auto answers) { second.set_value(std::move(answers)); }, {});
  if (store_->backend().expire(waits) != storage_backend::expiry::withdrawn) {
    EXPECT_EQ(code_of(second.get_future().get().at(0)), ec::deadline_exceeded);
  }
  EXPECT_NE(store_->backend().expire(stuck), storage_backend::expiry::withdrawn);
  EXPECT_EQ(code_of(first.get_future().get().at(0)), ec::deadline_exceeded);
  faulty_->set_faults({});
  auto third = std::promise<std::vector<result<void>>>{};
  store_->backend().read(std::vector{page_read{key_of(1), {back[2]}}}, no_deadline,
                         [&](auto answers) { third.set_value(std::move(answers)); }, {});
  faulty_->release();
  EXPECT_TRUE(third.get_future().get().at(0));
  EXPECT_EQ(back[2], bytes_of(1, 10'000));
}

TEST_F(HangingStoreTest, ClosingDoesNotWaitLongerThanItsGrace) {
  auto back = page_bytes(10'000);
  auto answer = std::promise<std::vector<result<void>>>{};
  read_into(back, answer);
  EXPECT_FALSE(store_->backend().close(std::chrono::milliseconds{1}));
  EXPECT_EQ(answer.get_future().wait_for(std::chrono::seconds{0}), std::future_status::timeout);
  EXPECT_EQ(code_of(take(*store_, key_of(1), 10'000)), ec::stopping);
}

// -- options ----------------------------------------------------------------------

TEST_F(SerdeBackendTest, WithoutACodecTheStoreComesBackAsItIs) {
  auto owned = std::make_unique<shared_store>(memory_);
  const auto* inner = owned.get();
  const auto made = make_serde_backend(options("none"), std::move(owned), clock_);
  ASSERT_TRUE(made);
  EXPECT_EQ(made->get(), inner);
}

TEST_F(SerdeBackendTest, RefusesOptionsThatCannotWork) {
  const auto refused
    = [this](const serde_options& given, std::unique_ptr<storage_backend> store = {}) {
        if (store == nullptr)
          store = std::make_unique<shared_store>(memory_);
        const auto made = make_serde_backend(given, std::move(store), clock_);
        return made ? error{} : made.error();
      };
  auto given = options("zstd");
  given.codec_threads = 0;
  EXPECT_EQ(refused(given),
            (error{ec::invalid_argument, "0 threads cannot encode objects; expected 1 to 64"}));
  given = options("zstd");
  given.codec_bytes = 100;
  EXPECT_EQ(refused(given).code, ec::invalid_argument);
  given = options("aes-256-gcm");
  given.key_command = "true";
  EXPECT_EQ(refused(given),
            (error{ec::invalid_argument, "aes-256-gcm needs its keys from either a file or a "
                                         "command; both are given"}));
  given.key_command.clear();
  given.key_file.clear();
  EXPECT_EQ(refused(given).detail.substr(60), "neither is given");
  given.key_file = folder_.path() + "/missing";
  EXPECT_EQ(refused(given).code, ec::io_failure);
  const auto blind
    = [this] { return std::make_unique<faulty_store>(std::make_unique<shared_store>(memory_)); };
  EXPECT_EQ(refused(options("fp8+zstd"), blind()),
            (error{ec::unsupported,
                   "the backend 'memory' cannot tell how long an object is, so its objects cannot "
                   "be compressed; use fp8 or aes-256-gcm alone"}));
  EXPECT_EQ(refused(options("fp8+aes-256-gcm"), blind()), error{});
}

} // namespace
} // namespace hicache::test
