// The admin server: whom it refuses, where it listens, and that no client can hold it up.

#include "tests/runtime/admin_support.hpp"

#include <future>

namespace hicache {
namespace {

using test::raw_client;

constexpr auto path = test::admin_path;
/// What follows on the first line of a raw request.
constexpr auto bearer = "Authorization: Bearer 0123456789abcdef\r\n";

class AdminAccessTest : public test::admin_client_test {};

// -- tokens -------------------------------------------------------------------

TEST_F(AdminAccessTest, RequestsNeedTheTokenAlsoOnThisMachine) {
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

TEST_F(AdminAccessTest, TokenFilesAreTheirOwnersAlone) {
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

TEST_F(AdminAccessTest, TcpNeedsAToken) {
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
  EXPECT_EQ(
    refusal("localhost"),
    "--admin-listen: 'localhost' is not an address such as 127.0.0.1:7000 or unix:/run/hicache");
  EXPECT_EQ(refusal("unix:/run/hicache"), "none");
  for (const auto& socket : {std::string{}, std::string(108, 'x')})
    EXPECT_EQ(refusal("unix:" + socket),
              "--admin-listen: 'unix:" + socket
                + "' is no Unix socket; expected unix:PATH with 1 to 107 "
                  "bytes of path");
  EXPECT_FALSE(admin_server::start({"127.0.0.1:0", ""}, storage_));
}

// -- hosts --------------------------------------------------------------------

TEST_F(AdminAccessTest, RequestsToNamesOfOtherMachinesAreRefused) {
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

TEST_F(AdminAccessTest, APortThatIsTakenIsNamed) {
  start();
  EXPECT_GT(port(), 0);
  const auto second = admin_server::start({server_->address(), token_file_}, storage_);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().detail,
            "--admin-listen: cannot listen on " + server_->address()
              + "; expected an address of this machine and a port that is free");
}

TEST_F(AdminAccessTest, ListensOnIpv6) {
  const auto file = write_private("token", token);
  auto started = admin_server::start({"[::1]:0", file}, storage_);
  if (!started)
    GTEST_SKIP() << "no IPv6 here: " << started.error().detail;
  const auto& address = (*started)->address();
  EXPECT_TRUE(address.starts_with("[::1]:")) << address;
  auto client = httplib::Client{"::1", rpc::parse_endpoint(address)->port};
  const auto answer = client.Get("/healthz");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->body, "ok");
}

TEST_F(AdminAccessTest, ThePortIsFreeAgainAfterwards) {
  start();
  const auto address = server_->address();
  expect_alive();
  server_.reset();
  const auto again = admin_server::start({address, token_file_}, storage_);
  EXPECT_TRUE(again) << again.error().detail;
}

TEST_F(AdminAccessTest, AUnixSocketIsItsUsersAlone) {
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

TEST_F(AdminAccessTest, AUnixSocketThatNobodyListensOnIsReplaced) {
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

TEST_F(AdminAccessTest, ClientsThatDawdleAreCutOff) {
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

TEST_F(AdminAccessTest, StoppingWaitsForNoClient) {
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

TEST_F(AdminAccessTest, StoppingWaitsForTheChangeUnderWay) {
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
