// Members of the cluster store that offer the pages of their L2 where they lie.

#include "messages/page_header.hpp"
#include "runtime/rank_store.hpp"
#include "runtime/shared_pools.hpp"
#include "tests/backends/backend_support.hpp"
#include "tests/runtime/cluster_support.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <random>
#include <thread>

namespace hicache::test {
namespace {

constexpr auto page_size = size_t{4096};
constexpr auto l2_pages = uint32_t{8};
constexpr auto fingerprint = uint64_t{7};

time_point soon() {
  return std::chrono::steady_clock::now() + std::chrono::seconds{20};
}

enum class exporting : uint8_t { nothing, l2 };

/// A rank with an L2 that it exports.
class exporter {
public:
  explicit exporter(const local_index& index, size_t segment_pages, uint32_t replicas = 1)
    : pools_(
      shared_pools::create(segment_pages * slot_bytes_for(page_size), geometry(), 1).value()) {
    join(index, segment_pages, replicas);
  }

  void join(const local_index& index, size_t segment_pages, uint32_t replicas = 1,
            exporting what = exporting::l2) {
    auto options = cluster_member_options{};
    options.segment_bytes = segment_pages * slot_bytes_for(page_size);
    options.object_bytes = page_size;
    options.fingerprint = fingerprint;
    options.replicas = replicas;
    options.host = "lender";
    options.memory = &pools_.memory;
    if (what == exporting::l2)
      options.exported = pools_.exported;
    member_ = std::make_unique<local_member>(index, std::move(options));
    store_ = (**member_).open();
  }

  void leave() {
    store_.reset();
    member_.reset();
  }

  std::span<std::byte> page(page_index number) {
    return pools_.l2().subspan(number * page_size, page_size);
  }

  /// Puts the bytes of a key into a page, as the copy engine does.
  void compute(page_index number, uint64_t key) {
    pools_.exported->reclaim(std::array{number});
    std::ranges::copy(bytes_of(key, page_size), page(number).begin());
  }

  result<void> put(page_index number, uint64_t key) {
    return store_->set(std::vector{page_write{key_of(key), {}, {page(number)}}}, soon()).at(0);
  }

  blocking_store& store() { return *store_; }

  cluster_member& member() { return **member_; }

  exported_pages& exported() { return *pools_.exported; }

private:
  static pool_geometry geometry() {
    const auto shape = pool_shape{attention_kind::mha, 1, 1, 32, 32, 4, 16, 0};
    return {shape, host_layout::page_first, l2_pages};
  }

  shared_pools pools_;
  std::unique_ptr<local_member> member_;
  std::unique_ptr<blocking_store> store_;
};

class ExportedMemberTest : public testing::Test {
protected:
  /// A rank with a segment of its own.
  std::unique_ptr<local_member> join(const std::string& host, read_path path = read_path::automatic,
                                     uint64_t pages = 8) {
    auto options = cluster_member_options{};
    options.segment_bytes = pages * slot_bytes_for(page_size);
    options.object_bytes = page_size;
    options.fingerprint = fingerprint;
    options.host = host;
    options.path = path;
    return std::make_unique<local_member>(index_, std::move(options));
  }

  replica_list replicas_of(uint64_t key) {
    auto self = caf::scoped_actor{index_.system()};
    auto found = replica_list{};
    self
      ->request(index_.shard(), std::chrono::seconds{10}, atom::locate_v, key_batch{{key_of(key)}})
      .receive([&](placements& x) { found = std::move(x.replicas.front()); },
               [](const caf::error& err) { FAIL() << to_string(from_caf(err)); });
    return found;
  }

  static result<page_bytes> take(blocking_store& store, uint64_t key) {
    auto bytes = page_bytes(page_size);
    auto answer = store.get(std::vector{page_read{key_of(key), {bytes}}}, soon()).at(0);
    if (!answer)
      return tl::unexpected{answer.error()};
    return bytes;
  }

  local_index index_;
  exporter owner_{index_, 4};
  std::unique_ptr<local_member> other_ = join("reader");
  std::unique_ptr<blocking_store> reader_ = (**other_).open();
};

TEST_F(ExportedMemberTest, OthersReadL2WhereItLies) {
  owner_.compute(3, 1);
  ASSERT_TRUE(owner_.put(3, 1));
  EXPECT_EQ(take(*reader_, 1), bytes_of(1, page_size));
  EXPECT_EQ(take(owner_.store(), 1), bytes_of(1, page_size));
  EXPECT_EQ(owner_.store().health().bytes, 0u) << "nothing was copied";
  EXPECT_EQ(owner_.store().health().objects, 1u);
}

TEST_F(ExportedMemberTest, WhatIsOverwrittenIsAMissAtOnce) {
  owner_.compute(3, 1);
  ASSERT_TRUE(owner_.put(3, 1));
  ASSERT_EQ(take(*reader_, 1), bytes_of(1, page_size));
  owner_.compute(3, 2);
  EXPECT_EQ(code_of(take(*reader_, 1)), ec::not_found);
  ASSERT_TRUE(owner_.put(3, 2));
  EXPECT_EQ(code_of(take(*reader_, 1)), ec::not_found);
  EXPECT_EQ(take(*reader_, 2), bytes_of(2, page_size));
}

TEST_F(ExportedMemberTest, ReadersOnOtherMachinesReadL2Too) {
  const auto far = join("far", read_path::remote);
  const auto reader = (**far).open();
  for (const auto page : {page_index{3}, page_index{7}}) {
    owner_.compute(page, page);
    ASSERT_TRUE(owner_.put(page, page));
    EXPECT_EQ(take(*reader, page), bytes_of(page, page_size));
  }
  EXPECT_EQ(owner_.member().sent_bytes(), 2 * page_size);
  owner_.compute(3, 1);
  EXPECT_EQ(code_of(take(*reader, 3)), ec::not_found);
}

TEST_F(ExportedMemberTest, APageAtAnotherPlaceIsExportedFromThere) {
  owner_.compute(3, 1);
  ASSERT_TRUE(owner_.put(3, 1));
  owner_.compute(5, 1);
  ASSERT_TRUE(owner_.put(5, 1));
  EXPECT_EQ(replicas_of(1).size(), 1u);
  owner_.compute(3, 2);
  EXPECT_EQ(take(*reader_, 1), bytes_of(1, page_size));
}

TEST_F(ExportedMemberTest, APageThatIsExportedIsNotExportedAgain) {
  owner_.compute(3, 1);
  ASSERT_TRUE(owner_.put(3, 1));
  const auto before = replicas_of(1);
  ASSERT_TRUE(owner_.put(3, 1));
  EXPECT_EQ(replicas_of(1), before);
}

TEST_F(ExportedMemberTest, APageThatOthersHaveIsNotLent) {
  const auto bytes = bytes_of(1, page_size);
  ASSERT_TRUE(put(*reader_, key_of(1), bytes));
  const auto before = replicas_of(1);
  owner_.compute(3, 1);
  ASSERT_TRUE(owner_.put(3, 1));
  EXPECT_EQ(replicas_of(1), before);
}

TEST_F(ExportedMemberTest, WhatIsNoPageOfL2IsCopied) {
  const auto bytes = bytes_of(1, page_size);
  ASSERT_TRUE(put(owner_.store(), key_of(1), bytes));
  EXPECT_EQ(owner_.store().health().bytes, slot_bytes_for(page_size));
  EXPECT_EQ(take(*reader_, 1), bytes);
  owner_.compute(3, 1);
  ASSERT_TRUE(owner_.put(3, 1));
  EXPECT_EQ(owner_.store().health().objects, 1u) << "the copy stays: that will do";
}

TEST_F(ExportedMemberTest, CopiesForOtherHostsComeFromL2) {
  auto writer = exporter{index_, 0, 2};
  writer.compute(3, 1);
  ASSERT_TRUE(writer.put(3, 1));
  EXPECT_EQ(replicas_of(1).size(), 2u);
  writer.compute(3, 2);
  EXPECT_EQ(take(*reader_, 1), bytes_of(1, page_size)) << "the copy";
}

TEST_F(ExportedMemberTest, L2IsExportedWithoutASegment) {
  auto writer = exporter{index_, 0};
  EXPECT_EQ(writer.member().exported_bytes(), l2_pages * page_size);
  writer.compute(3, 1);
  ASSERT_TRUE(writer.put(3, 1));
  EXPECT_EQ(take(*reader_, 1), bytes_of(1, page_size));
  EXPECT_EQ(code_of(put(writer.store(), key_of(2), bytes_of(2, page_size))), ec::store_full);
}

TEST_F(ExportedMemberTest, WhoLeavesLendsNothing) {
  owner_.compute(3, 1);
  ASSERT_TRUE(owner_.put(3, 1));
  owner_.leave();
  EXPECT_EQ(code_of(take(*reader_, 1)), ec::not_found);
  EXPECT_FALSE(owner_.exported().begin(3, key_of(1)));
  owner_.join(index_, 4);
  ASSERT_TRUE(owner_.put(3, 1));
  EXPECT_EQ(take(*reader_, 1), bytes_of(1, page_size));
}

TEST_F(ExportedMemberTest, ASegmentBesideL2KeepsToItself) {
  owner_.leave();
  for (auto page = page_index{0}; page < l2_pages; ++page)
    owner_.compute(page, page);
  owner_.join(index_, 4, 1, exporting::nothing);
  for (auto key = uint64_t{20}; key < 20 + 3 * 4; ++key)
    EXPECT_TRUE(put(owner_.store(), key_of(key), bytes_of(key, page_size)));
  EXPECT_EQ(owner_.store().health().objects, 4u);
  ASSERT_TRUE(owner_.put(3, 3));
  EXPECT_EQ(owner_.store().health().objects, 4u) << "copied";
  for (auto page = page_index{0}; page < l2_pages; ++page)
    EXPECT_TRUE(std::ranges::equal(owner_.page(page), bytes_of(page, page_size))) << page;
}

TEST_F(ExportedMemberTest, AnL3ThatLendsL2IsRefusedWhereL2CannotBeLent) {
  auto settings = rank_config{};
  settings.index = index_.address();
  settings.mem_layout = host_layout::page_head;
  settings.model_id = "test";
  ASSERT_TRUE(settings.finish(1));
  const auto l2 = pool_geometry{settings.shape(1), host_layout::page_head, 4};
  auto memory = std::vector<std::byte>(l2.total_bytes());
  const auto clock = monotonic_clock{};
  auto system_settings = system_config{};
  auto system = caf::actor_system{system_settings};
  const auto outcome = [&](const shared_pools* pools, const char* config) {
    auto store = rank_store{system, settings, 0, 1, l2, memory.data(), pools, clock};
    const auto opened = store.open({"cluster", config, "wait_complete"});
    if (!opened)
      return opened.error().detail;
    return std::string{opened->exports_l2 ? "L2 is exported" : "nothing is exported"};
  };
  EXPECT_EQ(
    outcome(nullptr, R"({"zero_copy": true})"),
    "zero_copy exports L2, which this instance has in private memory; expected zero_copy in "
    "--hicache-storage-backend-extra-config when it starts");
  const auto pools = shared_pools::create(0, l2, 1).value();
  EXPECT_EQ(outcome(&pools, R"({"zero_copy": true})"), "L2 is exported");
  EXPECT_EQ(outcome(&pools, R"({"zero_copy": true, "tp_lcm_size": 2})"),
            "zero_copy exports L2 in the objects that it has since the start; expected the same "
            "tp_lcm_size");
  EXPECT_EQ(outcome(&pools, R"({"tp_lcm_size": 2})"), "nothing is exported");
}

TEST_F(ExportedMemberTest, ReadersThatRaceWithOverwritingGetRightBytesOrNone) {
  constexpr auto keys = uint64_t{12};
  const auto far = join("far", read_path::remote, 0);
  const auto far_reader = (**far).open();
  auto is_over = std::atomic{false};
  const auto read_on = [&](blocking_store& store, uint32_t seed) {
    auto random = std::mt19937_64{seed};
    while (!is_over) {
      const auto key = random() % keys;
      const auto got = take(store, key);
      if (got)
        EXPECT_EQ(*got, bytes_of(key, page_size)) << key;
      else
        EXPECT_EQ(got.error().code, ec::not_found) << to_string(got.error());
    }
  };
  auto reading = std::array{std::jthread{read_on, std::ref(*reader_), 1},
                            std::jthread{read_on, std::ref(*far_reader), 3}};
  auto random = std::mt19937_64{2};
  auto in_page = std::map<page_index, uint64_t>{};
  for (auto i = 0; i < 1000; ++i) {
    const auto page = static_cast<page_index>(1 + random() % (l2_pages - 1));
    const auto key = random() % keys;
    const auto has_key = [key](const auto& x) { return x.second == key; };
    std::erase_if(in_page, has_key);
    owner_.compute(page, key);
    EXPECT_TRUE(owner_.put(page, key));
    in_page[page] = key;
  }
  is_over = true;
  for (auto& one : reading)
    one.join();
  for (const auto& [page, key] : in_page)
    EXPECT_EQ(take(*reader_, key), bytes_of(key, page_size)) << "page " << page;
}

} // namespace
} // namespace hicache::test
