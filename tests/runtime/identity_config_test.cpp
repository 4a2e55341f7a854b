// What says whose KV it is: whatever makes its bits differ makes names differ.

#include "runtime/rank_config.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace hicache {
namespace {

using change = std::function<void(rank_config&)>;

std::string complaint_of(const change& spoil) {
  auto config = rank_config{};
  spoil(config);
  const auto finished = config.finish(2);
  if (finished)
    return "none";
  EXPECT_EQ(finished.error().code, ec::invalid_argument);
  return finished.error().detail;
}

/// A setting that makes bits differ, and values for it, of which the first is the usual one. Texts
/// look like other settings, and like several.
struct identity_setting {
  std::string name;
  std::vector<change> values;
};

std::vector<identity_setting> identity_settings() {
  const auto texts = std::vector<std::string>{
    "", "x", "x ", "x\"", "x\\", "x\",\"rope\":\"y", "x model=tiny dtype=bf16", "x, --numerics y"};
  auto settings = std::vector<identity_setting>{};
  for (const auto& [name, field] : {std::pair{"namespace", &rank_config::name_space},
                                    {"model-id", &rank_config::model_id},
                                    {"kv-quantisation", &rank_config::kv_quantisation},
                                    {"kv-scales", &rank_config::kv_scales},
                                    {"numerics", &rank_config::numerics}}) {
    auto& setting = settings.emplace_back(identity_setting{name, {}});
    for (const auto& text : texts)
      setting.values.push_back([field, text](rank_config& x) { x.*field = text; });
  }
  auto& rope = settings.emplace_back(identity_setting{"rope", {}});
  for (const auto* text :
       {"", R"({"rope_theta": 1})", R"({"rope_theta": "1"})", R"({"rope_theta": 1, "x": "\"}"})"})
    rope.values.push_back([text](rank_config& x) { x.rope = text; });
  for (const auto& [name, field, usual] : {std::tuple{"first-layer", &rank_config::first_layer, 0u},
                                           {"layers", &rank_config::layers, 2u},
                                           {"kv-heads", &rank_config::kv_heads, 4u},
                                           {"head-dim", &rank_config::head_dim, 8u},
                                           {"v-head-dim", &rank_config::v_head_dim, 8u}}) {
    auto& setting = settings.emplace_back(identity_setting{name, {}});
    for (const auto number : {usual, 1u, 11u, 12u})
      setting.values.push_back([field, number](rank_config& x) { x.*field = number; });
  }
  auto& page = settings.emplace_back(identity_setting{"page-size", {}});
  for (const auto size : {64u, 16u})
    page.values.push_back([size](rank_config& x) { x.page_size = size; });
  auto& dtype = settings.emplace_back(identity_setting{"dtype", {}});
  for (const auto type : {element_type::bf16, element_type::fp16, element_type::fp8})
    dtype.values.push_back([type](rank_config& x) { x.dtype = type; });
  auto& layout = settings.emplace_back(identity_setting{"layout", {}});
  for (const auto order : {host_layout::page_head, host_layout::page_first})
    layout.values.push_back([order](rank_config& x) { x.mem_layout = order; });
  return settings;
}

TEST(IdentityConfigTest, AnyDifferenceInUpToTwoSettingsChangesTheFingerprint) {
  const auto settings = identity_settings();
  auto seen = std::map<std::string, std::string>{};
  const auto take = [&](const std::vector<std::pair<size_t, size_t>>& changes) {
    auto config = rank_config{};
    auto what = std::string{};
    for (const auto& setting : settings)
      setting.values.front()(config);
    for (const auto& [setting, value] : changes) {
      settings[setting].values[value](config);
      what += settings[setting].name + " #" + std::to_string(value) + " ";
    }
    ASSERT_TRUE(config.finish(1)) << what;
    const auto [at, fresh] = seen.emplace(config.fingerprint(), what);
    EXPECT_TRUE(fresh) << what << "has the fingerprint of " << at->second;
  };
  take({});
  for (auto a = size_t{0}; a < settings.size(); ++a)
    for (auto i = size_t{1}; i < settings[a].values.size(); ++i) {
      take({{a, i}});
      for (auto b = a + 1; b < settings.size(); ++b)
        for (auto k = size_t{1}; k < settings[b].values.size(); ++k)
          take({{a, i}, {b, k}});
    }
  EXPECT_GT(seen.size(), 1000u);
}

TEST(IdentityConfigTest, PresetsAndFormsOfTheSameSettingsShareAFingerprint) {
  const auto fingerprint = [](const change& alter) {
    auto config = rank_config{};
    alter(config);
    EXPECT_TRUE(config.finish(1));
    EXPECT_TRUE(config.finish(1)) << "again, as for an L3 that is attached later";
    return config.fingerprint();
  };
  const auto usual = fingerprint([](rank_config&) {});
  EXPECT_EQ(fingerprint([](rank_config& x) {
              x.model = "llama-3.1-8b";
              x.layers = 2;
              x.kv_heads = 4;
              x.head_dim = 8;
            }),
            usual);
  EXPECT_EQ(fingerprint([](rank_config& x) { x.rope = " { } "; }), usual);
  EXPECT_EQ(fingerprint([](rank_config& x) { x.rope = R"({"type": "yarn", "factor": 4.0})"; }),
            fingerprint([](rank_config& x) { x.rope = R"({"factor":4.0,"type":"yarn"})"; }));
}

TEST(IdentityConfigTest, SharedStoresNeedToKnowWhoseKvItIs) {
  const auto needs
    = std::map<std::string, std::string>{{"file", R"({"path": "/kv"})"},
                                         {"disk", R"({"path": "/kv", "max_bytes": "1GiB"})"},
                                         {"redis", R"({"servers": "localhost:6379"})"}};
  const auto complaint = [&](const char* backend, const char* id) {
    return complaint_of([&](rank_config& x) {
      x.storage_backend = backend;
      x.extra_config = needs.contains(backend) ? needs.at(backend) : "";
      x.index = "127.0.0.1:1";
      x.node = "/run/hicache/node";
      x.model_id = id;
    });
  };
  for (const auto* backend : {"file", "disk", "cluster", "node", "redis"}) {
    EXPECT_EQ(complaint(backend, ""),
              std::string{"--model-id is missing, and pages in "} + backend
                + " are shared by all that name them alike, whatever their weights; expected name "
                  "and revision of the model, or what hicachectl model-id prints for its folder");
    EXPECT_EQ(complaint(backend, "llama@7"), "none");
  }
  EXPECT_EQ(complaint("memory", ""), "none");
  EXPECT_EQ(complaint("", ""), "none");
}

TEST(IdentityConfigTest, NamesOfModelsAreLinesOfText) {
  for (const auto& [flag, field] : {std::pair{"--model-id", &rank_config::model_id},
                                    {"--namespace", &rank_config::name_space},
                                    {"--kv-quantisation", &rank_config::kv_quantisation},
                                    {"--kv-scales", &rank_config::kv_scales},
                                    {"--numerics", &rank_config::numerics}})
    for (const auto& text : {std::string{"a\nb"}, std::string{"\xff"}, std::string(4097, 'x')})
      EXPECT_EQ(complaint_of([&, field = field](rank_config& x) { x.*field = text; }),
                std::string{flag} + ": expected one line of UTF-8 text, of 4096 bytes at most");
  EXPECT_EQ(complaint_of([](rank_config& x) { x.model_id = "qwen3-32b@é #7"; }), "none");
  EXPECT_EQ(complaint_of([](rank_config& x) { x.rope = "yarn"; }),
            "--rope: 'yarn' is no JSON object; expected one such as {\"rope_theta\": 500000.0}");
}

} // namespace
} // namespace hicache
