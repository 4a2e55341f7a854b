// Open requests: their match and its locks, the pages they own, and what insert makes of them.

#include "cache/prefix/open_requests.hpp"
#include "tests/cache/part_tree.hpp"

using namespace hicache;
using namespace hicache::test;

namespace {

using pages = std::vector<page_index>;

struct request_holder : part_tree {
  explicit request_holder(const tree_options& options = part_options()) : part_tree(options) {}

  const open_request& open(request_id id, std::string_view path, uint64_t limit_tokens = 64) {
    const auto tokens = tokens_of(path);
    part.open({id, {}, tokens, std::min<uint64_t>(limit_tokens, tokens->size())}, id);
    check();
    return part.at(id);
  }

  void close(request_id id) {
    part.close(id);
    check();
  }

  /// The request gets pages to compute in.
  void own(request_id id, uint64_t count) { part.change(id)->owned = tree.take_l1(count).value(); }

  /// Pages [first, end) of the request.
  pages pages_of(request_id id, uint64_t first = 0, uint64_t end = UINT64_MAX) const {
    return *open_requests::pages_of(part.at(id), first, end);
  }

  void check() const { part_tree::check(pins, part); }

  open_backups backups{tree, settings, effects};
  open_copies copies{tree, backups, settings, effects};
  open_pins pins{tree, copies, settings};
  open_requests part{tree, pins, settings};
};

} // namespace

// -- match --------------------------------------------------------------------

TEST(OpenRequests, LockTheirMatchOnBothTiers) {
  auto d = request_holder{};
  const auto& ab = d.add("ab", held::l1);
  const auto& cd = d.add("abcd", held::l2);
  const auto& request = d.open(1, "abcx");
  EXPECT_EQ(request.l1_pages, 2);
  EXPECT_EQ(request.l2_pages, 1);
  EXPECT_EQ(d.pages_of(1), ab.l1_pages());
  EXPECT_EQ(request.end().end(), 3);
  EXPECT_EQ(cd.pages(), 1) << "the node is split at the end of the match";
  EXPECT_EQ(d.tree.evict_l1(16), 0);
  EXPECT_EQ(d.tree.evict_l2(16), 1);
  d.close(1);
  EXPECT_EQ(d.tree.evict_l2(16), 1);
  EXPECT_EQ(d.tree.evict_l1(16), 2);
}

TEST(OpenRequests, MatchNoMoreThanTheyMay) {
  auto d = request_holder{};
  d.add("abcd", held::l1);
  EXPECT_EQ(d.open(1, "abcd", 7).l1_pages, 3);
  d.settings.is_stopped = true;
  EXPECT_EQ(d.open(2, "abcd").l1_pages, 0);
  d.settings.is_stopped = false;
  d.settings.options.share_prefixes = false;
  EXPECT_EQ(d.open(3, "abcd").l1_pages, 0);
}

TEST(OpenRequests, HoldTheRootOfANewNamespace) {
  auto d = request_holder{};
  d.open(1, "ab");
  EXPECT_NE(d.tree.find_root({}), nullptr);
  d.close(1);
  EXPECT_EQ(d.tree.find_root({}), nullptr);
}

TEST(OpenRequests, TakeOverPagesThatCameToL1Meanwhile) {
  auto d = request_holder{};
  auto& ab = d.add("ab", held::l2);
  auto& cd = d.add("abcd", held::l2);
  d.open(1, "abcd");
  d.part.rematch_l1(*d.part.change(1));
  EXPECT_EQ(d.part.at(1).l2_pages, 4);
  for (auto* node : {&ab, &cd}) {
    d.tree.set_l1(*node, d.tree.take_l1(2).value());
    d.part.rematch_l1(*d.part.change(1));
    d.check();
    EXPECT_EQ(d.part.at(1).l1_end, node);
    EXPECT_EQ(d.part.at(1).matched_pages(), 4);
  }
  EXPECT_EQ(d.part.at(1).l2_end, nullptr);
  EXPECT_EQ(d.pages_of(1), (pages{1, 2, 3, 4}));
}

TEST(OpenRequests, AreToldWhatWasDiscarded) {
  auto d = request_holder{};
  d.add("ab", held::both);
  auto& cd = d.add("abcd", held::both);
  d.add("abcdef", held::l2);
  d.open(3, "abcd");
  d.open(1, "abcdef");
  d.open(2, "ab");
  d.tree.discard(cd);
  EXPECT_EQ(d.part.lose_discarded(2), (std::vector<request_id>{1, 3}));
  EXPECT_EQ(d.part.at(1).valid_pages, 2);
  EXPECT_EQ(d.part.at(1).l2_pages, 0);
  EXPECT_FALSE(d.part.at(2).has_failed());
  EXPECT_TRUE(d.part.lose_discarded(2).empty()) << "each once";
  for (const auto id : {1, 2, 3})
    d.close(static_cast<request_id>(id));
  EXPECT_EQ(d.tree.node_count(), 1);
}

// -- insert -------------------------------------------------------------------

TEST(OpenRequests, HandOverTheirPages) {
  auto d = request_holder{};
  const auto tokens = d.tokens_of("abcdef");
  d.open(1, "abcdefg");
  d.own(1, 7);
  const auto own = d.part.at(1).owned;
  const auto& ab = d.add("ab", held::l1);
  const auto& cd = d.add("abcd", held::l2);
  EXPECT_EQ(d.tree.l1_pool().free(), 7);
  const auto request = d.part.change(1);
  const auto [end, duplicates] = d.part.hand_over(*request, {1, tokens, 5}, 6);
  EXPECT_EQ(duplicates, 2);
  EXPECT_EQ(d.tree.l1_pool().free(), 9) << "the duplicates of ab are free";
  EXPECT_NE(ab.l1_pages(), (pages{own[0], own[1]}));
  EXPECT_EQ(cd.l1_pages(), (pages{own[2], own[3]}));
  EXPECT_EQ(end->l1_pages(), (pages{own[4], own[5]}));
  EXPECT_EQ(end->use().priority, 5);
  EXPECT_EQ(request->owned, pages{own[6]});
  d.part.move_l1_end(*request, *end);
  const auto& shared = ab.l1_pages();
  EXPECT_EQ(d.pages_of(1), (pages{shared[0], shared[1], own[2], own[3], own[4], own[5], own[6]}));
  EXPECT_EQ(d.pages_of(1, 1, 3), (pages{shared[1], own[2]}));
  EXPECT_EQ(d.pages_of(1, 5), (pages{own[5], own[6]}));
  EXPECT_EQ(d.pages_of(1, 7), pages{});
}

TEST(OpenRequests, RefuseToInsertWhatTheyDoNotHold) {
  auto d = request_holder{};
  d.add("ab", held::l1);
  const auto& request = d.open(1, "abcd");
  d.own(1, 2);
  const auto code = [&](const token_buffer& tokens) {
    const auto outcome = d.part.check_insert(request, {1, tokens});
    return outcome ? ec::none : outcome.error().code;
  };
  EXPECT_EQ(code(d.tokens_of("abcd")), ec::none);
  EXPECT_EQ(code(d.tokens_of("abxy")), ec::none) << "only what it matched is given";
  EXPECT_EQ(code(nullptr), ec::invalid_argument);
  EXPECT_EQ(code(d.tokens_of("a")), ec::invalid_argument);
  EXPECT_EQ(code(d.tokens_of("abcde")), ec::invalid_argument);
  EXPECT_EQ(code(d.tokens_of("axcd")), ec::invalid_argument);
}

// -- state --------------------------------------------------------------------

TEST(OpenRequests, TellWhereTheirTokensCameFrom) {
  auto d = request_holder{};
  d.add("abcdef", held::l1);
  d.open(1, "abcdefgh");
  EXPECT_EQ(d.part.provenance(d.part.at(1)), request_provenance{});
  {
    const auto request = d.part.change(1);
    request->has_computed = true;
    request->served_pages = 6;
    request->loaded_pages = 3;
    request->loaded_from_storage = 1;
    request->storage_backend = "file";
    request->miss(7, miss_reason::no_room);
    request->miss(4, miss_reason::too_short);
  }
  EXPECT_EQ(d.part.provenance(d.part.at(1)),
            (request_provenance{6, 4, 2, "file", 4, 2, miss_reason::no_room}));
  d.part.change(1)->valid_pages = 1;
  EXPECT_EQ(d.part.provenance(d.part.at(1)),
            (request_provenance{2, 0, 0, "", 14, 12, miss_reason::no_room}));
}

TEST(OpenRequests, TellWhichTiersOfL3TheirTokensCameFrom) {
  auto d = request_holder{};
  d.add("abcdef", held::l1);
  d.open(1, "abcdefgh");
  {
    const auto request = d.part.change(1);
    request->has_computed = true;
    request->served_pages = 6;
    request->loaded_pages = request->loaded_from_storage = 5;
    request->storage_backend = "tiered";
    request->fetched_above = {1, 1, 4};
    request->tiers = std::make_shared<const std::vector<std::string>>(
      std::vector<std::string>{"memory", "disk", "file", "s3"});
    request->load_ns = 70;
    request->compute_ns = 90;
  }
  const auto expected
    = std::vector<tier_tokens>{{"memory", 2}, {"disk", 0}, {"file", 6}, {"s3", 2}};
  const auto told = d.part.provenance(d.part.at(1));
  EXPECT_EQ(told.l3_tokens, 10u);
  EXPECT_EQ(told.l3_tiers, expected);
  EXPECT_EQ(told.load_estimate.count(), 70);
  EXPECT_EQ(told.compute_estimate.count(), 90);
  d.part.change(1)->loaded_from_storage = 3; // Not all that arrived was loaded.
  EXPECT_EQ(d.part.provenance(d.part.at(1)).l3_tiers,
            (std::vector<tier_tokens>{{"memory", 2}, {"disk", 0}, {"file", 4}, {"s3", 0}}));
}

TEST(OpenRequests, DigestFollowsTheState) {
  expect_digest_follows<request_holder>(
    {[](request_holder& d) { d.open(1, "ab"); },
     [](request_holder& d) { d.part.change(1)->is_scheduled = true; },
     [](request_holder& d) { d.part.change(1)->deadline_ns = 5; },
     [](request_holder& d) { d.own(1, 2); },
     [](request_holder& d) {
       d.add("x", held::l2);
       d.open(2, "xy");
     },
     [](request_holder& d) { d.part.drop_l2_part(*d.part.change(2)); },
     [](request_holder& d) { d.close(1); }});
}

TEST(OpenRequests, DigestOfACacheThatSharesNothingIsThatOfTheirOwnPages) {
  auto options = part_options();
  options.share_prefixes = false;
  auto d = request_holder{options};
  d.open(1, "ab");
  const auto before = d.part.digest();
  d.part.change(1)->is_scheduled = true;
  EXPECT_EQ(d.part.digest(), before);
  d.own(1, 2);
  EXPECT_NE(d.part.digest(), before);
}

TEST(OpenRequestsDeathTest, CheckFindsAPartThatItsNodesDoNotHave) {
  auto d = request_holder{};
  d.add("ab", held::l1);
  d.open(1, "ab");
  d.part.change(1)->l1_pages = 1;
  EXPECT_DEATH(d.part.check_invariants(), "l1_pages");
}
