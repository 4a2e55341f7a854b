// Op scripts: every case of tests/cases, and what the interpreter itself decides.

#include "cache/oplog/op_script.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace hicache {
namespace {

using nlohmann::json;

// -- the cases: files that people can run by hand -----------------------------

std::vector<std::filesystem::path> case_files() {
  auto files = std::vector<std::filesystem::path>{};
  for (const auto& entry : std::filesystem::directory_iterator{HICACHE_CASES})
    if (entry.path().extension() == ".jsonl")
      files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

class CaseTest : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(CaseTest, EachAnswerHoldsWhatItsLineExpects) {
  auto script = op_script{};
  auto file = std::ifstream{GetParam()};
  auto number = 0;
  auto expectations = 0;
  for (auto line = std::string{}; std::getline(file, line);) {
    SCOPED_TRACE(GetParam().filename().string() + ":" + std::to_string(++number) + ": " + line);
    const auto answered = script.run(line);
    ASSERT_TRUE(answered) << answered.error().detail;
    const auto answer = json::parse(*answered);
    const auto expected = json::parse(line).value("expect", json::object());
    EXPECT_EQ(answer.contains("error"), expected.contains("error")) << answer;
    for (const auto& [key, value] : expected.items()) {
      EXPECT_EQ(answer.value(key, json{}), value) << key << " in " << answer;
      ++expectations;
    }
    script.cache()->check_invariants();
  }
  EXPECT_GT(expectations, 0);
}

INSTANTIATE_TEST_SUITE_P(Cases, CaseTest, testing::ValuesIn(case_files()),
                         [](const auto& file) { return file.param.stem().string(); });

// -- the interpreter ----------------------------------------------------------

class OpScriptTest : public testing::Test {
protected:
  json run(const std::string& line) {
    const auto answer = script_.run(line);
    EXPECT_TRUE(answer) << line << ": " << answer.error().detail;
    return answer ? json::parse(*answer) : json{};
  }

  std::string text(const std::string& line) { return script_.run(line).value_or("failed"); }

  std::string complaint(const std::string& line) {
    const auto answer = run(line);
    EXPECT_EQ(answer.value("error", ""), "invalid_argument") << answer;
    return answer.value("message", "");
  }

  void begin(const std::string& more = "") {
    EXPECT_EQ(
      text(R"({"op":"config","page_size":2,"device_tokens":16,"host_tokens":16)" + more + "}"),
      "{}");
  }

  op_script script_;
};

TEST_F(OpScriptTest, AnswersHaveTheDocumentedKeysInTheirOrder) {
  begin();
  EXPECT_EQ(text(R"({"op":"insert","tokens":[1,2,3,4]})").substr(0, 19), R"({"prefix":0,"node":)");
  EXPECT_EQ(text(R"({"op":"match","tokens":[1,2,3,4]})").substr(0, 28),
            R"({"device":4,"host":0,"node":)");
  EXPECT_EQ(text(R"({"op":"lock","tokens":[1,2,3,4]})"), R"({"evictable":0,"protected":4})");
  EXPECT_EQ(text(R"({"op":"unlock","tokens":[1,2,3,4]})"), R"({"evictable":4,"protected":0})");
  EXPECT_EQ(text(R"({"op":"backup","tokens":[1,2,3,4]})"), R"({"written":0})");
  EXPECT_EQ(text(R"({"op":"load_back","tokens":[1,2,3,4]})"), R"({"loaded":0})");
  EXPECT_EQ(text(R"({"op":"pin","tokens":[1,2],"ttl":1})"), R"({"pinned":2})");
  EXPECT_EQ(text(R"({"op":"unpin","tokens":[1,2]})"), R"({"pinned":0})");
  EXPECT_EQ(text(R"({"op":"tick","seconds":0.5})"), "{}");
  EXPECT_EQ(text(R"({"op":"evict","tokens":2})"), R"({"evicted":2})");
  EXPECT_EQ(text(R"({"op":"evict_host","tokens":2})"), R"({"evicted":2})");
  const auto stats = run(R"({"op":"stats"})");
  for (const auto* key :
       {"evictable", "protected", "device_used", "host_used", "nodes", "device_free", "host_free"})
    EXPECT_TRUE(stats.contains(key)) << key;
  EXPECT_EQ(run(R"({"op":"digest"})")["digest"].get<std::string>().size(), 16u);
  EXPECT_EQ(text(R"({"op":"reset"})"), "{}");
}

TEST_F(OpScriptTest, ANodeFromAnAnswerNamesThePrefix) {
  begin();
  const auto node = run(R"({"op":"insert","tokens":[1,2,3,4]})")["node"].dump();
  EXPECT_EQ(run(R"({"op":"match","tokens":[1,2,3,4]})")["node"].dump(), node);
  EXPECT_EQ(run(R"({"op":"lock","node":)" + node + "}")["protected"], 4);
  EXPECT_EQ(run(R"({"op":"unlock","node":)" + node + "}")["protected"], 0);
}

TEST_F(OpScriptTest, TreeNestsNodes) {
  begin();
  run(R"({"op":"insert","tokens":[1,2,3,4],"priority":3})");
  run(R"({"op":"insert","tokens":[1,2,5,6]})");
  run(R"({"op":"insert","tokens":[7,8],"extra_key":"lora","salt":"s"})");
  const auto nodes = run(R"({"op":"tree"})")["nodes"];
  ASSERT_EQ(nodes.size(), 2u);
  EXPECT_EQ(nodes[1]["extra_key"], "lora");
  EXPECT_EQ(nodes[1]["salt"], "s");
  const auto& parent = nodes[0];
  EXPECT_EQ(parent["tokens"], json({1, 2}));
  EXPECT_EQ(parent["tiers"], json({"device", "host"}));
  EXPECT_EQ(parent["hits"], 2);
  EXPECT_EQ(parent["locks"], 0);
  ASSERT_EQ(parent["children"].size(), 2u);
  auto tails = std::vector<json>{parent["children"][0]["tokens"], parent["children"][1]["tokens"]};
  std::sort(tails.begin(), tails.end());
  EXPECT_EQ(tails, (std::vector<json>{{3, 4}, {5, 6}}));
}

TEST_F(OpScriptTest, BadConfigurationsAreOneSentenceAndChangeNothing) {
  begin();
  run(R"({"op":"insert","tokens":[1,2]})");
  EXPECT_EQ(complaint(R"({"op":"config","page_size":3})"),
            "key 'page_size' is not a power of two from 1 to 4096");
  EXPECT_EQ(complaint(R"({"op":"config","page_size":4,"device_tokens":10})"),
            "key 'device_tokens' is not a multiple of page_size, from 1 to 16777216 pages");
  EXPECT_EQ(complaint(R"({"op":"config","page_size":4,"host_tokens":10})"),
            "key 'host_tokens' is not a multiple of page_size, from 0 to 16777216 pages");
  EXPECT_EQ(complaint(R"({"op":"config","host_tokens":16777217})"),
            "key 'host_tokens' is not a multiple of page_size, from 0 to 16777216 pages");
  EXPECT_EQ(complaint(R"({"op":"config","write_policy":"never"})"),
            "key 'write_policy' holds \"never\"; expected write_through, write_through_selective "
            "or write_back");
  EXPECT_NE(complaint(R"({"op":"config","eviction":"dice"})").find("slru"), std::string::npos);
  EXPECT_EQ(complaint(R"({"op":"config","colour":1})"), "key 'colour' is not known here");
  EXPECT_EQ(run(R"({"op":"match","tokens":[1,2]})")["device"], 2);
}

TEST_F(OpScriptTest, BadOperationsAreOneSentence) {
  EXPECT_EQ(complaint(R"({"op":"stats"})"), "the first op is 'config'");
  begin();
  EXPECT_EQ(complaint("{}"), "key 'op' is missing");
  EXPECT_EQ(complaint(R"({"op":"dance"})"), "there is no op 'dance'");
  EXPECT_EQ(complaint(R"({"op":"match"})"), "key 'tokens' is missing");
  EXPECT_EQ(complaint(R"({"op":"match","tokens":[1],"node":2})"), "key 'node' is not known here");
  EXPECT_EQ(complaint(R"({"op":"lock"})"), "expected either key 'node' or key 'tokens'");
  EXPECT_EQ(complaint(R"({"op":"lock","node":1,"tokens":[1]})"),
            "expected either key 'node' or key 'tokens'");
  EXPECT_EQ(complaint(R"({"op":"tick","seconds":-1})"),
            "key 'seconds' is not a time from 0 to 1e9 seconds");
  EXPECT_EQ(complaint(R"({"op":"pin","tokens":[1,2],"ttl":1e30})"),
            "key 'ttl' is not a time from 0 to 1e9 seconds");
}

TEST_F(OpScriptTest, WhatIsNoObjectIsNoOperation) {
  for (const auto* line : {"", "[1]", "{", "nonsense", "3"}) {
    const auto answer = script_.run(line);
    ASSERT_FALSE(answer) << line;
    EXPECT_EQ(answer.error().code, ec::malformed_message);
  }
}

TEST_F(OpScriptTest, AnInsertThatFindsNoRoomLeavesNoTrace) {
  begin();
  run(R"({"op":"insert","tokens":[1,2,3,4]})");
  run(R"({"op":"lock","tokens":[1,2,3,4]})");
  const auto before = run(R"({"op":"stats"})");
  const auto answer = run(R"({"op":"insert","tokens":[9,9,9,9,9,9,9,9,9,9,9,9,9,9]})");
  EXPECT_EQ(answer["error"], "out_of_device_pages");
  EXPECT_EQ(run(R"({"op":"stats"})"), before);
  script_.cache()->check_invariants();
}

TEST_F(OpScriptTest, ResetForgetsTheCacheAndKeepsTheConfiguration) {
  begin(R"(,"write_policy":"write_back")");
  const auto fresh = run(R"({"op":"stats"})");
  const auto digest = run(R"({"op":"digest"})");
  run(R"({"op":"insert","tokens":[1,2,3,4]})");
  run(R"({"op":"tick","seconds":1})");
  EXPECT_NE(run(R"({"op":"digest"})"), digest);
  run(R"({"op":"reset"})");
  EXPECT_EQ(run(R"({"op":"stats"})"), fresh);
  EXPECT_EQ(run(R"({"op":"digest"})"), digest);
  run(R"({"op":"insert","tokens":[1,2,3,4]})");
  EXPECT_EQ(run(R"({"op":"stats"})")["written"], 0);
}

TEST_F(OpScriptTest, SameOperationsGiveTheSameDigest) {
  const auto digest_of = [](token_id last) {
    auto script = op_script{};
    for (const auto& line :
         std::vector<std::string>{R"({"op":"config"})", R"({"op":"insert","tokens":[1,2,3]})",
                                  R"({"op":"insert","tokens":[1,2,)" + std::to_string(last) + "]}"})
      EXPECT_TRUE(script.run(line));
    return script.run(R"({"op":"digest"})").value_or("");
  };
  EXPECT_EQ(digest_of(4), digest_of(4));
  EXPECT_NE(digest_of(4), digest_of(5));
}

} // namespace
} // namespace hicache
