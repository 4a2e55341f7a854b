#pragma once

#include "hicache/clock.hpp"
#include "hicache/error.hpp"
#include "hicache/ids.hpp"
#include "messages/node_protocol.hpp"
#include "messages/segment_pages.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace hicache {

/// A client of the node; never used again.
using client_id = uint64_t;

/// On whose behalf a client asks.
struct client_identity {
  /// Whose share it counts for, beside its own; 0 is everybody without a salt.
  uint64_t tenant = 0;
  /// `fingerprint_of` the namespace of its pages.
  uint64_t fingerprint = 0;

  friend bool operator==(const client_identity&, const client_identity&) = default;
};

/// What clients may keep of a pool. Shares are of its bytes: of what is being written, and as much
/// again of what is leased. Pages that are leased by several clients count for each of them.
struct client_shares {
  uint64_t pool_bytes = 0;
  double of_client = 0.125;
  double of_tenant = 0.25;
  /// Of all clients together, of what is being written. For leases see
  /// segment_policy::held_share.
  double of_all = 0.5;
};

/// Pages of a reservation that are complete, with the place of each, and those that are given back.
struct committed_pages {
  segment_slots complete;
  segment_slots unused;
};

/// Which of the pages that were found are leased.
enum class lease_extent : uint8_t {
  /// Those in front of the first one that is missing.
  prefix,
  all,
};

/// What a look-up leases.
struct granted_lease {
  /// 0: nothing was leased.
  uint64_t lease = 0;
  /// For each key that was asked for, in order, its place if it is leased (state `present`), else
  /// state `full`.
  segment_slots places;
  /// Holds to end: pages that were found and are not leased.
  segment_slots surplus;
};

/// The slots of this state, in order.
segment_slots slots_in(const segment_slots& slots, segment_slot::state what);

/// Where a client stands, for people.
struct client_state {
  client_id client = 0;
  client_identity identity;
  uint64_t reserved_bytes = 0;
  uint64_t leased_bytes = 0;
  /// Reserved and leased, a page of two leases twice.
  uint64_t pages = 0;
  uint64_t requests = 0;
  client_traffic traffic;

  friend bool operator==(const client_state&, const client_state&) = default;
};

struct client_counters {
  uint64_t clients = 0;
  uint64_t reserved_bytes = 0;
  uint64_t leased_bytes = 0;
  uint64_t pages = 0;
  uint64_t requests = 0;
  uint64_t reservations = 0;
  uint64_t leases = 0;
  /// Since the beginning: leases that their time ended, and requests that were refused because of a
  /// share or a bound.
  uint64_t expired = 0;
  uint64_t refused = 0;
  /// Of clients that have left, too.
  client_traffic traffic;

  friend bool operator==(const client_counters&, const client_counters&) = default;
};

/// What a node knows of its clients: who they are, what they are writing (reservations) and reading
/// (leases), and how much each of them and each tenant may keep. Pure: it neither touches memory
/// nor reads a clock, and equal calls give equal answers. Not thread-safe. Calls cost O(log n) for
/// each page that they concern.
///
/// A request for pages has two parts, because another actor has the segment: the client asks, which
/// charges it and numbers the request, and the answer of the segment is granted or refused. If the
/// client left in between, all that the segment gave comes back from the grant. The number of a
/// request names the reservation or the lease from then on.
///
/// What clients say is not trusted: whatever a client gets wrong is an error for it, and changes
/// nothing. What it holds never exceeds its shares and the bounds in base/limits.hpp, and all of it
/// comes back when the client leaves.
class client_table {
public:
  /// @pre shares are above 0 and at most 1
  explicit client_table(client_shares shares);

  client_table(client_table&&) noexcept;

  client_table& operator=(client_table&&) noexcept;

  ~client_table();

  // -- clients ----------------------------------------------------------------

  /// Admits a client.
  /// @returns invalid_argument if it is here already; limit_reached if there are too many
  result<void> enter(client_id client, const client_identity& identity);

  /// Who the client is; nothing if it is not here.
  std::optional<client_identity> find(client_id client) const;

  /// What a client that left has kept.
  struct remains {
    segment_slots reserved;
    segment_slots leased;
  };

  /// Forgets a client, with its open requests. Nothing if it is not here.
  remains leave(client_id client);

  // -- writing ----------------------------------------------------------------

  /// A client wants to write pages: key, parent and length of each. Enters on whose behalf.
  /// @returns the number of the request; unknown_id if the client is not here; invalid_argument if
  /// there are no pages, or too many, or two of one name, or one is its own parent or has no or an
  /// impossible length; limit_reached if that is more than the client, its tenant or all may have
  result<uint64_t> ask_to_write(client_id client, segment_pages& pages);

  /// The segment has answered, page by page. From now on the client has a reservation, unless no
  /// page is `reserved`.
  /// @returns slots to give back, all that are reserved: the client left
  /// @pre the request, if there is one, was made by ask_to_write for as many pages
  segment_slots grant_write(uint64_t request, const segment_slots& slots);

  /// Ends a reservation: the pages of these names are complete, the others are given back.
  /// @returns unknown_id unless it is a reservation of this client; invalid_argument if a name is
  /// not in it, or is there twice
  result<committed_pages> commit(client_id client, uint64_t reservation,
                                 std::span<const page_key> complete);

  // -- reading ----------------------------------------------------------------

  /// A client wants to read that many pages.
  /// @returns as ask_to_write
  result<uint64_t> ask_to_read(client_id client, size_t keys);

  /// The segment holds the slots that are `present`, in the order of the keys. From now on the
  /// client has a lease, unless it leases none. What goes beyond the share of the client or its
  /// tenant is not leased.
  /// @param until When the lease ends by itself.
  /// @returns what is leased; all slots as surplus if the client left
  granted_lease grant_read(uint64_t request, const segment_slots& slots, lease_extent extent,
                           time_point until);

  /// Ends a lease.
  /// @returns the holds to end; unknown_id unless it is a lease of this client that has not ended
  result<segment_slots> release(client_id client, uint64_t lease);

  /// Ends leases whose time is over.
  /// @returns the holds to end
  segment_slots expire(time_point now);

  // -- both -------------------------------------------------------------------

  /// A request that the segment did not answer. Nothing if there is none of this number.
  void refuse(uint64_t request);

  client_counters counters() const noexcept;

  /// The clients in order of their ids.
  std::vector<client_state> clients() const;

private:
  struct state;

  std::unique_ptr<state> state_;
};

} // namespace hicache
