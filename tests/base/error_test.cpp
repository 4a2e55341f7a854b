#include "hicache/error.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace hicache {
namespace {

TEST(ErrorTest, EveryCodeHasItsOwnNameAndSentence) {
  auto names = std::set<std::string>{};
  auto sentences = std::set<std::string>{};
  for (auto i = 0; i < ec_count; ++i) {
    names.insert(to_string(static_cast<ec>(i)));
    sentences.insert(sentence(static_cast<ec>(i)));
  }
  EXPECT_EQ(names.size(), ec_count);
  EXPECT_EQ(sentences.size(), ec_count);
  EXPECT_EQ(names.count("unknown_error"), 0u);
}

TEST(ErrorTest, RendersDetailOrSentence) {
  EXPECT_EQ(to_string(error{ec::not_found, {}}), "not_found: the page is not in the store");
  EXPECT_EQ(to_string(error{ec::invalid_argument, "x"}), "invalid_argument: x");
}

} // namespace
} // namespace hicache
