// The tables of settings, and what comes from them.

#include "base/limits.hpp"
#include "runtime/rank_config.hpp"
#include "runtime/rank_settings.hpp"
#include "stores/storage_settings.hpp"
#include "tests/support/documented_table.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace hicache {
namespace {

using testing::HasSubstr;

std::string rank_table() {
  auto table = std::string{"| flag | default | equal on | meaning |\n| --- | --- | --- | --- |\n"};
  for (const auto& each : rank_settings()) {
    const auto equal = each.equal == equal_on::nobody  ? ""
                       : each.equal == equal_on::ranks ? "ranks"
                                                       : "sharers";
    table += "| " + test::flag_cell(each) + " | " + test::default_cell(each) + " | " + equal + " | "
             + test::meaning_cell(each) + " |\n";
  }
  return table;
}

std::string storage_table() {
  auto table = std::string{"| key | default | backends | meaning |\n| --- | --- | --- | --- |\n"};
  for (const auto& each : storage_settings())
    table += "| " + test::code_cell(std::string{each.name}) + " | " + test::default_cell(each)
             + " | " + std::string{each.backends} + " | " + test::meaning_cell(each) + " |\n";
  return table;
}

TEST(SettingsTest, ThePageHasTheTableOfRanks) {
  test::expect_documented("rank settings", rank_table());
}

TEST(SettingsTest, ThePageHasTheTableOfL3) {
  test::expect_documented("storage settings", storage_table());
}

TEST(SettingsTest, NamesAreUnique) {
  auto names = std::set<std::string_view>{};
  for (const auto& each : rank_settings())
    EXPECT_TRUE(names.insert(each.name).second) << each.name;
}

TEST(SettingsTest, EachIsAFlagWithItsSentence) {
  auto app = CLI::App{};
  auto config = rank_config{};
  add_rank_flags(app, config);
  for (const auto& each : rank_settings()) {
    const auto* option = app.get_option_no_throw("--" + std::string{each.name});
    ASSERT_NE(option, nullptr) << each.name;
    EXPECT_EQ(option->get_description().find_first_of("`"), std::string::npos);
    EXPECT_THAT(option->get_description(), HasSubstr(plain(each.meaning)));
  }
}

TEST(SettingsTest, NumbersOutsideOfTheirRangeAreNamed) {
  auto config = rank_config{};
  auto app = CLI::App{};
  add_rank_flags(app, config);
  try {
    app.parse("--hicache-io-sms 2000");
    FAIL() << "taken";
  } catch (const CLI::ParseError& ex) {
    EXPECT_THAT(ex.what(), HasSubstr("--hicache-io-sms: Value 2000 not in range"));
  }
}

TEST(SettingsTest, TimesOutsideOfTheirRangeAreNamed) {
  auto config = rank_config{};
  auto app = CLI::App{};
  add_rank_flags(app, config);
  try {
    app.parse("--hicache-storage-backup-pause 2min");
    FAIL() << "taken";
  } catch (const CLI::ParseError& ex) {
    EXPECT_STREQ(ex.what(),
                 "--hicache-storage-backup-pause: '2min' is out of range; expected 0s to "
                 "60s");
  }
}

TEST(SettingsTest, RangesAreShownAsTheirValuesAre) {
  auto bytes = uint64_t{0};
  auto time = duration{};
  auto share = 0.0;
  auto number = uint32_t{0};
  EXPECT_EQ(meaning_of("a", size_value{&bytes}, {1024, 4096}), "a; 1.0 KiB to 4.0 KiB");
  EXPECT_EQ(meaning_of("a", &time, {0.1, 60}), "a; 0.1s to 60s");
  EXPECT_EQ(meaning_of("a", &share, {0, 0.5}), "a; 0 to 0.5");
  EXPECT_EQ(meaning_of("a", &share, {0, 1e9}), "a; 0 to 1000000000");
  EXPECT_EQ(meaning_of("a", &number, {1, 1 << 30}), "a; 1 to 1073741824");
  EXPECT_EQ(meaning_of("a", &number, {1, no_end}), "a; at least 1");
  EXPECT_EQ(meaning_of("a", &number, {0, no_end}), "a");
  EXPECT_EQ(meaning_of("a", &number, {}), "a");
}

// The public header has numbers of its own, since it cannot include base/limits.hpp.
TEST(SettingsTest, DefaultsAreThoseOfTheLimits) {
  const auto config = rank_config{};
  EXPECT_EQ(config.step_timeout, limits::step_timeout);
  EXPECT_EQ(config.storage_timeout, limits::storage_timeout);
  EXPECT_EQ(config.shutdown_grace, limits::shutdown_grace);
  EXPECT_EQ(config.index_connect_time, limits::index_connect_time);
}

TEST(SettingsTest, MarkdownBecomesPlainText) {
  EXPECT_EQ(plain("a [page](memory.md#l1) of `L1`, [,…] and [z]"), "a page of L1, [,…] and [z]");
  EXPECT_EQ(plain("HOST:PORT[,…] or [this](node.md)"), "HOST:PORT[,…] or this");
}

TEST(SettingsTest, ValuesAreShownWithTheirUnits) {
  auto bytes = uint64_t{64} << 20;
  auto time = duration{std::chrono::milliseconds{250}};
  EXPECT_EQ(text_of(size_value{&bytes}), "67108864");
  EXPECT_EQ(shown(size_value{&bytes}), "64.0 MiB");
  EXPECT_EQ(shown(&time), "0.25s");
}

TEST(SettingsTest, NamesAreReadIntoTypesAndWrittenBack) {
  auto config = rank_config{};
  auto app = CLI::App{};
  add_rank_flags(app, config);
  const auto words
    = std::map<std::string, std::string>{{"hicache-write-policy", "write_back"},
                                         {"hicache-io-backend", "direct"},
                                         {"hicache-mem-layout", "page_first"},
                                         {"page-order", "ascending"},
                                         {"hicache-storage-prefetch-policy", "timeout"},
                                         {"page-transport", "tcp"},
                                         {"device", "cuda:3"},
                                         {"attention", "nsa"},
                                         {"dtype", "fp32"},
                                         {"kv-events-format", "vllm"},
                                         {"log-level", "critical"}};
  auto line = std::string{};
  for (const auto& [flag, word] : words)
    line += " --" + flag + " " + word;
  app.parse(line);
  EXPECT_EQ(config.write_policy, write_policy::write_back);
  EXPECT_EQ(config.io_backend, io_backend::direct);
  EXPECT_EQ(config.mem_layout, host_layout::page_first);
  EXPECT_EQ(config.page_order, page_order::ascending);
  EXPECT_EQ(config.prefetch_policy, prefetch_policy::timeout);
  EXPECT_EQ(config.page_transport, page_transport::tcp);
  EXPECT_EQ(config.device, (device_choice{device_kind::cuda, 3}));
  EXPECT_EQ(config.attention, attention_kind::nsa);
  EXPECT_EQ(config.dtype, element_type::fp32);
  EXPECT_EQ(config.kv_events_format, event_format::vllm);
  EXPECT_EQ(config.log_level, log_level::critical);
  for (const auto& each : rank_settings())
    if (const auto word = words.find(std::string{each.name}); word != words.end()) {
      EXPECT_EQ(text_of(each.at(config)), word->second) << each.name;
    }
}

TEST(SettingsTest, AnEmptyNameLeavesTheChoiceToTheModel) {
  auto config = rank_config{};
  config.attention = attention_kind::mla;
  auto app = CLI::App{};
  add_rank_flags(app, config);
  app.parse(std::vector<std::string>{"", "--attention"}); // From the last word to the first.
  EXPECT_FALSE(config.attention);
}

TEST(SettingsTest, UnknownNamesAreRefusedByTheirFlag) {
  const auto refusals = std::map<std::string, std::string>{
    {"--dtype int4", "--dtype: 'int4' is not an element type; expected fp8, fp16, bf16 or fp32"},
    {"--attention linear",
     "--attention: 'linear' is not a kind of attention; expected mha, mla or nsa"},
    {"--hicache-write-policy never",
     "--hicache-write-policy: 'never' is not known; expected write_through, "
     "write_through_selective or write_back"},
    {"--hicache-storage-prefetch-policy soon",
     "--hicache-storage-prefetch-policy: 'soon' is not known; expected best_effort, "
     "wait_complete or timeout"},
    {"--hicache-io-backend mmap",
     "--hicache-io-backend: 'mmap' is not a way to copy pages; expected direct or kernel"},
    {"--kv-events-format dynamo",
     "--kv-events-format: 'dynamo' is not known; expected sglang or vllm"},
    {"--page-order random",
     "--page-order: 'random' is not known; expected newest_first or ascending"},
    {"--log-level loud",
     "--log-level: 'loud' is not known; expected trace, debug, info, warn, error or "
     "critical"}};
  for (const auto& [line, sentence] : refusals) {
    auto config = rank_config{};
    auto app = CLI::App{};
    add_rank_flags(app, config);
    try {
      app.parse(line);
      ADD_FAILURE() << line << " was taken";
    } catch (const CLI::ParseError& ex) {
      EXPECT_EQ(ex.what(), sentence);
    }
  }
}

// Those and no others are part of the names of pages.
TEST(SettingsTest, SharersHaveWhatMakesTheNamesOfPages) {
  const auto changes = std::map<std::string, std::function<void(rank_config&)>>{
    {"page-size", [](auto& x) { x.page_size = 32; }},
    {"model", [](auto& x) { x.model = "llama-3.1-8b"; }},
    {"attention", [](auto& x) { x.attention = attention_kind::mla; }},
    {"layers", [](auto& x) { x.layers = 5; }},
    {"kv-heads", [](auto& x) { x.kv_heads = 16; }},
    {"head-dim", [](auto& x) { x.head_dim = 24; }},
    {"v-head-dim", [](auto& x) { x.v_head_dim = 24; }},
    {"index-key-bytes", [](auto& x) { x.attention = attention_kind::nsa, x.index_key_bytes = 64; }},
    {"dtype", [](auto& x) { x.dtype = element_type::fp8; }},
    {"namespace", [](auto& x) { x.name_space = "other"; }},
    {"model-id", [](auto& x) { x.model_id = "other"; }},
    {"kv-quantisation", [](auto& x) { x.kv_quantisation = "int8"; }},
    {"kv-scales", [](auto& x) { x.kv_scales = "other"; }},
    {"rope", [](auto& x) { x.rope = R"({"rope_theta": 1})"; }},
    {"first-layer", [](auto& x) { x.first_layer = 2; }},
    {"numerics", [](auto& x) { x.numerics = "other"; }},
    {"hicache-mem-layout", [](auto& x) { x.mem_layout = host_layout::page_first; }},
    {"device-pages", [](auto& x) { x.l1_pages = 7; }},
    {"radix-eviction-policy", [](auto& x) { x.eviction_policy = "lfu"; }},
  };
  const auto print_of = [](const std::function<void(rank_config&)>& change) {
    auto config = rank_config{};
    if (change)
      change(config);
    const auto finished = config.finish(1);
    EXPECT_TRUE(finished) << finished.error().detail;
    return config.fingerprint();
  };
  const auto usual = print_of({});
  for (const auto& each : rank_settings()) {
    const auto change = changes.find(std::string{each.name});
    if (each.equal == equal_on::sharers) {
      ASSERT_NE(change, changes.end()) << each.name;
    }
    if (change != changes.end()) {
      EXPECT_EQ(print_of(change->second) != usual, each.equal == equal_on::sharers) << each.name;
    }
  }
}

} // namespace
} // namespace hicache
