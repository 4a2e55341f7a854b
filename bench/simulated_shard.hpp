#pragma once

#include "cache/store/index_table.hpp"
#include "hicache/clock.hpp"
#include "messages/index_protocol.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <set>
#include <unordered_map>
#include <vector>

namespace hicache::bench {

/// What a shard is told or asked. A report is a publish of many pages after a mount.
enum class message_kind : uint8_t { mount, beat, publish, withdraw, report, locate, list };

inline constexpr size_t message_kinds = 7;

const char* to_string(message_kind kind) noexcept;

/// What handling takes a shard in virtual time. Stated, so that equal seeds give equal figures;
/// docs/scaling.md has what was measured beside it.
namespace cost {

/// Reading a message from its connection, giving it to the actor, writing the answer.
inline constexpr auto message = std::chrono::nanoseconds{10'000};
inline constexpr auto published_page = std::chrono::nanoseconds{1'000};
inline constexpr auto withdrawn_page = std::chrono::nanoseconds{1'000};
inline constexpr auto located_key = std::chrono::nanoseconds{400};
inline constexpr auto expired_replica = std::chrono::nanoseconds{400};
inline constexpr auto listed_member = std::chrono::nanoseconds{500};

} // namespace cost

/// As hicache-index has it by default.
inline constexpr auto member_ttl = duration{std::chrono::seconds{10}};

/// What was measured of one kind of message: bytes of its frames, and CPU time of a shard for those
/// of them that went through the codecs.
struct kind_figures {
  uint64_t messages = 0;
  /// Pages or keys in them.
  uint64_t items = 0;
  /// Of the messages, those that were encoded and decoded: their items, the bytes of question and
  /// answer, and the nanoseconds that the shard's side took.
  uint64_t coded = 0;
  uint64_t coded_items = 0;
  uint64_t request_bytes = 0;
  uint64_t answer_bytes = 0;
  double decode_ns = 0;
  double table_ns = 0;
  double encode_ns = 0;
};

using shard_figures = std::array<kind_figures, message_kinds>;

/// One shard of the index as its actor is (actors/index.cpp), without the actor: a table, the
/// codecs around it, and a queue in virtual time that is worked off one message after the other.
class simulated_shard {
public:
  /// Takes the time `what` from `when` on, or from the end of what came before. @returns when it is
  /// done
  time_point occupy(time_point when, duration what);

  /// When the last message so far will have been handled.
  time_point busy_until() const noexcept { return busy_until_; }

  /// Begins to handle what arrives now. @returns when that is, after what came before
  time_point begin(time_point arrived) const noexcept { return std::max(arrived, busy_until_); }

  /// @param link The connection by which the member asks.
  membership mount(const member_info& member, uint32_t link, time_point now);

  membership beat(const heartbeat& sign, time_point now);

  membership publish(message_kind kind, const published_pages& news, time_point now);

  membership withdraw(const withdrawn_pages& news);

  placements locate(const key_batch& query, time_point now);

  member_list list(const member_query& query);

  /// The member's connection has ended. @returns whether the shard offered its pages so far
  bool lose(uint64_t member, uint32_t link, time_point now);

  /// Forgets members that are silent for too long. @returns whether it offered pages of one
  bool drop_silent(time_point now);

  /// Removes a part of what members left. @returns whether there is more
  bool expire_replicas();

  /// The process ends, with all that it knows.
  void end();

  bool is_up = true;
  /// Of its process, counted from 1.
  uint32_t life = 1;
  bool is_expiring = false;
  /// Members whose connection has ended, until they are back or dropped.
  std::set<uint64_t> suspended;
  /// By which connection a member is mounted.
  std::unordered_map<uint64_t, uint32_t> peers;
  /// Copies that others lost, by the member that shall know.
  std::unordered_map<uint64_t, std::vector<page_key>> lost;
  /// When it began, or lost a member last: then members may have more than it knows.
  time_point last_loss{};
  /// Shards that its directory knows; stands for the digest of its map.
  uint64_t shards_known = 0;
  index_table table;
  shard_figures figures;
  /// Virtual time spent.
  duration worked{};

private:
  template <class Request, class Apply>
  auto through_codecs(message_kind kind, const Request& request, size_t items, Apply apply);

  membership view(bool known) const;

  time_point busy_until_{};
};

} // namespace hicache::bench
