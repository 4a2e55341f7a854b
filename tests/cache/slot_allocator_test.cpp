#include "cache/prefix/slot_allocator.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

using namespace hicache;

using slots = std::vector<slot_index>;

namespace {

slots taken(const result<slot_allocator::slots>& answer) {
  EXPECT_TRUE(answer) << to_string(answer.error());
  EXPECT_TRUE(answer && *answer) << "not enough room";
  return answer && *answer ? **answer : slots{};
}

bool is_short(const result<slot_allocator::slots>& answer) {
  return answer && !*answer;
}

template <class T>
std::string refusal(const result<T>& answer) {
  EXPECT_FALSE(answer);
  if (answer)
    return {};
  EXPECT_EQ(answer.error().code, ec::invalid_argument);
  return answer.error().detail;
}

} // namespace

// -- take ---------------------------------------------------------------------

TEST(SlotAllocator, HandsOutSlotsBehindThePaddingPage) {
  auto tokens = slot_allocator{5, 1};
  EXPECT_EQ(tokens.capacity(), 5);
  EXPECT_EQ(taken(tokens.take(3)), (slots{1, 2, 3}));
  EXPECT_EQ(tokens.free(), 2);
  auto paged = slot_allocator{5, 4};
  EXPECT_EQ(paged.capacity(), 20);
  EXPECT_EQ(taken(paged.take(8)), (slots{4, 5, 6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(paged.free(), 12);
  EXPECT_TRUE(paged.is_taken(11));
  EXPECT_FALSE(paged.is_taken(12));
  EXPECT_FALSE(paged.is_taken(3));
}

TEST(SlotAllocator, TakesWholePagesOnly) {
  auto pool = slot_allocator{2, 4};
  EXPECT_EQ(refusal(pool.take(5)), "5 slots are not whole pages of 4");
  EXPECT_TRUE(taken(pool.take(0)).empty());
  EXPECT_TRUE(is_short(pool.take(12)));
  EXPECT_EQ(taken(pool.take(8)).size(), 8);
  EXPECT_TRUE(is_short(pool.take(4)));
}

TEST(SlotAllocator, FollowsTheOrderOfThePages) {
  auto pool = slot_allocator{4, 2, page_order::ascending};
  taken(pool.take(8));
  ASSERT_TRUE(pool.give_back(slots{6}));
  ASSERT_TRUE(pool.give_back(slots{2}));
  EXPECT_EQ(taken(pool.take(4)), (slots{2, 3, 6, 7}));
}

// -- extend and decode --------------------------------------------------------

TEST(SlotAllocator, ExtendFillsTheLastPageThenWholePagesThenPartOfOne) {
  auto pool = slot_allocator{8, 4};
  EXPECT_EQ(taken(pool.extend(std::vector<slot_extension>{{0, 2, 0}})), (slots{4, 5}));
  EXPECT_EQ(taken(pool.extend(std::vector<slot_extension>{{2, 9, 5}})),
            (slots{6, 7, 8, 9, 10, 11, 12}));
  EXPECT_EQ(pool.free(), 20);
  EXPECT_EQ(taken(pool.extend(std::vector<slot_extension>{{9, 11, 12}})), (slots{13, 14}));
  EXPECT_EQ(pool.free(), 20);
}

TEST(SlotAllocator, ExtendServesABatchInItsOrder) {
  auto pool = slot_allocator{8, 4};
  taken(pool.extend(std::vector<slot_extension>{{0, 3, 0}, {0, 4, 0}}));
  const auto batch = std::vector<slot_extension>{{3, 5, 6}, {4, 6, 0}, {0, 0, 0}, {0, 1, 0}};
  EXPECT_EQ(taken(pool.extend(batch)), (slots{7, 12, 16, 17, 20}));
  EXPECT_EQ(pool.free(), 12);
}

TEST(SlotAllocator, ExtendServesAllOfABatchOrNone) {
  auto pool = slot_allocator{3, 4};
  taken(pool.extend(std::vector<slot_extension>{{0, 2, 0}}));
  const auto before = pool.digest();
  EXPECT_TRUE(is_short(pool.extend(std::vector<slot_extension>{{2, 8, 5}, {0, 5, 0}})));
  EXPECT_EQ(pool.digest(), before);
  EXPECT_EQ(taken(pool.extend(std::vector<slot_extension>{{2, 8, 5}, {0, 4, 0}})).size(), 10);
}

TEST(SlotAllocator, ExtendWithPagesOfOneTokenNeedsNoLastSlot) {
  auto pool = slot_allocator{8, 1};
  EXPECT_EQ(taken(pool.extend(std::vector<slot_extension>{{7, 9, 0}, {1, 2, 0}})),
            (slots{1, 2, 3}));
}

TEST(SlotAllocator, ExtendOfAnyLengthIsShortRatherThanWrong) {
  auto pool = slot_allocator{3, 1};
  EXPECT_TRUE(is_short(pool.extend(std::vector<slot_extension>{{0, UINT64_MAX, 0}, {0, 3, 0}})));
  EXPECT_EQ(pool.free(), 3);
}

TEST(SlotAllocator, ExtendRefusesALastSlotThatCannotBe) {
  auto pool = slot_allocator{4, 4};
  taken(pool.extend(std::vector<slot_extension>{{0, 2, 0}}));
  const auto before = pool.digest();
  EXPECT_EQ(refusal(pool.extend(std::vector<slot_extension>{{0, 9, 0}, {2, 3, 6}})),
            "request 1 of the batch cannot have token 1 in slot 6");
  EXPECT_EQ(refusal(pool.extend(std::vector<slot_extension>{{2, 3, 9}})),
            "request 0 of the batch cannot have token 1 in slot 9, which is not taken");
  EXPECT_EQ(refusal(pool.extend(std::vector<slot_extension>{{2, 3, 1}})),
            "request 0 of the batch cannot have token 1 in slot 1, which is not taken");
  EXPECT_EQ(refusal(pool.extend(std::vector<slot_extension>{{2, 1, 5}})),
            "request 0 of the batch shrinks from 2 to 1 tokens");
  EXPECT_EQ(refusal(pool.extend(std::vector<slot_extension>{{0, UINT64_MAX, 0}, {2, 3, 6}})),
            "request 1 of the batch cannot have token 1 in slot 6");
  EXPECT_EQ(pool.digest(), before);
}

TEST(SlotAllocator, DecodeTakesANewPageOnlyAtItsStart) {
  auto pool = slot_allocator{4, 4};
  taken(pool.extend(std::vector<slot_extension>{{0, 3, 0}, {0, 4, 0}}));
  EXPECT_EQ(taken(pool.decode(std::vector<slot_decode>{{4, 6}, {5, 11}})), (slots{7, 12}));
  EXPECT_EQ(pool.free(), 4);
  EXPECT_TRUE(is_short(pool.decode(std::vector<slot_decode>{{5, 7}, {6, 12}, {1, 0}})));
  EXPECT_EQ(taken(pool.decode(std::vector<slot_decode>{{5, 7}, {6, 12}})), (slots{16, 13}));
  EXPECT_EQ(pool.free(), 0);
}

TEST(SlotAllocator, DecodeRefusesARequestWithoutTokensOrInAnotherSlot) {
  auto pool = slot_allocator{4, 4};
  taken(pool.extend(std::vector<slot_extension>{{0, 3, 0}}));
  EXPECT_EQ(refusal(pool.decode(std::vector<slot_decode>{{4, 6}, {0, 0}})),
            "request 1 of the batch has no new token");
  EXPECT_EQ(refusal(pool.decode(std::vector<slot_decode>{{4, 5}})),
            "request 0 of the batch cannot have token 2 in slot 5");
}

// -- give_back (cases N2 and N4) ----------------------------------------------

TEST(SlotAllocator, FreesNothingForNothing) {
  auto pool = slot_allocator{4, 4};
  EXPECT_EQ(pool.give_back({}), 0);
}

TEST(SlotAllocator, NamesTheSlotThatIsFreedTwiceOrWasNeverTaken) {
  for (const auto page_size : {1u, 4u}) {
    SCOPED_TRACE("page size " + std::to_string(page_size));
    auto pool = slot_allocator{16 / page_size, page_size};
    const auto all = taken(pool.take(8));
    ASSERT_EQ(pool.give_back(slots{all[0]}), page_size);
    const auto before = pool.digest();
    const auto named
      = [](slot_index slot) { return "slot " + std::to_string(slot) + " is not taken"; };
    EXPECT_EQ(refusal(pool.give_back(slots{all[7], all[0]})), named(all[0]));
    const auto never = all[7] + 1;
    EXPECT_EQ(refusal(pool.give_back(slots{all[7], never})), named(never));
    EXPECT_EQ(refusal(pool.give_back(slots{all[7], 0})), named(0));
    EXPECT_EQ(refusal(pool.give_back(slots{UINT32_MAX})), named(UINT32_MAX));
    EXPECT_EQ(refusal(pool.give_back(slots{all[7], all[6], all[7]})),
              "slot " + std::to_string(all[7]) + " is given back twice");
    EXPECT_EQ(pool.digest(), before);
    EXPECT_TRUE(pool.is_taken(all[7]));
  }
}

TEST(SlotAllocator, FreesTheDistinctPagesOfASegment) {
  for (const auto length : {1u, 4u, 5u, 11u})
    for (auto start = 0u; start <= length; ++start)
      for (auto end = start; end <= length; ++end) {
        SCOPED_TRACE(testing::Message() << "[" << start << "," << end << ") of " << length);
        auto pool = slot_allocator{4, 4};
        auto row = taken(pool.extend(std::vector<slot_extension>{{0, length, 0}}));
        auto segment = slots(row.begin() + start, row.begin() + end);
        auto pages = std::set<page_index>{};
        for (const auto slot : segment)
          pages.insert(slot / 4);
        std::reverse(segment.begin(), segment.end());
        const auto free = pool.free();
        EXPECT_EQ(pool.give_back(segment), pages.size() * 4);
        EXPECT_EQ(pool.free(), free + pages.size() * 4);
        for (const auto slot : row)
          EXPECT_EQ(pool.is_taken(slot), !pages.contains(slot / 4)) << "slot " << slot;
      }
}

TEST(SlotAllocator, AGroupFreesItsPagesWhenItEnds) {
  auto pool = slot_allocator{3, 4};
  auto row = taken(pool.take(12));
  pool.begin_group();
  EXPECT_EQ(pool.give_back(std::span{row}.first(4)), 4);
  EXPECT_EQ(refusal(pool.give_back(slots{5})), "slot 5 is not taken");
  EXPECT_EQ(pool.give_back(std::span{row}.last(2)), 4);
  std::fill(row.begin(), row.end(), 8);
  EXPECT_EQ(pool.free(), 0);
  EXPECT_TRUE(is_short(pool.take(4)));
  EXPECT_TRUE(pool.end_group());
  EXPECT_EQ(pool.free(), 8);
  EXPECT_TRUE(pool.is_taken(8));
  EXPECT_EQ(refusal(pool.end_group()), "a free group ends that did not begin");
}

TEST(SlotAllocator, ClearFreesEverythingOnce) {
  for (const auto order : {page_order::newest_first, page_order::ascending}) {
    auto pool = slot_allocator{3, 4, order};
    const auto before = pool.digest();
    const auto row = taken(pool.take(12));
    pool.begin_group();
    ASSERT_TRUE(pool.give_back(slots{8}));
    pool.clear();
    EXPECT_EQ(pool.digest(), before);
    EXPECT_EQ(pool.free(), 12);
    EXPECT_EQ(refusal(pool.give_back(slots{row[0]})), "slot 4 is not taken");
    EXPECT_EQ(refusal(pool.end_group()), "a free group ends that did not begin");
    EXPECT_EQ(taken(pool.take(12)), row);
  }
}

TEST(SlotAllocator, ClearKeepsTheOrderOfThePages) {
  auto pool = slot_allocator{3, 4, page_order::ascending};
  pool.clear();
  taken(pool.take(12));
  ASSERT_TRUE(pool.give_back(slots{4, 8}));
  EXPECT_EQ(taken(pool.take(4)), (slots{4, 5, 6, 7}));
}

TEST(SlotAllocatorDeathTest, HasSlotsForEveryPage) {
  EXPECT_DEATH((slot_allocator{UINT32_MAX, 2}), "slot_index");
  EXPECT_DEATH((slot_allocator{1, 0}), "page_size");
}

// -- against a reference ------------------------------------------------------

namespace {

/// Which pages are taken, held by a group, or free: sets, written for clarity.
struct naive_slots {
  uint32_t page_size;
  std::set<page_index> free;
  std::set<page_index> held;
  std::set<page_index> taken;
  bool grouping = false;
};

/// Drives a pool and its twin with random calls, and foretells the answers.
class slot_driver {
public:
  slot_driver(uint32_t seed, page_order order)
    : random_(seed), naive_{1u << random_() % 5, {}, {}, {}}, pages_(1 + random_() % 40),
      pool_(pages_, naive_.page_size, order), twin_(pages_, naive_.page_size, order) {
    free_all();
  }

  void step() {
    switch (random_() % 16) {
      case 0:
        return take();
      case 1:
        return clear();
      case 2:
        return toggle_group();
      case 3:
        return free_garbage();
      case 4:
      case 5:
      case 6:
        return free_tail();
      case 7:
      case 8:
      case 9:
      case 10:
        return extend();
      default:
        return decode();
    }
  }

  void check() {
    ASSERT_EQ(pool_.free(), naive_.free.size() * naive_.page_size);
    ASSERT_EQ(pool_.digest(), twin_.digest());
    for (auto slot = slot_index{0}; slot < (pages_ + 2) * naive_.page_size; ++slot)
      ASSERT_EQ(pool_.is_taken(slot), naive_.taken.contains(page_of(slot))) << "slot " << slot;
  }

private:
  page_index page_of(slot_index slot) const { return slot / naive_.page_size; }

  void free_all() {
    naive_ = {naive_.page_size, {}, {}, {}};
    for (auto page = page_index{1}; page <= pages_; ++page)
      naive_.free.insert(page);
    requests_.clear();
  }

  /// Appends slots to a request; each must follow the one before or begin a page that was free.
  void enter(uint64_t request, std::span<const slot_index> added) {
    auto& row = requests_[request];
    for (const auto slot : added) {
      if (row.size() % naive_.page_size == 0) {
        ASSERT_EQ(slot % naive_.page_size, 0);
        ASSERT_EQ(naive_.free.erase(page_of(slot)), 1) << "slot " << slot;
        naive_.taken.insert(page_of(slot));
      } else {
        ASSERT_EQ(slot, row.back() + 1);
      }
      row.push_back(slot);
    }
  }

  void take() {
    const auto page_count = random_() % 8;
    const auto count = page_count * naive_.page_size;
    const auto answer = pool_.take(count);
    ASSERT_EQ(answer, twin_.take(count));
    ASSERT_TRUE(answer);
    ASSERT_EQ(answer->has_value(), page_count <= naive_.free.size());
    if (*answer) {
      ASSERT_EQ((*answer)->size(), count);
      enter(next_request_++, **answer);
    }
  }

  /// Up to four requests, old and new, in an order of chance.
  std::vector<uint64_t> choose() {
    auto chosen = std::vector<uint64_t>{};
    for (const auto& [request, row] : requests_)
      chosen.push_back(request);
    std::shuffle(chosen.begin(), chosen.end(), random_);
    chosen.resize(std::min<size_t>(chosen.size(), random_() % 4));
    return chosen;
  }

  /// Serves a batch by `serve` where request i grows to `lengths[i]`.
  template <class Serve>
  void grow(const std::vector<uint64_t>& chosen, const std::vector<size_t>& lengths, Serve serve) {
    auto needed = size_t{0};
    for (auto i = size_t{0}; i < chosen.size(); ++i)
      for (auto token = requests_[chosen[i]].size(); token < lengths[i]; ++token)
        needed += token % naive_.page_size == 0 ? 1 : 0;
    const auto answer = serve(pool_);
    ASSERT_EQ(answer, serve(twin_));
    ASSERT_TRUE(answer);
    ASSERT_EQ(answer->has_value(), needed <= naive_.free.size());
    auto at = size_t{0};
    for (auto i = size_t{0}; *answer && i < chosen.size(); ++i) {
      const auto count = lengths[i] - requests_[chosen[i]].size();
      ASSERT_LE(at + count, (*answer)->size());
      enter(chosen[i], std::span{**answer}.subspan(at, count));
      at += count;
    }
    ASSERT_TRUE(!*answer || at == (*answer)->size());
  }

  void extend() {
    auto chosen = choose();
    requests_[next_request_];
    chosen.push_back(next_request_++);
    auto lengths = std::vector<size_t>{};
    auto batch = std::vector<slot_extension>{};
    for (const auto request : chosen) {
      const auto& row = requests_[request];
      lengths.push_back(row.size() + random_() % (4 * naive_.page_size));
      batch.push_back({row.size(), lengths.back(), row.empty() ? 0 : row.back()});
    }
    grow(chosen, lengths, [&](slot_allocator& pool) { return pool.extend(batch); });
  }

  void decode() {
    const auto chosen = choose();
    auto lengths = std::vector<size_t>{};
    auto batch = std::vector<slot_decode>{};
    for (const auto request : chosen) {
      const auto& row = requests_[request];
      lengths.push_back(row.size() + 1);
      batch.push_back({lengths.back(), row.empty() ? 0 : row.back()});
    }
    grow(chosen, lengths, [&](slot_allocator& pool) { return pool.decode(batch); });
  }

  /// Frees a request from a page boundary on, naming its slots in an order of chance.
  void free_tail() {
    for (const auto request : choose()) {
      auto& row = requests_[request];
      const auto keep = random_() % (row.size() / naive_.page_size + 1) * naive_.page_size;
      auto freed = slots(row.begin() + static_cast<std::ptrdiff_t>(keep), row.end());
      row.resize(keep);
      std::shuffle(freed.begin(), freed.end(), random_);
      auto pages = std::set<page_index>{};
      for (const auto slot : freed)
        pages.insert(page_of(slot));
      const auto answer = pool_.give_back(freed);
      ASSERT_EQ(answer, twin_.give_back(freed));
      ASSERT_EQ(answer, pages.size() * naive_.page_size);
      for (const auto page : pages)
        naive_.taken.erase(page);
      (naive_.grouping ? naive_.held : naive_.free).merge(pages);
    }
  }

  /// Frees slots of chance of which at least one is not taken.
  void free_garbage() {
    auto freed = slots{};
    for (auto i = random_() % 4; i > 0; --i)
      freed.push_back(1 + random_() % (pages_ * naive_.page_size));
    auto foreign = slots{static_cast<slot_index>(random_() % naive_.page_size)};
    for (const auto page : naive_.free)
      foreign.push_back(page * naive_.page_size);
    for (const auto page : naive_.held)
      foreign.push_back(page * naive_.page_size);
    freed.push_back(foreign[random_() % foreign.size()]);
    const auto before = pool_.digest();
    ASSERT_FALSE(pool_.give_back(freed));
    ASSERT_EQ(pool_.digest(), before);
  }

  void toggle_group() {
    if (naive_.grouping) {
      ASSERT_TRUE(pool_.end_group() && twin_.end_group());
      naive_.free.merge(naive_.held);
    } else {
      pool_.begin_group();
      twin_.begin_group();
    }
    naive_.grouping = !naive_.grouping;
  }

  void clear() {
    if (random_() % 8 != 0)
      return;
    pool_.clear();
    twin_.clear();
    free_all();
  }

  std::mt19937 random_;
  naive_slots naive_;
  uint32_t pages_;
  slot_allocator pool_;
  slot_allocator twin_;
  std::map<uint64_t, slots> requests_;
  uint64_t next_request_ = 1;
};

} // namespace

TEST(SlotAllocator, AgreesWithANaiveReference) {
  for (auto seed = 0u; seed < 100; ++seed)
    for (const auto order : {page_order::newest_first, page_order::ascending}) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", order "
                   + std::to_string(static_cast<int>(order)));
      auto driver = slot_driver{seed, order};
      for (auto step = 0; step < 200; ++step) {
        SCOPED_TRACE("step " + std::to_string(step));
        driver.step();
        driver.check();
        if (HasFatalFailure())
          return;
      }
    }
}
