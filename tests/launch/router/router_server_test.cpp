// The router in front of instances that are made up, and do what real ones seldom do.

#include "launch/router/router_server.hpp"
#include "runtime/http_listener.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <string>
#include <vector>

namespace hicache {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

/// An instance that says what it is told to say.
class made_up_instance {
public:
  explicit made_up_instance(const std::string& role = "both") {
    listener_.Get("/v1/models", [this, role](const httplib::Request&, httplib::Response& answer) {
      const auto guard = std::lock_guard{mutex_};
      ++probes_;
      changed_.notify_all();
      answer.status = probe_status_;
      answer.set_content(json{{"data", json::array({{{"id", "x"}, {"role", role}}})}}.dump(),
                         "application/json");
    });
    listener_.Post("/v1/completions",
                   [this](const httplib::Request& request, httplib::Response& answer) {
                     auto lock = std::unique_lock{mutex_};
                     requests_.push_back(request);
                     changed_.notify_all();
                     changed_.wait_for(lock, 60s, [this] { return !is_held_; });
                     answer.status = status_;
                     answer.set_content(body_, type_);
                   });
    const auto bound = listener_.start({"127.0.0.1", 0});
    EXPECT_TRUE(bound);
    address_ = to_string(*bound);
  }

  void answer(int status, std::string body, std::string type = "application/json") {
    const auto guard = std::lock_guard{mutex_};
    status_ = status;
    body_ = std::move(body);
    type_ = std::move(type);
  }

  /// Keeps back its answers to completions.
  void hold(bool is_held) {
    const auto guard = std::lock_guard{mutex_};
    is_held_ = is_held;
    changed_.notify_all();
  }

  void wait_for_request() {
    auto lock = std::unique_lock{mutex_};
    changed_.wait_for(lock, 60s, [this] { return !requests_.empty(); });
  }

  void answer_probes(int status) {
    const auto guard = std::lock_guard{mutex_};
    probe_status_ = status;
  }

  /// The instance takes requests once its first probe is noted, which is before its second.
  void wait_until_known() {
    auto lock = std::unique_lock{mutex_};
    changed_.wait_for(lock, 60s, [this] { return probes_ >= 2; });
  }

  std::vector<httplib::Request> requests() {
    const auto guard = std::lock_guard{mutex_};
    return requests_;
  }

  const std::string& address() const { return address_; }

private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int probes_ = 0;
  bool is_held_ = false;
  int probe_status_ = 200;
  int status_ = 200;
  std::string body_ = "{}";
  std::string type_ = "application/json";
  std::vector<httplib::Request> requests_;
  std::string address_;
  // Last: its threads use the others.
  http_listener listener_;
};

class RouterServerTest : public testing::Test {
protected:
  void start(std::vector<made_up_instance*> instances, uint32_t retries = 2,
             uint32_t max_requests = 8) {
    auto options = router_options{};
    options.max_requests = max_requests;
    options.listen = "127.0.0.1:0";
    options.probe_period = 10ms;
    options.retries = retries;
    for (const auto* each : instances)
      options.instances.push_back({each->address(), "", "", {}});
    auto started = router_server::start(options);
    ASSERT_TRUE(started) << started.error().detail;
    server_ = std::move(*started);
    for (auto* each : instances)
      each->wait_until_known();
  }

  httplib::Result post(const std::string& body, const httplib::Headers& headers = {}) {
    auto client = httplib::Client{"http://" + server_->address()};
    client.set_read_timeout(60s);
    return client.Post("/v1/completions", headers, body, "application/json");
  }

  std::string message(const httplib::Result& answer) {
    return json::parse(answer->body)["error"]["message"];
  }

  std::unique_ptr<router_server> server_;
};

TEST_F(RouterServerTest, WhoRefusesIsReplaced) {
  auto first = made_up_instance{};
  auto second = made_up_instance{};
  start({&first, &second});
  for (const auto status : {429, 503}) {
    first.answer(status, "busy");
    second.answer(200, R"({"by": "second"})");
    for (auto i = 0; i < 3; ++i) {
      const auto answer = post(R"({"prompt": "a"})");
      ASSERT_TRUE(answer);
      EXPECT_EQ(answer->body, R"({"by": "second"})");
      EXPECT_EQ(answer->get_header_value("X-Hicache-Instance"), second.address());
    }
  }
  second.answer(503, "busy, too");
  const auto refused = post(R"({"prompt": "a"})");
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 503);
  EXPECT_THAT(message(refused), HasSubstr("takes no requests: it answered with status 503"));
}

TEST_F(RouterServerTest, RetriesAreBounded) {
  auto instances = std::vector<std::unique_ptr<made_up_instance>>(4);
  auto all = std::vector<made_up_instance*>{};
  for (auto& each : instances) {
    each = std::make_unique<made_up_instance>();
    each->answer(503, "busy");
    all.push_back(each.get());
  }
  start(all, 1);
  EXPECT_EQ(post(R"({"prompt": "a"})")->status, 503);
  auto requests = size_t{0};
  for (auto& each : instances)
    requests += each->requests().size();
  EXPECT_EQ(requests, 2u);
}

TEST_F(RouterServerTest, BeyondItsBoundCompletionsAreRefusedAndAllElseIsAnswered) {
  auto instance = made_up_instance{};
  start({&instance}, 2, 1);
  instance.hold(true);
  auto first = std::async(std::launch::async, [this] { return post(R"({"prompt": "a"})"); });
  instance.wait_for_request();
  const auto second = post(R"({"prompt": "b"})");
  ASSERT_TRUE(second);
  EXPECT_EQ(second->status, 429);
  EXPECT_THAT(message(second), HasSubstr("1 completions are under way"));
  auto client = httplib::Client{"http://" + server_->address()};
  EXPECT_EQ(client.Get("/health")->status, 200);
  EXPECT_THAT(client.Get("/metrics")->body,
              HasSubstr("hicache_router_running{upstream=\"" + instance.address() + "\"} 1"));
  instance.hold(false);
  EXPECT_EQ(first.get()->status, 200);
  EXPECT_EQ(post(R"({"prompt": "b"})")->status, 200);
}

TEST_F(RouterServerTest, OtherErrorsAreTheInstancesToSay) {
  auto instance = made_up_instance{};
  auto other = made_up_instance{};
  start({&instance, &other});
  for (const auto status : {400, 404, 500}) {
    for (auto* each : {&instance, &other})
      each->answer(status, "why", "text/plain");
    const auto answer = post(R"({"prompt": "a"})");
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->status, status);
    EXPECT_EQ(answer->body, "why");
    EXPECT_EQ(answer->get_header_value("Content-Type"), "text/plain");
  }
  EXPECT_EQ(instance.requests().size() + other.requests().size(), 3u);
}

TEST_F(RouterServerTest, DecodeInstancesAreToldWhoPrefills) {
  auto prefill = made_up_instance{"prefill"};
  auto decode = made_up_instance{"decode"};
  start({&prefill, &decode});
  const auto answer = post(R"({"prompt": [1, 2], "prefill": ["client:1"]})",
                           {{"Authorization", "Bearer x"}, {"X-Request-Id", "7"}, {"Cookie", "y"}});
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->get_header_value("X-Hicache-Instance"), decode.address());
  const auto requests = decode.requests();
  ASSERT_EQ(requests.size(), 1u);
  EXPECT_EQ(json::parse(requests[0].body),
            (json{{"prompt", {1, 2}}, {"prefill", {prefill.address()}}}));
  EXPECT_EQ(requests[0].get_header_value("Authorization"), "Bearer x");
  EXPECT_EQ(requests[0].get_header_value("X-Request-Id"), "7");
  EXPECT_FALSE(requests[0].has_header("Cookie"));
  EXPECT_THAT(prefill.requests(), testing::IsEmpty());
}

TEST_F(RouterServerTest, AStreamWithoutItsLastBlankLinePassesToo) {
  auto instance = made_up_instance{};
  start({&instance});
  instance.answer(200, "data: 1\n\ndata: [DONE]\n", "text/event-stream");
  const auto answer = post(R"({"prompt": "a", "stream": true})");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->body, "data: 1\n\ndata: [DONE]\n");
  EXPECT_EQ(answer->get_header_value("Content-Type"), "text/event-stream");
  EXPECT_TRUE(server_->drain(60s)) << "nothing is left under way";
}

TEST_F(RouterServerTest, AnInstanceThatAnswersNoProbeGetsNothing) {
  auto instance = made_up_instance{};
  instance.answer_probes(500);
  start({&instance});
  const auto answer = post(R"({"prompt": "a"})");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 503);
  EXPECT_EQ(message(answer), "no instance takes requests now");
  auto client = httplib::Client{"http://" + server_->address()};
  EXPECT_EQ(client.Get("/health")->status, 503);
  EXPECT_EQ(client.Get("/v1/models")->status, 503);
}

} // namespace
} // namespace hicache
