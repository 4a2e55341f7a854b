// Cases S6, F9, F13 and F14 of SGLang's L3 (docs/internals.md, "Cases of SGLang"): what a storage
// actor makes of pages, with files behind it.

#include "backends/file_backend.hpp"
#include "cache/hash/page_hash.hpp"
#include "tests/actors/storage_fixture.hpp"
#include "tests/backends/temporary_folder.hpp"

#include <filesystem>
#include <set>

namespace hicache {
namespace {

using namespace hicache::test;

class SglangStorageTest : public StorageTest {
protected:
  std::unique_ptr<blocking_store> files(uint64_t max_bytes = 0) {
    return std::move(*make_file_backend({{folder_.path(), max_bytes}, 7}, clock));
  }

  /// A rank that has one of two heads.
  storage_rank& start_half(uint32_t number, const std::string& fingerprint = "model=m") {
    auto half = test::shape;
    half.kv_heads = 1;
    return start(
      {.number = number, .heads_per_object = 1, .fingerprint = fingerprint, .shape = half},
      files());
  }

  std::set<std::string> names() const {
    auto stems = std::set<std::string>{};
    for (const auto& entry : std::filesystem::recursive_directory_iterator{folder_.path()})
      if (entry.path().extension() == ".kv")
        stems.insert(entry.path().stem());
    return stems;
  }

  temporary_folder folder_;
};

// SGLang has an object for K and one for V; here there is one for each group of heads.
TEST_F(SglangStorageTest, S6ObjectsThatAreThereAreNotWrittenAgain) {
  auto& first = start_half(0);
  auto& second = start_half(1);
  first.fill(1, 7);
  second.fill(2, 7);
  EXPECT_TRUE(all_well(set(first, batch(0, 1))));
  EXPECT_TRUE(all_well(set(second, batch(1, 1))));
  EXPECT_EQ(names().size(), 2u);
  auto& both = start({.heads_per_object = 1}, files());
  both.fill(1, 9);
  both.fill(2, 9);
  EXPECT_EQ(set(both, batch(0, 2)), (std::vector<ec>{ec::none, ec::none}));
  EXPECT_EQ(names().size(), 4u);
  EXPECT_TRUE(all_well(get(first, batch(0, 2))));
  EXPECT_TRUE(all_well(get(second, batch(0, 2))));
  EXPECT_TRUE(first.holds(1, 7));
  EXPECT_TRUE(second.holds(1, 9));
  EXPECT_TRUE(first.holds(2, 9));
  EXPECT_TRUE(second.holds(2, 7));
}

// SGLang lets rank 0 alone write what all ranks hold alike, and refuses the others' writes where
// the folder is bounded. Here each page has a writer, bound or not, and the others' answer is good.
TEST_F(SglangStorageTest, F9OfRanksWithTheSameBytesOneWritesEachPage) {
  const auto keys = keys_of(1, 10);
  for (const auto max_bytes : {uint64_t{0}, uint64_t{1} << 20}) {
    SCOPED_TRACE(max_bytes);
    const auto before = names().size();
    auto written = std::vector<uint64_t>{};
    for (const auto number : {0u, 1u}) {
      auto& rank = start({.number = number,
                          .heads_per_object = 1,
                          .fingerprint = "bound " + std::to_string(max_bytes),
                          .shape = latent,
                          .writers = {number, 2}},
                         files(max_bytes));
      const auto outcome
        = ask_value<storage_outcome>(rank.actor, atom::set_v, batch(0, 10), plenty);
      EXPECT_TRUE(all_well(outcome.pages));
      written.push_back(10 - outcome.left_to_others);
      EXPECT_EQ(written.back(),
                static_cast<uint64_t>(std::ranges::count_if(
                  *keys, [&](const auto& key) { return writer_of(key, 2) == number; })));
    }
    EXPECT_EQ(written[0] + written[1], 10u);
    EXPECT_EQ(names().size() - before, 10u);
    EXPECT_EQ(exists(ranks_.back(), batch(0, 10)), 10u);
  }
}

// SGLang appends model, rank and number of ranks to the page's key. Here a file is named by a hash
// of the key, everything that must be equal (the model among it), and the heads among the model's:
// so the number of ranks says nothing, and replicas are one file without a rule of their own.
TEST_F(SglangStorageTest, F13FilesAreNamedByPageModelAndHeads) {
  const auto name = [](const std::string& model, const std::string& heads) {
    return to_string(object_key(key_of(1), object_mask(model, heads)));
  };
  auto expected = std::set<std::string>{};
  const auto expect_new = [&](storage_rank& rank, const std::string& added) {
    EXPECT_TRUE(all_well(set(rank, batch(0, 1))));
    EXPECT_TRUE(expected.insert(added).second);
    EXPECT_EQ(names(), expected);
  };
  expect_new(start_half(0, "model=a/b"), name("model=a/b", "heads 0+1"));
  expect_new(start_half(1, "model=a/b"), name("model=a/b", "heads 1+1"));
  expect_new(start_half(1, "model=c"), name("model=c", "heads 1+1"));
  auto& alone = start({.heads_per_object = 1, .fingerprint = "model=a/b"}, files());
  EXPECT_EQ(exists(alone, batch(0, 1)), 1u);
  EXPECT_TRUE(all_well(set(alone, batch(0, 1))));
  EXPECT_EQ(names(), expected);
  const auto start_replica = [&](uint32_t number) -> storage_rank& {
    return start(
      {.number = number, .heads_per_object = 1, .fingerprint = "model=a/b", .shape = latent},
      files());
  };
  expect_new(start_replica(0), name("model=a/b", "latent"));
  EXPECT_TRUE(all_well(set(start_replica(1), batch(0, 1))));
  EXPECT_EQ(names(), expected);
}

TEST_F(SglangStorageTest, F14ExistsCountsTheRunOfPages) {
  auto& rank = start({}, files());
  set(rank, batch(0, 2));
  set(rank, batch(3, 1));
  EXPECT_EQ(exists(rank, batch(0, 4)), 2u);
  EXPECT_EQ(exists(rank, batch(7, 1)), 0u);
  EXPECT_EQ(exists(rank, batch(0, 0)), 0u);
}

} // namespace
} // namespace hicache
