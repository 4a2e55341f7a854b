// What becomes of a client of hicache.h when its node hangs or dies, when it is closed, when its
// process forks; and what it leaves of the process that opened it.

#include "tests/c_abi/c_abi_support.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>

namespace hicache::test {
namespace {

using namespace std::chrono_literals;

class CAbiLifetimeTest : public ::testing::Test {
protected:
  std::string config(const std::string& more = {}) { return configuration(folder_.socket(), more); }

  /// Stores a page once the node is there again.
  static void put_again(c_client& one, uint64_t number) {
    const auto end = std::chrono::steady_clock::now() + 60s;
    while (one.put(number) != HC_OK)
      ASSERT_LT(std::chrono::steady_clock::now(), end);
  }

  socket_folder folder_;
  node_process node_{folder_.socket()};
};

TEST_F(CAbiLifetimeTest, CallsEndByTheirTimeThoughTheNodeHangs) {
  auto one = c_client{config()};
  ASSERT_EQ(one.put(1), HC_OK);
  node_.suspend();
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(one.put(2, 100), HC_DEADLINE_EXCEEDED);
  EXPECT_NE(one.get(1, 100), HC_OK);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s);
  node_.resume();
  put_again(one, 3);
  EXPECT_EQ(one.get(1), HC_OK);
  // What the node reserved for a call that was over ends with the connection of that call.
  while (one.node().reservations > 0)
    std::this_thread::yield();
}

TEST_F(CAbiLifetimeTest, AClientOutlivesItsNodeAndGoesOnWithTheNext) {
  auto one = c_client{config()};
  ASSERT_EQ(one.put(1), HC_OK);
  node_.kill();
  EXPECT_EQ(one.get(1), HC_PEER_UNREACHABLE);
  EXPECT_EQ(one.put(2), HC_PEER_UNREACHABLE);
  const auto seen = one.keys(hc_lookup, keys_of({1}));
  EXPECT_EQ(seen.pages, 0u);
  EXPECT_EQ(seen.error.code, HC_PEER_UNREACHABLE);
  EXPECT_STRNE(seen.error.text, "");
  EXPECT_EQ(one.counters().connected, 0u);
  node_.start();
  put_again(one, 3);
  EXPECT_EQ(one.get(3), HC_OK);
  EXPECT_EQ(one.get(1), HC_NOT_FOUND) << "it was in the memory of the old one";
  EXPECT_EQ(one.counters().connected, 1u);
}

TEST_F(CAbiLifetimeTest, NoPageIsEverWrongWhileNodesDieAndCome) {
  auto one = c_client{config()};
  auto is_over = std::atomic<bool>{false};
  auto found = std::atomic<uint64_t>{0};
  auto threads = std::vector<std::thread>{};
  for (auto t = uint64_t{0}; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (auto i = t; !is_over; ++i) {
        one.put(i % 64);
        found += one.get((i + 7) % 64) == HC_OK ? 1 : 0; // The bytes are compared there.
      }
    });
  for (auto round = 0; round < 4; ++round) {
    const auto before = found.load();
    while (found < before + 50)
      std::this_thread::yield();
    node_.kill();
    node_.start();
  }
  is_over = true;
  for (auto& thread : threads)
    thread.join();
  put_again(one, 1);
}

/// Whether a thread of this process waits for something.
bool sleeps(pid_t thread) {
  auto text = std::string{};
  std::getline(std::ifstream{"/proc/self/task/" + std::to_string(thread) + "/stat"}, text);
  return text.find(") S ") != std::string::npos;
}

TEST_F(CAbiLifetimeTest, AClientThatIsClosedWaitsForNoNode) {
  auto one = c_client{config(R"(, "threads": 2)")};
  ASSERT_EQ(one.put(1), HC_OK);
  node_.suspend();
  auto bytes = page_bytes(page_size, 7);
  const auto part = hc_part{bytes.data(), bytes.size()};
  const auto page = hc_page{key_of(1), {}, &part, 1, {}};
  const auto how = call_for(600'000);
  auto ticket = hc_ticket{};
  for (auto i = 0; i < 100; ++i)
    ASSERT_EQ(hc_get(one.get(), &page, 1, &how, &ticket, nullptr), HC_OK);
  while (one.counters().open_calls < 100)
    std::this_thread::yield();
  // A thread that waits is told.
  auto waiting = std::atomic<pid_t>{0};
  auto polled = std::atomic<int32_t>{-1};
  auto poller = std::thread{[&, client = one.get()] {
    auto done = hc_completion{};
    auto count = size_t{0};
    waiting = ::gettid();
    polled = hc_poll(client, &done, 1, 600'000, &count);
  }};
  while (waiting == 0 || !sleeps(waiting))
    std::this_thread::yield();
  const auto begin = std::chrono::steady_clock::now();
  one.close();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s);
  poller.join();
  EXPECT_EQ(polled, HC_STOPPING);
  node_.resume();
  EXPECT_EQ(bytes, page_bytes(page_size, 7)) << "nobody writes there any more";
}

/// What a child of this process finds; 0 if all is as it should be, else the number of a step.
int run_child(hc_client* inherited, hc_lease* lease, const std::string& config) {
  const auto key = key_of(1);
  const auto how = call_for();
  auto ticket = hc_ticket{};
  auto error = hc_error{};
  auto done = hc_completion{};
  auto count = size_t{0};
  auto counters = hc_counters{};
  counters.size = sizeof(counters);
  auto state = hc_node_state{};
  state.size = sizeof(state);
  const auto length = size_t{1};
  auto name = hc_key{};
  auto pages = uint64_t{0};
  const auto answers = std::array{
    hc_connect(inherited, 1000, &error),
    hc_lookup(inherited, &key, 1, &how, &ticket, &error),
    hc_pin(inherited, &key, 1, &how, &ticket, &error),
    hc_poll(inherited, &done, 1, 1000, &count),
    hc_wait(inherited, 1, 1000, &done),
    hc_stats(inherited, &counters),
    hc_node_status(inherited, 1000, &state, &error),
    hc_clear(inherited, 0, 1000, &pages, &error),
    hc_names(inherited, "x", &length, 1, &name),
    hc_unpin(lease),
    hc_lease_pages(lease, 0, 0, nullptr, nullptr),
    hc_close(inherited),
  };
  for (auto i = size_t{0}; i < answers.size(); ++i)
    if (answers[i] != HC_FORKED)
      return static_cast<int>(i) + 1;
  if (error.code != HC_FORKED || hc_event_fd(inherited) != -1)
    return 50;
  // One of its own works.
  auto own = c_client{config};
  if (own.get(1) != HC_OK || own.put(2) != HC_OK)
    return 51;
  own.close();
  return 0;
}

TEST_F(CAbiLifetimeTest, AForkedChildGetsErrorsAndCanOpenItsOwn) {
  auto one = c_client{config()};
  ASSERT_EQ(one.put(1), HC_OK);
  const auto pinned = one.keys(hc_pin, keys_of({1}));
  const auto child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(60); // It must not hang.
    ::_exit(run_child(one.get(), pinned.lease, config()));
  }
  auto status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(one.get(2), HC_OK) << "the parent goes on";
  EXPECT_EQ(hc_unpin(pinned.lease), HC_OK);
}

TEST_F(CAbiLifetimeTest, AClientIsClosedByAnotherThreadThanTheOneThatUsedIt) {
  auto one = c_client{config()};
  auto error = hc_error{};
  ASSERT_EQ(hc_connect(one.get(), patience_ms, &error), HC_OK) << error.text;
  ASSERT_EQ(one.put(1), HC_OK);
  one.node();
  std::thread{[&one] { one.close(); }}.join();
}

TEST_F(CAbiLifetimeTest, NothingIsLeftOfAClosedClient) {
  const auto count = [](const char* what) {
    const auto all = std::filesystem::directory_iterator{what};
    return std::distance(begin(all), end(all));
  };
  const auto threads = count("/proc/self/task");
  c_client{config()}.put(1); // What libraries open once stays open.
  const auto descriptors = count("/proc/self/fd");
  for (auto i = 0; i < 5; ++i)
    EXPECT_EQ(c_client{config()}.get(1), HC_OK);
  EXPECT_EQ(count("/proc/self/fd"), descriptors);
  // The kernel shows a thread for some moments after it was joined.
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds{20};
  while (count("/proc/self/task") != threads && std::chrono::steady_clock::now() < give_up)
    std::this_thread::yield();
  EXPECT_EQ(count("/proc/self/task"), threads);
}

std::atomic<int> signals_seen{0};

TEST_F(CAbiLifetimeTest, SignalsOfTheProgramStayAsTheyWere) {
  struct sigaction counted = {};
  signals_seen = 0;
  counted.sa_handler = [](int) { ++signals_seen; };
  struct sigaction before = {};
  ASSERT_EQ(::sigaction(SIGUSR1, &counted, &before), 0);
  struct sigaction on_pipe = {};
  ::sigaction(SIGPIPE, nullptr, &on_pipe);
  auto mask = sigset_t{};
  ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  {
    auto one = c_client{config()};
    ASSERT_EQ(one.put(1), HC_OK);
    struct sigaction now = {};
    ::sigaction(SIGPIPE, nullptr, &now);
    EXPECT_EQ(now.sa_handler, on_pipe.sa_handler);
    ::sigaction(SIGUSR1, nullptr, &now);
    EXPECT_EQ(now.sa_handler, counted.sa_handler);
    auto same = sigset_t{};
    ::pthread_sigmask(SIG_SETMASK, nullptr, &same);
    for (auto signal = 1; signal < NSIG; ++signal)
      EXPECT_EQ(sigismember(&same, signal), sigismember(&mask, signal)) << signal;
    ::kill(::getpid(), SIGUSR1);
    EXPECT_EQ(signals_seen, 1) << "this thread takes it, the only one that does";
    // A node that is gone does not end this process by SIGPIPE.
    node_.kill();
    EXPECT_EQ(one.put(2), HC_PEER_UNREACHABLE);
  }
  ::sigaction(SIGUSR1, &before, nullptr);
}

/// Lines of a log.
struct lines {
  static void add(void* user, int32_t level, const char* text) {
    auto& all = *static_cast<lines*>(user);
    const auto guard = std::lock_guard{all.mutex};
    all.text += std::to_string(level) + " " + text + "\n";
  }

  bool have(const std::string& what) {
    const auto guard = std::lock_guard{mutex};
    return text.find(what) != std::string::npos;
  }

  std::mutex mutex;
  std::string text;
};

TEST_F(CAbiLifetimeTest, TheLogTellsWhenTheNodeComesAndGoes) {
  auto log = lines{};
  const auto options = hc_options{sizeof(hc_options), &lines::add, &log};
  auto* client = static_cast<hc_client*>(nullptr);
  auto error = hc_error{};
  ASSERT_EQ(hc_open(config().c_str(), &options, &client, &error), HC_OK) << error.text;
  EXPECT_EQ(hc_connect(client, patience_ms, &error), HC_OK) << error.text;
  EXPECT_TRUE(log.have("2 connected to the node at " + folder_.socket())) << log.text;
  node_.kill();
  EXPECT_NE(hc_connect(client, patience_ms, &error) == HC_OK
              && hc_node_status(client, patience_ms, nullptr, &error) == HC_OK,
            true);
  EXPECT_TRUE(log.have("3 the node at " + folder_.socket() + " does not serve")) << log.text;
  EXPECT_EQ(hc_close(client), HC_OK);
}

// -- without a node -----------------------------------------------------------

TEST(CAbiOpenTest, WrongConfigurationsAreOneSentence) {
  const auto wrong = std::array<std::pair<const char*, const char*>, 19>{{
    {"", "JSON"},
    {"[1]", "JSON"},
    {"{", "JSON"},
    {R"({"socket": [[[1]]], "namespace": "x"})", "JSON"},
    {R"({})", "socket"},
    {R"({"socket": "/x"})", "namespace"},
    {R"({"socket": 1, "namespace": "x"})", "\"socket\": expected a text"},
    {R"({"socket": "/x", "namespace": "x", "threads": 0})", "\"threads\": expected a number"},
    {R"({"socket": "/x", "namespace": "x", "threads": -1})", "\"threads\": expected a number"},
    {R"({"socket": "/x", "namespace": "x", "calls": 1e9})", "\"calls\": expected a number"},
    {R"({"socket": "/x", "namespace": "x", "lease_ms": 1000000})", "\"lease_ms\""},
    {R"({"socket": "/x", "namespace": "x", "sokcet": 1})", "\"sokcet\" is not known"},
    {R"({"socket": "/x", "address": "a:1", "namespace": "x"})", "\"address\": expected one of"},
    {R"({"address": "a", "namespace": "x"})", "\"address\": expected where"},
    {R"({"address": "a:0", "namespace": "x"})", "\"address\": expected where"},
    {R"({"address": "unix:/x", "namespace": "x"})", "\"address\": expected where"},
    {R"({"address": "a:1", "namespace": "x", "tls_ca": "/no"})", "tls_cert, tls_key and tls_ca"},
    {R"({"address": "a:1", "namespace": "x", "tls_cert": "/no", "tls_key": "/no", "tls_ca": "/no"})",
     "tls_cert: cannot read '/no'"},
    {R"({"socket": "/x", "namespace": "x", "tls_ca": "/no"})", "\"tls_cert\": expected no files"},
  }};
  for (const auto& [config, word] : wrong) {
    auto* client = reinterpret_cast<hc_client*>(1);
    auto error = hc_error{};
    EXPECT_EQ(hc_open(config, nullptr, &client, &error), HC_INVALID_ARGUMENT) << config;
    EXPECT_EQ(client, nullptr);
    EXPECT_EQ(error.code, HC_INVALID_ARGUMENT);
    EXPECT_NE(std::string_view{error.text}.find(word), std::string_view::npos) << error.text;
    EXPECT_EQ(std::string_view{error.text}.find('\n'), std::string_view::npos) << error.text;
  }
  auto* client = static_cast<hc_client*>(nullptr);
  EXPECT_EQ(hc_open(nullptr, nullptr, &client, nullptr), HC_INVALID_ARGUMENT);
  EXPECT_EQ(hc_open("{}", nullptr, nullptr, nullptr), HC_INVALID_ARGUMENT);
  const auto bad_options = hc_options{1, nullptr, nullptr};
  EXPECT_EQ(hc_open("{}", &bad_options, &client, nullptr), HC_INVALID_ARGUMENT);
}

TEST(CAbiOpenTest, ASocketPathThatIsTooLongIsRefused) {
  auto* client = static_cast<hc_client*>(nullptr);
  auto error = hc_error{};
  EXPECT_EQ(hc_open(configuration("/" + std::string(200, 'x')).c_str(), nullptr, &client, &error),
            HC_INVALID_ARGUMENT);
  EXPECT_NE(std::string_view{error.text}.find("107 bytes"), std::string_view::npos) << error.text;
}

TEST(CAbiOpenTest, WithoutANodeEverythingIsAMissWithASentence) {
  const auto folder = socket_folder{};
  auto one = c_client{configuration(folder.socket())};
  auto error = hc_error{};
  EXPECT_EQ(hc_connect(one.get(), patience_ms, &error), HC_PEER_UNREACHABLE);
  EXPECT_STRNE(error.text, "");
  EXPECT_EQ(one.get(1), HC_PEER_UNREACHABLE);
  auto state = hc_node_state{};
  state.size = sizeof(state);
  EXPECT_EQ(hc_node_status(one.get(), patience_ms, &state, &error), HC_PEER_UNREACHABLE);
}

} // namespace
} // namespace hicache::test
