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

/// Messages to a shard. A report is a publish of many pages after a mount.
enum class message_kind : uint8_t { mount, beat, publish, withdraw, report, locate, list };

inline constexpr size_t message_kinds = 7;

const char* to_string(message_kind kind) noexcept;

/// Virtual processing times of a shard. Constants, so that equal seeds give equal figures;
/// docs/scaling.md compares them with measurements.
namespace cost {

/// Reading a message, passing it to the actor, writing the answer.
inline constexpr auto message = std::chrono::nanoseconds{10'000};
inline constexpr auto published_page = std::chrono::nanoseconds{1'000};
inline constexpr auto withdrawn_page = std::chrono::nanoseconds{1'000};
inline constexpr auto located_key = std::chrono::nanoseconds{400};
inline constexpr auto expired_replica = std::chrono::nanoseconds{400};
inline constexpr auto listed_member = std::chrono::nanoseconds{500};

} // namespace cost

/// Default of hicache-index.
inline constexpr auto member_ttl = duration{std::chrono::seconds{10}};

/// One kind of message: frame sizes, and a shard's CPU time for those encoded and decoded.
struct kind_figures {
  uint64_t messages = 0;
  /// Pages or keys in the messages.
  uint64_t items = 0;
  /// Of the encoded and decoded messages; times are nanoseconds on the shard's side.
  uint64_t coded = 0;
  uint64_t coded_items = 0;
  uint64_t request_bytes = 0;
  uint64_t answer_bytes = 0;
  double decode_ns = 0;
  double table_ns = 0;
  double encode_ns = 0;
};

using shard_figures = std::array<kind_figures, message_kinds>;

/// One shard of the index without its actor (actors/index.cpp): a table, its codecs, and a
/// virtual-time queue that is processed one message at a time.
class simulated_shard {
public:
  /// Occupies the shard for `what` from `when`, or from the end of earlier work. @returns the end
  time_point occupy(time_point when, duration what);

  /// End of the work queued so far.
  time_point busy_until() const noexcept { return busy_until_; }

  /// @returns when a message that arrives now is processed
  time_point begin(time_point arrived) const noexcept { return std::max(arrived, busy_until_); }

  /// @param link The member's connection.
  membership mount(const member_info& member, uint32_t link, time_point now);

  membership beat(const heartbeat& sign, time_point now);

  membership publish(message_kind kind, const published_pages& news, time_point now);

  membership withdraw(const withdrawn_pages& news);

  placements locate(const key_batch& query, time_point now);

  member_list list(const member_query& query);

  /// The member's connection has ended. @returns whether the shard offered its pages until now
  bool lose(uint64_t member, uint32_t link, time_point now);

  /// Drops members silent for too long. @returns whether it offered pages of one
  bool drop_silent(time_point now);

  /// Removes a batch of dropped members' entries. @returns whether there is more
  bool expire_replicas();

  /// Ends the process and discards its state.
  void end();

  bool is_up = true;
  /// Number of its process, from 1.
  uint32_t life = 1;
  bool is_expiring = false;
  /// Members whose connection has ended, until they return or are dropped.
  std::set<uint64_t> suspended;
  /// Connection of each mounted member.
  std::unordered_map<uint64_t, uint32_t> peers;
  /// Lost replicas, by the member to be notified.
  std::unordered_map<uint64_t, std::vector<page_key>> lost;
  /// Start of the process or last loss of a member: since then, members may hold unknown pages.
  time_point last_loss{};
  /// Shards known to its directory; stands for the digest of its map.
  uint64_t shards_known = 0;
  index_table table;
  shard_figures figures;
  /// Total virtual processing time.
  duration worked{};

private:
  template <class Request, class Apply>
  auto through_codecs(message_kind kind, const Request& request, size_t items, Apply apply);

  membership view(bool known) const;

  time_point busy_until_{};
};

} // namespace hicache::bench
