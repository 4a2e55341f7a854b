// Look-ups while one process of the index dies, begins anew and hears of its pages again, or loses
// a member: real segments and real shards under random schedules, and no page is a miss.

#include "tests/actors/cluster_world.hpp"

#include <spdlog/spdlog.h>

#include <string>

namespace hicache {
namespace {

using namespace hicache::test;

/// Pages that stay where they are, while one process of the index dies and begins anew.
class failover_model : private cluster_world {
public:
  explicit failover_model(uint64_t seed) : cluster_world(seed) { start_shard(2); }

  /// @returns how often a look-up needed the second keeper
  uint64_t simulate() {
    run_until_quiet();
    for (const auto& each : living()) {
      const auto first = draw(key_count);
      for (auto key = first; key < std::min(key_count, uint64_t{first} + 6); ++key)
        store(*each, key);
    }
    settle();
    expect_hits();
    for (auto i = 0; i < 60 && !::testing::Test::HasFailure(); ++i) {
      const auto choice = draw(24);
      if (choice < 3)
        disturb();
      else if (choice < 8)
        look(*any_member());
      else if (choice < 10)
        // So little that nothing which is held up meanwhile is taken for lost.
        pass_time(std::chrono::milliseconds{1 + draw(100)});
      else if (choice == 10)
        heal();
      deliver_some();
      expect_hits();
    }
    return second_looks_;
  }

private:
  void store(member& at, uint64_t key) {
    auto slots
      = ask_value<segment_slots>(at.segment, atom::reserve_v, segment_pages{{page_of(key)}});
    if (slots.list.front().what != segment_slot::state::reserved)
      return;
    fill(object_of(at.memory, slots.list.front()), key, false);
    fill(object_of(at.memory, slots.list.front()), key, true);
    caf::anon_send(at.segment, atom::publish_v, slots);
    run_until_quiet();
  }

  /// One shard dies or loses a member, or the one that died begins anew. Nothing else fails until
  /// all is healed.
  void disturb() {
    const auto dead = std::ranges::find_if(shards, [](const auto& x) { return !x.second; });
    if (dead != shards.end())
      return start_shard(dead->first);
    if (std::exchange(is_disturbed_, true))
      return;
    const auto number = draw(shards.size());
    if (draw(3) == 0)
      return break_connection(*any_member(), number);
    for (const auto& each : living())
      break_connection(*each, number);
    caf::anon_send_exit(shards[number], caf::exit_reason::kill);
    run_shuffled(random, [] { return true; });
    shards[number] = nullptr;
  }

  void heal() {
    mend();
    settle();
    is_disturbed_ = false;
  }

  /// Asks as index_lookup does.
  bool is_found(const page_key& key) {
    const auto set = all_shards();
    const auto keepers = set.keepers_of(key);
    const auto& first = shards.at(set.numbers[keepers.first]);
    if (first) {
      const auto& state = state_of<index_state>(first);
      if (!state.table.locate(std::array{key}).of(0).empty())
        return true;
      if (!state.is_partial())
        return false;
    }
    ++second_looks_;
    const auto& second = shards.at(set.numbers[keepers.second]);
    return second && !state_of<index_state>(second).table.locate(std::array{key}).of(0).empty();
  }

  void expect_hits() {
    for (const auto& each : living())
      for (const auto& page : offered_by(*each).published(0, key_count))
        EXPECT_TRUE(is_found(page.key)) << "page " << number_of(page.key) << " is a miss";
  }

  uint64_t second_looks_ = 0;
  bool is_disturbed_ = false;
};

TEST(FailoverModelTest, AShardThatDiesAndBeginsAnewCostsNoHit) {
  spdlog::set_level(spdlog::level::err);
  auto second_looks = uint64_t{0};
  for (auto seed = uint64_t{1}; seed <= 300 && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    second_looks += failover_model{seed}.simulate();
  }
  EXPECT_GT(second_looks, 3000u);
}

} // namespace
} // namespace hicache
