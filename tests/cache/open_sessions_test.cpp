// Sessions: their numbers, their turns, and what a streaming session keeps between two turns.

#include "base/limits.hpp"
#include "cache/prefix/open_sessions.hpp"
#include "tests/cache/part_tree.hpp"

#include <numeric>

using namespace hicache;
using namespace hicache::test;

namespace {

/// Tokens 1, 2, ... as many; page size 4.
token_buffer count_to(uint64_t last) {
  auto tokens = std::vector<token_id>(last);
  std::iota(tokens.begin(), tokens.end(), 1);
  return std::make_shared<const std::vector<token_id>>(std::move(tokens));
}

template <class T>
ec code(const result<T>& outcome) {
  return outcome ? ec::none : outcome.error().code;
}

struct session_holder {
  session_holder() { settings.options.page_size = 4; }

  const session_state& open(session_id name, bool is_streaming = true) {
    const auto generation = part.open({name, is_streaming});
    EXPECT_TRUE(generation);
    return part.list().at(generation.value());
  }

  void begin(const session_state& session, request_id request) {
    if (session.is_streaming && !session.kept)
      part.change(session)->kept.emplace();
    part.begin_turn(session, request);
    part.check_invariants();
  }

  /// The turn inserts `tokens`; `shared` tells that the tree has its first pages.
  void insert(const session_state& session, uint64_t tokens, node_id shared = 0) {
    part.keep({*session.turn, count_to(tokens)}, {.node = shared}, session);
    part.check_invariants();
  }

  cache_settings settings;
  open_sessions part{settings};
};

} // namespace

TEST(OpenSessions, HaveAGenerationThatIsNeverUsedAgain) {
  auto d = session_holder{};
  EXPECT_EQ(code(d.part.open({0, true})), ec::invalid_argument);
  const auto& first = d.open(7);
  EXPECT_EQ(first.generation, 1);
  EXPECT_EQ(code(d.part.open({7, false})), ec::invalid_argument);
  EXPECT_EQ(*d.part.find({7, 1}), &first);
  d.part.close(first);
  EXPECT_EQ(code(d.part.find({7, 1})), ec::unknown_id);
  EXPECT_EQ(d.open(7).generation, 2);
  EXPECT_EQ(code(d.part.find({7, 1})), ec::unknown_id);
  EXPECT_EQ(code(d.part.find({8, 2})), ec::unknown_id);
}

TEST(OpenSessions, AreLimited) {
  auto d = session_holder{};
  for (auto name = session_id{1}; name <= limits::sessions_open; ++name)
    d.open(name);
  EXPECT_EQ(code(d.part.open({limits::sessions_open + 1, true})), ec::limit_reached);
  d.part.close(**d.part.find({1, 1}));
  EXPECT_EQ(code(d.part.open({limits::sessions_open + 1, true})), ec::none);
  d.part.check_invariants();
}

TEST(OpenSessions, HaveOneTurnAtATime) {
  auto d = session_holder{};
  const auto& streaming = d.open(7);
  const auto& other = d.open(8, false);
  d.begin(streaming, 21);
  d.begin(other, 22);
  const auto code_of = [&](const session_state& session, request_id request) {
    return code(d.part.find_for({request, {}, {}, 0, {session.name, session.generation}}));
  };
  EXPECT_EQ(code_of(streaming, 23), ec::invalid_argument);
  EXPECT_EQ(code(d.part.find_for({21})), ec::invalid_argument) << "the number is taken";
  EXPECT_EQ(code(d.part.find_for({streaming.inner()})), ec::invalid_argument);
  EXPECT_EQ(*d.part.find_for({23}), nullptr) << "no session is named";
  EXPECT_EQ(d.part.owner_of(21), &streaming);
  EXPECT_EQ(*d.part.inner_of(21), streaming.inner());
  EXPECT_EQ(*d.part.inner_of(22), 22) << "only streaming sessions have their own requests";
  EXPECT_EQ(code(d.part.inner_of(streaming.inner())), ec::unknown_id);
  EXPECT_EQ(d.part.find_inner(streaming.inner()), &streaming);
  EXPECT_EQ(d.part.find_inner(21), nullptr);
  d.insert(streaming, 4);
  d.part.end_turn(streaming);
  d.part.check_invariants();
  EXPECT_EQ(d.part.owner_of(21), nullptr);
  EXPECT_EQ(code_of(streaming, 21), ec::none);
}

TEST(OpenSessions, ResumeInsideAPageUnlessOthersShareIt) {
  struct example {
    uint64_t tokens, limit;
    node_id shared;
    uint64_t resumed; // 0: the turn starts with an ordinary match.
  };
  for (const auto& [tokens, limit, shared, resumed] : std::initializer_list<example>{
         {9, 8, 5, 6},
         {6, 6, 5, 6},
         {9, 5, 5, 5},
         {9, 4, 5, 4},
         {9, 3, 5, 0},
         {9, 3, 0, 3},
         {9, 0, 0, 0},
         {5, 5, 0, 0},
       }) {
    SCOPED_TRACE(testing::Message() << tokens << ' ' << limit << ' ' << shared);
    auto d = session_holder{};
    const auto& session = d.open(7);
    d.begin(session, 21);
    d.insert(session, 6, shared);
    const auto answer = d.part.resume({22, {}, count_to(tokens), limit}, session);
    ASSERT_EQ(answer.has_value(), resumed > 0);
    if (!answer)
      continue;
    EXPECT_EQ(answer->l1_tokens, resumed);
    EXPECT_EQ(answer->node, shared);
    EXPECT_EQ(session.kept->resumed, resumed);
  }
}

TEST(OpenSessions, ResumeOnlyWhatTheNextPromptBeginsWith) {
  auto d = session_holder{};
  const auto& session = d.open(7);
  d.begin(session, 21);
  d.insert(session, 6);
  auto other = *count_to(9);
  other[5] = 77;
  const auto diverging = std::make_shared<const std::vector<token_id>>(std::move(other));
  EXPECT_FALSE(d.part.resume({22, {}, diverging, 8}, session));
  EXPECT_FALSE(d.part.resume({22, {"adapter", ""}, count_to(9), 8}, session));
  d.settings.is_stopped = true;
  EXPECT_FALSE(d.part.resume({22, {}, count_to(9), 8}, session));
  d.settings.is_stopped = false;
  ASSERT_TRUE(d.part.resume({22, {}, count_to(9), 8}, session));
  EXPECT_EQ(code(d.part.check_insert({22, count_to(9)}, session)), ec::none);
  EXPECT_EQ(code(d.part.check_insert({22, diverging}, session)), ec::invalid_argument);
}

TEST(OpenSessions, KeepNoTurnThatMayChange) {
  auto d = session_holder{};
  const auto& session = d.open(7);
  d.begin(session, 21);
  EXPECT_FALSE(session.kept->can_stay()) << "nothing was inserted";
  d.insert(session, 6);
  EXPECT_TRUE(session.kept->can_stay());
  d.part.change(session)->kept->is_fetching = true;
  EXPECT_FALSE(session.kept->can_stay());
  // The end of the prefetch brought an L2 part up to token 8.
  d.part.forget_insert({21, 4, 4, 4}, session);
  EXPECT_FALSE(session.kept->can_stay());
  d.insert(session, 8);
  EXPECT_FALSE(session.kept->can_stay()) << "the L2 part goes beyond the insert";
  d.insert(session, 9);
  EXPECT_TRUE(session.kept->can_stay());
  d.part.change(session)->kept->has_failed = true;
  EXPECT_FALSE(session.kept->can_stay());
}

TEST(OpenSessions, DigestFollowsTheState) {
  const auto first = [](session_holder& d) -> const session_state& { return d.part.list().at(1); };
  expect_digest_follows<session_holder>({
    [](session_holder& d) { d.open(7); },
    [](session_holder& d) { d.open(8, false); },
    [&](session_holder& d) { d.begin(first(d), 21); },
    [&](session_holder& d) { d.insert(first(d), 6, 5); },
    [&](session_holder& d) { d.part.end_turn(first(d)); },
    [&](session_holder& d) {
      d.part.resume({22, {}, count_to(9), 8}, first(d));
    },
    [&](session_holder& d) { d.part.change(first(d))->kept->is_fetching = true; },
    [&](session_holder& d) { d.part.change(first(d))->kept.reset(); },
    [&](session_holder& d) { d.part.close(first(d)); },
  });
}

TEST(OpenSessionsDeathTest, CheckFindsATurnThatNobodyBegan) {
  auto d = session_holder{};
  d.begin(d.open(7, false), 21);
  d.part.change(d.open(8, false))->turn = 21;
  EXPECT_DEATH(d.part.check_invariants(), "turns_");
}
