// The admin server: what it answers.

#include "runtime/http_listener.hpp"
#include "tests/runtime/admin_support.hpp"

#include <future>
#include <list>
#include <random>

namespace hicache {
namespace {

using json = nlohmann::json;
using test::raw_client;

constexpr auto path = test::admin_path;
/// What follows on the first line of a raw request.
constexpr auto bearer = "Authorization: Bearer 0123456789abcdef\r\n";

class AdminServerTest : public test::admin_client_test {};

// -- routes -------------------------------------------------------------------

TEST_F(AdminServerTest, ShowsWhatIsAttached) {
  start();
  storage_.set({"", "", "wait_complete"});
  EXPECT_EQ(ask("GET"),
            (std::pair{200, json{{"hicache_storage_backend", nullptr},
                                 {"hicache_storage_backend_extra_config", json::object()},
                                 {"hicache_storage_prefetch_policy", "wait_complete"}}}));
  storage_.set({"file", R"({"path": "/kv"})", "best_effort"});
  EXPECT_EQ(ask("GET"),
            (std::pair{200, json{{"hicache_storage_backend", "file"},
                                 {"hicache_storage_backend_extra_config", {{"path", "/kv"}}},
                                 {"hicache_storage_prefetch_policy", "best_effort"}}}));
  storage_.set({"file", "@l3.toml", "best_effort"});
  EXPECT_EQ(ask("GET").second["hicache_storage_backend_extra_config"], "@l3.toml");
}

TEST_F(AdminServerTest, ShowsHowTheStoreIs) {
  start();
  storage_.set({"file", "", "best_effort"});
  auto status = storage_status{"file", false, {}, {}, 2, 7};
  status.reads = {"open", "late", 1700000000, 3};
  storage_.set_status(status);
  const auto shown = ask("GET").second["hicache_storage_status"];
  EXPECT_EQ(shown["up"], false);
  EXPECT_EQ(shown["reads"],
            (json{{"state", "open"}, {"cause", "late"}, {"since_s", 1700000000}, {"openings", 3}}));
  EXPECT_EQ(shown["writes"]["state"], "closed");
  EXPECT_EQ(shown["stuck_calls"], 2);
  EXPECT_EQ(shown["quarantined_pages"], 7);
}

TEST_F(AdminServerTest, ShowsHowTheTiersAre) {
  start();
  storage_.set({"tiered", "", "best_effort"});
  EXPECT_FALSE(ask("GET").second.contains("hicache_storage_tiers"));
  storage_.set_tiers({{"memory", {true, "", 3, 300, 1000, {1, 2, 3, 4, 5}, {}}, 6, 7},
                      {"file", {false, "the disk is gone", 0, 0, 0, {}, {}}}});
  const auto shown = ask("GET").second["hicache_storage_tiers"];
  ASSERT_EQ(shown.size(), 2u);
  EXPECT_EQ(shown[0], (json{{"backend", "memory"},
                            {"up", true},
                            {"detail", ""},
                            {"objects", 3},
                            {"bytes", 300},
                            {"capacity_bytes", 1000},
                            {"hits", 1},
                            {"misses", 2},
                            {"corrupt", 3},
                            {"errors", 4},
                            {"evicted", 5},
                            {"written_bytes", 6},
                            {"over_budget", 7}}));
  EXPECT_EQ(shown[1]["up"], false);
  EXPECT_EQ(shown[1]["detail"], "the disk is gone");
}

TEST_F(AdminServerTest, AttachesWhatTheBodySays) {
  start();
  auto [status, answer] = ask("PUT", R"({"hicache_storage_backend": "memory"})");
  EXPECT_EQ(status, 200);
  EXPECT_EQ(answer, (json{{"success", true}, {"message", "L3 is now memory"}}));
  EXPECT_EQ(ask("PUT", R"({"hicache_storage_backend": "file", "timeout_s": 1.5,
                           "hicache_storage_backend_extra_config_json": "{\"path\": \"/a\"}",
                           "hicache_storage_prefetch_policy": "timeout"})")
              .first,
            200);
  EXPECT_EQ(ask("PUT", R"({"hicache_storage_backend": "file",
                           "hicache_storage_backend_extra_config": {"path": "/b"},
                           "hicache_storage_backend_extra_config_json": null,
                           "hicache_storage_prefetch_policy": null})")
              .first,
            200);
  const auto changes = storage_.changes();
  ASSERT_EQ(changes.size(), 3u);
  EXPECT_EQ(changes[0].first, (storage_attachment{"memory", "", ""}));
  EXPECT_EQ(changes[0].second, std::chrono::seconds{30});
  EXPECT_EQ(changes[1].first, (storage_attachment{"file", R"({"path":"/a"})", "timeout"}));
  EXPECT_EQ(changes[1].second, std::chrono::milliseconds{1500});
  EXPECT_EQ(changes[2].first, (storage_attachment{"file", R"({"path":"/b"})", ""}));
}

TEST_F(AdminServerTest, DetachesWithinTheTimeAsked) {
  start();
  storage_.set({"memory", "", ""});
  EXPECT_EQ(ask("DELETE"),
            (std::pair{200, json{{"success", true}, {"message", "L3 is detached"}}}));
  EXPECT_EQ(ask("DELETE", {}, authorization(), std::string{path} + "?timeout_s=0.25").first, 200);
  const auto changes = storage_.changes();
  ASSERT_EQ(changes.size(), 2u);
  EXPECT_EQ(changes[0].first, storage_attachment{});
  EXPECT_EQ(changes[0].second, std::chrono::seconds{30});
  EXPECT_EQ(changes[1].second, std::chrono::milliseconds{250});
}

TEST_F(AdminServerTest, TiersArePostedAndDeleted) {
  start();
  storage_.set({"tiered", R"({"tiers": [{"backend": "memory"}], "threads": 2})", "timeout"});
  const auto where = std::string{path} + "/tiers";
  auto [status, answer] = ask("POST",
                              R"({"hicache_storage_backend": "file", "at": 1, "timeout_s": 1.5,
              "hicache_storage_backend_extra_config": {"path": "/a", "write": "hits:2"}})",
                              authorization(), where);
  EXPECT_EQ(status, 200);
  EXPECT_EQ(answer, (json{{"success", true}, {"message", "file is now a tier of L3"}}));
  EXPECT_EQ(
    ask("DELETE", {}, authorization(), where + "/memory?timeout_s=2"),
    (std::pair{200, json{{"success", true}, {"message", "tier memory of L3 is detached"}}}));
  const auto changes = storage_.changes();
  ASSERT_EQ(changes.size(), 2u);
  EXPECT_EQ(
    changes[0].first,
    (storage_attachment{
      "tiered",
      R"({"threads":2,"tiers":[{"backend":"file","path":"/a","write":"hits:2"},{"backend":"memory"}]})",
      ""}));
  EXPECT_EQ(changes[0].second, std::chrono::milliseconds{1500});
  EXPECT_EQ(
    changes[1].first,
    (storage_attachment{
      "tiered", R"({"threads":2,"tiers":[{"backend":"file","path":"/a","write":"hits:2"}]})", ""}));
  EXPECT_EQ(changes[1].second, std::chrono::seconds{2});
}

TEST_F(AdminServerTest, BadRequestsForTiersAreRefusedInOneSentence) {
  start();
  const auto where = std::string{path} + "/tiers";
  const auto refusal = [&](const char* method, const std::string& body, const std::string& tier) {
    const auto [status, answer] = ask(method, body, authorization(), where + tier);
    EXPECT_EQ(status, 400) << body << tier;
    return answer["message"].get<std::string>();
  };
  for (const auto* backend : {"", "file"}) {
    storage_.set({backend, "", "timeout"});
    EXPECT_EQ(refusal("POST", R"({"hicache_storage_backend": "file"})", ""),
              "L3 has no tiers; expected it to be attached as tiered");
    EXPECT_EQ(refusal("DELETE", "", "/1"), "L3 has no tiers; expected it to be attached as tiered");
  }
  storage_.set({"tiered", R"({"tiers": [{"backend": "memory"}]})", "timeout"});
  for (const auto* number : {"-1", "1.5", "\"1\"", "[]"})
    EXPECT_EQ(
      refusal("POST", R"({"hicache_storage_backend": "file", "at": )" + std::string{number} + "}",
              ""),
      "key 'at' holds " + std::string{number} + "; expected the number of a tier, 1 for the first");
  EXPECT_EQ(refusal("POST", R"({"hicache_storage_backend": "file", "at": 3})", ""),
            "L3 has no tier '3'; expected a number from 1 to 2");
  EXPECT_EQ(
    refusal("POST", R"({"hicache_storage_backend": "file", "hicache_storage_prefetch_policy": ""})",
            ""),
    "key 'hicache_storage_prefetch_policy' is not known; expected hicache_storage_backend, "
    "hicache_storage_backend_extra_config, hicache_storage_backend_extra_config_json, at or "
    "timeout_s");
  EXPECT_EQ(refusal("DELETE", "", "/a%2Fb"),
            "L3 has no tier 'a/b'; expected the name of a tier's store, or a number from 1 to 1");
  EXPECT_EQ(ask("POST", "{}", {}, where).first, 401);
  EXPECT_EQ(ask("GET", "", authorization(), where).first, 405);
  EXPECT_EQ(header("Allow"), "POST");
  EXPECT_EQ(ask("PUT", "", authorization(), where + "/1").first, 405);
  EXPECT_EQ(header("Allow"), "DELETE");
  EXPECT_TRUE(storage_.changes().empty());
}

TEST_F(AdminServerTest, OtherAddressesAndMethodsAreRefused) {
  start();
  for (const auto* where :
       {"/", "/hicache", "/hicache/storage-backend/", "/hicache/storage-backendx"})
    for (const auto* method : {"GET", "PUT", "POST", "DELETE"}) {
      const auto [status, answer] = ask(method, "", {}, where);
      EXPECT_EQ(status, 404) << method << " " << where;
      EXPECT_EQ(answer["message"], "nothing is at this address; expected /hicache/storage-backend");
    }
  for (const auto* method : {"POST", "PATCH", "OPTIONS"}) {
    const auto [status, answer] = ask(method);
    EXPECT_EQ(status, 405) << method;
    EXPECT_EQ(answer["message"], "the method " + std::string{method} + " is not offered here");
    EXPECT_EQ(header("Allow"), "GET, HEAD, PUT, DELETE");
  }
  EXPECT_EQ(ask("DELETE", "", {}, "/healthz").first, 405);
  EXPECT_EQ(header("Allow"), "GET, HEAD");
  EXPECT_TRUE(storage_.changes().empty());
}

// -- bad requests -------------------------------------------------------------

TEST_F(AdminServerTest, BadBodiesAreRefusedInOneSentence) {
  start();
  const auto expected = std::vector<std::pair<std::string, std::string>>{
    {"", R"(the body is no JSON object; expected one such as {"hicache_storage_backend": "file"})"},
    {"{",
     R"(the body is no JSON object; expected one such as {"hicache_storage_backend": "file"})"},
    {"[]",
     R"(the body is no JSON object; expected one such as {"hicache_storage_backend": "file"})"},
    {"{\"\xff\": 1}",
     R"(the body is no JSON object; expected one such as {"hicache_storage_backend": "file"})"},
    {"{}", "key 'hicache_storage_backend' is missing; expected the name of a backend"},
    {R"({"hicache_storage_backend": ""})",
     "key 'hicache_storage_backend' is missing; expected the name of a backend"},
    {R"({"hicache_storage_backend": 7})",
     "key 'hicache_storage_backend' holds number; expected a string"},
    {R"({"hicache_storage_backend": "file", "pathh": "/kv"})",
     "key 'pathh' is not known; expected hicache_storage_backend, "
     "hicache_storage_backend_extra_config, hicache_storage_backend_extra_config_json, "
     "hicache_storage_prefetch_policy or timeout_s"},
    {R"({"hicache_storage_backend": "file", "hicache_storage_prefetch_policy": true})",
     "key 'hicache_storage_prefetch_policy' holds boolean; expected a string"},
    {R"({"hicache_storage_backend": "file", "hicache_storage_backend_extra_config": "{}"})",
     "key 'hicache_storage_backend_extra_config' holds string; expected an object"},
    {R"({"hicache_storage_backend": "file", "hicache_storage_backend_extra_config_json": {}})",
     "key 'hicache_storage_backend_extra_config_json' holds object; expected a string"},
    {R"({"hicache_storage_backend": "file", "hicache_storage_backend_extra_config_json": "{"})",
     R"(key 'hicache_storage_backend_extra_config_json' is no JSON object; expected one such as {"path": "/kv"})"},
    // A client must not make a rank read its files.
    {R"({"hicache_storage_backend": "file", "hicache_storage_backend_extra_config_json": "@/etc/passwd"})",
     R"(key 'hicache_storage_backend_extra_config_json' is no JSON object; expected one such as {"path": "/kv"})"},
    {R"({"hicache_storage_backend": "file", "hicache_storage_backend_extra_config_json": "{}",
         "hicache_storage_backend_extra_config": {}})",
     "the extra config is given twice, as an object and as text; expected one of them"},
  };
  for (const auto& [body, sentence] : expected)
    EXPECT_EQ(refusal_of(body), sentence) << body;
  for (const auto* seconds : {"0", "-1", "3601", "\"soon\"", "1e400", "true"})
    EXPECT_EQ(refusal_of(R"({"hicache_storage_backend": "file", "timeout_s": )"
                         + std::string{seconds} + "}")
                .substr(0, 10),
              seconds == std::string{"1e400"} ? "the body i" : "timeout_s:");
  EXPECT_TRUE(storage_.changes().empty());
}

TEST_F(AdminServerTest, BadParametersAreRefusedInOneSentence) {
  start();
  for (const auto* value : {"0", "-3", "soon", "", "1e9", "nan"}) {
    const auto [status, answer]
      = ask("DELETE", {}, authorization(), path + std::string{"?timeout_s="} + value);
    EXPECT_EQ(status, 400) << value;
    EXPECT_EQ(answer["message"], "timeout_s: expected a number of seconds above 0 and up to 3600");
  }
  EXPECT_EQ(ask("DELETE", {}, authorization(), path + std::string{"?timeout=3"}).second["message"],
            "parameter 'timeout' is not known; expected timeout_s");
  EXPECT_EQ(ask("PUT", R"({"hicache_storage_backend": "file"})", authorization(),
                path + std::string{"?timeout_s=3"})
              .first,
            400);
  EXPECT_TRUE(storage_.changes().empty());
}

TEST_F(AdminServerTest, DeeplyNestedBodiesAreRefused) {
  start();
  const auto nested
    = [](size_t levels) { return std::string(levels, '[') + std::string(levels, ']'); };
  const auto deep
    = R"({"hicache_storage_backend": "file", "hicache_storage_backend_extra_config": {"x": )"
      + nested(30'000) + "}}";
  EXPECT_EQ(refusal_of(deep), "the body has more than 16 levels; expected one such as "
                              "{\"hicache_storage_backend\": \"file\"}");
  const auto text
    = json{{"hicache_storage_backend", "file"},
           {"hicache_storage_backend_extra_config_json", R"({"x": )" + nested(30'000) + "}"}};
  EXPECT_EQ(refusal_of(text.dump()),
            "key 'hicache_storage_backend_extra_config_json' has more than "
            "16 levels; expected one such as {\"path\": \"/kv\"}");
  EXPECT_EQ(
    ask("PUT",
        R"({"hicache_storage_backend": "file", "hicache_storage_backend_extra_config": {"x": )"
          + nested(5) + "}}")
      .first,
    200);
}

TEST_F(AdminServerTest, LongBodiesAreRefused) {
  start();
  const auto body = [](size_t bytes) {
    return R"({"hicache_storage_backend": ")" + std::string(bytes - 31, 'x') + "\"}";
  };
  ASSERT_EQ(body(100).size(), 100u);
  EXPECT_EQ(ask("PUT", body(limits::admin_body_bytes)).first, 200);
  for (const auto bytes : {limits::admin_body_bytes + 1, 2 * limits::admin_body_bytes}) {
    const auto [status, answer] = ask("PUT", body(bytes));
    EXPECT_EQ(status, 413);
    EXPECT_EQ(answer["message"], "the body is longer than 65536 bytes");
  }
  // Without saying before how long it is.
  auto client = raw_client{port()};
  client.send("PUT " + std::string{path} + " HTTP/1.1\r\n" + bearer
              + "Transfer-Encoding: chunked\r\n\r\n12000\r\n" + std::string(0x12000, 'x')
              + "\r\n0\r\n\r\n");
  EXPECT_EQ(client.receive_all().substr(0, 13), "HTTP/1.1 413 ");
  EXPECT_EQ(storage_.changes().size(), 1u);
}

TEST_F(AdminServerTest, BodiesThatGrowWhenUnpackedAreRefused) {
  start();
  auto client = httplib::Client{"127.0.0.1", port()};
  client.set_compress(true);
  // A thousandth of that when packed.
  const auto answer
    = client.Put(path, authorization(), std::string(size_t{32} << 20, ' '), "application/json");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 413);
}

TEST_F(AdminServerTest, GarbageNeverEndsTheServer) {
  start();
  const auto head = "PUT " + std::string{path} + " HTTP/1.1\r\n" + bearer;
  const auto get = "GET " + std::string{path} + " HTTP/1.1\r\n" + bearer;
  auto all = std::vector<std::string>{
    "",
    "\r\n",
    "\n",
    "GET\r\n\r\n",
    "GET / HTTP/9.9\r\n\r\n",
    "BREW /pot HTTP/1.1\r\n\r\n",
    std::string("\0\0\0\r\n\r\n", 7),
    "GET " + std::string(20'000, 'a') + " HTTP/1.1\r\n\r\n",
    "GET /%%%zz%u HTTP/1.1\r\n\r\n",
    "GET /?=&&=%00&a HTTP/1.1\r\n\r\n",
    "TRACE " + std::string{path} + " HTTP/1.1\r\n\r\n",
    get + std::string(200'000, 'h'),
    get + "Range: bytes=0-1,5-2\r\n\r\n",
    get + "Range: bytes=900-1000\r\n\r\n",
    get + "Range: bytes=0-99999999999999999999999\r\n\r\n",
    get + "Range: bytes=0-1" +
      [] {
        auto more = std::string{};
        for (auto i = 0; i < 2000; ++i)
          more += ",1-2";
        return more;
      }()
      + "\r\n\r\n",
    head + "Content-Length: -1\r\n\r\n{}",
    head + "Content-Length: many\r\n\r\n{}",
    head + "Content-Length: 999999999999\r\n\r\n{}",
    head + "Content-Length: 50\r\n\r\n{}",
    head + "Transfer-Encoding: chunked\r\n\r\nzz\r\n{}",
    head + "Content-Encoding: br\r\nContent-Length: 4\r\n\r\n\x01\x02\x03\x04",
    head + "Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\nabcd",
    head + "Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 5\r\n\r\n--x--",
    head + "Expect: 100-continue\r\nContent-Length: 2\r\n\r\n{}"};
  const auto seed = std::random_device{}();
  auto random = std::mt19937{seed};
  for (auto i = 0; i < 200; ++i) {
    auto noise = i % 2 == 0 ? std::string{} : all[random() % all.size()];
    for (auto n = random() % 300; n > 0; --n)
      noise.insert(noise.begin() + static_cast<std::ptrdiff_t>(random() % (noise.size() + 1)),
                   static_cast<char>(random()));
    all.push_back(noise);
  }
  for (const auto& bytes : all) {
    auto client = raw_client{port()};
    client.send(bytes);
    client.finish_sending();
    const auto answer = client.receive_all();
    EXPECT_TRUE(answer.empty() || answer.starts_with("HTTP/1.1 "))
      << "seed " << seed << ": " << answer.substr(0, 100);
  }
  expect_alive();
  EXPECT_TRUE(storage_.changes().empty()) << "seed " << seed;
}

// -- what the instance answers ------------------------------------------------

TEST_F(AdminServerTest, ErrorsOfTheInstanceHaveStatusCodes) {
  start();
  const auto expected = std::vector<std::pair<ec, int>>{
    {ec::invalid_argument, 400},  {ec::unsupported, 400},       {ec::limit_reached, 409},
    {ec::io_failure, 409},        {ec::store_full, 409},        {ec::configuration_mismatch, 409},
    {ec::rank_unresponsive, 503}, {ec::ranks_diverged, 503},    {ec::peer_unreachable, 503},
    {ec::stopping, 503},          {ec::deadline_exceeded, 504},
  };
  for (const auto& [code, status] : expected) {
    storage_.fail_with({code, "rank 1 could not: \xff"});
    for (const auto* method : {"PUT", "DELETE"}) {
      const auto [got, answer] = ask(method, R"({"hicache_storage_backend": "file"})");
      EXPECT_EQ(got, status) << to_string(code);
      EXPECT_EQ(answer, (json{{"success", false},
                              {"message", "rank 1 could not: \xEF\xBF\xBD"},
                              {"code", to_string(code)}}));
    }
  }
  storage_.fail_with({ec::stopping, ""});
  EXPECT_EQ(ask("DELETE").second["message"], sentence(ec::stopping));
}

TEST_F(AdminServerTest, AnExceptionIsAnAnswer) {
  start();
  storage_.throw_from_now_on();
  EXPECT_EQ(ask("DELETE").first, 500);
  EXPECT_EQ(ask("DELETE").first, 500) << "the change was left open";
}

TEST_F(AdminServerTest, OneChangeAtATime) {
  start();
  storage_.hold();
  auto first = raw_client{port()};
  first.send("DELETE " + std::string{path} + " HTTP/1.1\r\n" + bearer + "\r\n");
  storage_.wait_for_changes(1);
  for (const auto* method : {"PUT", "DELETE"}) {
    const auto [status, answer] = ask(method, R"({"hicache_storage_backend": "file"})");
    EXPECT_EQ(status, 409);
    EXPECT_EQ(answer["message"], "another change is under way; try again when it is over");
  }
  EXPECT_EQ(ask("GET").first, 200);
  storage_.let_go();
  EXPECT_EQ(first.receive_all().substr(0, 13), "HTTP/1.1 200 ");
  EXPECT_EQ(storage_.changes().size(), 1u);
  EXPECT_EQ(ask("DELETE").first, 200);
}

// -- connections --------------------------------------------------------------

TEST(HttpListenerTest, ConnectionsWaitWhileAllThreadsAnswer) {
  auto entered = std::promise<void>{};
  auto released = std::promise<void>{};
  auto most = http_limits{};
  most.threads = 1;
  most.connections = 1;
  auto server = http_listener{most};
  server.Get("/", [&](const httplib::Request&, httplib::Response&) {
    entered.set_value();
    released.get_future().wait();
  });
  const auto address = server.start({"127.0.0.1", 0});
  ASSERT_TRUE(address);
  const auto port = address->port;
  auto first = raw_client{port};
  first.send("GET / HTTP/1.1\r\n\r\n");
  entered.get_future().wait();
  auto others = std::list<raw_client>{};
  while (others.size() < 40 && !HasFailure())
    others.emplace_back(port);
  EXPECT_EQ(others.size(), 40u);
  released.set_value();
  EXPECT_EQ(first.receive_all().substr(0, 13), "HTTP/1.1 200 ");
}

} // namespace
} // namespace hicache
