// Clients that do all they can, beside a segment, against sums over plain lists.

#include "cache/store/client_table.hpp"
#include "cache/store/segment_table.hpp"
#include "messages/page_header.hpp"
#include "tests/cache_store/test_keys.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace hicache {
namespace {

using test::key_of;

constexpr auto pool_bytes = 64 * slot_bytes_for(64);
constexpr auto shares = client_shares{pool_bytes, 0.25, 0.375, 0.5};

uint64_t bytes_of(const segment_slots& slots) {
  auto bytes = uint64_t{0};
  for (const auto& slot : slots.list)
    bytes += slot_bytes_for(slot.length);
  return bytes;
}

/// What was granted and is not over, as a plain list.
struct promise {
  client_id client = 0;
  uint64_t tenant = 0;
  uint64_t number = 0;
  segment_slots slots;
  time_point until;
};

/// A request whose answer is under way.
struct pending {
  client_id client = 0;
  uint64_t tenant = 0;
  uint64_t number = 0;
  bool writes = false;
  uint64_t bytes = 0;
  segment_slots slots;
  lease_extent extent = lease_extent::all;
};

class ClientModelTest : public ::testing::TestWithParam<uint32_t> {
protected:
  // -- what the node's actor does ---------------------------------------------

  void give_back(const segment_slots& slots) {
    for (const auto& slot : slots.list)
      ASSERT_TRUE(segment.abort(slot.key, slot.generation)) << "given back twice";
  }

  void end_holds(const segment_slots& slots) {
    for (const auto& slot : slots.list)
      ASSERT_TRUE(segment.release(slot.offset, slot.generation)) << "released twice";
  }

  // -- what clients do --------------------------------------------------------

  size_t below(size_t bound) { return random() % bound; }

  page_key any_key() { return key_of(below(60)); }

  client_id any_client() { return 1 + below(6); }

  void enter() {
    const auto client = any_client();
    const auto tenant = below(3);
    ASSERT_EQ(table.enter(client, {tenant, 0}).has_value(), !here.contains(client));
    here.emplace(client, tenant);
  }

  void leave() {
    const auto client = any_client();
    const auto left = table.leave(client);
    here.erase(client);
    auto reserved = size_t{0};
    auto leased = size_t{0};
    const auto is_of = [&](size_t& count) {
      return [&count, client](const promise& x) {
        count += x.client == client ? x.slots.list.size() : 0;
        return x.client == client;
      };
    };
    std::erase_if(reservations, is_of(reserved));
    std::erase_if(leases, is_of(leased));
    ASSERT_EQ(left.reserved.list.size(), reserved);
    ASSERT_EQ(left.leased.list.size(), leased);
    give_back(left.reserved);
    end_holds(left.leased);
  }

  void ask_to_write() {
    const auto client = any_client();
    auto pages = segment_pages{};
    auto bytes = uint64_t{0};
    for (auto i = 1 + below(5); i > 0; --i) {
      pages.list.push_back({any_key(), any_key(), static_cast<uint32_t>(1 + below(300))});
      bytes += slot_bytes_for(pages.list.back().length);
    }
    const auto request = table.ask_to_write(client, pages);
    if (!request)
      return;
    ASSERT_TRUE(here.contains(client));
    auto asked = pending{client, here.at(client), *request, true, bytes, {}, {}};
    for (const auto& page : pages.list) {
      const auto room = segment.reserve(
        {page.key, page.parent, slot_bytes_for(page.length), page.length, 0, page.tenant}, now);
      for (const auto& moved : room.moved)
        ASSERT_TRUE(is_free(moved.from, moved.bytes)) << "a page moved that is in use";
      auto& slot = asked.slots.list.emplace_back(segment_slot{page.key});
      slot.length = page.length;
      if (room.status == reserve_status::already_there)
        slot.what = segment_slot::state::present;
      if (room.status != reserve_status::reserved)
        continue;
      ASSERT_TRUE(is_free(room.offset, slot_bytes_for(page.length))) << "a place in use";
      slot.what = segment_slot::state::reserved;
      slot.offset = room.offset;
      slot.generation = room.generation;
    }
    open.push_back(std::move(asked));
  }

  void ask_to_read() {
    const auto client = any_client();
    const auto count = 1 + below(6);
    const auto request = table.ask_to_read(client, count);
    if (!request)
      return;
    ASSERT_TRUE(here.contains(client));
    auto asked = pending{client, here.at(client), *request, false, 0, {}, {}};
    asked.extent = below(2) == 0 ? lease_extent::prefix : lease_extent::all;
    for (auto i = size_t{0}; i < count; ++i) {
      const auto key = any_key();
      auto& slot = asked.slots.list.emplace_back(segment_slot{key});
      if (const auto held = segment.hold(key)) {
        slot.what = segment_slot::state::present;
        slot.offset = held->offset;
        slot.generation = held->generation;
        slot.length = held->length;
      }
    }
    open.push_back(std::move(asked));
  }

  /// One of the open requests is answered, or its answer is lost.
  void answer() {
    if (open.empty())
      return;
    const auto at = open.begin() + static_cast<ptrdiff_t>(below(open.size()));
    const auto asked = std::move(*at);
    open.erase(at);
    const auto is_here = is_known(asked.number);
    if (asked.writes) {
      auto reserved = asked.slots;
      std::erase_if(reserved.list,
                    [](const auto& x) { return x.what != segment_slot::state::reserved; });
      if (below(8) == 0) {
        table.refuse(asked.number);
        give_back(reserved);
      } else {
        const auto back = table.grant_write(asked.number, asked.slots);
        ASSERT_EQ(back.list.size(), is_here ? 0u : reserved.list.size());
        give_back(back);
        if (is_here && !reserved.list.empty())
          reservations.push_back({asked.client, asked.tenant, asked.number, reserved, {}});
      }
    } else {
      const auto until = now + std::chrono::seconds{1 + below(20)};
      const auto granted = table.grant_read(asked.number, asked.slots, asked.extent, until);
      end_holds(granted.surplus);
      auto leased = granted.places;
      std::erase_if(leased.list,
                    [](const auto& x) { return x.what != segment_slot::state::present; });
      ASSERT_EQ(granted.lease != 0, !leased.list.empty());
      ASSERT_TRUE(is_here || granted.lease == 0);
      if (granted.lease != 0)
        leases.push_back({asked.client, asked.tenant, granted.lease, leased, until});
    }
    known.erase(asked.number);
  }

  /// A commit, mostly by the client that may and of what is there.
  void commit() {
    if (reservations.empty())
      return;
    const auto at = reservations.begin() + static_cast<ptrdiff_t>(below(reservations.size()));
    const auto client = below(5) == 0 ? any_client() : at->client;
    auto complete = std::vector<page_key>{};
    for (const auto& slot : at->slots.list)
      if (below(4) != 0)
        complete.push_back(slot.key);
    const auto lies = below(5) == 0;
    if (lies)
      complete.push_back(below(2) == 0 || complete.empty() ? key_of(1000) : complete.front());
    const auto ended = table.commit(client, at->number, complete);
    ASSERT_EQ(ended.has_value(), client == at->client && !lies);
    if (!ended)
      return;
    ASSERT_EQ(ended->complete.list.size(), complete.size());
    for (const auto& slot : ended->complete.list)
      ASSERT_TRUE(segment.publish(slot.key, slot.generation));
    give_back(ended->unused);
    ++commits;
    ASSERT_FALSE(table.commit(client, at->number, {})) << "twice";
    reservations.erase(at);
  }

  void release() {
    const auto number
      = below(3) == 0 || leases.empty() ? below(2000) : leases[below(leases.size())].number;
    const auto client = any_client();
    const auto at = std::ranges::find_if(
      leases, [&](const promise& x) { return x.number == number && x.client == client; });
    const auto ended = table.release(client, number);
    ASSERT_EQ(ended.has_value(), at != leases.end());
    if (!ended)
      return;
    end_holds(*ended);
    ++releases;
    leases.erase(at);
  }

  void pass_time() {
    now += std::chrono::seconds{below(4)};
    auto over = size_t{0};
    std::erase_if(leases, [&](const promise& x) {
      over += x.until <= now ? x.slots.list.size() : 0;
      return x.until <= now;
    });
    const auto ended = table.expire(now);
    ASSERT_EQ(ended.list.size(), over);
    end_holds(ended);
  }

  void take_step() {
    switch (below(12)) {
      case 0:
        return enter();
      case 1:
        // Seldom, so that they have something to leave.
        return below(6) == 0 ? leave() : enter();
      case 2:
      case 3:
        return ask_to_write();
      case 4:
      case 5:
        return ask_to_read();
      case 6:
      case 7:
      case 8:
        return answer();
      case 9:
        return commit();
      case 10:
        return release();
      default:
        return pass_time();
    }
  }

  // -- what has to be true ----------------------------------------------------

  bool is_known(uint64_t number) const { return known.contains(number); }

  /// Whether no promise is about any of these bytes.
  bool is_free(uint64_t offset, uint64_t bytes) const {
    const auto overlaps = [&](const segment_slot& x) {
      return x.offset < offset + bytes && offset < x.offset + slot_bytes_for(x.length);
    };
    const auto is_apart
      = [&](const promise& x) { return std::ranges::none_of(x.slots.list, overlaps); };
    return std::ranges::all_of(leases, is_apart) && std::ranges::all_of(reservations, is_apart);
  }

  void check() {
    auto reserved = std::map<uint64_t, uint64_t>{};
    auto leased = std::map<uint64_t, uint64_t>{};
    auto reserved_of_tenant = std::map<uint64_t, uint64_t>{};
    auto leased_of_tenant = std::map<uint64_t, uint64_t>{};
    auto all = client_counters{};
    for (const auto& x : reservations) {
      reserved[x.client] += bytes_of(x.slots);
      reserved_of_tenant[x.tenant] += bytes_of(x.slots);
      all.pages += x.slots.list.size();
    }
    for (const auto& x : leases) {
      leased[x.client] += bytes_of(x.slots);
      leased_of_tenant[x.tenant] += bytes_of(x.slots);
      all.pages += x.slots.list.size();
    }
    for (const auto& x : open) {
      if (!is_known(x.number))
        continue;
      reserved[x.client] += x.bytes;
      reserved_of_tenant[x.tenant] += x.bytes;
      all.pages += x.slots.list.size();
      ++all.requests;
    }
    for (const auto& [client, bytes] : reserved)
      all.reserved_bytes += bytes;
    for (const auto& [client, bytes] : leased)
      all.leased_bytes += bytes;
    const auto seen = table.counters();
    ASSERT_EQ(seen.clients, here.size());
    ASSERT_EQ(seen.reserved_bytes, all.reserved_bytes);
    ASSERT_EQ(seen.leased_bytes, all.leased_bytes);
    ASSERT_EQ(seen.pages, all.pages);
    ASSERT_EQ(seen.requests, all.requests);
    ASSERT_EQ(seen.reservations, reservations.size());
    ASSERT_EQ(seen.leases, leases.size());
    ASSERT_LE(all.reserved_bytes, pool_bytes / 2);
    for (const auto& x : table.clients()) {
      ASSERT_EQ(x.reserved_bytes, reserved[x.client]);
      ASSERT_EQ(x.leased_bytes, leased[x.client]);
      ASSERT_LE(x.reserved_bytes, pool_bytes / 4);
      ASSERT_LE(x.leased_bytes, pool_bytes / 4);
    }
    for (const auto& [tenant, bytes] : reserved_of_tenant)
      ASSERT_LE(bytes, pool_bytes * 3 / 8);
    for (const auto& [tenant, bytes] : leased_of_tenant)
      ASSERT_LE(bytes, pool_bytes * 3 / 8);
  }

  /// Requests of clients that left are known no more.
  void note_known() {
    for (const auto& x : open)
      if (x.number > last_noted)
        known.emplace(x.number, x.client);
    if (!open.empty())
      last_noted = std::max(last_noted, open.back().number);
    std::erase_if(known, [this](const auto& x) { return !here.contains(x.second); });
  }

  std::mt19937 random{GetParam()};
  segment_table segment{pool_bytes, {}};
  client_table table{shares};
  time_point now{};
  std::map<client_id, uint64_t> here;
  std::vector<pending> open;
  /// Open requests whose client is still here.
  std::map<uint64_t, client_id> known;
  uint64_t last_noted = 0;
  std::vector<promise> reservations;
  std::vector<promise> leases;
  int commits = 0;
  int releases = 0;
};

TEST_P(ClientModelTest, BehavesLikeTheModelAndNothingLeaks) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  for (auto i = 0; i < 4000; ++i) {
    if (below(40) == 0)
      segment.remove(any_key());
    take_step();
    note_known();
    check();
    if (HasFatalFailure())
      FAIL() << "step " << i;
  }
  EXPECT_GT(commits, 20) << "too little happened";
  EXPECT_GT(releases, 20);
  EXPECT_GT(table.counters().expired, 20u);
  EXPECT_GT(table.counters().refused, 20u);
  while (!open.empty()) {
    answer();
    note_known();
  }
  for (auto client = client_id{1}; client <= 6; ++client) {
    const auto left = table.leave(client);
    give_back(left.reserved);
    end_holds(left.leased);
  }
  EXPECT_EQ(segment.counters().writing, 0u);
  EXPECT_EQ(segment.counters().held_bytes, 0u);
  // Nothing is in the way of a page as large as the pool.
  for (auto number = uint64_t{0}; number < 60; ++number)
    segment.remove(key_of(number));
  EXPECT_EQ(segment.counters().used_bytes, 0u);
  EXPECT_EQ(table.counters().pages, 0u);
  EXPECT_EQ(table.counters().reserved_bytes, 0u);
  EXPECT_EQ(table.counters().leased_bytes, 0u);
}

INSTANTIATE_TEST_SUITE_P(Seeds, ClientModelTest, ::testing::Range(1u, 9u));

} // namespace
} // namespace hicache
