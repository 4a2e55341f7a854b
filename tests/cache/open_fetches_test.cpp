// Prefetches: which fetch a request joins, what it gets of it, turns, deadlines, the staging pool.

#include "base/limits.hpp"
#include "cache/prefix/open_fetches.hpp"
#include "tests/cache/part_tree.hpp"

#include <deque>
#include <map>
#include <random>
#include <string>

using namespace hicache;
using namespace hicache::test;

namespace {

/// A request's fetch is worth it from two pages on. The staging pool has half of L2.
tree_options with_l3(prefetch_policy policy = prefetch_policy::wait_complete) {
  auto options = part_options();
  options.storage_attached = true;
  options.storage_backend = "file";
  options.prefetch_reserve_pages = 8;
  options.prefetch = {.policy = policy, .threshold_tokens = 4};
  return options;
}

/// How a fetch ended: pages that this rank has, and what all ranks agreed on.
struct outcome {
  fetch_id id = 0;
  uint64_t present = 0;
  fetch_fact fact;
};

outcome arrived(fetch_id id, uint64_t pages) {
  return {id, pages, {static_cast<int64_t>(pages), static_cast<int64_t>(pages)}};
}

struct fetcher : part_tree {
  explicit fetcher(const tree_options& options = with_l3()) : part_tree(options) {
    part.fill_staging();
    settle();
  }

  void open(request_id id, const token_buffer& tokens, const cache_namespace& ns = {}) {
    requests.open({id, ns, tokens, tokens->size()}, id);
  }

  /// Opens a request and begins its prefetch. @returns the fetch that it waits for, or 0.
  fetch_id begin(request_id id, std::string_view path, const cache_namespace& ns = {}) {
    open(id, tokens_of(path), ns);
    return begin(id);
  }

  fetch_id begin(request_id id) {
    part.begin(id);
    settle();
    return fetch_of(id);
  }

  fetch_id fetch_of(request_id id) const { return requests.at(id).fetch; }

  void close(request_id id) {
    part.leave(id);
    requests.close(id);
    settle();
  }

  std::vector<ready_request> finish(const std::vector<outcome>& ended,
                                    int64_t next_fetch = step_facts::no_fetch) {
    auto facts = step_facts{};
    facts.next_fetch = next_fetch;
    auto lists = std::vector<page_list>{};
    for (const auto id : part.next()) {
      const auto end = std::ranges::find(ended, id, &outcome::id);
      facts.fetches.push_back(end == ended.end() ? fetch_fact{} : end->fact);
      auto pages = std::vector<page_index>{};
      for (auto i = uint64_t{0}; end != ended.end() && i < end->present; ++i) {
        pages.push_back(pool.front());
        pool.pop_front();
      }
      lists.push_back(std::make_shared<const std::vector<page_index>>(std::move(pages)));
    }
    part.check_facts(facts, lists);
    auto ready = part.finish(facts, lists);
    settle();
    return ready;
  }

  /// A step that says what time it is.
  void step(int64_t now_ns) {
    settings.now_ns = now_ns;
    part.expire_fetches();
    settle();
  }

  /// Fetches that were told to end.
  std::vector<fetch_id> terminated() {
    auto list = std::vector<fetch_id>{};
    for (const auto& each : take<terminate_command>())
      list.push_back(each.id);
    return list;
  }

  /// Takes over pages of the staging pool, and checks that the tree and the pool have all pages.
  void settle() {
    for (const auto& each : take<staging_command>())
      pool.insert(pool.end(), each.l2_pages->begin(), each.l2_pages->end());
    check(pins, requests, part);
    auto taken = part.reserved().size();
    for (const auto* node : tree.sorted_nodes())
      taken += node->l2_pages().size();
    EXPECT_EQ(taken, tree.l2_pool().capacity() - tree.l2_pool().free());
  }

  open_backups backups{tree, settings, effects};
  open_copies copies{tree, backups, settings, effects};
  open_pins pins{tree, copies, settings};
  open_requests requests{tree, pins, settings};
  open_fetches part{tree, requests, settings, effects};
  /// What the prefetcher has of the staging pool.
  std::deque<page_index> pool;
};

} // namespace

// -- joining ------------------------------------------------------------------

TEST(OpenFetches, JoinTheOldestThatBringsEnough) {
  auto d = fetcher{};
  EXPECT_EQ(d.begin(1, "abcdef"), 1);
  EXPECT_EQ(d.begin(2, "abcdef"), 1);
  EXPECT_EQ(d.begin(3, "abcdefgh"), 1);
  EXPECT_EQ(d.begin(4, "abxy"), 1) << "two pages are enough";
  EXPECT_EQ(d.begin(5, "axyz"), 2);
  EXPECT_EQ(d.begin(6, "axyz"), 2);
  EXPECT_EQ(d.begin(7, "abcdef", {"adapter", ""}), 3);
  EXPECT_EQ(d.begin(8, "abcdef", {"", "tenant"}), 4);
  EXPECT_EQ(d.begin(9, "abcd", {"", "tenant"}), 4);
  const auto commands = d.take<fetch_command>();
  ASSERT_EQ(commands.size(), 4);
  EXPECT_EQ(commands[0].names->size(), 6);
  EXPECT_EQ(commands[0].least, 2);
}

TEST(OpenFetches, JoinNoneThatBeginsLaterOrIsTerminated) {
  auto d = fetcher{};
  d.open(1, d.tokens_of("abcdef"));
  d.add("ab", held::l1);
  EXPECT_EQ(d.begin(2, "abcdef"), 1) << "pages 2 to 6";
  EXPECT_EQ(d.begin(1), 2) << "the first request has no page yet";
  EXPECT_EQ(d.begin(3, "abcdef"), 1);
  d.close(2);
  EXPECT_TRUE(d.terminated().empty()) << "another request waits for it";
  d.close(3);
  EXPECT_EQ(d.terminated(), std::vector<fetch_id>{1});
  EXPECT_EQ(d.begin(4, "abcdef"), 2);
  d.add("abcde", held::l1);
  EXPECT_EQ(d.begin(5, "abcdefgh"), 3) << "of the pages after abcde, the second brings but one";
}

TEST(OpenFetches, BeginForNoRequestThatGetsNothingFromIt) {
  auto d = fetcher{};
  EXPECT_EQ(d.begin(1, "a"), 0) << "below the threshold";
  d.add("xyz", held::l2);
  EXPECT_EQ(d.begin(2, "xyzk"), 0);
  d.settings.is_stopped = true;
  EXPECT_EQ(d.begin(3, "mnop"), 0);
  d.settings.is_stopped = false;
  d.settings.options.storage_attached = false;
  EXPECT_EQ(d.begin(4, "mnop"), 0);
  d.settings.options.storage_attached = true;
  EXPECT_EQ(d.begin(4), 1);
  d.finish({arrived(1, 0)});
  EXPECT_EQ(d.begin(4), 0) << "once per request";
  EXPECT_TRUE(d.part.schedule(4));
}

namespace {

/// Requests with random prefixes of few tokens, and a list of the fetches that is scanned.
class random_prefixes {
public:
  random_prefixes(uint32_t seed, uint32_t overlap)
    : random_(seed), overlap_(overlap), d_(options(overlap)) {}

  void play() {
    if (const auto what = random_() % 12; what < 4)
      open();
    else if (what < 8)
      begin();
    else if (what == 8)
      leave();
    else if (what == 9)
      end();
    else if (what == 10)
      cache();
    else
      d_.tree.evict_l2(random_() % 8);
    d_.settle();
  }

  uint64_t joined = 0;

private:
  struct known_fetch {
    cache_namespace ns;
    token_buffer tokens;
    uint64_t first = 0;
    std::vector<request_id> requests;
  };

  struct known_request {
    request_id id = 0;
    cache_namespace ns;
    token_buffer tokens;
    bool has_begun = false;
  };

  static tree_options options(uint32_t overlap) {
    auto options = with_l3();
    options.page_size = 1;
    options.bigram = overlap > 0;
    options.l2_pages = 1024;
    options.prefetch.threshold_tokens = 2;
    return options;
  }

  token_buffer tokens() {
    auto list = std::vector<token_id>(3 + random_() % 6);
    for (auto& token : list)
      token = random_() % 2;
    return std::make_shared<const std::vector<token_id>>(std::move(list));
  }

  cache_namespace ns() { return {random_() % 2 == 0 ? "" : "adapter", ""}; }

  /// Pages that both buffers begin with.
  uint64_t shared(const token_buffer& a, const token_buffer& b) const {
    const auto equal = static_cast<uint64_t>(std::ranges::mismatch(*a, *b).in1 - a->begin());
    return equal < overlap_ ? 0 : equal - overlap_;
  }

  void open() {
    open_.push_back({++last_request_, ns(), tokens()});
    d_.open(last_request_, open_.back().tokens, open_.back().ns);
  }

  /// An open request begins its prefetch, if it has not yet. What it would match now may be more
  /// than what it matched.
  void begin() {
    if (open_.empty())
      return;
    auto& request = open_[random_() % open_.size()];
    if (std::exchange(request.has_begun, true))
      return;
    const auto first = d_.requests.at(request.id).matched_pages();
    auto wanted = fetch_id{0};
    for (const auto& [fetch, known] : fetches_)
      if (wanted == 0 && !known.requests.empty() && known.ns == request.ns && known.first <= first
          && shared(known.tokens, request.tokens) >= first + 2)
        wanted = fetch;
    const auto is_worth = d_.tree.whole_pages(request.tokens->size()) >= first + 2;
    const auto is_new = is_worth && wanted == 0;
    ASSERT_EQ(d_.begin(request.id), is_new ? last_fetch_ + 1 : is_worth ? wanted : 0);
    joined += is_worth && !is_new ? 1 : 0;
    if (is_new)
      fetches_[++last_fetch_] = {request.ns, request.tokens, first, {}};
    if (is_worth)
      fetches_[d_.fetch_of(request.id)].requests.push_back(request.id);
  }

  /// A request is closed; if it was the last one of its fetch, that is terminated.
  void leave() {
    if (open_.empty())
      return;
    const auto each = open_.begin() + static_cast<ptrdiff_t>(random_() % open_.size());
    if (const auto fetch = d_.fetch_of(each->id); fetch != 0)
      std::erase(fetches_[fetch].requests, each->id);
    d_.close(each->id);
    open_.erase(each);
  }

  /// A fetch ends; nothing arrived.
  void end() {
    if (fetches_.empty())
      return;
    const auto fetch
      = std::next(fetches_.begin(), static_cast<ptrdiff_t>(random_() % fetches_.size()));
    EXPECT_EQ(d_.finish({arrived(fetch->first, 0)}).size(), fetch->second.requests.size());
    fetches_.erase(fetch);
  }

  void cache() {
    d_.tree.tick();
    const auto text = tokens();
    const auto pages = d_.tree.whole_pages(text->size());
    auto& parent = d_.tree.cut(d_.tree.walk(d_.tree.root(ns()), *text, pages));
    if (const auto from = parent.end(); from < pages)
      d_.tree.add(parent, token_span{text, from, d_.tree.span_size(pages - from)}, {},
                  d_.tree.take_l2(pages - from).value(), {}, l3_state::unknown);
  }

  std::mt19937 random_;
  uint64_t overlap_;
  fetcher d_;
  std::map<fetch_id, known_fetch> fetches_;
  std::vector<known_request> open_;
  request_id last_request_ = 0;
  fetch_id last_fetch_ = 0;
};

} // namespace

TEST(OpenFetches, JoinWhatAScanOfAllFetchesFinds) {
  auto joined = uint64_t{0};
  for (auto seed = 0u; seed < 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    auto prefixes = random_prefixes{seed, seed % 2};
    for (auto turn = 0; turn < 300 && !testing::Test::HasFailure(); ++turn)
      prefixes.play();
    joined += prefixes.joined;
  }
  EXPECT_GT(joined, 150) << "the test is worth little";
}

// -- what a request gets ------------------------------------------------------

TEST(OpenFetches, GiveEachRequestWhatItSharesAndFetchTheRest) {
  auto d = fetcher{};
  d.begin(1, "abcdef");
  d.begin(2, "abcdxy");
  d.begin(3, "abcdefgh");
  auto ready = d.finish({arrived(1, 6)});
  ASSERT_EQ(ready.size(), 1);
  EXPECT_EQ(ready[0].request, 1);
  EXPECT_EQ(ready[0].fetched_tokens, 12);
  EXPECT_EQ(ready[0].l2_tokens, 12);
  EXPECT_EQ(d.fetch_of(2), 2);
  EXPECT_EQ(d.fetch_of(3), 3);
  EXPECT_EQ(d.take<fetch_command>().back().names->size(), 2);
  ready = d.finish({arrived(2, 2), {3, 1, {0, 2, miss_reason::no_room}}});
  ASSERT_EQ(ready.size(), 2);
  EXPECT_EQ(ready[0].request, 2);
  EXPECT_EQ(ready[0].fetched_tokens, 12) << "both fetches count";
  EXPECT_EQ(d.requests.at(2).storage_backend, "file");
  EXPECT_EQ(ready[1].request, 3);
  EXPECT_EQ(ready[1].l2_tokens, 12);
  EXPECT_EQ(d.requests.at(3).known_pages, 8);
  EXPECT_EQ(d.requests.at(3).why, miss_reason::no_room);
  EXPECT_EQ(d.cached("abcdefgh"), 6);
}

TEST(OpenFetches, TellTheTiersOfAllThatARequestGot) {
  auto d = fetcher{};
  d.begin(1, "abcdef");
  d.begin(2, "abcdxy");
  const auto names
    = std::make_shared<const std::vector<std::string>>(std::vector<std::string>{"memory", "disk"});
  d.finish(
    {{1, 6, {.arrived = 6, .found = 6, .from_above = {3, 6}, .load_ns = 7, .tiers = names}}});
  EXPECT_EQ(d.requests.at(2).fetched_above[0], 3u) << "it shares four pages";
  d.finish(
    {{2, 2, {.arrived = 2, .found = 2, .from_above = {1, 2}, .load_ns = 9, .tiers = names}}});
  EXPECT_EQ(d.requests.at(1).fetched_above[0], 3u);
  EXPECT_EQ(d.requests.at(1).fetched_above[1], 6u);
  EXPECT_EQ(d.requests.at(1).load_ns, 7);
  EXPECT_EQ(d.requests.at(2).fetched_above[0], 4u) << "both fetches count";
  EXPECT_EQ(d.requests.at(2).fetched_above[1], 6u) << "no more than it got of each";
  EXPECT_EQ(d.requests.at(2).load_ns, 9);
  EXPECT_EQ(d.requests.at(2).tiers, names);
}

TEST(OpenFetches, PlaceOnlyWhatContinuesTheTree) {
  auto d = fetcher{};
  d.add("ab", held::l1);
  d.begin(1, "abcdef");
  d.close(1);
  d.tree.evict_l1(2);
  d.finish({arrived(1, 4)});
  EXPECT_EQ(d.cached("abcdef"), 0) << "the pages before them are gone";
  EXPECT_EQ(d.pool.size(), 8);

  d.begin(2, "abcdef");
  auto& abcd = d.add("abcd", held::l1);
  const auto ready = d.finish({arrived(2, 6)});
  EXPECT_EQ(ready[0].l1_tokens, 8) << "they came to L1 meanwhile";
  EXPECT_EQ(ready[0].l2_tokens, 4);
  EXPECT_EQ(ready[0].fetched_tokens, 4);
  EXPECT_EQ(abcd.children().only()->l3(), l3_state::stored);
  EXPECT_EQ(d.pool.size(), 8);

  d.begin(3, "xy", {"adapter", ""});
  d.close(3);
  ++d.settings.storage_epoch;
  d.finish({arrived(3, 2)});
  EXPECT_EQ(d.cached("xy", {"adapter", ""}), 2) << "also without a root";
  const auto& node = *d.tree.find_root({"adapter", ""})->children().only();
  EXPECT_EQ(node.l3(), l3_state::unknown) << "it is another L3 now";
}

// -- ends ---------------------------------------------------------------------

TEST(OpenFetches, TakeTurnsBeyondWhatAStepCanEnd) {
  auto d = fetcher{};
  for (auto i = 0; i < 70; ++i)
    d.begin(static_cast<request_id>(i + 1), std::string{static_cast<char>('0' + i), 'z'});
  ASSERT_EQ(d.part.next().size(), limits::step_fetches);
  EXPECT_EQ(d.part.later().front(), 65);
  d.finish({}, 3);
  EXPECT_EQ(d.part.next().front(), 68);
  EXPECT_EQ(d.part.next()[3], 1);
  EXPECT_EQ(d.part.later().front(), 62);
  const auto ready = d.finish({arrived(68, 0), arrived(1, 0)});
  ASSERT_EQ(ready.size(), 2);
  EXPECT_EQ(ready[0].request, 1) << "in the order in which they were issued";
  EXPECT_EQ(ready[1].request, 68);
}

TEST(OpenFetches, EndForOneRequestAndGoOnForOthers) {
  auto d = fetcher{with_l3(prefetch_policy::best_effort)};
  d.begin(1, "abcdef");
  d.begin(2, "abcdef");
  EXPECT_FALSE(d.part.schedule(1));
  EXPECT_FALSE(d.part.schedule(1));
  EXPECT_EQ(d.terminated(), std::vector<fetch_id>{1}) << "once";
  const auto ready = d.finish({arrived(1, 2)});
  ASSERT_EQ(ready.size(), 1);
  EXPECT_EQ(ready[0].request, 1);
  EXPECT_EQ(ready[0].l2_tokens, 4);
  EXPECT_EQ(d.fetch_of(2), 2) << "its request can wait";
  EXPECT_EQ(d.take<fetch_command>().back().names->size(), 4);
}

TEST(OpenFetches, EndAtTheDeadlineOfARequestThatIsScheduled) {
  using std::chrono::nanoseconds;
  auto options = with_l3(prefetch_policy::timeout);
  options.prefetch.timeout_base = nanoseconds{100};
  options.prefetch.timeout_per_ki_token = nanoseconds{1024};
  options.prefetch.timeout_max = nanoseconds{150};
  auto d = fetcher{options};
  d.begin(1, "abcd");
  d.begin(2, std::string(30, 'z'));
  EXPECT_EQ(d.part.next_deadline_ns(), std::nullopt) << "no step has said what time it is";
  d.step(1000);
  EXPECT_EQ(d.part.next_deadline_ns(), 1108);
  EXPECT_FALSE(d.part.schedule(1));
  d.step(1107);
  EXPECT_TRUE(d.terminated().empty());
  d.step(1108);
  EXPECT_EQ(d.terminated(), std::vector<fetch_id>{1});
  EXPECT_EQ(d.part.next_deadline_ns(), 1150) << "no longer than the longest time";
  d.step(1150);
  EXPECT_TRUE(d.terminated().empty()) << "the engine does not want to run it yet";
  EXPECT_FALSE(d.part.schedule(2));
  EXPECT_EQ(d.terminated(), std::vector<fetch_id>{2});
  d.begin(3, "abxy");
  d.step(1200);
  EXPECT_EQ(d.part.next_deadline_ns(), 1308);
  d.close(3);
  EXPECT_EQ(d.part.next_deadline_ns(), std::nullopt);
}

// -- the staging pool ---------------------------------------------------------

TEST(OpenFetches, FillTheStagingPoolAsFarAsL2CanSpare) {
  auto options = with_l3();
  options.l2_pages = 8;
  auto d = fetcher{options};
  EXPECT_EQ(d.part.reserved().size(), 8);
  d.begin(1, "abc");
  d.finish({{1, 3, {2, 3}}});
  EXPECT_EQ(d.cached("abc"), 2) << "some rank has only two";
  EXPECT_EQ(d.pool.size(), 6) << "the third page is back";
  EXPECT_EQ(d.part.reserved().size(), 6) << "the request holds what arrived";
  d.close(1);
  d.part.fill_staging();
  d.settle();
  EXPECT_EQ(d.pool.size(), 8);
  EXPECT_EQ(d.cached("abc"), 0);
}

TEST(OpenFetches, GiveTheStagingPoolBackAfterTheLastFetch) {
  auto d = fetcher{};
  d.begin(1, "abcd");
  d.settings.options.storage_attached = false;
  d.part.terminate_all();
  EXPECT_EQ(d.terminated(), std::vector<fetch_id>{1});
  d.part.release_staging();
  EXPECT_TRUE(d.part.is_released());
  EXPECT_EQ(d.part.reserved().size(), 8) << "the fetch may still write to them";
  EXPECT_EQ(d.finish({arrived(1, 0)}).size(), 1);
  EXPECT_EQ(d.take<reclaim_command>().size(), 1);
  EXPECT_TRUE(d.part.reserved().empty());
  EXPECT_EQ(d.tree.l2_pool().free(), 16);
  d.pool.clear();
  d.settings.options.storage_attached = true;
  d.part.keep_staging();
  d.part.fill_staging();
  d.settle();
  EXPECT_EQ(d.pool.size(), 8);
}

// -- state --------------------------------------------------------------------

TEST(OpenFetches, DigestFollowsTheState) {
  expect_digest_follows<fetcher>(
    {[](fetcher& d) { d.begin(1, "abcd"); }, [](fetcher& d) { d.begin(2, "abcd"); },
     [](fetcher& d) { d.begin(3, "xyz"); }, [](fetcher& d) { d.close(3); },
     [](fetcher& d) {
       d.settings.options.storage_attached = false;
       d.part.terminate_all();
     },
     [](fetcher& d) {
       d.finish({arrived(1, 0), arrived(2, 0)});
     },
     [](fetcher& d) { d.part.release_staging(); }});
}

TEST(OpenFetchesDeathTest, CheckFindsARequestThatWaitsForAnother) {
  auto d = fetcher{};
  d.begin(1, "abcd");
  d.requests.change(1)->fetch = 0;
  EXPECT_DEATH(d.part.check_invariants(), "fetch == id");
}

TEST(OpenFetchesDeathTest, PagesArriveFromTheStagingPoolOnly) {
  auto d = fetcher{};
  d.begin(1, "abcd");
  d.pool.front() = 16;
  EXPECT_DEATH(d.finish({arrived(1, 2)}), "is_staging_");
  EXPECT_DEATH(d.part.check_facts({}, {}), "next");
}
