// hicachectl storage, against an admin server.

#include "launch/program.hpp"
#include "launch/storage_commands.hpp"
#include "tests/runtime/admin_support.hpp"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <httplib.h>

#include <algorithm>
#include <thread>

namespace hicache {
namespace {

using json = nlohmann::json;

struct outcome {
  int code = 0;
  std::string out;
  std::string complaint;

  friend bool operator==(const outcome&, const outcome&) = default;
};

void PrintTo(const outcome& x, std::ostream* to) {
  *to << x.code << ", out: " << x.out << ", complaint: " << x.complaint;
}

outcome says(std::string out) {
  return {exit_ok, std::move(out), {}};
}

/// Runs "hicachectl storage ARGUMENTS".
outcome run(std::vector<std::string> arguments) {
  auto app = CLI::App{"", "hicachectl"};
  const auto commands = storage_commands{app};
  arguments.insert(arguments.begin(), "storage");
  std::reverse(arguments.begin(), arguments.end()); // As CLI11 takes them.
  app.parse(arguments);
  EXPECT_TRUE(app.got_subcommand("storage"));
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const auto code = commands.perform();
  auto seen = outcome{code ? *code : exit_usage, ::testing::internal::GetCapturedStdout(),
                      ::testing::internal::GetCapturedStderr()};
  if (!code)
    seen.complaint = code.error().detail;
  return seen;
}

class StorageCommandsTest : public test::admin_test {
protected:
  /// The same, with the address of the test's server.
  outcome run_here(std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), {"--admin", server_->address()});
    return run(std::move(arguments));
  }
};

TEST_F(StorageCommandsTest, ShowPrintsWhatIsAttached) {
  start_on_unix_socket();
  storage_.set({"", "", "wait_complete"});
  EXPECT_EQ(run_here({"show"}), says("backend          none\n"
                                     "extra config     {}\n"
                                     "prefetch policy  wait_complete\n"));
  storage_.set({"file", R"({"path": "/kv"})", "best_effort"});
  EXPECT_EQ(run_here({"show"}), says("backend          file\n"
                                     "extra config     {\"path\":\"/kv\"}\n"
                                     "prefetch policy  best_effort\n"));
  storage_.set_status({"file", false, {}, {}, 2, 7});
  EXPECT_EQ(run_here({"show"}), says("backend          file\n"
                                     "extra config     {\"path\":\"/kv\"}\n"
                                     "prefetch policy  best_effort\n"
                                     "reads            up\n"
                                     "writes           up\n"
                                     "stuck calls      2, which keep 7 pages of L2\n"));
  storage_.set_tiers({{"memory", {true, "", 3, 2048, 4096, {1, 2, 3, 4, 5}, {}}, 6144, 7},
                      {"file", {false, "the disk is gone", 0, 0, 0, {}, {}}}});
  EXPECT_THAT(
    run_here({"show"}).out,
    testing::EndsWith("tier 1           memory, up: 3 objects, 2.0 KiB of 4.0 KiB; 1 hits, 2 "
                      "misses, 4 errors; 6.0 KiB written, 7 objects over budget\n"
                      "tier 2           file, down: 0 objects, 0 B; 0 hits, 0 misses, 0 "
                      "errors; 0 B written; the disk is gone\n"));
  EXPECT_EQ(json::parse(run_here({"show", "--json"}).out)["hicache_storage_backend"], "file");
}

TEST_F(StorageCommandsTest, AttachSendsTheFlags) {
  start_on_unix_socket();
  EXPECT_EQ(run_here({"attach", "--backend", "memory"}), says("L3 is now memory\n"));
  EXPECT_EQ(run_here({"attach", "--backend", "file", "--extra-config", R"({"path": "/a"})",
                      "--prefetch-policy", "timeout", "--timeout", "1500ms"}),
            says("L3 is now file\n"));
  EXPECT_EQ(run_here({"attach", "--backend", "file", "--extra-config",
                      "@" + write("l3.toml", "path = \"/b\"\nthreads = 3\n")}),
            says("L3 is now file\n"));
  const auto changes = storage_.changes();
  ASSERT_EQ(changes.size(), 3u);
  EXPECT_EQ(changes[0].first, (storage_attachment{"memory", "", ""}));
  EXPECT_EQ(changes[0].second, std::chrono::seconds{30});
  EXPECT_EQ(changes[1].first, (storage_attachment{"file", R"({"path":"/a"})", "timeout"}));
  EXPECT_EQ(changes[1].second, std::chrono::milliseconds{1500});
  EXPECT_EQ(changes[2].first, (storage_attachment{"file", R"({"path":"/b","threads":3})", ""}));
}

TEST_F(StorageCommandsTest, TiersAreAttachedAndDetached) {
  start_on_unix_socket();
  storage_.set({"tiered", R"({"tiers": [{"backend": "memory"}]})", "timeout"});
  EXPECT_EQ(run_here({"attach", "--tier", "file", "--extra-config", R"({"path": "/a"})"}),
            says("file is now a tier of L3\n"));
  EXPECT_EQ(run_here({"attach", "--tier", "node", "--at", "1", "--timeout", "3s"}),
            says("node is now a tier of L3\n"));
  EXPECT_EQ(run_here({"detach", "--tier", "2", "--timeout", "4s"}),
            says("tier 2 of L3 is detached\n"));
  EXPECT_EQ(run_here({"detach", "--tier", "node"}), says("tier node of L3 is detached\n"));
  const auto changes = storage_.changes();
  ASSERT_EQ(changes.size(), 4u);
  const auto tiers
    = [](const auto& change) { return json::parse(change.first.extra_config)["tiers"]; };
  const auto file = json{{"backend", "file"}, {"path", "/a"}};
  const auto memory = json{{"backend", "memory"}};
  const auto node = json{{"backend", "node"}};
  EXPECT_EQ(tiers(changes[0]), (json{memory, file}));
  EXPECT_EQ(tiers(changes[1]), (json{node, memory, file}));
  EXPECT_EQ(changes[1].second, std::chrono::seconds{3});
  EXPECT_EQ(tiers(changes[2]), (json{node, file}));
  EXPECT_EQ(changes[2].second, std::chrono::seconds{4});
  EXPECT_EQ(tiers(changes[3]), json::array({file}));
  EXPECT_EQ(changes[3].first.backend, "tiered");
  EXPECT_EQ(changes[3].first.prefetch_policy, "") << "it stays as it is";
}

TEST_F(StorageCommandsTest, DetachSendsItsTimeout) {
  start_on_unix_socket();
  EXPECT_EQ(run_here({"detach", "--timeout", "250ms"}), says("L3 is detached\n"));
  EXPECT_EQ(json::parse(run_here({"detach", "--json"}).out),
            (json{{"success", true}, {"message", "L3 is detached"}}));
  ASSERT_EQ(storage_.changes().size(), 2u);
  EXPECT_EQ(storage_.changes()[0].second, std::chrono::milliseconds{250});
  EXPECT_EQ(storage_.changes()[1].second, std::chrono::seconds{30});
}

TEST_F(StorageCommandsTest, ARefusalIsTheServersSentence) {
  start_on_unix_socket();
  storage_.fail_with({ec::invalid_argument, "file is attached; detach first"});
  EXPECT_EQ(run_here({"attach", "--backend", "file"}),
            (outcome{exit_failed, "", "hicachectl: file is attached; detach first\n"}));
  const auto machine = run_here({"attach", "--backend", "file", "--json"});
  EXPECT_EQ(machine.code, exit_failed);
  EXPECT_EQ(json::parse(machine.out)["code"], "invalid_argument");
  EXPECT_EQ(
    run_here({"detach", "--timeout", "2h"}),
    (outcome{exit_failed, "",
             "hicachectl: timeout_s: expected a number of seconds above 0 and up to 3600\n"}));
}

TEST_F(StorageCommandsTest, TokensAreSentFromTheirFile) {
  start();
  const auto& file = token_file_;
  const auto other = write_private("other", "0123456789abcdeX\n");
  EXPECT_EQ(run_here({"show", "--token-file", file}).code, exit_ok);
  EXPECT_EQ(run_here({"show"}), (outcome{exit_failed, "",
                                         "hicachectl: " + server_->address()
                                           + " needs a token; expected --token-file\n"}));
  EXPECT_EQ(
    run_here({"detach", "--token-file", other}),
    (outcome{exit_failed, "",
             "hicachectl: " + server_->address() + " refuses the token in " + other + "\n"}));
  EXPECT_EQ(run_here({"show", "--token-file", folder_ / "absent"}),
            (outcome{exit_usage, "",
                     "--token-file: cannot read the file " + (folder_ / "absent").string()}));
}

TEST_F(StorageCommandsTest, BadInputIsNamed) {
  start_on_unix_socket();
  EXPECT_EQ(
    run({"show", "--admin", "nowhere"}),
    (outcome{exit_usage, "",
             "--admin: 'nowhere' is not an address such as 127.0.0.1:7000 or unix:/run/hicache"}));
  EXPECT_EQ(run_here({"attach", "--backend", "file", "--extra-config", "@/no/such/file"}),
            (outcome{exit_usage, "", "--extra-config: cannot read the file /no/such/file"}));
  EXPECT_EQ(run_here({"attach", "--backend", "file", "--extra-config", "[]"}),
            (outcome{exit_usage, "",
                     "--extra-config: expected keys and values, as in "
                     "{\"prefetch_threshold\": 256}"}));
  EXPECT_EQ(run_here({"attach"}),
            (outcome{exit_usage, "", "attach: expected --backend or --tier"}));
  EXPECT_THROW(run_here({"attach", "--tier", "file", "--backend", "file"}), CLI::ParseError);
  EXPECT_THROW(run_here({"attach", "--backend", "file", "--at", "1"}), CLI::ParseError);
  EXPECT_THROW(run_here({"attach", "--tier", "file", "--at", "0"}), CLI::ParseError);
  EXPECT_EQ(run_here({"detach", "--tier", "a/b"}),
            (outcome{exit_usage, "",
                     "--tier: 'a/b' is no tier; expected the name of its store, or its number"}));
  EXPECT_TRUE(storage_.changes().empty());
}

TEST_F(StorageCommandsTest, AServerThatIsNotThereIsNamed) {
  start_on_unix_socket();
  const auto address = server_->address();
  server_.reset();
  EXPECT_EQ(
    run({"show", "--admin", address}),
    (outcome{exit_usage, "",
             "cannot connect to " + address + "; expected a rank that runs with --admin-listen"}));
}

TEST_F(StorageCommandsTest, AServerThatDoesNotAnswerIsNamed) {
  // Accepts connections, and says nothing.
  auto mute = httplib::Server{};
  const auto port = mute.bind_to_any_port("127.0.0.1");
  const auto address = "127.0.0.1:" + std::to_string(port);
  EXPECT_EQ(run({"show", "--admin", address, "--timeout", "100ms"}),
            (outcome{exit_usage, "", address + " gave no answer within 0.1s"}));
}

TEST_F(StorageCommandsTest, OtherServersAreNoted) {
  auto other = httplib::Server{};
  const auto port = other.bind_to_any_port("127.0.0.1");
  auto thread = std::thread{[&] { other.listen_after_bind(); }};
  const auto address = "127.0.0.1:" + std::to_string(port);
  EXPECT_EQ(run({"show", "--admin", address}),
            (outcome{exit_usage, "",
                     address + " is no admin server of hicache; it answers with status 404"}));
  other.stop();
  thread.join();
}

} // namespace
} // namespace hicache
