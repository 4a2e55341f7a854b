// A node at a path, and processes that ask it.

#include "base/limits.hpp"
#include "rpc/limits.hpp"
#include "rpc/services.hpp"
#include "tests/rpc/process.hpp"

#include <caf/actor_cast.hpp>
#include <caf/scoped_actor.hpp>
#include <caf/send.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>
#include <capnp/rpc-twoparty.h>
#include <gtest/gtest.h>
#include <kj/async-io.h>

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace hicache {
namespace {

using namespace std::chrono_literals;
using namespace hicache::test;

page_key key_of(uint8_t number) {
  auto key = page_key{};
  key.bytes[0] = number;
  return key;
}

/// What a node sees of its clients.
struct sightings_of_clients {
  /// That one is gone.
  std::promise<void> lost;
  std::vector<caf::typed_response_promise<node_status>> waiting;
};

/// Asks for a long answer, which comes when so many have asked for it.
status_query query_together(uint64_t count) {
  return {count, limits::node_clients};
}

/// Answers with what shows that the question arrived.
node_actor::behavior_type run_node(node_actor::pointer self,
                                   std::shared_ptr<sightings_of_clients> seen) {
  static_cast<caf::scheduled_actor*>(self)->set_down_handler(
    [seen](const caf::down_msg&) { seen->lost.set_value(); });
  return {
    [self](atom::attach, const client_info& who) -> caf::result<node_info> {
      if (who.tenant == 0)
        return to_caf({ec::limit_reached, "too many clients"});
      self->monitor(self->current_sender());
      return node_info{"memory", who.tenant, who.fingerprint};
    },
    [](atom::reserve, const wanted_pages& wanted) {
      auto answer = reserved_pages{wanted.pages.size(), {}};
      for (const auto& page : wanted.pages)
        answer.places.push_back({place_status::writable, 64, 3, page.length});
      return answer;
    },
    [](atom::commit, const complete_pages& pages) {
      return page_totals{pages.pages.size(), pages.reservation};
    },
    [](atom::abort, const client_ticket& which) -> caf::result<page_totals> {
      return to_caf({ec::unknown_id, "no reservation " + std::to_string(which.number)});
    },
    [](atom::locate, const page_lookup& wanted) {
      auto answer = leased_pages{wanted.lease_ms, wanted.wait_ms, {}};
      answer.places.resize(wanted.keys.size(), {place_status::present, 1, 2, 3});
      return answer;
    },
    [](atom::release, const client_ticket& which) {
      return page_totals{which.number, 1};
    },
    [](atom::fetch, const page_prefetch& wanted) {
      return page_totals{wanted.wait_ms, 2, wanted.keys};
    },
    [](atom::corrupt, const key_batch& keys) {
      return page_totals{keys.keys.size(), 3};
    },
    [](atom::remove, const key_batch& keys) {
      return page_totals{keys.keys.size(), 4};
    },
    [](atom::clear, const namespace_pages& pages) {
      return page_totals{pages.fingerprint, pages.evict_first ? 1u : 0u};
    },
    [self, seen](atom::status, const status_query& query) -> caf::result<node_status> {
      auto answer = node_status{};
      if (query == query_together(query.from)) {
        auto promise = seen->waiting.emplace_back(self->make_response_promise<node_status>());
        answer.clients.resize(limits::node_clients);
        if (seen->waiting.size() == query.from)
          for (auto& one : seen->waiting)
            one.deliver(answer);
        return promise;
      }
      answer.clients.push_back({query.from, {1, 2}, 3, 4, 5, 6, {7, 8, 9, 10, 11}});
      return answer;
    },
    [](atom::tick) {},
  };
}

class NodeServingTest : public ::testing::Test {
protected:
  void SetUp() override {
    auto folder = std::string{::testing::TempDir()} + "/hicache-node-XXXXXX";
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    path_ = folder + "/node";
    server_ = std::make_unique<process>();
    node_ = server_->system.spawn(run_node, seen_);
    auto at = rpc_network::listen(rpc::parse_endpoint("unix:" + path_).value());
    ASSERT_TRUE(at) << to_string(at.error());
    server_->network.serve_node(std::move(*at), node_);
  }

  void TearDown() override {
    server_->network.stop_serving();
    caf::anon_send_exit(node_, caf::exit_reason::user_shutdown);
    std::filesystem::remove_all(folder_);
  }

  static result<node_actor> connect(process& from, const std::string& path) {
    const auto connector = from.network.node_connector();
    auto found = ask_of<caf::strong_actor_ptr>(from, connector, atom::connect_v, "unix:" + path);
    if (!found)
      return tl::unexpected{found.error()};
    return caf::actor_cast<node_actor>(*found);
  }

  template <class Answer, class... Args>
  result<Answer> ask(const node_actor& to, Args... args) {
    return ask_of<Answer>(*client_, to, std::move(args)...);
  }

  std::shared_ptr<sightings_of_clients> seen_ = std::make_shared<sightings_of_clients>();
  std::string folder_;
  std::string path_;
  std::unique_ptr<process> server_;
  std::unique_ptr<process> client_ = std::make_unique<process>();
  node_actor node_;
};

TEST_F(NodeServingTest, EachRequestArrivesAndIsAnswered) {
  const auto node = connect(*client_, path_);
  ASSERT_TRUE(node) << to_string(node.error());
  EXPECT_EQ(ask<node_info>(*node, atom::attach_v, client_info{7, 8}), (node_info{"memory", 7, 8}));
  const auto got
    = ask<reserved_pages>(*node, atom::reserve_v, wanted_pages{{{key_of(1), key_of(2), 5}}});
  EXPECT_EQ(got, (reserved_pages{1, {{place_status::writable, 64, 3, 5}}}));
  EXPECT_EQ(ask<page_totals>(*node, atom::commit_v, complete_pages{9, {{key_of(1), 1}}}),
            (page_totals{1, 9}));
  EXPECT_EQ(ask<page_totals>(*node, atom::abort_v, client_ticket{4}).error(),
            (error{ec::unknown_id, "no reservation 4"}));
  EXPECT_EQ(ask<leased_pages>(*node, atom::locate_v, page_lookup{{key_of(1)}, true, 5, 6}),
            (leased_pages{5, 6, {{place_status::present, 1, 2, 3}}}));
  EXPECT_EQ(ask<page_totals>(*node, atom::release_v, client_ticket{4}), (page_totals{4, 1}));
  EXPECT_EQ(ask<page_totals>(*node, atom::fetch_v, page_prefetch{{key_of(3)}, false, 4}),
            (page_totals{4, 2, {key_of(3)}}));
  EXPECT_EQ(ask<page_totals>(*node, atom::corrupt_v, key_batch{{key_of(3)}}), (page_totals{1, 3}));
  EXPECT_EQ(ask<page_totals>(*node, atom::remove_v, key_batch{{key_of(3)}}), (page_totals{1, 4}));
  EXPECT_EQ(ask<page_totals>(*node, atom::clear_v, namespace_pages{5, true}), (page_totals{5, 1}));
  const auto status = ask<node_status>(*node, atom::status_v, status_query{11, 1});
  ASSERT_TRUE(status) << to_string(status.error());
  EXPECT_EQ(status->clients,
            (std::vector<node_client_state>{{11, {1, 2}, 3, 4, 5, 6, {7, 8, 9, 10, 11}}}));
}

TEST_F(NodeServingTest, RefusalsAreAnswered) {
  const auto node = connect(*client_, path_);
  ASSERT_TRUE(node);
  EXPECT_EQ(ask<node_info>(*node, atom::attach_v, client_info{}).error(),
            (error{ec::limit_reached, "too many clients"}));
}

TEST_F(NodeServingTest, TheNodeHearsThatAClientIsGone) {
  {
    const auto node = connect(*client_, path_);
    ASSERT_TRUE(node);
    ASSERT_TRUE(ask<node_info>(*node, atom::attach_v, client_info{1, 1}));
  }
  // Nobody holds it any more, so its connection is closed.
  EXPECT_EQ(seen_->lost.get_future().wait_for(20s), std::future_status::ready);
}

TEST_F(NodeServingTest, AClientHearsThatTheNodeIsGone) {
  const auto node = connect(*client_, path_);
  ASSERT_TRUE(node);
  auto self = caf::scoped_actor{client_->system};
  self->monitor(*node);
  server_->network.stop_serving();
  self->receive([&](const caf::down_msg& msg) { EXPECT_EQ(msg.source, node->address()); });
  EXPECT_EQ(ask<node_status>(*node, atom::status_v, status_query{}).error().code,
            ec::peer_unreachable);
}

TEST_F(NodeServingTest, WhereNoNodeIsThereIsASentence) {
  EXPECT_FALSE(connect(*client_, path_ + "-nobody"));
}

TEST_F(NodeServingTest, TheSocketIsForItsOwner) {
  struct stat status = {};
  ASSERT_EQ(::stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777u, 0600u);
}

TEST_F(NodeServingTest, ProcessesOfOtherUsersAreRefusedEvenIfTheyCanOpenTheSocket) {
  if (::geteuid() != 0)
    GTEST_SKIP() << "only root can become another user";
  ASSERT_EQ(::chmod(folder_.c_str(), 0755), 0);
  ASSERT_EQ(::chmod(path_.c_str(), 0666), 0);
  auto address = sockaddr_un{};
  address.sun_family = AF_UNIX;
  ASSERT_LT(path_.size(), sizeof(address.sun_path));
  std::memcpy(address.sun_path, path_.data(), path_.size());
  // The child has one thread, and calls nothing but the system.
  const auto child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (::setuid(65534) != 0)
      ::_exit(77);
    const auto fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
      ::_exit(2);
    auto byte = char{};
    ::_exit(::recv(fd, &byte, 1, 0) == 0 ? 0 : 1);
  }
  auto status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (WEXITSTATUS(status) == 77)
    GTEST_SKIP() << "no other user here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_TRUE(connect(*client_, path_)) << "its own user's are not";
}

TEST_F(NodeServingTest, AProcessHasABoundedNumberOfConnections) {
  auto open = std::vector<node_actor>{};
  while (open.size() < rpc::limits::connections_of_process) {
    auto node = connect(*client_, path_);
    ASSERT_TRUE(node) << to_string(node.error());
    open.push_back(std::move(*node));
  }
  EXPECT_FALSE(connect(*client_, path_));
  open.pop_back();
  const auto end = std::chrono::steady_clock::now() + 20s;
  while (!connect(*client_, path_))
    ASSERT_LT(std::chrono::steady_clock::now(), end) << "one that was closed counts still";
}

/// Reads no more than 24 MB a second, once it is told to.
class slow_stream final : public kj::AsyncIoStream {
public:
  slow_stream(kj::Own<kj::AsyncIoStream> inner, kj::Timer& timer)
    : inner_(kj::mv(inner)), timer_(timer) {}

  kj::Promise<size_t> tryRead(void* to, size_t least, size_t most) override {
    auto read = inner_->tryRead(to, least, most);
    if (!is_slow)
      return read;
    return read.then([this](size_t count) {
      return timer_.afterDelay(static_cast<int64_t>(count) * 1000 / 24 * kj::NANOSECONDS)
        .then([count] { return count; });
    });
  }

  kj::Promise<void> write(const void* bytes, size_t size) override {
    return inner_->write(bytes, size);
  }

  kj::Promise<void> write(kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> pieces) override {
    return inner_->write(pieces);
  }

  kj::Promise<void> whenWriteDisconnected() override { return inner_->whenWriteDisconnected(); }

  void shutdownWrite() override { inner_->shutdownWrite(); }

  bool is_slow = false;

private:
  kj::Own<kj::AsyncIoStream> inner_;
  kj::Timer& timer_;
};

TEST_F(NodeServingTest, APeerThatAsksForMuchMoreThanItReadsIsClosed) {
  // 130 MB of answers: the peer would have them before it counts as silent.
  constexpr auto questions = 1000;
  auto io = kj::setupAsyncIo();
  auto& timer = io.provider->getTimer();
  auto address
    = io.provider->getNetwork().parseAddress(("unix:" + path_).c_str()).wait(io.waitScope);
  auto stream = slow_stream{address->connect().wait(io.waitScope), timer};
  auto client = capnp::TwoPartyClient{stream};
  auto hello = client.bootstrap().castAs<schema::Process>().helloRequest();
  write_hello(hello);
  auto node = hello.send().wait(io.waitScope).getNode();
  stream.is_slow = true;
  auto answers = std::vector<kj::Promise<void>>{};
  for (auto i = 0; i < questions; ++i) {
    auto question = node.statusRequest();
    const auto query = query_together(questions);
    question.setFrom(query.from);
    question.setMost(query.most);
    answers.push_back(question.send().ignoreResult().eagerlyEvaluate([](kj::Exception&&) {}));
  }
  auto closed = stream.whenWriteDisconnected().then([] { return true; });
  auto late = timer.afterDelay(20 * kj::SECONDS).then([] { return false; });
  EXPECT_TRUE(closed.exclusiveJoin(kj::mv(late)).wait(io.waitScope))
    << "its answers would be kept for minutes";
}

} // namespace
} // namespace hicache
