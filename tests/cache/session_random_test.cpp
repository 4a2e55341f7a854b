// Random turns of many sessions. The engine checks that every token is in its slot and that nobody
// writes to shared pages; the cache checks its invariants; a replica has to agree.

#include "tests/cache/session_engine.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>

using namespace hicache;
using namespace hicache::test;

namespace {

class session_players {
public:
  session_players(const tree_options& options, uint32_t seed)
    : engine(options), random_(seed), capacity_(options.l1_pages) {}

  void play() {
    const auto name = session_id{1 + below(6)};
    const auto entry = sessions_.find(name);
    if (entry == sessions_.end()) {
      sessions_[name].ref = engine.open_session(name, below(3) > 0);
    } else if (entry->second.request != 0) {
      go_on(entry->second);
    } else if (below(12) == 0) {
      EXPECT_TRUE(engine.cache.close_session({entry->second.ref}));
      sessions_.erase(entry);
    } else {
      begin(entry->second);
    }
    if (below(4) == 0)
      engine.cache.evict({below(2) == 0 ? cache_tier::l1 : cache_tier::l2, below(20)});
    if (below(4) == 0)
      engine.run(other_prompt());
    if (below(3) == 0)
      for (const auto& ready : engine.step())
        for (auto& [_, who] : sessions_)
          who.is_pending = who.is_pending && who.request != ready.request;
  }

  /// Closes everything; then no page may be missing.
  void end() {
    for (auto& [name, session] : sessions_) {
      if (session.request != 0)
        engine.release(session.request);
      EXPECT_TRUE(engine.cache.close_session({session.ref}));
    }
    engine.finish();
    EXPECT_TRUE(engine.cache.clear());
    EXPECT_EQ(engine.cache.stats().l1_free, capacity_);
    engine.cache.check_invariants();
  }

  session_engine engine;
  /// Turns that went on inside a page.
  uint64_t resumed = 0;

private:
  struct player {
    session_ref ref;
    tokens_t history;
    /// The turn that is open, or 0; and its prompt.
    request_id request = 0;
    tokens_t prompt;
    uint64_t computed = 0;
    /// True while the turn waits for its prefetch, which finds nothing.
    bool is_pending = false;
  };

  uint64_t below(uint64_t bound) { return random_() % bound; }

  void extend(tokens_t& tokens, uint64_t count) {
    for (auto i = uint64_t{0}; i < count; ++i)
      tokens.push_back(static_cast<token_id>(below(3)));
  }

  tokens_t other_prompt() {
    auto prompt = tokens_t{};
    extend(prompt, 1 + below(12));
    return prompt;
  }

  /// A prompt that continues the history, repeats it, or diverges from it.
  void begin(player& who) {
    who.prompt = who.history;
    if (below(8) == 0)
      who.prompt.resize(below(who.prompt.size() + 1));
    if (who.prompt.size() > 40 || below(15) == 0)
      who.prompt.clear();
    extend(who.prompt, below(10));
    if (who.prompt.empty())
      extend(who.prompt, 1);
    who.request = ++last_request_;
    who.computed = 0;
    const auto matched = engine.match(who.request, who.prompt, who.ref);
    resumed += matched.l1_tokens % 4 > 0 ? 1 : 0;
    if (below(3) == 0) {
      EXPECT_TRUE(engine.cache.prefetch(who.request));
      who.is_pending = below(4) > 0 && !engine.cache.schedule(who.request)->ready;
    }
    if (!who.is_pending && below(2) == 0)
      engine.load(who.request);
  }

  /// Computes a part of the turn, with more tokens after the prompt; or ends it.
  void go_on(player& who) {
    if (who.is_pending && below(8) > 0)
      return;
    const auto rounds = ++who.computed;
    if (!who.is_pending && below(4) > 0 && rounds < 4) {
      if (rounds > 1)
        extend(who.prompt, below(6));
      if (engine.compute(who.request, who.prompt) && below(5) > 0) {
        engine.insert(who.request, who.prompt);
        who.history = who.prompt;
      }
      return;
    }
    engine.release(who.request);
    who.request = 0;
    who.is_pending = false;
  }

  std::mt19937 random_;
  uint64_t capacity_;
  std::map<session_id, player> sessions_;
  request_id last_request_ = 0;
};

struct setting {
  const char* name;
  tree_options options;
};

std::vector<setting> settings() {
  auto tree = tree_options{.page_size = 4, .l1_pages = 40};
  auto tiers
    = tree_options{.page_size = 4, .l1_pages = 40, .l2_pages = 40, .load_back_threshold_tokens = 4};
  auto chunk = tree_options{.page_size = 4, .l1_pages = 60};
  chunk.share_prefixes = false;
  return {{"tree", tree}, {"tiers", tiers}, {"chunk", chunk}};
}

} // namespace

TEST(SessionsAtRandom, EveryTokenIsInItsSlotAndReplicasAgree) {
  for (const auto& [name, options] : settings()) {
    auto resumed = uint64_t{0};
    for (auto seed = uint32_t{1}; seed <= 8; ++seed) {
      SCOPED_TRACE(testing::Message() << name << ", seed " << seed);
      auto players = session_players{options, seed};
      auto replica = session_players{options, seed};
      for (auto i = 0; i < 400 && !testing::Test::HasFailure(); ++i) {
        players.play();
        players.engine.cache.check_invariants();
        replica.play();
        ASSERT_EQ(players.engine.cache.digest(), replica.engine.cache.digest())
          << "operation " << i;
      }
      players.end();
      resumed += players.resumed;
      if (testing::Test::HasFailure())
        return;
    }
    EXPECT_GT(resumed, 80);
  }
}
