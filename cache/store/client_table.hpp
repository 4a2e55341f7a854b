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

/// A client of the node; ids are never reused.
using client_id = uint64_t;

/// Shares of a pool that clients may occupy: of its bytes, once for pages being written and once
/// for leased pages. Pages leased by several clients count for each of them.
struct client_shares {
  uint64_t pool_bytes = 0;
  double of_client = 0.125;
  double of_tenant = 0.25;
  /// Pages that all clients together are writing. For leases see segment_policy::held_share.
  double of_all = 0.5;
};

/// Pages of a reservation that are complete, with their places, and those given back.
struct committed_pages {
  segment_slots complete;
  segment_slots unused;
};

/// Which of the found pages are leased.
enum class lease_extent : uint8_t {
  /// Those before the first missing one.
  prefix,
  all,
};

/// What a lookup leases.
struct granted_lease {
  /// 0 if nothing was leased.
  uint64_t lease = 0;
  /// The place of each requested key, in order: state `present` if it is leased, else `full`.
  segment_slots places;
  /// Holds to end: pages that were found but not leased.
  segment_slots surplus;
};

/// The slots in this state, in order.
segment_slots slots_in(const segment_slots& slots, segment_slot::state what);

struct client_counters {
  uint64_t clients = 0;
  uint64_t reserved_bytes = 0;
  uint64_t leased_bytes = 0;
  uint64_t pages = 0;
  uint64_t requests = 0;
  uint64_t reservations = 0;
  uint64_t leases = 0;
  /// Totals: leases that expired, and requests refused because of a share or a bound.
  uint64_t expired = 0;
  uint64_t refused = 0;
  /// Includes clients that have left.
  client_traffic traffic;

  friend bool operator==(const client_counters&, const client_counters&) = default;
};

/// A node's record of its clients: their identity, what they are writing (reservations) and reading
/// (leases), and how much each client and tenant may occupy. Pure: neither touches memory nor reads
/// a clock, and equal calls give equal answers. Not thread-safe. Calls cost O(log n) per page.
///
/// A request for pages has two parts, because another actor owns the segment: the client's request,
/// which is charged and numbered, and the segment's answer, which is granted or refused. If the
/// client left in between, the grant returns everything the segment gave. From the grant on, the
/// request number names the reservation or lease.
///
/// Clients are untrusted: an invalid request is an error for the client and changes nothing. What a
/// client occupies is bounded by its shares and base/limits.hpp, and returned when it leaves.
class client_table {
public:
  /// @pre shares are in (0, 1]
  explicit client_table(client_shares shares);

  ~client_table();

  // -- clients ----------------------------------------------------------------

  /// @returns invalid_argument if it is already admitted; limit_reached beyond limits::node_clients
  result<void> enter(client_id client, const client_info& identity);

  /// The client's identity; nothing if it is not admitted.
  std::optional<client_info> find(client_id client) const;

  /// What a departed client still occupied.
  struct remains {
    segment_slots reserved;
    segment_slots leased;
  };

  /// Removes a client and its open requests. No effect if it is not admitted.
  remains leave(client_id client);

  // -- writing ----------------------------------------------------------------

  /// A client wants to write pages: key, parent, length. Sets the pages' tenant and namespace.
  /// @returns the request number; unknown_id if the client is not admitted; invalid_argument for no
  /// pages, too many pages, duplicate names, a page that is its own parent, or a zero or impossible
  /// length; limit_reached if it exceeds the share of the client, its tenant or all clients
  result<uint64_t> ask_to_write(client_id client, segment_pages& pages);

  /// Applies the segment's answer, page by page. Makes a reservation if any page is `reserved`.
  /// @returns slots to give back: all reserved ones if the client left
  /// @pre the request, if it exists, was made by ask_to_write for as many pages
  segment_slots grant_write(uint64_t request, const segment_slots& slots);

  /// Ends a reservation: the named pages are complete, the others are given back.
  /// @returns unknown_id unless it is a reservation of this client; invalid_argument if a name is
  /// not part of it, or duplicate
  result<committed_pages> commit(client_id client, uint64_t reservation,
                                 std::span<const page_key> complete);

  // -- reading ----------------------------------------------------------------

  /// A client wants to read that many pages.
  /// @returns as ask_to_write
  result<uint64_t> ask_to_read(client_id client, size_t keys);

  /// Applies the segment's answer, in the order of the keys: it holds the slots that are `present`.
  /// The client now has a lease, unless nothing is leased. Pages beyond the share of the client or
  /// its tenant are not leased.
  /// @param until Expiry of the lease.
  /// @returns what is leased; all slots as surplus if the client left
  granted_lease grant_read(uint64_t request, const segment_slots& slots, lease_extent extent,
                           time_point until);

  /// Ends a lease.
  /// @returns the holds to end; unknown_id unless it is an active lease of this client
  result<segment_slots> release(client_id client, uint64_t lease);

  /// Ends expired leases.
  /// @returns the holds to end
  segment_slots expire(time_point now);

  // -- both -------------------------------------------------------------------

  /// Drops a request that the segment did not answer. No effect if the number is unknown.
  void refuse(uint64_t request);

  client_counters counters() const noexcept;

  /// The clients in order of their ids. A page of two leases counts twice.
  std::vector<node_client_state> clients() const;

private:
  struct state;

  std::unique_ptr<state> state_;
};

} // namespace hicache
