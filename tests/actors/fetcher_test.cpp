// How pages of other members are brought here.

#include "actors/fetcher.hpp"
#include "base/limits.hpp"
#include "tests/actors/segment_fixture.hpp"

#include <algorithm>
#include <set>

namespace hicache {
namespace {

using namespace hicache::test;
using namespace std::chrono_literals;

class FetcherTest : public SegmentTest {
protected:
  void SetUp() override {
    start_index();
    start_segment(4);
    replicator_ = spawn([this](replicator_actor::pointer) -> replicator_actor::behavior_type {
      return {[this](atom::copy, const page_copies& pages, const caf::strong_actor_ptr&) {
        asked_.push_back(pages);
        auto totals = page_totals{};
        for (const auto& copied : pages.pages)
          if (failing_.contains(pages.source))
            totals.left_out.push_back(copied.page.key);
          else
            ++totals.pages;
        clock.advance(copying_time_);
        return totals;
      }};
    });
    auto options = fetcher_options{};
    options.locate = [this](std::span<const page_key> keys, time_point) {
      auto where = placements{};
      for (const auto& key : keys)
        where.replicas.push_back(replicas_[key]);
      return where;
    };
    options.replicator = replicator_;
    options.segment = segment_;
    options.member = 1;
    options.clock = &clock;
    fetcher_ = spawn(fetcher, options);
  }

  void fetch(const std::vector<uint64_t>& numbers) {
    auto wanted = page_fetch{{}, clock.now() + 1s};
    for (const auto number : numbers)
      wanted.pages.list.push_back({key_of(number), key_of(number + 100), 0, 7, 5});
    EXPECT_TRUE(ask<atom::ok>(fetcher_, atom::fetch_v, wanted));
  }

  /// (member, number of its pages) of each request.
  std::vector<std::pair<uint64_t, size_t>> requests() const {
    auto list = std::vector<std::pair<uint64_t, size_t>>{};
    for (const auto& one : asked_)
      list.emplace_back(one.source, one.pages.size());
    return list;
  }

  std::map<page_key, replica_list> replicas_;
  std::set<uint64_t> failing_;
  std::vector<page_copies> asked_;
  duration copying_time_{};
  replicator_actor replicator_;
  fetcher_actor fetcher_;
};

using request_list = std::vector<std::pair<uint64_t, size_t>>;

TEST_F(FetcherTest, EachMemberIsAskedOnceForItsPages) {
  replicas_[key_of(1)] = {{2, 640, 9, 64}};
  replicas_[key_of(2)] = {{3, 0, 1, 64}};
  replicas_[key_of(3)] = {{2, 0, 1, 64}};
  fetch({1, 2, 3, 4});
  EXPECT_EQ(requests(), (request_list{{2, 2}, {3, 1}}));
  const auto& copied = asked_[0].pages[0];
  EXPECT_EQ(copied.page, (announced_page{key_of(1), 640, 9, 64}));
  EXPECT_EQ(copied.parent, key_of(101));
  EXPECT_EQ(copied.fingerprint, 7u);
  EXPECT_EQ(copied.tenant, 5u);
}

TEST_F(FetcherTest, APageThatOneMemberDoesNotGiveIsAskedOfTheNext) {
  replicas_[key_of(1)] = {{2, 0, 1, 64}, {3, 0, 1, 64}};
  failing_ = {2};
  fetch({1});
  EXPECT_EQ(requests(), (request_list{{2, 1}, {3, 1}}));
  failing_ = {2, 3};
  fetch({1});
  EXPECT_EQ(asked_.size(), 4u) << "and then of nobody";
}

TEST_F(FetcherTest, MembersThatHaveAPageInMemoryAreAskedFirst) {
  replicas_[key_of(1)] = {{2, disk_offset, 0, 64}, {3, 0, 1, 64}};
  replicas_[key_of(2)] = {{2, disk_offset, 0, 64}};
  failing_ = {3};
  fetch({1, 2});
  EXPECT_EQ(requests(), (request_list{{2, 1}, {3, 1}, {2, 1}}));
  EXPECT_EQ(asked_[0].pages[0].page.key, key_of(2));
}

TEST_F(FetcherTest, ThisMemberIsNotAsked) {
  replicas_[key_of(1)] = {{1, 0, 1, 64}, {3, 0, 1, 64}};
  replicas_[key_of(2)] = {{1, 0, 1, 64}};
  fetch({1, 2});
  EXPECT_EQ(requests(), (request_list{{3, 1}}));
}

TEST_F(FetcherTest, BatchesAreNoLargerThanACopierTakes) {
  auto numbers = std::vector<uint64_t>{};
  for (auto i = uint64_t{1}; i <= limits::storage_batch_pages + 1; ++i) {
    numbers.push_back(i);
    replicas_[key_of(i)] = {{2, 0, 1, 64}};
  }
  fetch(numbers);
  EXPECT_EQ(requests(), (request_list{{2, limits::storage_batch_pages}, {2, 1}}));
}

TEST_F(FetcherTest, NothingIsTriedWhenTheTimeIsOver) {
  replicas_[key_of(1)] = {{2, 0, 1, 64}, {3, 0, 1, 64}};
  failing_ = {2};
  copying_time_ = 2s;
  fetch({1});
  EXPECT_EQ(requests(), (request_list{{2, 1}}));
  auto late = page_fetch{{}, clock.now()};
  late.pages.list.push_back({key_of(1), {}});
  EXPECT_TRUE(ask<atom::ok>(fetcher_, atom::fetch_v, late));
  EXPECT_EQ(asked_.size(), 1u);
}

TEST_F(FetcherTest, ADeadCopierEndsTheFetch) {
  replicas_[key_of(1)] = {{2, 0, 1, 64}, {3, 0, 1, 64}};
  stop(replicator_);
  fetch({1});
}

} // namespace
} // namespace hicache
