// The table of settings of hicache-router, and what comes from it.

#include "launch/router/router_settings.hpp"
#include "runtime/setting_flags.hpp"
#include "tests/support/documented_table.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hicache {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

std::string parse(router_options& options, const std::string& line) {
  auto app = CLI::App{};
  for (const auto& each : router_settings())
    add_flag(app, each, options);
  try {
    app.parse(line);
  } catch (const CLI::ParseError& ex) {
    return ex.what();
  }
  return {};
}

TEST(RouterSettingsTest, ThePageHasTheTable) {
  auto table = std::string{"| flag | default | meaning |\n| --- | --- | --- |\n"};
  for (const auto& each : router_settings())
    table += "| " + test::flag_cell(each) + " | " + test::default_cell(each) + " | "
             + test::meaning_cell(each) + " |\n";
  test::expect_documented("router settings", table);
}

TEST(RouterSettingsTest, FlagsAreTheOptions) {
  auto options = router_options{};
  EXPECT_EQ(parse(options, "--listen 127.0.0.1:0 --insecure --admin-socket /run/x --shared-l3 "
                           "--max-requests 8 --retries 0 --connect-time 1s --request-time 2s "
                           "--probe-period 3s --probe-pause-max 4s --running-request-tokens 5 "
                           "--l2-token-cost 0.5 --l3-token-cost 0.25 --shutdown-grace 6s"),
            "");
  EXPECT_EQ(options.listen, "127.0.0.1:0");
  EXPECT_TRUE(options.insecure);
  EXPECT_EQ(options.admin_socket, "/run/x");
  EXPECT_TRUE(options.shares_l3);
  EXPECT_EQ(options.max_requests, 8u);
  EXPECT_EQ(options.retries, 0u);
  EXPECT_EQ(options.connect_time, 1s);
  EXPECT_EQ(options.request_time, 2s);
  EXPECT_EQ(options.probe_period, 3s);
  EXPECT_EQ(options.probe_pause_max, 4s);
  EXPECT_EQ(options.weights.running_request, 5u);
  EXPECT_EQ(options.weights.l2_token, 0.5);
  EXPECT_EQ(options.weights.l3_token, 0.25);
  EXPECT_EQ(options.shutdown_grace, 6s);
  EXPECT_THAT(parse(options, "--retries 17"), HasSubstr("0 to 16"));
}

TEST(RouterSettingsTest, BadOptionsAreNamed) {
  auto options = router_options{};
  const auto refusal = [&] {
    const auto started = router_server::start(options);
    return started ? std::string{} : started.error().detail;
  };
  EXPECT_THAT(refusal(), HasSubstr("--instance is missing"));
  options.instances = {{"127.0.0.1:9", "", "", {}}};
  options.listen = "0.0.0.0:0";
  EXPECT_THAT(refusal(), HasSubstr("--insecure"));
  options.listen = "nowhere";
  EXPECT_THAT(refusal(), HasSubstr("--listen: 'nowhere' is no address"));
  options.listen = "127.0.0.1:0";
  options.instances.push_back(options.instances.front());
  EXPECT_THAT(refusal(), HasSubstr("--instance: 127.0.0.1:9 is an instance already"));
  options.instances = {{"127.0.0.1:9", "nowhere", "", {}}};
  EXPECT_THAT(refusal(), HasSubstr("--instance: 'nowhere' is no endpoint of events"));
  options.instances.front().events.clear();
  options.admin_socket = "/nowhere/at/all";
  EXPECT_THAT(refusal(), HasSubstr("--admin-socket: "));
}

} // namespace
} // namespace hicache
