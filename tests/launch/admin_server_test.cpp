// The admin server: what it answers, whom it refuses, and that no client can hold it up.

#include "launch/http_address.hpp"
#include "tests/launch/admin_support.hpp"

#include <nlohmann/json.hpp>

#include <arpa/inet.h>
#include <httplib.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <future>
#include <random>

namespace hicache {
namespace {

using json = nlohmann::json;

constexpr auto path = "/hicache/storage-backend";
/// What follows on the first line of a raw request.
constexpr auto bearer = "Authorization: Bearer 0123456789abcdef\r\n";

/// A client that sends bytes, well formed or not.
class raw_client {
public:
  explicit raw_client(uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    auto where = sockaddr_in{};
    where.sin_family = AF_INET;
    where.sin_port = htons(port);
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<const sockaddr*>(&where), sizeof where), 0);
  }

  raw_client(const raw_client&) = delete;
  raw_client& operator=(const raw_client&) = delete;

  ~raw_client() { ::close(socket_); }

  /// @returns false if the server does not listen any more.
  bool send(const std::string& bytes) {
    return ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL)
           == static_cast<ssize_t>(bytes.size());
  }

  void finish_sending() { ::shutdown(socket_, SHUT_WR); }

  /// True if there is something to read, or the server closed the connection.
  bool hears_within(int time_ms) {
    auto asked = pollfd{socket_, POLLIN, 0};
    return ::poll(&asked, 1, time_ms) > 0;
  }

  /// Everything until the server closes.
  std::string receive_all() {
    auto all = std::string{};
    auto part = std::array<char, 4096>{};
    for (;;) {
      const auto got = ::recv(socket_, part.data(), part.size(), 0);
      if (got <= 0)
        return all;
      all.append(part.data(), static_cast<size_t>(got));
    }
  }

private:
  const int socket_;
};

class AdminServerTest : public test::admin_test {
protected:
  uint16_t port() const { return parse_endpoint(server_->address())->port; }

  /// The header that every request has to carry.
  static httplib::Headers authorization() {
    return {{"Authorization", "Bearer " + std::string{token}}};
  }

  /// One request. Status 0: no answer.
  std::pair<int, json> ask(const std::string& method, const std::string& body = {},
                           const httplib::Headers& headers = authorization(),
                           const std::string& where = path) const {
    auto client = httplib::Client{"127.0.0.1", port()};
    auto request = httplib::Request{};
    request.method = method;
    request.path = where;
    request.body = body;
    request.headers = headers;
    const auto answer = client.send(request);
    if (!answer)
      return {0, {}};
    last_headers_ = answer->headers;
    return {answer->status, json::parse(answer->body, nullptr, false)};
  }

  std::string refusal_of(const std::string& body) const {
    const auto [status, answer] = ask("PUT", body);
    EXPECT_EQ(status, 400) << body;
    EXPECT_EQ(answer["success"], false);
    EXPECT_EQ(answer["code"], "invalid_argument");
    return answer["message"];
  }

  void expect_alive() const { EXPECT_EQ(ask("GET", {}, {}, "/healthz").first, 200); }

  std::string header(const std::string& name) const {
    const auto found = last_headers_.find(name);
    return found == last_headers_.end() ? "" : found->second;
  }

  mutable httplib::Headers last_headers_;
};

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

// -- tokens -------------------------------------------------------------------

TEST_F(AdminServerTest, RequestsNeedTheTokenAlsoOnThisMachine) {
  start();
  const auto with = [&](const std::string& value, const char* method = "GET") {
    return ask(method, R"({"hicache_storage_backend": "file"})", {{"Authorization", value}}).first;
  };
  for (const auto* method : {"GET", "PUT", "DELETE"}) {
    const auto [status, answer] = ask(method, R"({"hicache_storage_backend": "file"})", {});
    EXPECT_EQ(status, 401) << method;
    EXPECT_EQ(answer["success"], false);
    EXPECT_EQ(header("WWW-Authenticate"), "Bearer");
    for (const auto* wrong :
         {"", "Bearer", "Bearer ", "Bearer 0123456789abcdeF", "Bearer 0123456789abcde",
          "Bearer 0123456789abcdef0", "Basic 0123456789abcdef", "0123456789abcdef"})
      EXPECT_EQ(with(wrong, method), 401) << wrong;
  }
  EXPECT_TRUE(storage_.changes().empty());
  EXPECT_EQ(ask("GET", {}, {}, "/healthz").first, 200);
  EXPECT_EQ(with("Bearer " + std::string{token}), 200);
  EXPECT_EQ(with("bearer " + std::string{token}, "PUT"), 200);
  EXPECT_EQ(with("Bearer " + std::string{token}, "DELETE"), 200);
}

TEST_F(AdminServerTest, TokenFilesAreTheirOwnersAlone) {
  using std::filesystem::perms;
  const auto refusal = [](const std::string& file) {
    const auto read = read_admin_token(file);
    return read ? "none" : read.error().detail;
  };
  const auto good = write_private("token", token);
  EXPECT_EQ(*read_admin_token(good), token);
  for (const auto foreign :
       {perms::group_read, perms::group_write, perms::others_read, perms::others_write}) {
    std::filesystem::permissions(good, perms::owner_read | foreign);
    EXPECT_EQ(refusal(good),
              good + " is open to others than its owner; expected it after chmod 600");
  }
  const auto absent = (folder_ / "absent").string();
  EXPECT_EQ(refusal(absent), "cannot read the file " + absent);
  EXPECT_EQ(refusal(folder_.string()), "cannot read the file " + folder_.string());
  for (const auto& content :
       {std::string{}, std::string{"\n0123456789abcdef"}, std::string{"0123456789abcde"},
        std::string{"01234567 89abcdef"}, std::string{"0123456789abcde\x01"},
        std::string{"0123456789abcdé"}, std::string(1025, 'x')}) {
    const auto file = write_private("bad", content);
    EXPECT_EQ(refusal(file), "the first line of " + file
                               + " is no token; expected 16 to 1024 visible ASCII characters");
  }
  const auto started = admin_server::start({"127.0.0.1:0", absent}, storage_);
  ASSERT_FALSE(started);
  EXPECT_EQ(started.error(),
            (error{ec::invalid_argument, "--admin-token-file: cannot read the file " + absent}));
}

TEST_F(AdminServerTest, TcpNeedsAToken) {
  const auto refusal = [](const std::string& listen, const std::string& file = {}) {
    const auto fine = check_admin_options({listen, file});
    return fine ? "none" : fine.error().detail;
  };
  for (const std::string listen : {"127.0.0.1:0", "localhost:7767", "[::1]:7767", "0.0.0.0:8080"}) {
    EXPECT_EQ(refusal(listen), "--admin-listen: every user of this machine reaches " + listen
                                 + "; expected --admin-token-file as well, or a Unix socket, "
                                   "unix:PATH");
    EXPECT_EQ(refusal(listen, "token"), "none") << listen;
  }
  EXPECT_EQ(refusal("localhost"),
            "--admin-listen: 'localhost' is not an address such as 127.0.0.1:7000");
  EXPECT_EQ(refusal("unix:/run/hicache"), "none");
  for (const auto& socket : {std::string{}, std::string(108, 'x')})
    EXPECT_EQ(refusal("unix:" + socket),
              "--admin-listen: 'unix:" + socket
                + "' is no Unix socket; expected unix:PATH with 1 to 107 "
                  "bytes of path");
  EXPECT_FALSE(admin_server::start({"127.0.0.1:0", ""}, storage_));
}

// -- hosts --------------------------------------------------------------------

TEST_F(AdminServerTest, RequestsToNamesOfOtherMachinesAreRefused) {
  start();
  const auto status_for = [&](const std::string& host) {
    auto headers = authorization();
    headers.emplace("Host", host);
    return ask("GET", {}, headers).first;
  };
  for (const auto* host :
       {"evil.example", "evil.example:7767", "127.0.0.1.evil.example", "[", "]:1"})
    EXPECT_EQ(status_for(host), 421) << host;
  auto name = std::array<char, 256>{};
  ASSERT_EQ(::gethostname(name.data(), name.size() - 1), 0);
  for (const std::string host : {"localhost", "LocalHost:80", "127.0.0.1:7767", "10.1.2.3",
                                 "[::1]:7767", "[::1]", static_cast<const char*>(name.data())})
    EXPECT_EQ(status_for(host), 200) << host;
  auto headers = httplib::Headers{{"Host", "evil.example"}};
  EXPECT_EQ(ask("GET", {}, headers, "/healthz").first, 421);
}

// -- listening and stopping ---------------------------------------------------

TEST_F(AdminServerTest, APortThatIsTakenIsNamed) {
  start();
  EXPECT_GT(port(), 0);
  const auto second = admin_server::start({server_->address(), token_file_}, storage_);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().detail,
            "--admin-listen: cannot listen on " + server_->address()
              + "; expected an address of this machine and a port that is free");
}

TEST_F(AdminServerTest, ListensOnIpv6) {
  const auto file = write_private("token", token);
  auto started = admin_server::start({"[::1]:0", file}, storage_);
  if (!started)
    GTEST_SKIP() << "no IPv6 here: " << started.error().detail;
  const auto& address = (*started)->address();
  EXPECT_TRUE(address.starts_with("[::1]:")) << address;
  auto client = httplib::Client{"::1", parse_endpoint(address)->port};
  const auto answer = client.Get("/healthz");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->body, "ok");
}

TEST_F(AdminServerTest, ThePortIsFreeAgainAfterwards) {
  start();
  const auto address = server_->address();
  expect_alive();
  server_.reset();
  const auto again = admin_server::start({address, token_file_}, storage_);
  EXPECT_TRUE(again) << again.error().detail;
}

TEST_F(AdminServerTest, AUnixSocketIsItsUsersAlone) {
  using std::filesystem::perms;
  start_on_unix_socket();
  const auto socket = folder_ / "admin";
  EXPECT_EQ(server_->address(), "unix:" + socket.string());
  EXPECT_EQ(std::filesystem::status(socket).permissions(), perms::owner_read | perms::owner_write);
  const auto second = admin_server::start({server_->address(), ""}, storage_);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().detail, "--admin-listen: cannot listen on " + server_->address()
                                     + ": another process listens on it");
  server_.reset();
  EXPECT_FALSE(std::filesystem::exists(socket));
}

TEST_F(AdminServerTest, AUnixSocketThatNobodyListensOnIsReplaced) {
  const auto abandoned = listen_on_unix_socket((folder_ / "admin").string());
  ASSERT_TRUE(abandoned);
  ::close(*abandoned);
  start_on_unix_socket();
  server_.reset();
  const auto file = write("admin", "what somebody wrote");
  const auto refused = admin_server::start({"unix:" + file, ""}, storage_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().detail, "--admin-listen: cannot listen on unix:" + file
                                      + ": the path names something else than a socket");
}

TEST_F(AdminServerTest, ClientsThatDawdleAreCutOff) {
  start(std::chrono::milliseconds{100});
  auto silent = raw_client{port()};
  EXPECT_EQ(silent.receive_all(), "");
  auto half = raw_client{port()};
  half.send("GET /healthz HTTP/1.1\r\nHost: ");
  EXPECT_EQ(half.receive_all().substr(0, 13), "HTTP/1.1 400 ");
  // Always something new, and never all of it.
  auto dripping = raw_client{port()};
  dripping.send("GET /healthz HTTP/1.1\r\nX: ");
  auto drops = 0;
  while (!dripping.hears_within(10) && drops < 1000)
    drops += dripping.send("x") ? 1 : 1000;
  EXPECT_LT(drops, 1000);
  expect_alive();
}

TEST_F(AdminServerTest, StoppingWaitsForNoClient) {
  start(std::chrono::hours{1});
  auto silent = raw_client{port()};
  auto half = raw_client{port()};
  half.send("PUT " + std::string{path} + " HTTP/1.1\r\n" + bearer + "Content-Length: 10\r\n\r\n{");
  auto kept = raw_client{port()};
  kept.send("GET /healthz HTTP/1.1\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_TRUE(kept.receive_all().ends_with("ok"));
  expect_alive(); // Whoever came before is being served.
  server_.reset();
  EXPECT_EQ(silent.receive_all(), "");
}

TEST_F(AdminServerTest, StoppingWaitsForTheChangeUnderWay) {
  start();
  storage_.hold();
  auto client = raw_client{port()};
  client.send("DELETE " + std::string{path} + " HTTP/1.1\r\n" + bearer + "\r\n");
  storage_.wait_for_changes(1);
  auto stopped = std::async(std::launch::async, [&] { server_.reset(); });
  storage_.let_go();
  EXPECT_EQ(client.receive_all().substr(0, 13), "HTTP/1.1 200 ");
  stopped.get();
}

} // namespace
} // namespace hicache
