#pragma once

#include "actors/node.hpp"
#include "tests/actors/segment_fixture.hpp"

#include <algorithm>
#include <array>

namespace hicache::test {

/// A node with its segment and index, and processes that are its clients.
class NodeTest : public SegmentTest {
protected:
  void start(uint32_t slots, client_shares shares = {0, 0.5, 0.75, 1}) {
    start_index();
    start_segment(slots);
    start_below();
    auto options = node_options{};
    options.info = {"memory", memory_.size(), 0};
    options.memory = memory_;
    options.segment = segment_;
    options.disk = disk_;
    options.on_disk = on_disk_;
    options.fetcher = fetcher_;
    options.shares = shares;
    options.figures = figures_;
    options.lease_time = lease_time_;
    options.clock = &clock;
    node_ = spawn(node, options);
  }

  /// Starts what is below the segment's memory.
  virtual void start_below() {}

  /// A client that has said who it is.
  caf::actor client(uint64_t tenant = 0, uint64_t fingerprint = 0) {
    auto one = spawn_asker();
    const auto info = ask_as<node_info>(one, atom::attach_v, client_info{tenant, fingerprint});
    EXPECT_TRUE(info) << to_string(info.error());
    return one;
  }

  template <class Answer, class... Args>
  result<Answer> ask_as(const caf::actor& from, Args... args) {
    const auto answer = send_request_as<Answer>(from, node_, std::move(args)...);
    run();
    return answer.get();
  }

  static wanted_pages pages(const std::vector<uint64_t>& numbers) {
    auto wanted = wanted_pages{};
    for (const auto number : numbers)
      wanted.pages.push_back({key_of(number), {}, 64});
    return wanted;
  }

  static page_lookup lookup(const std::vector<uint64_t>& numbers) {
    auto wanted = page_lookup{};
    for (const auto number : numbers)
      wanted.keys.push_back(key_of(number));
    return wanted;
  }

  reserved_pages reserve_as(const caf::actor& from, const std::vector<uint64_t>& numbers) {
    auto got = ask_as<reserved_pages>(from, atom::reserve_v, pages(numbers));
    EXPECT_TRUE(got) << to_string(got.error());
    return got.value_or(reserved_pages{});
  }

  /// Writes an object as a client does. @returns its checksum
  uint64_t write(const page_place& place, uint64_t number) {
    const auto object = std::span{memory_}.subspan(place.offset + slot_object_offset, place.length);
    std::ranges::fill(object, static_cast<std::byte>(number));
    return page_checksum(std::array{object});
  }

  /// Reserves, writes and commits; expects room for all.
  page_totals store_as(const caf::actor& from, const std::vector<uint64_t>& numbers) {
    const auto got = reserve_as(from, numbers);
    auto complete = complete_pages{got.reservation, {}};
    for (auto i = size_t{0}; i < numbers.size(); ++i) {
      EXPECT_EQ(got.places[i].status, place_status::writable);
      complete.pages.push_back({key_of(numbers[i]), write(got.places[i], numbers[i])});
    }
    auto done = ask_as<page_totals>(from, atom::commit_v, complete);
    EXPECT_TRUE(done) << to_string(done.error());
    return done.value_or(page_totals{});
  }

  page_totals remove_as(const caf::actor& from, const std::vector<uint64_t>& numbers) {
    auto batch = key_batch{};
    for (const auto number : numbers)
      batch.keys.push_back(key_of(number));
    auto done = ask_as<page_totals>(from, atom::remove_v, batch);
    EXPECT_TRUE(done) << to_string(done.error());
    return done.value_or(page_totals{});
  }

  /// Whether a reader finds this page at that place.
  bool is_page(const page_place& place, uint64_t number) const {
    const auto slot = segment_slot{key_of(number), segment_slot::state::present, place.offset,
                                   place.generation, place.length};
    return is_intact(memory_, slot, place.offset + slot_object_offset, 0);
  }

  leased_pages look_up_as(const caf::actor& from, const page_lookup& wanted) {
    auto got = ask_as<leased_pages>(from, atom::locate_v, wanted);
    EXPECT_TRUE(got) << to_string(got.error());
    return got.value_or(leased_pages{});
  }

  node_status status() { return ask_value<node_status>(node_, atom::status_v, status_query{}); }

  static std::vector<bool> found(const leased_pages& answer) {
    auto list = std::vector<bool>{};
    for (const auto& place : answer.places)
      list.push_back(place.status == place_status::present);
    return list;
  }

  template <class T>
  static ec code_of(const result<T>& outcome) {
    return outcome ? ec::none : outcome.error().code;
  }

  /// Set by start_below().
  disk_tier_actor disk_;
  std::shared_ptr<disk_figures> on_disk_;
  /// Whom the node asks for pages of others, if it is set before start().
  fetcher_actor fetcher_;
  node_actor node_;
  /// Set before start().
  duration lease_time_ = limits::node_lease_time;
};

} // namespace hicache::test
