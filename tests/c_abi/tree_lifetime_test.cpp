// What becomes of a cache of hicache_tree.h when it is closed, when its process forks, when another
// rank is late; its news; and what it leaves of the process that opened it.

#include "c_tree/cache_news.hpp"
#include "tests/c_abi/c_cache.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <mutex>
#include <string_view>
#include <thread>

namespace hicache::test {
namespace {

using namespace std::chrono_literals;

bool is_readable(int descriptor) {
  auto event = pollfd{descriptor, POLLIN, 0};
  return ::poll(&event, 1, 0) == 1;
}

/// News, which end with this.
struct taken_news {
  explicit taken_news(hc_cache* cache, uint32_t timeout_ms = 0) {
    code = hc_cache_poll(cache, timeout_ms, &all);
  }

  taken_news(const taken_news&) = delete;

  taken_news& operator=(const taken_news&) = delete;

  ~taken_news() {
    if (all != nullptr) {
      EXPECT_EQ(hc_news_free(all), HC_OK);
    }
  }

  std::vector<hc_news> items() const {
    auto count = size_t{0};
    const auto* first = hc_news_items(all, &count);
    return {first, first + count};
  }

  hc_news_list* all = nullptr;
  int32_t code = -1;
};

TEST(CTreeNewsTest, EventsTellWhatCanBeServed) {
  auto options = hc_cache_options{};
  options.size = sizeof(options);
  options.flags = HC_CACHE_EVENTS;
  auto cache = c_cache{rank_settings(), &options};
  const auto prompt = prompt_of(1);
  cache.serve(1, prompt, 11);
  auto evict = op_of(HC_OP_EVICT);
  evict.limit = prompt.size();
  cache.apply(evict);
  cache.settle();
  auto stored = std::array<size_t, 2>{};
  auto removed = std::array<size_t, 2>{};
  auto has_begun = false;
  while (removed[HC_TIER_L1] < 4) {
    const auto news = taken_news{cache.get(), long_ms};
    ASSERT_EQ(news.code, HC_OK);
    for (const auto& each : news.items()) {
      has_begun = has_begun || each.kind == HC_NEWS_CLEARED;
      if (each.kind == HC_NEWS_REMOVED)
        removed.at(each.tier) += each.key_count;
      if (each.kind != HC_NEWS_STORED)
        continue;
      if (stored.at(each.tier) == 0) {
        EXPECT_EQ(each.parent, nullptr) << "it is the start of the prompt";
        EXPECT_EQ(each.tokens[0], prompt[0]);
      }
      EXPECT_EQ(each.token_count, each.key_count * page_tokens);
      EXPECT_NE(each.keys, nullptr);
      EXPECT_EQ(each.salt_bytes, 0u);
      stored.at(each.tier) += each.key_count;
    }
  }
  EXPECT_TRUE(has_begun);
  EXPECT_EQ(stored, (std::array<size_t, 2>{4, 4}));
  EXPECT_EQ(removed, (std::array<size_t, 2>{4, 0}));
}

TEST(CTreeNewsTest, TheDescriptorIsReadableAsLongAsNewsWait) {
  auto cache = c_cache{};
  const auto prompt = prompt_of(1);
  cache.apply({op_of(HC_OP_MATCH, 1, prompt, 63), op_of(HC_OP_SCHEDULE, 1)});
  auto allocate = op_of(HC_OP_ALLOCATE, 1);
  allocate.limit = prompt.size();
  cache.apply({allocate, op_of(HC_OP_INSERT, 1, prompt), op_of(HC_OP_RELEASE, 1)});
  // The copy to L2 ended, so a step is worth it.
  const auto news = taken_news{cache.get(), long_ms};
  ASSERT_EQ(news.code, HC_OK);
  ASSERT_EQ(news.items().size(), 1u);
  EXPECT_EQ(news.items()[0].kind, uint32_t{HC_NEWS_STEP});
  EXPECT_FALSE(is_readable(hc_cache_event_fd(cache.get())));
  EXPECT_EQ(taken_news{cache.get()}.code, HC_DEADLINE_EXCEEDED);
  EXPECT_NE(cache.step().was_in_flight, 0u);
}

TEST(CTreeNewsTest, TheOldestAreLostAndCounted) {
  auto queue = news_queue{2};
  ASSERT_TRUE(queue.start());
  queue.add(step_news{});
  queue.add(step_news{});
  EXPECT_TRUE(is_readable(queue.event()));
  queue.add(cache_event{cache_cleared{}});
  queue.add(error{ec::store_unavailable, {}});
  queue.add(error{ec::copy_failed, "why"});
  const auto news = queue.take({});
  ASSERT_TRUE(news);
  const auto& items = (*news)->items();
  ASSERT_EQ(items.size(), 3u);
  EXPECT_EQ(items[0].kind, uint32_t{HC_NEWS_LOST});
  EXPECT_EQ(items[0].lost, 2u);
  EXPECT_EQ(items[1].kind, uint32_t{HC_NEWS_FAILURE});
  EXPECT_EQ(items[1].code, HC_STORE_UNAVAILABLE);
  EXPECT_STREQ(items[1].text, sentence(ec::store_unavailable));
  EXPECT_STREQ(items[2].text, "why");
  EXPECT_FALSE(is_readable(queue.event()));
  queue.add(step_news{});
  EXPECT_TRUE(is_readable(queue.event())) << "the one that was lost does not count any more";
  queue.close();
  EXPECT_EQ(queue.take({}).error().code, ec::stopping);
}

TEST(CTreeLifetimeTest, WhoeverWaitsForNewsIsToldOfTheEnd) {
  auto cache = c_cache{};
  auto code = std::atomic<int32_t>{-1};
  auto waiter = std::thread{[&, raw = cache.get()] { code = taken_news{raw, 600'000}.code; }};
  std::this_thread::yield();
  cache.close();
  waiter.join();
  EXPECT_EQ(code, HC_STOPPING);
}

TEST(CTreeLifetimeTest, AnswersOutliveTheirCache) {
  auto cache = c_cache{};
  const auto prompt = prompt_of(1);
  cache.serve(1, prompt, 11);
  const auto answers = cache.apply(std::vector{op_of(HC_OP_MATCH, 2, prompt, prompt.size())});
  cache.close();
  ASSERT_EQ(answers[0].page_count, 4u);
  EXPECT_NE(answers[0].pages[3], 0u);
}

TEST(CTreeLifetimeTest, ACacheIsClosedByAnotherThreadThanTheOneThatUsedIt) {
  auto cache = c_cache{};
  cache.serve(1, prompt_of(1), 11);
  std::thread{[&] { cache.close(); }}.join();
}

/// In the child: what calls with the parent's cache return.
int run_child(hc_cache* inherited, hc_answers* answers, const hc_progress* progress) {
  auto error = hc_error{};
  auto* more = static_cast<hc_answers*>(nullptr);
  auto* news = static_cast<hc_news_list*>(nullptr);
  auto facts = hc_facts{};
  auto info = hc_cache_info{};
  auto counters = hc_cache_counters{};
  auto where = hc_layer{};
  auto layers = 0u;
  const auto op = op_of(HC_OP_CLEAR);
  const auto codes = std::array{
    hc_cache_apply(inherited, &op, 1, 1000, &more, &error),
    hc_cache_step(inherited, 0, &facts, &error),
    hc_cache_describe(inherited, &info),
    hc_cache_layer(inherited, 0, 0, &where),
    hc_cache_poll(inherited, 0, &news),
    hc_cache_stats(inherited, &counters),
    hc_cache_wait_for_layer(inherited, progress, nullptr, 0, &error),
    hc_progress_wait(progress, 0),
    hc_progress_done(progress, &layers),
    hc_answers_wait(answers, 0, &error),
    hc_answers_free(answers),
    hc_cache_close(inherited),
  };
  for (auto i = size_t{0}; i < codes.size(); ++i)
    if (codes[i] != HC_FORKED)
      return static_cast<int>(i) + 1;
  if (hc_cache_event_fd(inherited) != -1 || hc_answers_items(answers, nullptr) != nullptr)
    return 50;
  auto own = c_cache{};
  return own.serve(1, prompt_of(1), 11).computed_tokens == 64 ? 0 : 51;
}

TEST(CTreeLifetimeTest, AForkedChildGetsErrorsAndCanOpenItsOwn) {
  auto cache = c_cache{};
  const auto prompt = prompt_of(1);
  cache.serve(1, prompt, 11);
  auto evict = op_of(HC_OP_EVICT);
  evict.limit = prompt.size();
  auto load = op_of(HC_OP_LOAD, 2);
  load.limit = HC_NO_LIMIT;
  const auto answers = cache.apply({evict, op_of(HC_OP_MATCH, 2, prompt, prompt.size()), load});
  const auto* progress = answers[2].progress;
  ASSERT_NE(progress, nullptr);
  const auto child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(60); // It must not hang.
    ::_exit(run_child(cache.get(), answers.get(), progress));
  }
  auto status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  cache.apply(op_of(HC_OP_RELEASE, 2));
}

TEST(CTreeLifetimeTest, NothingIsLeftOfAClosedCache) {
  const auto count = [](const char* what) {
    const auto all = std::filesystem::directory_iterator{what};
    return std::distance(begin(all), end(all));
  };
  const auto threads = count("/proc/self/task");
  c_cache{}.serve(1, prompt_of(1), 11); // What libraries open once stays open.
  const auto descriptors = count("/proc/self/fd");
  for (auto i = 0; i < 3; ++i)
    c_cache{}.serve(1, prompt_of(1), 11);
  EXPECT_EQ(count("/proc/self/fd"), descriptors);
  // The kernel shows a thread for some moments after it was joined.
  const auto give_up = std::chrono::steady_clock::now() + 20s;
  while (count("/proc/self/task") > threads && std::chrono::steady_clock::now() < give_up)
    std::this_thread::yield();
  EXPECT_LE(count("/proc/self/task"), threads);
}

TEST(CTreeLifetimeTest, SignalsOfTheProgramStayAsTheyWere) {
  static auto seen = std::atomic<int>{0};
  struct sigaction counted = {};
  counted.sa_handler = [](int) { ++seen; };
  struct sigaction before = {};
  ASSERT_EQ(::sigaction(SIGUSR1, &counted, &before), 0);
  auto mask = sigset_t{};
  ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  {
    auto cache = c_cache{};
    cache.serve(1, prompt_of(1), 11);
    auto same = sigset_t{};
    ::pthread_sigmask(SIG_SETMASK, nullptr, &same);
    for (auto signal = 1; signal < NSIG; ++signal)
      EXPECT_EQ(sigismember(&same, signal), sigismember(&mask, signal)) << signal;
    ::kill(::getpid(), SIGUSR1);
    EXPECT_EQ(seen, 1) << "this thread takes it, the only one that does";
  }
  ::sigaction(SIGUSR1, &before, nullptr);
}

struct heard_lines {
  static void hear(void* user, int32_t level, const char* text) {
    auto& self = *static_cast<heard_lines*>(user);
    const auto guard = std::lock_guard{self.mutex};
    self.lines.push_back(std::to_string(level) + " " + text);
  }

  std::mutex mutex;
  std::vector<std::string> lines;
};

TEST(CTreeLifetimeTest, TheLogGoesToTheCallback) {
  auto heard = heard_lines{};
  auto options = hc_cache_options{};
  options.size = sizeof(options);
  options.log = heard_lines::hear;
  options.log_user = &heard;
  c_cache{rank_settings(), &options}.step();
  ASSERT_EQ(heard.lines.size(), 1u);
  EXPECT_TRUE(heard.lines[0].starts_with("2 rank 0 of 1: host")) << heard.lines[0];
  c_cache{rank_settings(R"(, "log-level": "error")"), &options}.step();
  EXPECT_EQ(heard.lines.size(), 1u);
}

// -- two ranks ----------------------------------------------------------------

/// Two ranks, each on a thread of this process.
class CTreeRanksTest : public ::testing::Test {
protected:
  std::string settings(int rank) const {
    return rank_settings(R"(, "ranks": 2, "rank": )" + std::to_string(rank)
                         + R"(, "rendezvous": "unix:)" + folder_.file("meet") + "\"");
  }

  cache_folder folder_;
};

TEST_F(CTreeRanksTest, BothFindWhatBothComputed) {
  auto other = std::thread{[&] {
    auto cache = c_cache{settings(1)};
    EXPECT_EQ(cache.info().rank, 1u);
    cache.serve(1, prompt_of(1), 12);
    EXPECT_EQ(cache.serve(2, prompt_of(1), 12).l1_tokens, 48u);
  }};
  auto cache = c_cache{settings(0)};
  EXPECT_EQ(cache.info().ranks, 2u);
  EXPECT_EQ(cache.info().row_bytes[0], 2u * 8 * 2) << "half of the heads";
  cache.serve(1, prompt_of(1), 11);
  EXPECT_EQ(cache.serve(2, prompt_of(1), 11).l1_tokens, 48u);
  other.join();
}

TEST_F(CTreeRanksTest, WhoeverDoesNotWaitForAStepWaitsForTheAnswersLater) {
  const auto prompt = prompt_of(1);
  const auto ops = std::vector{op_of(HC_OP_MATCH, 1, prompt, 63), op_of(HC_OP_SCHEDULE, 1)};
  auto may_step = std::atomic<bool>{false};
  auto other = std::thread{[&] {
    auto cache = c_cache{settings(1)};
    cache.apply(ops);
    may_step.wait(false);
    cache.step();
    cache.apply(op_of(HC_OP_RELEASE, 1));
  }};
  auto cache = c_cache{settings(0)};
  cache.apply(ops);
  auto stepping = std::thread{[&] { cache.step(0); }};
  // Until the step waits for the other rank, answers come at once. It changes nothing.
  const auto unknown = op_of(HC_OP_RELEASE, 99);
  auto* answers = static_cast<hc_answers*>(nullptr);
  auto code = int32_t{HC_OK};
  auto error = hc_error{};
  while (code == HC_OK) {
    if (answers != nullptr)
      hc_answers_free(answers);
    code = hc_cache_apply(cache.get(), &unknown, 1, 100, &answers, &error);
  }
  EXPECT_EQ(code, HC_DEADLINE_EXCEEDED);
  auto count = size_t{7};
  EXPECT_EQ(hc_answers_items(answers, &count), nullptr);
  EXPECT_EQ(count, 0u);
  may_step = true;
  may_step.notify_all();
  EXPECT_EQ(hc_answers_wait(answers, long_ms, &error), HC_OK) << error.text;
  EXPECT_NE(hc_answers_items(answers, &count), nullptr);
  EXPECT_EQ(count, 1u);
  EXPECT_EQ(hc_answers_free(answers), HC_OK);
  stepping.join();
  cache.apply(op_of(HC_OP_RELEASE, 1));
  other.join();
}

} // namespace
} // namespace hicache::test
