#include "base/limits.hpp"
#include "cache/hash/model_digest.hpp"
#include "cache/hash/sha256.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

namespace hicache {
namespace {

std::string complaint_of(const std::string& header, uint64_t data_bytes) {
  const auto tensors = parse_safetensors(header, data_bytes);
  if (tensors)
    return "none";
  EXPECT_EQ(tensors.error().code, ec::malformed_message);
  return tensors.error().detail;
}

TEST(SafetensorsTest, HeadersListTensorsInTheOrderOfTheirBytes) {
  const auto tensors = parse_safetensors(
    R"({"__metadata__": {"format": "pt"},
        "a": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [4, 16]},
        "b": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]},
        "none": {"dtype": "F32", "shape": [0, 7], "data_offsets": [4, 4]}}    )",
    16);
  ASSERT_TRUE(tensors) << tensors.error().detail;
  EXPECT_EQ(*tensors, (std::vector<stored_tensor>{{"b", "F32", {}, 0, 4},
                                                  {"none", "F32", {0, 7}, 4, 4},
                                                  {"a", "BF16", {2, 3}, 4, 16}}));
  EXPECT_EQ(parse_safetensors("{}", 0)->size(), 0u);
}

TEST(SafetensorsTest, WhatIsNoHeaderIsRefused) {
  const auto tensor = [](const char* fields) { return std::string{R"({"a": {)"} + fields + "}}"; };
  const auto incomplete = "does not say dtype, shape and data_offsets of the tensor 'a'";
  const auto expected = std::map<std::string, std::string>{
    {"", "has a header that is no JSON object"},
    {"[]", "has a header that is no JSON object"},
    {R"({"a": )", "has a header that is no JSON object"},
    {R"({"a": 7})", incomplete},
    {tensor(R"("dtype": "F32", "shape": [1])"), incomplete},
    {tensor(R"("dtype": "F32", "shape": [-1], "data_offsets": [0, 4])"), incomplete},
    {tensor(R"("dtype": "F32", "shape": [1.5], "data_offsets": [0, 4])"), incomplete},
    {tensor(R"("dtype": 32, "shape": [1], "data_offsets": [0, 4])"), incomplete},
    {tensor(R"("dtype": "F32", "shape": [1], "data_offsets": [0])"), incomplete},
    {tensor(R"("dtype": "F32", "shape": [1], "data_offsets": [0, 1e99])"), incomplete},
    {tensor(R"("dtype": "F32", "shape": [1], "data_offsets": [4, 0])"),
     "has a tensor 'a' that ends before it begins"},
    {tensor(R"("dtype": "F32", "shape": [1], "data_offsets": [1, 4])"),
     "has a gap or an overlap in front of the tensor 'a'"},
    {tensor(R"("dtype": "F32", "shape": [1], "data_offsets": [0, 18446744073709551615])"),
     "holds 4 bytes of tensors where its header says 18446744073709551615"},
    {"{}", "holds 4 bytes of tensors where its header says 0"},
  };
  for (const auto& [header, sentence] : expected)
    EXPECT_EQ(complaint_of(header, 4), sentence) << header;
}

TEST(SafetensorsTest, TensorsThatOverlapAreRefused) {
  // Else a header of some bytes made a reader read all data again for each tensor.
  EXPECT_EQ(complaint_of(R"({"a": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]},
                            "b": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}})",
                         8),
            "has a gap or an overlap in front of the tensor 'b'");
}

TEST(SafetensorsTest, DeepHeadersCostNoStack) {
  const auto deep = "{\"a\": " + std::string(1 << 20, '[') + std::string(1 << 20, ']') + "}";
  EXPECT_EQ(complaint_of(deep, 0), "has a header that has more than "
                                     + std::to_string(limits::safetensors_levels)
                                     + " levels of JSON");
  EXPECT_EQ(canonical_model_config(deep).error().code, ec::malformed_message);
}

TEST(SafetensorsTest, EveryCutAndFlippedHeaderIsReadOrRefused) {
  const auto header = std::string{
    R"({"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},"__metadata__":{"x":"y"}})"};
  ASSERT_TRUE(parse_safetensors(header, 12));
  for (auto length = size_t{0}; length < header.size(); ++length)
    EXPECT_NE(complaint_of(header.substr(0, length), 12), "none") << length;
  for (auto at = size_t{0}; at < header.size(); ++at)
    for (auto bit = 0; bit < 8; ++bit) {
      auto flipped = header;
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << bit));
      const auto tensors = parse_safetensors(flipped, 12);
      EXPECT_TRUE(!tensors || tensors->empty() || tensors->back().end == 12u) << flipped;
    }
}

TEST(ModelConfigTest, HasOneFormWhateverItsOrderAndOrigin) {
  const auto text = canonical_model_config(
    R"({"rope_theta": 500000.0, "_name_or_path": "/a", "hidden_size": 4, "transformers_version": "4.1"})");
  EXPECT_EQ(text, R"({"hidden_size":4,"rope_theta":500000.0})");
  EXPECT_EQ(text, canonical_model_config(R"({"hidden_size":4,"rope_theta":5e5})"));
  EXPECT_EQ(canonical_model_config("[]").error().detail, "is no JSON object");
  EXPECT_EQ(canonical_model_config("{\"a\": \"\xff\"}").error().detail, "is no JSON object");
}

std::vector<hashed_tensor> two_tensors() {
  return {{{"a", "BF16", {2, 3}, 0, 12}, "x"}, {{"b", "F32", {7}, 12, 40}, "y"}};
}

TEST(TensorsDigestTest, ChangesWithEverythingThatIsInIt) {
  using tensors = std::vector<hashed_tensor>;
  const auto changes = std::vector<std::function<void(tensors&)>>{
    [](tensors&) {},
    [](tensors& x) { x[0].tensor.name = "c"; },
    [](tensors& x) { x[0].tensor.dtype = "F16"; },
    [](tensors& x) {
      x[0].tensor.shape = {3, 2};
    },
    [](tensors& x) {
      x[0].tensor.shape = {2, 3, 1};
    },
    [](tensors& x) { x[0].tensor.end = 13; },
    [](tensors& x) { x[1].bytes = "z"; },
    [](tensors& x) { std::swap(x[0].tensor.name, x[1].tensor.name); },
    [](tensors& x) { x.pop_back(); },
  };
  auto digests = std::set<page_key>{};
  for (const auto& change : changes) {
    auto changed = two_tensors();
    change(changed);
    digests.insert(tensors_digest(std::move(changed)));
  }
  EXPECT_EQ(digests.size(), changes.size());
}

TEST(TensorsDigestTest, DoesNotDependOnWhereTensorsLie) {
  auto other = two_tensors();
  std::ranges::reverse(other);
  for (auto& [tensor, bytes] : other) {
    tensor.begin += 100;
    tensor.end += 100;
  }
  EXPECT_EQ(tensors_digest(other), tensors_digest(two_tensors()));
}

TEST(ModelDigestTest, NamesAndDigestsOfPartsCount) {
  auto digests = std::set<page_key>{};
  for (const auto& parts : std::vector<std::map<std::string, std::string>>{
         {}, {{"a", "1"}}, {{"a", "2"}}, {{"b", "1"}}, {{"a1", ""}}, {{"a", "1"}, {"b", "1"}}})
    digests.insert(model_digest(parts));
  EXPECT_EQ(digests.size(), 6u);
}

} // namespace
} // namespace hicache
