// A put in parts: what is sent when, and what becomes of it.

#include "actors/segment.hpp"
#include "backends/cluster/publication.hpp"
#include "base/limits.hpp"
#include "hicache/system_config.hpp"
#include "messages/page_header.hpp"
#include "tests/backends/backend_support.hpp"

#include <caf/actor_system.hpp>
#include <gtest/gtest.h>

#include <array>
#include <future>
#include <memory>
#include <vector>

namespace hicache::test {
namespace {

constexpr auto page_size = uint32_t{1} << 20;
constexpr auto part_pages = limits::put_part_bytes / page_size;

/// What a member is asked to copy, request by request.
using copy_requests = std::array<std::promise<page_copies>, 2>;

/// Has all that it is asked to copy.
member_actor::behavior_type run_target(member_actor::pointer self,
                                       std::shared_ptr<copy_requests> asked) {
  const auto nothing = [self](const auto&...) -> caf::result<page_totals> {
    return self->make_response_promise<page_totals>();
  };
  return {
    [asked, next = size_t{0}](atom::copy, const page_copies& pages) mutable {
      asked->at(next++).set_value(pages);
      return page_totals{pages.pages.size(), 0, {}};
    },
    [nothing](atom::pin, const page_pins& x) { return nothing(x); },
    [nothing](atom::clear, const namespace_pages& x) { return nothing(x); },
    [](atom::drain, const drain_request&) { return drain_report{}; },
    [](atom::status, const status_query&) { return drain_progress{}; },
    [](atom::resume, const drain_request&) { return drain_progress{}; },
    [](atom::touch, const key_batch&) {},
    [](atom::corrupt, const key_batch&) {},
    [](atom::recall, const page_recall&) { return placements{}; },
  };
}

class PublicationTest : public testing::Test {
protected:
  PublicationTest() {
    auto settings = segment_options{};
    settings.mounts.member.member = 1;
    settings.mounts.index = [] { return std::make_shared<const index_view>(); };
    settings.mounts.timeout = std::chrono::seconds{1};
    settings.memory = memory_;
    settings.figures = figures_;
    settings.clock = &clock_;
    segment_ = system_.spawn<caf::detached>(segment, std::move(settings));
    target_ = system_.spawn(run_target, asked_);
  }

  ~PublicationTest() override {
    self_->send_exit(segment_, caf::exit_reason::user_shutdown);
    self_->send_exit(target_, caf::exit_reason::user_shutdown);
    self_->wait_for(segment_, target_);
  }

  publication_options options() {
    return {segment_,
            1,
            7,
            2,
            [this](const page_key& first) {
              chosen_by_.push_back(first);
              return std::vector{target_};
            },
            &clock_,
            clock_.now() + std::chrono::seconds{20}};
  }

  std::vector<segment_slot> reserve(uint64_t count) {
    auto pages = segment_pages{};
    for (auto number = uint64_t{0}; number < count; ++number)
      pages.list.push_back({key_of(number), {}, page_size, 7, 0});
    auto slots = segment_slots{};
    self_->request(segment_, caf::infinite, atom::reserve_v, pages)
      .receive([&](segment_slots& x) { slots = std::move(x); },
               [](const caf::error& err) { FAIL() << to_string(from_caf(err)); });
    return slots.list;
  }

  /// Until the segment has answered all that it was asked by now.
  void wait_for_segment() {
    self_->request(segment_, caf::infinite, atom::status_v, status_query{})
      .receive([](const drain_progress&) {}, [](const caf::error&) {});
  }

  static page_write page(uint64_t number) { return {key_of(number), {}, {}}; }

  const monotonic_clock clock_;
  system_config config_;
  caf::actor_system system_{config_};
  caf::scoped_actor self_{system_};
  std::vector<std::byte> memory_
    = std::vector<std::byte>((part_pages + 1) * slot_bytes_for(page_size));
  std::shared_ptr<member_figures> figures_ = std::make_shared<member_figures>();
  std::shared_ptr<copy_requests> asked_ = std::make_shared<copy_requests>();
  segment_actor segment_;
  member_actor target_;
  std::vector<page_key> chosen_by_;
};

TEST_F(PublicationTest, OtherHostsCopyTheFirstPartBeforeTheNextIsComplete) {
  const auto slots = reserve(part_pages + 1);
  auto sut = publication{self_, options()};
  for (auto i = size_t{0}; i < part_pages; ++i)
    sut.add(i, page(i), slots[i]);
  wait_for_segment();
  EXPECT_EQ(figures_->pages, part_pages);
  sut.add(part_pages, page(part_pages), slots[part_pages]);
  const auto copies = (*asked_)[0].get_future().get();
  EXPECT_EQ(copies.source, 1u);
  ASSERT_EQ(copies.pages.size(), part_pages);
  EXPECT_EQ(copies.pages[1].page,
            (announced_page{key_of(1), slots[1].offset, slots[1].generation, page_size}));
  EXPECT_EQ(copies.pages[1].copies, 2u);
  EXPECT_EQ(chosen_by_, std::vector{key_of(0)});
  EXPECT_EQ(figures_->pages, part_pages) << "the last page is not complete for all it knows";
  auto outcome = std::vector<result<void>>(part_pages + 1);
  sut.finish(outcome);
  for (const auto& end : outcome)
    EXPECT_TRUE(end);
  EXPECT_EQ((*asked_)[1].get_future().get().pages.size(), 1u);
  EXPECT_EQ(chosen_by_.size(), 1u) << "all parts go to the same hosts";
  EXPECT_EQ(figures_->pages, part_pages + 1);
}

TEST_F(PublicationTest, PagesWhoseSegmentIsGoneFail) {
  const auto slots = reserve(2);
  auto sut = publication{self_, options()};
  sut.add(1, page(0), slots[0]);
  self_->send_exit(segment_, caf::exit_reason::user_shutdown);
  self_->wait_for(segment_);
  auto outcome = std::vector<result<void>>(3);
  sut.finish(outcome);
  EXPECT_TRUE(outcome[0]);
  EXPECT_FALSE(outcome[1]);
  EXPECT_TRUE(outcome[2]);
  EXPECT_TRUE(chosen_by_.empty()) << "there is nothing to copy";
}

} // namespace
} // namespace hicache::test
