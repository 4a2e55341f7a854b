// What routers hear: events when facts are facts, with the namespace in the ids. Page 2.

#include "tests/cache/tree_driver.hpp"

#include <gtest/gtest.h>

using namespace hicache;
using namespace hicache::test;

namespace {

tree_options with_events(uint32_t l2_tokens = 0) {
  return {.page_size = 2, .l1_pages = 32, .l2_pages = l2_tokens / 2, .events = true};
}

using ids = std::vector<int64_t>;

ids ids_of(const std::vector<page_key>& keys) {
  auto list = ids{};
  for (const auto& key : keys)
    list.push_back(event_id(key));
  return list;
}

/// An event in few words: medium, ids.
struct seen {
  char what = '?';
  cache_medium medium = cache_medium::l1;
  ids pages;

  friend bool operator==(const seen&, const seen&) = default;

  friend void PrintTo(const seen& x, std::ostream* out) {
    *out << x.what << (x.medium == cache_medium::l1 ? " device" : " host");
    for (const auto id : x.pages)
      *out << ' ' << id;
  }
};

std::vector<seen> take(tree_driver& d) {
  auto list = std::vector<seen>{};
  for (const auto& event : name_events(d.tree.take_changes()))
    if (const auto* stored = std::get_if<pages_stored>(&event))
      list.push_back({'+', stored->medium, ids_of(stored->keys)});
    else if (const auto* removed = std::get_if<pages_removed>(&event))
      list.push_back({'-', removed->medium, ids_of(removed->keys)});
    else
      list.push_back({'0', cache_medium::l1, {}});
  return list;
}

constexpr auto device = cache_medium::l1;
constexpr auto host = cache_medium::l2;
const auto page_12 = int64_t{3817746824117602890};
const auto page_34 = int64_t{-4216701448867210342};
const auto page_56 = int64_t{-429401898661349585};

} // namespace

// Cases E1 to E3.
TEST(TreeEvents, InsertSplitAndEvict) {
  auto d = tree_driver{with_events()};
  EXPECT_EQ(take(d), (std::vector<seen>{{'0', device, {}}}));
  d.insert({1, 2, 3, 4});
  auto events = name_events(d.tree.take_changes());
  ASSERT_EQ(events.size(), 1);
  const auto first = std::get<pages_stored>(events[0]);
  EXPECT_EQ(ids_of(first.keys), (ids{page_12, page_34}));
  EXPECT_EQ(first.parent, std::nullopt);
  EXPECT_EQ(first.tokens, (tokens_t{1, 2, 3, 4}));
  EXPECT_EQ(first.medium, device);
  d.insert({1, 2, 5, 6});
  events = name_events(d.tree.take_changes());
  ASSERT_EQ(events.size(), 1) << "the split itself is nobody's business";
  const auto second = std::get<pages_stored>(events[0]);
  EXPECT_EQ(ids_of(second.keys), ids{page_56});
  ASSERT_TRUE(second.parent);
  EXPECT_EQ(event_id(*second.parent), page_12);
  EXPECT_EQ(second.tokens, (tokens_t{5, 6}));
  d.evict(2);
  EXPECT_EQ(take(d), (std::vector<seen>{{'-', device, {page_34}}}));
  ASSERT_TRUE(d.tree.clear());
  EXPECT_EQ(take(d), (std::vector<seen>{{'0', device, {}}}));
}

TEST(TreeEvents, CopiesCountWhenTheyAreFacts) {
  auto d = tree_driver{with_events(16)};
  const auto tokens = range(1, 13);
  take(d);
  d.insert(tokens);
  const auto stored = take(d);
  ASSERT_EQ(stored.size(), 1);
  const auto pages = stored[0].pages;
  d.run_all();
  EXPECT_TRUE(take(d).empty()) << "the copy is done, but not agreed";
  d.poll();
  EXPECT_EQ(take(d), (std::vector<seen>{{'+', host, pages}}));
  d.evict(12);
  EXPECT_EQ(take(d), (std::vector<seen>{{'-', device, pages}}));
  EXPECT_EQ(d.load_back(tokens), 12);
  EXPECT_TRUE(take(d).empty()) << "SGLang told it at issue (its defect D4)";
  d.finish();
  EXPECT_EQ(take(d), (std::vector<seen>{{'+', device, pages}}));
  d.evict(12);
  d.evict_l2(12);
  EXPECT_EQ(take(d), (std::vector<seen>{{'-', device, pages}, {'-', host, pages}}));
}

// Case E11.
TEST(TreeEvents, AdoptedPagesAreStoredAgain) {
  auto d = tree_driver{with_events(16)};
  d.insert({1, 2, 3, 4});
  d.finish();
  d.evict(4);
  take(d);
  d.insert({1, 2, 3, 4});
  EXPECT_EQ(take(d), (std::vector<seen>{{'+', device, {page_12, page_34}}}));
}

TEST(TreeEvents, NamespacesHaveOtherIds) {
  auto d = tree_driver{with_events()};
  take(d);
  d.insert({1, 2}, {"lora", ""});
  d.insert({1, 2}, {"", "tenant"});
  const auto events = name_events(d.tree.take_changes());
  ASSERT_EQ(events.size(), 2);
  const auto& lora = std::get<pages_stored>(events[0]);
  const auto& tenant = std::get<pages_stored>(events[1]);
  EXPECT_EQ(lora.ns, (cache_namespace{"lora", ""}));
  EXPECT_NE(ids_of(lora.keys), ids{page_12});
  EXPECT_NE(ids_of(tenant.keys), ids{page_12});
  EXPECT_NE(lora.keys, tenant.keys);
}

// Defect D3 of SGLang: its prefetched pages were removed without ever having been stored.
TEST(TreeEvents, PrefetchedPagesAreStoredOnTheHost) {
  auto options = with_events(32);
  options.storage_attached = true;
  options.prefetch_reserve_pages = 8;
  options.prefetch.threshold_tokens = 2;
  auto writer = tree_driver{options};
  writer.insert({1, 2, 3, 4});
  writer.finish();
  auto d = tree_driver{options};
  d.store = writer.store;
  take(d);
  const auto request = d.open({1, 2, 3, 4});
  EXPECT_EQ(d.tree.prefetch(request)->tokens, 4);
  d.settle();
  EXPECT_FALSE(d.tree.schedule(request)->ready);
  d.settle();
  d.run_all();
  d.poll();
  EXPECT_EQ(take(d), (std::vector<seen>{{'+', host, {page_12, page_34}}}));
  d.close(request);
}

// A router that has not heard of the parent has no place for the child.
TEST(TreeEvents, CopiesOfSeveralNodesAreStoredRootFirstInOneEvent) {
  auto d = tree_driver{with_events(32)};
  const auto tokens = range(1, 13);
  d.insert(tokens);
  const auto pages = take(d).back().pages;
  d.match(range(1, 5)); // Splits what is being written,
  d.match(range(1, 9));
  d.finish();
  EXPECT_EQ(take(d), (std::vector<seen>{{'+', host, pages}}));
  d.evict(12);
  take(d);
  EXPECT_EQ(d.load_back(tokens), 12); // and what is being loaded.
  d.finish();
  const auto events = name_events(d.tree.take_changes());
  ASSERT_EQ(events.size(), 1);
  const auto& loaded = std::get<pages_stored>(events[0]);
  EXPECT_EQ(ids_of(loaded.keys), pages);
  EXPECT_EQ(loaded.parent, std::nullopt);
  EXPECT_EQ(loaded.tokens, tokens);
}

// SGLang 0.5.23 gives these ids to the pages of tenant-a.
TEST(TreeEvents, SaltedPagesHaveTheIdsThatSglangGivesThem) {
  const auto first = int64_t{0x006feb306a146eed};
  const auto second = int64_t{0x41d4e9809872fe28};
  const auto tenant = cache_namespace{"", "tenant-a"};
  auto d = tree_driver{with_events(16)};
  take(d);
  d.insert({1, 2, 7, 8}, tenant);
  auto events = name_events(d.tree.take_changes());
  ASSERT_EQ(events.size(), 1);
  const auto& stored = std::get<pages_stored>(events[0]);
  EXPECT_EQ(ids_of(stored.keys), (ids{first, second}));
  EXPECT_EQ(stored.parent, std::nullopt);
  EXPECT_EQ(stored.ns, tenant);
  d.finish();
  take(d);
  d.insert({1, 2, 9, 9}, tenant);
  events = name_events(d.tree.take_changes());
  ASSERT_EQ(events.size(), 1);
  ASSERT_TRUE(std::get<pages_stored>(events[0]).parent);
  EXPECT_EQ(event_id(*std::get<pages_stored>(events[0]).parent), first);
  d.match({1, 2, 9, 9}, tenant);
  d.evict(2);
  EXPECT_EQ(take(d), (std::vector<seen>{{'-', device, {second}}}));
}

// Only rank 0 publishes, and its tree must be that of the others.
TEST(TreeEvents, ChangeNothingInTheTree) {
  const auto tenant = cache_namespace{"", "tenant-a"}; // Whose ids are not the names.
  auto options = with_events(32);
  auto with = tree_driver{options};
  options.events = false;
  auto without = tree_driver{options};
  for (auto* d : {&with, &without}) {
    d->insert(range(1, 13), tenant);
    d->finish();
  }
  const auto pages = take(with).back().pages;
  ASSERT_EQ(pages.size(), 6);
  for (auto* d : {&with, &without}) {
    for (auto page = 0; page < 3; ++page) {
      d->evict(2); // Splits a node of both tiers,
      d->poll();
    }
    EXPECT_EQ(d->tree.stats().nodes, 2) << "and what left L1 is one node again";
  }
  EXPECT_EQ(with.tree.digest(), without.tree.digest());
  take(with);
  static_cast<void>(with.tree.evict({cache_tier::l2, 12}));
  EXPECT_EQ(take(with), (std::vector<seen>{{'-', host, pages}}));
}

TEST(TreeEvents, NameTheirPagesWhenTheyAreRead) {
  auto d = tree_driver{with_events(16)};
  take(d);
  d.insert({1, 2, 3, 4});
  d.finish();
  d.evict(2);
  const auto changes = d.tree.take_changes();
  ASSERT_EQ(changes.size(), 3);
  const auto& names = *std::get<stored_change>(changes[0]).names.names;
  EXPECT_FALSE(names.is_known()) << "the tree has hashed tokens";
  EXPECT_EQ(name_events(changes).size(), 3);
  EXPECT_TRUE(names.is_known());
}

TEST(TreeEvents, AreOffUnlessAskedFor) {
  auto options = with_events();
  options.events = false;
  auto d = tree_driver{options};
  d.insert({1, 2, 3, 4});
  EXPECT_TRUE(name_events(d.tree.take_changes()).empty());
}

// -- names --------------------------------------------------------------------

TEST(PageNames, AreFilledInWhenAStoreIsAttached) {
  auto options = with_events(64);
  options.events = false;
  options.prefetch_reserve_pages = 4;
  auto d = tree_driver{options};
  d.insert({1, 2, 3, 4});
  d.insert({1, 2, 5, 6}, {"lora", ""});
  d.finish();
  EXPECT_TRUE(d.backups.empty());
  EXPECT_TRUE(d.reserve.empty());
  d.tree.change_storage({});
  d.settle();
  EXPECT_EQ(d.reserve.size(), 4);
  d.insert({1, 2, 3, 4, 5, 6});
  d.insert({1, 2, 5, 6, 7, 8}, {"lora", ""});
  d.finish();
  // The driver compares what goes to L3 with the names of the tokens.
  EXPECT_EQ(d.backups, (std::vector<uint64_t>{2, 2, 1, 1}));
  EXPECT_EQ(d.store.size(), 6);
  d.tree.change_storage({storage_change::action::detach});
  d.insert({9, 9});
  d.finish();
  EXPECT_EQ(d.backups.size(), 4);
}
