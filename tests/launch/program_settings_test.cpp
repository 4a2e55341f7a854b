// The tables of settings of hicache-index and hicache-node, and what comes from them.

#include "base/limits.hpp"
#include "launch/program_settings.hpp"
#include "tests/support/documented_table.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

namespace hicache {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

template <class Flags>
std::string table_of(std::span<const setting<Flags>> settings) {
  auto table = std::string{"| flag | default | meaning |\n| --- | --- | --- |\n"};
  for (const auto& each : settings)
    table += "| " + test::flag_cell(each) + " | " + test::default_cell(each) + " | "
             + test::meaning_cell(each) + " |\n";
  return table;
}

/// Parses a command line. @returns the complaint; empty if there is none
template <class Flags>
std::string parse(std::span<const setting<Flags>> settings, Flags& flags, const std::string& line) {
  auto app = CLI::App{};
  for (const auto& each : settings)
    add_flag(app, each, flags);
  try {
    app.parse(line);
  } catch (const CLI::ParseError& ex) {
    return ex.what();
  }
  return {};
}

template <class Flags>
void expect_flags_with_sentences(std::span<const setting<Flags>> settings) {
  auto app = CLI::App{};
  auto flags = Flags{};
  auto names = std::set<std::string_view>{};
  for (const auto& each : settings) {
    EXPECT_TRUE(names.insert(each.name).second) << each.name;
    add_flag(app, each, flags);
    EXPECT_THAT(app.get_option("--" + std::string{each.name})->get_description(),
                HasSubstr(plain(each.meaning)));
  }
}

TEST(ProgramSettingsTest, ThePageHasTheTables) {
  test::expect_documented("index settings", table_of(index_settings()));
  test::expect_documented("node settings", table_of(node_settings()));
}

TEST(ProgramSettingsTest, EachIsAFlagWithItsSentence) {
  expect_flags_with_sentences(index_settings());
  expect_flags_with_sentences(node_settings());
}

TEST(ProgramSettingsTest, FlagsOfTheIndexAreRead) {
  auto flags = index_flags{};
  EXPECT_EQ(parse(index_settings(), flags,
                  "--shards 2 --shard 3 --member-ttl 500ms --log-level error --insecure"),
            "");
  EXPECT_EQ(flags.shards, 2u);
  EXPECT_EQ(flags.first_shard, 3u);
  EXPECT_EQ(flags.member_ttl, 500ms);
  EXPECT_EQ(flags.log_level, log_level::error);
  EXPECT_TRUE(flags.insecure);
}

TEST(ProgramSettingsTest, FlagsOfTheNodeAreItsOptions) {
  auto flags = node_flags{};
  EXPECT_EQ(parse(node_settings(), flags,
                  "--memory 64MiB --socket /run/x --lease-time 20s --shutdown-grace 1min "
                  "--index-connect-time 2s --repair-bytes-per-second 1GiB --repair-delay 30s"),
            "");
  EXPECT_EQ(flags.host.memory_bytes, uint64_t{64} << 20);
  EXPECT_EQ(flags.host.socket, "/run/x");
  EXPECT_EQ(flags.host.lease_time, 20s);
  EXPECT_EQ(flags.host.shutdown_grace, 1min);
  EXPECT_EQ(flags.host.index_connect_time, 2s);
  EXPECT_EQ(flags.host.repair.bytes_per_second, uint64_t{1} << 30);
  EXPECT_EQ(flags.host.repair.delay, 30s);
}

TEST(ProgramSettingsTest, ValuesOutOfTheirRangeAreNamed) {
  auto index = index_flags{};
  EXPECT_EQ(parse(index_settings(), index, "--member-ttl 1ms"),
            "--member-ttl: '1ms' is out of range; expected 0.1s to 86400s");
  EXPECT_THAT(parse(index_settings(), index, "--shards 0"), HasSubstr("--shards"));
  auto node = node_flags{};
  EXPECT_EQ(parse(node_settings(), node, "--lease-time 10min"),
            "--lease-time: '10min' is out of range; expected 1s to 300s");
}

} // namespace
} // namespace hicache
