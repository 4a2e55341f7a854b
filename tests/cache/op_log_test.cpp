// Op logs: text and values, and playing what was recorded.

#include "cache/hash/page_names.hpp"
#include "cache/oplog/op_log.hpp"
#include "tests/support/op_logs.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

namespace hicache {
namespace {

using test::parse_op_log;
using test::replay;

template <class T>
std::shared_ptr<const std::vector<T>> list(std::vector<T> values) {
  return std::make_shared<const std::vector<T>>(std::move(values));
}

token_buffer tokens_of(std::vector<token_id> tokens) {
  return list(std::move(tokens));
}

// -- text and values ----------------------------------------------------------

/// One entry of each kind, with every key that its line can have.
std::vector<std::pair<op_log_event, std::string>> samples() {
  const auto ns = cache_namespace{"lora", "tenant"};
  auto options = tree_options{};
  options.page_size = 4;
  options.l1_pages = 8;
  options.l2_pages = 16;
  options.prefetch_reserve_pages = 3;
  options.layers = 2;
  options.write = write_policy::write_back;
  options.prefetch.policy = prefetch_policy::best_effort;
  options.prefetch.threshold_tokens = 12;
  options.load_back_threshold_tokens = 5;
  options.storage_attached = true;
  options.eviction = *make_eviction_policy("slru");
  options.bigram = true;
  options.pin_budget_pages = 6;
  options.events = true;
  options.share_prefixes = false;
  const auto operation = [](auto x) { return op_log_event{tree_operation{x}}; };
  using std::chrono::nanoseconds;
  return {
    {options,
     R"({"op":"options","page_size":4,"device_pages":8,"host_pages":16,"prefetch_reserve_pages":3,)"
     R"("layers":2,"write_policy":"write_back","prefetch_policy":"best_effort",)"
     R"("prefetch_threshold_tokens":12,"load_back_threshold_tokens":5,"storage_attached":true,)"
     R"("eviction":"slru","bigram":true,"pin_budget_pages":6,"events":true,)"
     R"("join_nodes":true,"share_prefixes":false})"},
    {operation(match_request{7, ns, tokens_of({0, 4294967295}), 1, {3, 9}}),
     R"({"op":"match","request":7,"extra_key":"lora","salt":"tenant","tokens":[0,4294967295],)"
     R"("limit":1,"session":3,"generation":9})"},
    {operation(prefetch_request{1}), R"({"op":"prefetch","request":1})"},
    {operation(schedule_request{2}), R"({"op":"schedule","request":2})"},
    {operation(load_request{3}), R"({"op":"load_back","request":3})"},
    {operation(load_request{3, 64}), R"({"op":"load_back","request":3,"quota":64})"},
    {operation(allocate_request{4, 100}), R"({"op":"allocate","request":4,"count":100})"},
    {operation(insert_request{18446744073709551615u, tokens_of({}), -5, true, nanoseconds{7}}),
     R"({"op":"insert","request":18446744073709551615,"tokens":[],"priority":-5,"chunked":true,)"
     R"("retain_ns":7})"},
    {operation(release_request{6}), R"({"op":"release","request":6})"},
    {operation(evict_request{cache_tier::l2, 12}), R"({"op":"evict","tier":"host","count":12})"},
    {operation(pin_request{ns, tokens_of({1}), nanoseconds{5}}),
     R"({"op":"pin","extra_key":"lora","salt":"tenant","tokens":[1],"ttl_ns":5})"},
    {operation(unpin_request{{}, tokens_of({1, 2})}), R"({"op":"unpin","tokens":[1,2]})"},
    {operation(open_session_request{5, true}),
     R"({"op":"open_session","session":5,"streaming":true})"},
    {operation(close_session_request{{5, 2}}),
     R"({"op":"close_session","session":5,"generation":2})"},
    {operation(lock_request{8}), R"({"op":"lock","node":8})"},
    {operation(unlock_request{8}), R"({"op":"unlock","node":8})"},
    {operation(write_request{8}), R"({"op":"backup","node":8})"},
    {operation(load_node_request{8, 16}), R"({"op":"load_node","node":8,"quota":16})"},
    {operation(clear_request{}), R"({"op":"clear"})"},
    {applied_step{{1, 2, {3, -1}, {{2, 4, miss_reason::gone}, {}}, -4},
                  {list<page_index>({5, 6}), nullptr}},
     R"({"op":"step","writes_done":1,"loads_done":2,"now_ns":-4,"backups":[3,-1],)"
     R"("fetches":[[2,4,5,0,0],[-1,0,11,0,0]],"arrived":[[5,6],null]})"},
    {applied_step{
       {.fetches = {{3, 4, miss_reason::faster_to_compute, {1, 3, 3, 3, 3, 3, 3}, 70, 60},
                    {2, 2, miss_reason::none, {0, 2, 2, 2, 2, 2, 2}},
                    {5, 5, miss_reason::none, {1, 2, 2, 3, 4, 5, 5}}}},
       {list<page_index>({5, 6, 7}), list<page_index>({8, 9}), list<page_index>({1, 2, 3, 4, 10})}},
     R"({"op":"step","writes_done":0,"loads_done":0,"now_ns":0,)"
     R"("fetches":[[3,4,10,70,60,1,3],[2,2,11,0,0,0,2],[5,5,11,0,0,1,2,2,3,4,5]],)"
     R"("arrived":[[5,6,7],[8,9],[1,2,3,4,10]]})"},
    {applied_step{{.writes_done = 1, .loads_done = 2, .write_failed = true, .load_failed = true},
                  {}},
     R"({"op":"step","writes_done":1,"loads_done":2,"write_failed":true,"load_failed":true,)"
     R"("now_ns":0})"},
    {applied_step{{.now_ns = 9, .loss_age_ns = 4}, {}},
     R"({"op":"step","writes_done":0,"loads_done":0,"now_ns":9,"loss_age_ns":4})"},
    {storage_change{storage_change::action::attach,
                    "file",
                    {prefetch_policy::timeout, 64, nanoseconds{2000000}},
                    true},
     R"({"op":"change_storage","what":"attach","backend":"file","prefetch_policy":"timeout",)"
     R"("prefetch_threshold_tokens":64,"prefetch_timeout_base_ns":2000000,"lends_host":true})"},
    {serving_stopped{}, R"({"op":"stop_serving"})"},
  };
}

TEST(OpLogTextTest, EveryKindOfEntryHasItsLineAndComesBack) {
  for (const auto& [event, line] : samples()) {
    EXPECT_EQ(to_line({event, {}}), line);
    const auto read = parse_op_log_entry(line);
    ASSERT_TRUE(read) << line << ": " << read.error().detail;
    EXPECT_EQ(read->event.index(), event.index());
    EXPECT_FALSE(read->digest);
    EXPECT_EQ(to_line(*read), line);
  }
}

TEST(OpLogTextTest, FetchesOfOldLogsComeBack) {
  const auto fetches_of = [](const std::string& fetches) {
    const auto entry = parse_op_log_entry(
      R"({"op":"step","writes_done":0,"loads_done":0,"now_ns":0,"fetches":)" + fetches + "}");
    return entry ? std::get<applied_step>(entry->event).facts.fetches : std::vector<fetch_fact>{};
  };
  EXPECT_EQ(fetches_of("[[2,4,9],[3,3,10]]"),
            (std::vector<fetch_fact>{{2, 4, miss_reason::too_short}, {3, 3, miss_reason::none}}));
  for (const auto* wrong :
       {"[[2,4]]", "[[2,4,11]]", "[[2,4,5,0]]", "[[2,4,12,0,0]]", "[[2,4,5,-1,0]]",
        "[[2,4,5,0,0,3]]", "[[2,4,5,0,0,2,1]]", "[[9,9,5,0,0,1,2,3,4,5,6,7,8]]"})
    EXPECT_TRUE(fetches_of(wrong).empty()) << wrong;
}

TEST(OpLogTextTest, DigestsComeBack) {
  for (const auto digest : {uint64_t{0}, uint64_t{0xABC}, UINT64_MAX}) {
    const auto line = to_line({serving_stopped{}, digest});
    const auto read = parse_op_log_entry(line);
    ASSERT_TRUE(read) << line;
    EXPECT_EQ(read->digest, digest);
  }
  EXPECT_EQ(to_line({serving_stopped{}, 0xABC}),
            R"({"op":"stop_serving","digest":"0000000000000abc"})");
}

TEST(OpLogTextTest, AnyBytesInANamespaceComeBack) {
  for (const auto& key :
       {std::string{"a\"\\\n\0b", 6}, std::string{"\xFF\xFE"}, std::string{"é"}}) {
    const auto line = to_line({tree_operation{unpin_request{{key, {}}, tokens_of({})}}, {}});
    const auto read = parse_op_log_entry(line);
    ASSERT_TRUE(read) << line << ": " << read.error().detail;
    EXPECT_EQ(std::get<unpin_request>(std::get<tree_operation>(read->event)).ns.extra_key, key);
  }
}

TEST(OpLogTextTest, EachBadLineIsOneSentence) {
  const auto sentences = std::map<std::string, std::string>{
    {"", "expected a JSON object, found what is no JSON"},
    {"[]", "expected a JSON object, found another JSON value"},
    {"{}", "key 'op' is missing"},
    {R"({"op":"dance"})", "there is no op 'dance'"},
    {R"({"op":7})", "key 'op' holds 7; expected text"},
    {R"({"op":"release"})", "key 'request' is missing"},
    {R"({"op":"release","request":-1})",
     "key 'request' holds -1; expected a whole number from 0 to 18446744073709551615"},
    {R"({"op":"release","request":1.5})",
     "key 'request' holds 1.5; expected a whole number from 0 to 18446744073709551615"},
    {R"({"op":"release","request":1,"colour":2})", "key 'colour' is not known here"},
    {R"({"op":"unpin","tokens":[4294967296]})",
     "key 'tokens' holds a list; token id does not fit in uint32: 4294967296"},
    {R"({"op":"unpin","tokens":[-1]})",
     "key 'tokens' holds a list; token id does not fit in uint32: -1"},
    {R"({"op":"unpin","tokens":["a"]})", "key 'tokens' holds a list; expected numbers only"},
    {R"({"op":"unpin","tokens":3})", "key 'tokens' holds 3; expected a list of numbers"},
    {R"({"op":"evict","tier":"tape","count":1})",
     "key 'tier' holds \"tape\"; expected device or host"},
    {R"({"op":"clear","digest":"12"})", "key 'digest' does not hold sixteen hexadecimal digits"},
    {R"({"op":"open_session","session":1,"streaming":1})",
     "key 'streaming' holds 1; expected true or false"},
  };
  for (const auto& [line, sentence] : sentences) {
    const auto read = parse_op_log_entry(line);
    ASSERT_FALSE(read) << line;
    EXPECT_EQ(read.error().detail, sentence) << line;
  }
}

TEST(OpLogTextTest, OptionsThatNoCacheTakesAreRefused) {
  const auto good = std::string{samples().front().second};
  const auto spoilt = [&](const std::string& from, const std::string& to) {
    auto line = good;
    line.replace(line.find(from), from.size(), to);
    const auto read = parse_op_log_entry(line);
    return read ? "none" : read.error().detail;
  };
  EXPECT_EQ(spoilt("\"page_size\":4", "\"page_size\":3"),
            "page_size is not a power of two from 1 to 4096");
  EXPECT_EQ(spoilt("\"device_pages\":8", "\"device_pages\":0"),
            "device_pages is not a size of a pool");
  EXPECT_EQ(spoilt("\"host_pages\":16", "\"host_pages\":4294967295"),
            "host_pages is not a size of a pool");
  EXPECT_EQ(spoilt("\"host_pages\":16", "\"host_pages\":2"),
            "prefetch_reserve_pages is more than host_pages");
  EXPECT_EQ(spoilt("\"layers\":2", "\"layers\":0"), "layers is 0");
  EXPECT_NE(spoilt("slru", "dice").find("no eviction policy is called \"dice\""),
            std::string::npos);
}

TEST(OpLogTextTest, RanksAgreeWhateverTheirHostPagesAre) {
  const auto step = [](page_index page, int64_t agreed) {
    return op_log_entry{applied_step{{0, 0, {}, {{agreed}}, 0}, {list<page_index>({page})}}, 1};
  };
  EXPECT_TRUE(agree(step(5, 1), step(6, 1)));
  EXPECT_FALSE(agree(step(5, 1), step(5, 0)));
  auto other = step(5, 1);
  other.digest = 2;
  EXPECT_FALSE(agree(step(5, 1), other));
  other.digest.reset();
  EXPECT_TRUE(agree(step(5, 1), other));
}

// -- playing ------------------------------------------------------------------

/// A rank that records itself: random operations, copies that finish late, and an L3 that has every
/// page.
class recorded_rank {
public:
  explicit recorded_rank(uint32_t seed) : random_(seed) {
    options_.page_size = 2;
    options_.l1_pages = 24;
    options_.l2_pages = 40;
    options_.prefetch_reserve_pages = 8;
    options_.prefetch.threshold_tokens = 2;
    options_.load_back_threshold_tokens = 2;
    options_.storage_attached = true;
    options_.pin_budget_pages = 4;
    cache_ = std::make_unique<prefix_cache>(options_);
    note(options_);
  }

  void run(int turns) {
    for (auto i = 0; i < turns; ++i) {
      request();
      if (pick(3) == 0)
        step();
    }
  }

  std::vector<op_log_entry> log;
  uint64_t digest() const { return cache_->digest(); }

private:
  uint64_t pick(uint64_t below) { return random_() % below; }

  void note(op_log_event event) {
    log.push_back({std::move(event), cache_->digest()});
    for (const auto& effect : cache_->take_effects()) {
      if (const auto* write = std::get_if<write_command>(&effect))
        issued_.writes_done = write->id;
      else if (const auto* load = std::get_if<load_command>(&effect))
        issued_.loads_done = load->id;
      else if (const auto* backup = std::get_if<backup_command>(&effect))
        backups_[backup->id] = backup->names->size();
      else if (const auto* fill_staging = std::get_if<staging_command>(&effect))
        reserve_.insert(reserve_.end(), fill_staging->l2_pages->begin(),
                        fill_staging->l2_pages->end());
      else if (const auto* fetch = std::get_if<fetch_command>(&effect))
        fetch_pages(*fetch);
    }
  }

  void fetch_pages(const fetch_command& fetch) {
    auto pages = std::vector<page_index>{};
    while (!reserve_.empty() && pages.size() < fetch.names->size()) {
      pages.push_back(reserve_.back());
      reserve_.pop_back();
    }
    arrived_[fetch.id] = list(std::move(pages));
  }

  void perform(const tree_operation& operation) {
    static_cast<void>(apply(*cache_, operation));
    note(operation);
  }

  void request() {
    auto tokens = std::vector<token_id>{};
    for (auto i = pick(12) + 1; i > 0; --i)
      tokens.push_back(static_cast<token_id>(pick(2)));
    const auto prompt = tokens_of(tokens);
    const auto ns = cache_namespace{pick(4) == 0 ? "adapter" : "", {}};
    const auto id = ++requests_;
    perform(match_request{id, ns, prompt, prompt->size(), {}});
    if (pick(2) == 0) {
      perform(prefetch_request{id});
      perform(schedule_request{id});
    }
    perform(load_request{id});
    perform(allocate_request{id, prompt->size()});
    perform(insert_request{id, prompt});
    if (pick(8) == 0)
      perform(pin_request{ns, prompt, std::chrono::nanoseconds{pick(50)}});
    perform(release_request{id});
    if (pick(8) == 0)
      perform(evict_request{pick(2) == 0 ? cache_tier::l1 : cache_tier::l2, pick(8)});
  }

  void step() {
    auto step = applied_step{};
    const auto some
      = [&](uint64_t before, uint64_t all) { return before + pick(all - before + 1); };
    step.facts.writes_done = some(known_.writes_done, issued_.writes_done);
    step.facts.loads_done = some(known_.loads_done, issued_.loads_done);
    step.facts.now_ns = now_ += 10;
    for (const auto id : cache_->backing_up())
      step.facts.backups.push_back(pick(2) == 0 ? static_cast<int64_t>(pick(backups_.at(id) + 1))
                                                : -1);
    for (const auto id : cache_->fetching()) {
      const auto ends = pick(2) == 0;
      step.arrived.push_back(ends ? arrived_.at(id) : nullptr);
      auto& fetch = step.facts.fetches.emplace_back();
      if (ends)
        fetch.arrived = static_cast<int64_t>(pick(step.arrived.back()->size() + 1));
    }
    if (pick(4) == 0)
      step.facts.loss_age_ns = static_cast<int64_t>(pick(100));
    known_ = step.facts;
    cache_->step(step.facts, step.arrived);
    note(step);
  }

  std::mt19937 random_;
  tree_options options_;
  std::unique_ptr<prefix_cache> cache_;
  step_facts issued_;
  step_facts known_;
  std::map<operation_id, uint64_t> backups_;
  int64_t now_ = 0;
  request_id requests_ = 0;
  std::vector<page_index> reserve_;
  std::map<fetch_id, page_list> arrived_;
};

class OpLogReplayTest : public testing::Test {
protected:
  static std::string text_of(const std::vector<op_log_entry>& log) {
    auto text = std::string{};
    for (const auto& entry : log)
      text += to_line(entry) + "\n";
    return text;
  }

  static std::vector<op_log_entry> recorded(uint32_t seed = 1, int turns = 40) {
    auto rank = recorded_rank{seed};
    rank.run(turns);
    return std::move(rank.log);
  }

  static std::string complaint(const std::vector<op_log_entry>& log) {
    const auto replayed = replay(log);
    return replayed ? "none" : replayed.error().detail;
  }
};

TEST_F(OpLogReplayTest, ComesToTheSameDigestsFromTheText) {
  for (auto seed = uint32_t{1}; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    auto rank = recorded_rank{seed};
    rank.run(100);
    const auto read = parse_op_log(text_of(rank.log));
    ASSERT_TRUE(read) << read.error().detail;
    EXPECT_EQ(text_of(*read), text_of(rank.log));
    const auto digests = replay(*read);
    ASSERT_TRUE(digests) << digests.error().detail;
    ASSERT_EQ(digests->size(), rank.log.size());
    EXPECT_EQ(digests->back(), rank.digest());
  }
}

TEST_F(OpLogReplayTest, NamesTheFirstEntryThatDiffers) {
  auto log = recorded();
  auto& spoilt = log[log.size() / 2];
  const auto right = *spoilt.digest;
  spoilt.digest = right ^ 1;
  const auto replayed = replay(log);
  ASSERT_FALSE(replayed);
  EXPECT_EQ(replayed.error().code, ec::ranks_diverged);
  EXPECT_EQ(replayed.error().detail, "line " + std::to_string(log.size() / 2 + 1)
                                       + ": the digest is " + digest_to_text(right)
                                       + ", recorded was " + digest_to_text(right ^ 1));
}

TEST_F(OpLogReplayTest, StoppingAndStorageChangesAreReplayed) {
  auto log = recorded();
  log.push_back({storage_change{storage_change::action::detach}, {}});
  log.push_back({serving_stopped{}, {}});
  const auto prompt = tokens_of({1, 1});
  log.push_back({tree_operation{match_request{9999, {}, prompt, 2, {}}}, {}});
  auto player = op_log_player{};
  for (const auto& entry : log)
    ASSERT_TRUE(player.play(entry));
  EXPECT_EQ(player.cache()->stats().requests_open, 1u);
}

TEST_F(OpLogReplayTest, ALogBeginsWithItsOptionsAndHasThemOnce) {
  EXPECT_EQ(complaint({{tree_operation{clear_request{}}, {}}}),
            "line 1: the first line of a log holds options");
  auto twice = recorded(1, 1);
  twice.push_back(twice.front());
  EXPECT_EQ(complaint(twice),
            "line " + std::to_string(twice.size()) + ": options after the first line");
}

TEST_F(OpLogReplayTest, AStepThatCannotHaveHappenedIsRefused) {
  const auto after = [](const applied_step& step) {
    auto log = recorded(3, 5);
    log.push_back({step, {}});
    const auto sentence = complaint(log);
    return sentence.substr(sentence.find(": ") + 2);
  };
  EXPECT_EQ(after({{1000, 0}, {}}), "this step cannot have happened: it finishes copies "
                                    "that were not begun or undoes finished ones");
  EXPECT_EQ(after({{0, 1000}, {}}), after({{1000, 0}, {}}));
}

TEST_F(OpLogReplayTest, PagesThatCannotHaveArrivedAreRefused) {
  auto options = tree_options{};
  options.page_size = 1;
  options.l1_pages = 8;
  options.l2_pages = 8;
  options.prefetch_reserve_pages = 4;
  options.prefetch.threshold_tokens = 1;
  options.storage_attached = true;
  const auto prompt = tokens_of({1, 2, 3});
  const auto log
    = std::vector<op_log_entry>{{options, {}},
                                {tree_operation{match_request{1, {}, prompt, 3, {}}}, {}},
                                {tree_operation{prefetch_request{1}}, {}},
                                {tree_operation{schedule_request{1}}, {}}};
  const auto after = [&](const applied_step& step) {
    auto longer = log;
    longer.push_back({step, {}});
    return complaint(longer);
  };
  const auto prefix = std::string{"line 5: this step cannot have happened: "};
  const auto pages = [](std::vector<page_index> x) { return list(std::move(x)); };
  EXPECT_EQ(after({{}, {}}), prefix + "it does not name each prefetch that is open");
  EXPECT_EQ(after({{.fetches = {{}}, .loss_age_ns = -1}, {nullptr}}),
            prefix + "what L3 evicted was last used in the future");
  const auto more = prefix + "a prefetch brought more pages than arrived or were asked for";
  EXPECT_EQ(after({{0, 0, {}, {{2}}}, {pages({1})}}), more);
  EXPECT_EQ(after({{0, 0, {}, {{2}}}, {nullptr}}), more);
  EXPECT_EQ(after({{0, 0, {}, {{4}}}, {pages({1, 2, 3, 4})}}), more);
  const auto none = prefix + "a page arrived where the prefetcher has none";
  EXPECT_EQ(after({{0, 0, {}, {{1}}}, {pages({777})}}), none);
  EXPECT_EQ(after({{0, 0, {}, {{}}}, {nullptr}}), "none");
}

} // namespace
} // namespace hicache
