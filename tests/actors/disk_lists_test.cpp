// A node above a store that others use, too, and that does not tell what it evicts.

#include "actors/disk_tier.hpp"
#include "backends/memory_backend.hpp"
#include "backends/storage_queue.hpp"
#include "tests/actors/node_fixture.hpp"
#include "tests/backends/faulty_store.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <utility>

namespace hicache::test {
namespace {

using namespace std::chrono_literals;

class DiskListsTest : public NodeTest {
protected:
  DiskListsTest() { policy_.held_share = 1; }

  ~DiskListsTest() override { stop_all(); }

  void start_below() override {
    auto memory = make_memory_backend(0, clock);
    store_ = std::make_shared<faulty_store>(
      std::make_unique<storage_queue>(std::make_unique<silent_store>(std::move(memory)), 0));
    on_disk_ = std::make_shared<disk_figures>();
    disk_ = spawn(disk_tier,
                  disk_tier_options{store_, memory_, segment_, disk_pages_, on_disk_, &clock});
    caf::anon_send(segment_, atom::attach_v, caf::actor_cast<caf::strong_actor_ptr>(disk_));
    run();
  }

  void begin(uint32_t slots) {
    disk_pages_ = std::make_shared<disk_table>();
    start(slots, {0, 1, 1, 1});
  }

  /// Lets the time pass until the store is listed once more.
  void wait_for_list() {
    advance(limits::disk_list_pause);
    run();
  }

  /// As another node that has the same store.
  void store_elsewhere(uint64_t number) {
    const auto object = std::vector<std::byte>(64, static_cast<std::byte>(number));
    auto page = page_write{key_of(number), {}, {object}};
    const auto header = header_of(page, 0);
    page.parts.insert(page.parts.begin(), header);
    store_->write(std::vector{page}, time_point::max(), [](const auto&) {});
  }

  void remove_elsewhere(uint64_t number) {
    store_->remove(std::vector{key_of(number)}, time_point::max(), [](const auto&) {});
  }

  bool get(uint64_t number) {
    const auto one = client();
    auto wanted = lookup({number});
    wanted.wait_ms = 1000;
    const auto answer = look_up_as(one, wanted);
    if (answer.lease != 0) {
      EXPECT_TRUE(is_page(answer.places[0], number));
      EXPECT_TRUE(ask_as<page_totals>(one, atom::release_v, client_ticket{answer.lease}));
    }
    return answer.places[0].status == place_status::present;
  }

  std::shared_ptr<faulty_store> store_;

private:
  /// Memory that does not tell what it evicts.
  class silent_store final : public blocking_store {
  public:
    explicit silent_store(std::unique_ptr<blocking_store> inner) : inner_(std::move(inner)) {}

    std::string name() const override { return "silent"; }

    std::vector<bool> exists(std::span<const page_key> keys, time_point deadline) override {
      return inner_->exists(keys, deadline);
    }

    std::vector<result<void>> get(std::span<const page_read> pages, time_point deadline) override {
      return inner_->get(pages, deadline);
    }

    std::vector<result<void>> set(std::span<const page_write> pages, time_point deadline) override {
      return inner_->set(pages, deadline);
    }

    std::vector<result<void>> remove(std::span<const page_key> keys, time_point deadline) override {
      return inner_->remove(keys, deadline);
    }

    result<object_list> list(const std::string& from, time_point deadline) override {
      return inner_->list(from, deadline);
    }

    backend_health health() override { return inner_->health(); }

  private:
    std::unique_ptr<blocking_store> inner_;
  };
};

TEST_F(DiskListsTest, WhatAnotherNodeStoredIsFoundByTheNextList) {
  begin(2);
  store_elsewhere(1);
  EXPECT_FALSE(get(1));
  wait_for_list();
  EXPECT_TRUE(is_offered_on_disk(1));
  EXPECT_TRUE(get(1));
}

TEST_F(DiskListsTest, WhatIsGoneIsWithdrawnAfterTheNextList) {
  begin(1);
  const auto one = client();
  for (const auto number : {1, 2, 3})
    store_as(one, {static_cast<uint64_t>(number)});
  remove_elsewhere(1);
  EXPECT_TRUE(is_offered_on_disk(1)) << "nobody has said so";
  wait_for_list();
  EXPECT_TRUE(locate_anywhere(1).empty());
  EXPECT_TRUE(is_offered_on_disk(2));
  EXPECT_EQ(status().disk_pages, 2u);
  remove_elsewhere(2);
  wait_for_list();
  EXPECT_TRUE(locate_anywhere(2).empty()) << "it is listed again and again";
}

TEST_F(DiskListsTest, WhatIsGoneIsAMissAndWithdrawnWhenItIsWanted) {
  begin(1);
  store_as(client(), {1});
  store_as(client(), {2});
  remove_elsewhere(1);
  EXPECT_FALSE(get(1));
  EXPECT_TRUE(locate_anywhere(1).empty());
}

TEST_F(DiskListsTest, APageThatHasAnotherLengthThanListedIsAMiss) {
  begin(1);
  store_as(client(), {1});
  store_as(client(), {2});
  remove_elsewhere(1);
  const auto longer = std::vector<std::byte>(1000);
  store_->write(std::vector{page_write{key_of(1), {}, {longer}}}, time_point::max(),
                [](const auto&) {});
  EXPECT_FALSE(get(1));
  EXPECT_TRUE(locate_anywhere(1).empty());
}

TEST_F(DiskListsTest, AListThatFailsWithdrawsNothing) {
  begin(1);
  store_as(client(), {1});
  store_as(client(), {2});
  remove_elsewhere(1);
  store_->set_faults([](batch_kind kind) {
    return kind == batch_kind::list ? store_fault::torn : store_fault::none;
  });
  wait_for_list();
  EXPECT_TRUE(is_offered_on_disk(1));
  store_->set_faults({});
  wait_for_list();
  EXPECT_TRUE(locate_anywhere(1).empty());
}

} // namespace
} // namespace hicache::test
