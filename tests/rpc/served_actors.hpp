#pragma once

// Actors that other processes may ask, without what is behind them in a process of the cluster.

#include "hicache/caf_error.hpp"
#include "messages/interfaces.hpp"

#include <caf/actor_cast.hpp>
#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>

#include <atomic>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <vector>

namespace hicache::test {

/// What the actors of the served process saw.
struct sightings {
  std::atomic<uint64_t> lookups = 0;
  std::atomic<uint64_t> touched = 0;
  /// That a peer which mounted is gone, for the first time.
  std::promise<void> lost;
  std::atomic<bool> is_lost = false;
};

struct shard_state {
  static inline constexpr auto name = "test_shard";

  explicit shard_state(index_actor::pointer) {}

  std::shared_ptr<sightings> seen;
  /// Look-ups that wait for a poll.
  std::vector<caf::typed_response_promise<placements>> held;
};

/// Answers each look-up with one replica a key, which holds the number of the key's first byte; one
/// of no keys at the next poll.
inline index_actor::behavior_type run_shard(index_actor::stateful_pointer<shard_state> self,
                                            std::shared_ptr<sightings> seen) {
  self->state.seen = std::move(seen);
  self->set_down_handler([self](const caf::down_msg&) {
    if (!self->state.seen->is_lost.exchange(true))
      self->state.seen->lost.set_value();
  });
  return {
    [self](atom::mount, const member_info& member) -> caf::result<membership> {
      if (member.member == 0)
        return to_caf({ec::limit_reached, "too many members"});
      self->monitor(self->current_sender());
      return membership{true, 1000, 7};
    },
    [](atom::tick, const heartbeat&) { return membership{}; },
    [](atom::publish, const published_pages& pages) {
      return membership{true, pages.pages.size(), 0};
    },
    [](atom::withdraw, const withdrawn_pages&) { return membership{}; },
    [self](atom::locate, const key_batch& batch) -> caf::result<placements> {
      ++self->state.seen->lookups;
      if (batch.keys.empty()) {
        self->state.held.push_back(self->make_response_promise<placements>());
        return self->state.held.back();
      }
      auto found = placements{{}, 5};
      for (const auto& key : batch.keys)
        found.replicas.push_back({replica{key.bytes[0], 1, 2, 3}});
      return found;
    },
    [](atom::await, const awaited_pages& pages) -> caf::result<atom::ok> {
      if (pages.known.empty())
        return to_caf({ec::deadline_exceeded, {}});
      return atom::ok_v;
    },
    [](atom::members, const member_query&) { return member_list{}; },
    [](atom::status, const status_query&) { return index_status{}; },
    [](atom::shards, uint64_t) {},
    [self](atom::poll) {
      for (auto& each : self->state.held)
        each.deliver(placements{});
      self->state.held.clear();
    },
    [](atom::drop) {},
    [](atom::await, uint64_t) {},
  };
}

inline directory_actor::behavior_type run_directory(directory_actor::pointer, index_actor shard) {
  return {
    [](atom::shards, const shard_map& map) { return map; },
    [shard](atom::locate, uint32_t number) -> caf::result<caf::strong_actor_ptr> {
      if (number != 0)
        return to_caf({ec::not_found, "no such shard"});
      return caf::actor_cast<caf::strong_actor_ptr>(shard);
    },
    [](atom::start, const std::string&) {},
    [](atom::poll) {},
  };
}

inline member_actor::behavior_type run_member(member_actor::pointer,
                                              std::shared_ptr<sightings> seen) {
  return {
    [](atom::copy, const page_copies& pages) {
      return page_totals{pages.pages.size(), 1};
    },
    [seen](atom::pin, const page_pins&) {
      return page_totals{seen->touched, 2};
    },
    [](atom::clear, const namespace_pages&) -> caf::result<page_totals> {
      return to_caf({ec::unsupported, "never"});
    },
    [](atom::drain, const drain_request& how) {
      return drain_report{3, how.force ? 5u : 4u};
    },
    [](atom::status, const status_query&) {
      return drain_progress{true, true, 7, 6, 5};
    },
    [](atom::resume, const drain_request&) {
      return drain_progress{false, true, 7, 6, 5};
    },
    [seen](atom::touch, const key_batch& keys) { seen->touched += keys.keys.size(); },
    [](atom::corrupt, const key_batch&) {},
    [](atom::recall, const page_recall& wanted) {
      auto answer = placements{};
      for (size_t i = 0; i < wanted.keys.size(); ++i)
        answer.replicas.push_back({{1, wanted.wait_ms, 2, 3}});
      return answer;
    },
  };
}

} // namespace hicache::test
