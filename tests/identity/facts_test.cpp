// What people read of the facts behind page names.

#include "identity/facts.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hicache {
namespace {

using json = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

json engine() {
  return json::parse(R"({"format": {"engine": "vllm", "tp": 1}, "kv": {"type": "fp8_e4m3"},
    "model": {"weights": "content:1", "files": {}, "configuration": {"rope_theta": 1e6}}})");
}

TEST(FactsTest, AreLinesOfPartsNamesAndValues) {
  EXPECT_THAT(facts_in_words(engine()),
              ElementsAre("format.engine: vllm", "format.tp: 1", "kv.type: fp8_e4m3",
                          "model.configuration.rope_theta: 1000000.0", "model.files: {}",
                          "model.weights: content:1"));
  const auto lines = facts_in_words({{"long", std::string(1000, 'x')}});
  EXPECT_EQ(lines.at(0), "long: " + std::string(120, 'x') + "… (1000 bytes)");
}

TEST(FactsTest, EnginesShareWhereNothingDiffers) {
  EXPECT_THAT(fact_differences(engine(), engine(), false), IsEmpty());
  auto other = engine();
  other["kv"]["type"] = "fp8_e5m2";
  other["model"]["configuration"]["rope_theta"] = 1e4;
  other["operator"] = {{"namespace", "mine"}};
  EXPECT_THAT(
    fact_differences(engine(), other, false),
    ElementsAre("kv.type: fp8_e4m3 in the first, fp8_e5m2 in the second",
                "model.configuration.rope_theta: 1000000.0 in the first, 10000.0 in the second",
                "operator: nothing in the first, {\"namespace\":\"mine\"} in the second"));
}

TEST(FactsTest, OfAFolderCountsWhatBothHave) {
  auto folder = json{{"model", engine()["model"]}};
  folder["model"]["configuration"]["transformers_version"] = "5";
  EXPECT_THAT(fact_differences(engine(), folder, true), IsEmpty());
  folder["model"]["weights"] = "content:2";
  EXPECT_THAT(fact_differences(engine(), folder, true),
              ElementsAre("model.weights: content:1 in the first, content:2 in the second"));
}

TEST(FactsTest, WhatIsNoObjectIsRefused) {
  EXPECT_TRUE(parse_facts("{}"));
  for (const auto* text : {"", "[]", "{", "7"})
    EXPECT_EQ(parse_facts(text).error().code, ec::malformed_message) << text;
  EXPECT_FALSE(parse_facts(std::string(100, '[') + std::string(100, ']')));
}

} // namespace
} // namespace hicache
