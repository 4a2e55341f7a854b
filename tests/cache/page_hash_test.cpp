#include "cache/hash/page_hash.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

using namespace hicache;

namespace {

std::string hash(const std::vector<token_id>& tokens, const page_key* prior = nullptr) {
  return to_string(hash_page(tokens, prior));
}

} // namespace

TEST(PageHash, NamesPagesLikeSglang) {
  EXPECT_EQ(hash({}), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hash({0}), "df3f619804a92fdb4057192dc43dd748ea778adc52bc498ce80524c014b81119");
  EXPECT_EQ(hash({1}), "67abdd721024f0ff4e0b3f4c2fc13bc5bad42d0b7851d456d88d203d15aaa450");
  EXPECT_EQ(hash({1, 2, 3}), "4636993d3e1da4e9d6b8f87b79e8f7c6d018580d52661950eabc3845c5897a4d");
  EXPECT_EQ(hash({1, 2, 3, 4}), "cf97adeedb59e05bfd73a2b4c2a8885708c4f4f70c84c64b27120e72ab733b72");
  EXPECT_EQ(hash({4294967295}), "ad95131bc0b799c0b1af477fb14fcf26a6a9f76079e48bf090acb7e8367bfd0e");
  EXPECT_NE(hash({1, 2}), hash({2, 1}));
}

TEST(PageHash, ChainsThePageBefore) {
  const auto first = hash_page(std::vector<token_id>{1, 2, 3, 4}, nullptr);
  EXPECT_EQ(hash({5, 6, 7, 8}, &first),
            "4ebfa8a1f3c341517621838c6e1b9aa350307e3f00b3cbd1a07ef740f54396d6");
  EXPECT_NE(hash({5, 6, 7, 8}, &first), hash({5, 6, 7, 8}));
}

TEST(PageHash, HashesWholePagesOnly) {
  const auto tokens = std::vector<token_id>{1, 2, 7, 8, 9};
  const auto keys = hash_pages(tokens, 2, nullptr);
  ASSERT_EQ(keys.size(), 2);
  EXPECT_EQ(to_string(keys[0]) + to_string(keys[1]),
            "34fb5c825de7ca4aea6e712f19d439c1da0c92c37b423936c5f618545ca4fa1f"
            "0bfa9b9c6fd727c7410b6d42b753439911022d34cc6ef99ac43ed7724aa48a75");
  EXPECT_TRUE(hash_pages(tokens, 8, nullptr).empty());
}

TEST(PageHash, SeedsNamespacesLikeSglang) {
  EXPECT_EQ(namespace_seed({}), std::nullopt);
  EXPECT_EQ(event_seed({}), std::nullopt);
  EXPECT_EQ(to_string(*event_seed({"", "tenant-a"})),
            "f5d0f785efe6042a4e4b0297a4d712917e1763c850835e93df58b373fd47fd2c");
  EXPECT_EQ(event_seed({"lora1", "tenant-a"}), namespace_seed({"lora1", "tenant-a"}));
  EXPECT_EQ(to_string(*namespace_seed({"lora1", ""})),
            "69df3de801c43e60adaa856ad245421b72609a9c94f2c6cc263c4d6c4497c3c5");
  EXPECT_EQ(to_string(*namespace_seed({"", "tenant-a"})),
            "9d303df3761a7561353e2ae7459eb4ab12a08abb37951b696aa4f0c059c7caaa");
  EXPECT_EQ(to_string(*namespace_seed({"lora1", "tenant-a"})),
            "73c6480936d181d040db103908bc5de0ca6b64c24c52347f43a18471b763696e");
}

TEST(PageHash, ChainsFromTheSeed) {
  EXPECT_EQ(tenant_of(""), 0u);
  EXPECT_NE(tenant_of("tenant-a"), 0u);
  EXPECT_NE(tenant_of("tenant-a"), tenant_of("tenant-b"));
  const auto seed = namespace_seed({"lora1", "tenant-a"});
  const auto keys = hash_pages(std::vector<token_id>{1, 2, 7, 8}, 2, &*seed);
  ASSERT_EQ(keys.size(), 2);
  EXPECT_EQ(to_string(keys[0]) + to_string(keys[1]),
            "09e1bb0f44962e221960cfe3b56cf64a8d06fa6d5a751056f54ecbdcf80d57a2"
            "0a91486bbd3aaa6da76b3bea7a55562d7e5c9539ff4f3919daa96c680ead1e0e");
}

TEST(PageHash, FramesTheFieldsOfANamespace) {
  EXPECT_NE(namespace_seed({"bc", "a"}), namespace_seed({"c", "ab"}));
  EXPECT_NE(namespace_seed({"a", ""}), namespace_seed({"", "a"}));
}

TEST(PageHash, ObjectKeysDependOnEveryFieldAndItsEnd) {
  const auto page = hash_page(std::vector<token_id>{1}, nullptr);
  const auto other = hash_page(std::vector<token_id>{2}, nullptr);
  const auto key = object_key(page, object_mask("model", "heads 0+4"));
  EXPECT_EQ(key, object_key(page, object_mask("model", "heads 0+4")));
  EXPECT_NE(key, object_key(other, object_mask("model", "heads 0+4")));
  EXPECT_NE(key, object_key(page, object_mask("model2", "heads 0+4")));
  EXPECT_NE(key, object_key(page, object_mask("model", "heads 4+4")));
  EXPECT_NE(object_key(page, object_mask("ab", "c")), object_key(page, object_mask("a", "bc")));
}

TEST(PageHash, FingerprintIsTheBeginningOfTheDigest) {
  EXPECT_EQ(fingerprint_of(""), 0xe3b0c44298fc1c14);
  EXPECT_EQ(fingerprint_of("abc"), 0xba7816bf8f01cfea);
}

// Case H12.
TEST(PageHash, PairsAreHashedWithBothTokens) {
  const auto tokens = std::vector<token_id>{1, 2, 3};
  const auto pairs = std::vector<token_id>{1, 2, 2, 3};
  const auto names = hash_pages(tokens, 2, nullptr, 1);
  ASSERT_EQ(names.size(), 1);
  EXPECT_EQ(names[0], hash_page(pairs, nullptr));
  const auto one = std::vector<token_id>{1, 2};
  const auto turned = std::vector<token_id>{2, 1};
  EXPECT_EQ(hash_pages(one, 1, nullptr, 1), hash_pages(one, 2, nullptr));
  EXPECT_NE(hash_pages(one, 1, nullptr, 1), hash_pages(turned, 1, nullptr, 1));
  EXPECT_TRUE(hash_pages(std::span{one}.first(1), 1, nullptr, 1).empty());
  EXPECT_TRUE(hash_pages({}, 1, nullptr, 1).empty());
}

TEST(PageHash, WritersAreTheFirstBytesOfTheKeyModuloTheRanks) {
  auto key = page_key{};
  key.bytes = {7, 1};
  EXPECT_EQ(writer_of(key, 1), 0u);
  EXPECT_EQ(writer_of(key, 8), 7u);
  EXPECT_EQ(writer_of(key, 1000), 263u); // 7 + 256
  key.bytes[7] = 0x80;
  EXPECT_EQ(writer_of(key, 10), (263 + (uint64_t{1} << 63) % 10) % 10);
  key.bytes[8] = 0xff; // Not among the first eight.
  EXPECT_EQ(writer_of(key, 1u << 31), 263u);
}

TEST(PageHash, WritersGetEqualShares) {
  auto tokens = std::vector<token_id>(16000);
  std::iota(tokens.begin(), tokens.end(), 1);
  const auto pages = hash_pages(tokens, 1, nullptr);
  for (const auto ranks : {2u, 3u, 8u}) {
    auto shares = std::vector<uint64_t>(ranks);
    for (const auto& page : pages)
      ++shares.at(writer_of(page, ranks));
    // Six standard deviations of a binomial distribution; the keys are always the same.
    const auto mean = static_cast<double>(pages.size()) / ranks;
    for (const auto share : shares)
      EXPECT_NEAR(static_cast<double>(share), mean, 6 * std::sqrt(mean));
  }
}
