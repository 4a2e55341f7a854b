#pragma once

#include "actors/index.hpp"
#include "actors/segment.hpp"
#include "backends/cluster/segment_memory.hpp"
#include "base/page_checksum.hpp"
#include "messages/page_header.hpp"
#include "tests/actors/fakes.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>

namespace hicache::test {

inline constexpr auto slot_bytes = uint64_t{192};

/// A segment and the index it reports to.
class SegmentTest : public actor_test {
protected:
  ~SegmentTest() override { stop_all(); }

  void start_index() { index_ = spawn(index, index_options{std::chrono::seconds{10}, &clock}); }

  void start_segment(uint32_t slots, uint64_t member = 1) {
    if (!lasting_ || !lasting_->has_pages)
      memory_.assign(slots * slot_bytes, std::byte{0xee});
    auto options = segment_options{};
    options.mounts.member.member = member;
    options.mounts.member.capacity_bytes = memory_.size();
    options.mounts.index = [this] { return view(); };
    options.mounts.index_lost = [this](const index_actor&) { ++index_lost_; };
    options.mounts.reach = [this](const member_info&) { return other_member(); };
    options.mounts.index_heard = [this](uint64_t digest) { heard_ = digest; };
    options.mounts.timeout = std::chrono::seconds{2};
    options.memory = memory_;
    options.policy = policy_;
    options.lasting = lasting_;
    options.on_disk = disk_pages_;
    options.figures = figures_;
    options.clock = &clock;
    segment_ = spawn(segment, options);
  }

  /// The index as the segment sees it: of one shard, unless the test says otherwise.
  virtual member_actor other_member() const { return {}; }

  virtual index_view_ptr view() const {
    return std::make_shared<const index_view>(index_view{{{0, index_, "here"}}});
  }

  void seal(const segment_slot& slot, uint64_t fingerprint) {
    const auto object = std::array{object_of(memory_, slot)};
    seal_slot(memory_, slot, fingerprint, page_checksum(object));
  }

  segment_slots reserve(std::vector<uint64_t> keys, uint64_t parent = 0) {
    auto pages = segment_pages{};
    for (const auto key : keys)
      pages.list.push_back({key_of(key), parent == 0 ? page_key{} : key_of(parent), 64, 0, 0});
    return ask_value<segment_slots>(segment_, atom::reserve_v, pages);
  }

  reply<key_batch> send_publish(const segment_slots& slots) {
    return send_request<key_batch>(segment_, atom::publish_v, slots);
  }

  /// Reserves and publishes.
  void store(std::vector<uint64_t> keys, uint64_t parent = 0) {
    const auto answer = send_publish(reserve(std::move(keys), parent));
    run();
    EXPECT_TRUE(answer.arrived());
  }

  replica_list locate(uint64_t key) {
    return ask_value<placements>(index_, atom::locate_v, key_batch{{key_of(key)}}).replicas.front();
  }

  /// Where a reader that knows places on disk finds a page.
  replica_list locate_anywhere(uint64_t key) {
    return ask_value<placements>(index_, atom::locate_v, key_batch{{key_of(key)}, true})
      .replicas.front();
  }

  /// Whether the index knows a page on disk, and only there.
  bool is_offered_on_disk(uint64_t key) {
    const auto found = locate_anywhere(key);
    return found.size() == 1 && is_on_disk(found.front().offset);
  }

  bool is_header_cleared(const segment_slot& slot) const {
    const auto header = std::span{memory_}.subspan(slot.offset, page_header_bytes);
    return std::all_of(header.begin(), header.end(), [](std::byte x) { return x == std::byte{0}; });
  }

  index_actor index_;
  segment_actor segment_;
  std::vector<std::byte> memory_;
  /// Set before start_segment: the memory outlives the segment, and has the pages of the one
  /// before.
  std::optional<lasting_memory> lasting_;
  /// Set before start_segment if there is a disk below.
  std::shared_ptr<disk_table> disk_pages_;
  segment_policy policy_;
  int index_lost_ = 0;
  uint64_t heard_ = 0;
  std::shared_ptr<member_figures> figures_ = std::make_shared<member_figures>();
};

} // namespace hicache::test
