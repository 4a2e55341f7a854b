#include "cache/store/client_table.hpp"

#include "base/check.hpp"
#include "base/limits.hpp"
#include "base/try.hpp"
#include "messages/page_header.hpp"

#include <absl/container/btree_map.h>
#include <absl/container/btree_set.h>
#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

namespace hicache {

namespace {

/// What a client, a tenant or all clients occupy.
struct tally {
  uint64_t reserved_bytes = 0;
  uint64_t leased_bytes = 0;
  uint64_t pages = 0;
};

struct client_entry {
  client_info identity;
  tally kept;
  uint64_t requests = 0;
  client_traffic traffic;
};

struct tenant_entry {
  uint64_t clients = 0;
  tally kept;
};

enum class ticket_kind : uint8_t { write, read };

/// An open request, a reservation or a lease.
struct ticket {
  client_id client = 0;
  ticket_kind kind = ticket_kind::write;
  /// The segment has not answered yet.
  bool is_open = true;
  /// Charged amounts.
  uint64_t bytes = 0;
  uint64_t pages = 0;
  /// Set once granted.
  segment_slots slots;
  /// Of a lease.
  time_point until;
};

using key_set = absl::flat_hash_set<page_key, std::hash<page_key>>;

uint64_t share_of(uint64_t bytes, double share) {
  return share >= 1 ? bytes : static_cast<uint64_t>(static_cast<double>(bytes) * share);
}

void append(segment_slots& to, const segment_slots& slots) {
  to.list.insert(to.list.end(), slots.list.begin(), slots.list.end());
}

uint64_t object_bytes(const segment_slots& slots) {
  auto bytes = uint64_t{0};
  for (const auto& slot : slots.list)
    bytes += slot.length;
  return bytes;
}

result<void> check_count(size_t count) {
  if (count == 0 || count > limits::node_batch_pages)
    return fail(ec::invalid_argument, std::to_string(count) + " pages; expected 1 to "
                                        + std::to_string(limits::node_batch_pages));
  return {};
}

result<void> check_pages(const segment_pages& pages) {
  HICACHE_TRY(check_count(pages.list.size()));
  auto names = key_set{};
  for (const auto& page : pages.list) {
    if (page.length == 0 || page.length > limits::page_bytes)
      return fail(ec::invalid_argument, "page " + to_string(page.key) + " of "
                                          + std::to_string(page.length) + " bytes; expected 1 to "
                                          + std::to_string(limits::page_bytes));
    if (page.parent == page.key)
      return fail(ec::invalid_argument, "page " + to_string(page.key) + " is its own parent");
    if (!names.insert(page.key).second)
      return fail(ec::invalid_argument, "page " + to_string(page.key) + " is named twice");
  }
  return {};
}

} // namespace

segment_slots slots_in(const segment_slots& slots, segment_slot::state what) {
  auto found = segment_slots{};
  for (const auto& slot : slots.list)
    if (slot.what == what)
      found.list.push_back(slot);
  return found;
}

/// Invariants:
/// - the tallies and numbers of requests of clients, tenants and all are the sums of what the
///   tickets of each are charged with.
/// - `ends` holds exactly (end, number) of the granted tickets of kind `read`.
/// - each ticket's client is in `clients`, and `tickets_of` holds (client, number) of each.
/// - a granted ticket has at least one slot.
struct client_table::state {
  client_shares shares;
  absl::btree_map<client_id, client_entry> clients;
  absl::flat_hash_map<uint64_t, tenant_entry> tenants;
  absl::flat_hash_map<uint64_t, ticket> tickets;
  absl::btree_set<std::pair<client_id, uint64_t>> tickets_of;
  absl::btree_set<std::pair<time_point, uint64_t>> ends;
  tally all;
  client_traffic traffic;
  uint64_t requests = 0;
  uint64_t reservations = 0;
  uint64_t last_number = 0;
  uint64_t expired = 0;
  uint64_t refused = 0;

  // -- charges ----------------------------------------------------------------

  template <class F>
  void each_tally(client_id client, F f) {
    auto& of_client = clients.at(client);
    f(of_client.kept);
    f(tenants.at(of_client.identity.tenant).kept);
    f(all);
  }

  /// Changes the charged amounts of a ticket.
  void charge(ticket& on, uint64_t bytes, uint64_t pages) {
    each_tally(on.client, [&](tally& kept) {
      auto& of_kind = on.kind == ticket_kind::write ? kept.reserved_bytes : kept.leased_bytes;
      of_kind = of_kind - on.bytes + bytes;
      kept.pages = kept.pages - on.pages + pages;
    });
    on.bytes = bytes;
    on.pages = pages;
  }

  template <class F>
  void each_traffic(client_id client, F f) {
    f(clients.at(client).traffic);
    f(traffic);
  }

  tl::unexpected<error> refuse_for(const std::string& why) {
    ++refused;
    return fail(ec::limit_reached, why);
  }

  /// Whether a client may open another request, for that many pages and bytes to write.
  result<void> check_room(const client_entry& client, uint64_t pages, uint64_t bytes) {
    if (client.requests >= limits::node_client_requests)
      return refuse_for("too many requests of this client are open");
    if (client.kept.pages + pages > limits::node_client_pages)
      return refuse_for("this client would keep too many pages");
    if (all.pages + pages > limits::node_pages)
      return refuse_for("clients would keep too many pages");
    const auto& tenant = tenants.at(client.identity.tenant);
    const auto exceeds = [&](const tally& kept, double share) {
      const auto most = share_of(shares.pool_bytes, share);
      return bytes > most || kept.reserved_bytes > most - bytes;
    };
    if (exceeds(client.kept, shares.of_client))
      return refuse_for("more memory than this client's share would be written at a time");
    if (exceeds(tenant.kept, shares.of_tenant))
      return refuse_for("more memory than the tenant's share would be written at a time");
    if (exceeds(all, shares.of_all))
      return refuse_for("more memory than the share of all clients would be written at a time");
    return {};
  }

  // -- tickets ----------------------------------------------------------------

  uint64_t open(client_id client, ticket_kind kind, uint64_t bytes, uint64_t pages) {
    const auto number = ++last_number;
    auto& added = tickets[number];
    added.client = client;
    added.kind = kind;
    tickets_of.insert({client, number});
    charge(added, bytes, pages);
    ++clients.at(client).requests;
    ++requests;
    return number;
  }

  void answer(ticket& open) {
    HICACHE_CHECK(open.is_open);
    open.is_open = false;
    --clients.at(open.client).requests;
    --requests;
  }

  /// Removes a ticket in any state.
  segment_slots take(uint64_t number) {
    const auto at = tickets.find(number);
    auto& gone = at->second;
    if (gone.is_open)
      answer(gone);
    else if (gone.kind == ticket_kind::read)
      ends.erase({gone.until, number});
    else
      --reservations;
    charge(gone, 0, 0);
    tickets_of.erase({gone.client, number});
    auto slots = std::move(gone.slots);
    tickets.erase(at);
    return slots;
  }

  /// The request of that number, if it awaits the segment's answer.
  ticket* awaited(uint64_t number, ticket_kind kind) {
    const auto at = tickets.find(number);
    if (at == tickets.end())
      return nullptr;
    HICACHE_CHECK(at->second.is_open && at->second.kind == kind);
    return &at->second;
  }

  /// The client's reservation or lease of that number.
  const ticket* granted(client_id client, uint64_t number, ticket_kind kind) const {
    const auto at = tickets.find(number);
    if (at == tickets.end() || at->second.is_open || at->second.client != client
        || at->second.kind != kind)
      return nullptr;
    return &at->second;
  }
};

client_table::client_table(client_shares shares) {
  const auto is_share = [](double x) { return x > 0 && x <= 1; };
  HICACHE_CHECK(is_share(shares.of_client) && is_share(shares.of_tenant)
                && is_share(shares.of_all));
  state_ = std::make_unique<state>();
  state_->shares = shares;
}

client_table::~client_table() = default;

// -- clients ------------------------------------------------------------------

result<void> client_table::enter(client_id client, const client_info& identity) {
  auto& s = *state_;
  if (s.clients.contains(client))
    return fail(ec::invalid_argument, "the client has said who it is already");
  if (s.clients.size() >= limits::node_clients)
    return s.refuse_for("too many clients are connected");
  s.clients[client].identity = identity;
  ++s.tenants[identity.tenant].clients;
  return {};
}

std::optional<client_info> client_table::find(client_id client) const {
  const auto at = state_->clients.find(client);
  return at == state_->clients.end() ? std::nullopt : std::optional{at->second.identity};
}

client_table::remains client_table::leave(client_id client) {
  auto& s = *state_;
  auto left = remains{};
  const auto at = s.clients.find(client);
  if (at == s.clients.end())
    return left;
  for (auto next = s.tickets_of.lower_bound({client, 0});
       next != s.tickets_of.end() && next->first == client;
       next = s.tickets_of.lower_bound({client, 0})) {
    const auto number = next->second;
    const auto kind = s.tickets.at(number).kind;
    append(kind == ticket_kind::write ? left.reserved : left.leased, s.take(number));
  }
  const auto tenant = s.tenants.find(at->second.identity.tenant);
  if (--tenant->second.clients == 0)
    s.tenants.erase(tenant);
  s.clients.erase(at);
  return left;
}

// -- writing ------------------------------------------------------------------

result<uint64_t> client_table::ask_to_write(client_id client, segment_pages& pages) {
  auto& s = *state_;
  const auto at = s.clients.find(client);
  if (at == s.clients.end())
    return fail(ec::unknown_id, "the client has not said who it is");
  HICACHE_TRY(check_pages(pages));
  auto bytes = uint64_t{0};
  for (const auto& page : pages.list)
    bytes += slot_bytes_for(page.length);
  HICACHE_TRY(s.check_room(at->second, pages.list.size(), bytes));
  for (auto& page : pages.list) {
    page.tenant = at->second.identity.tenant;
    page.fingerprint = at->second.identity.fingerprint;
  }
  return s.open(client, ticket_kind::write, bytes, pages.list.size());
}

segment_slots client_table::grant_write(uint64_t request, const segment_slots& slots) {
  auto& s = *state_;
  auto reserved = slots_in(slots, segment_slot::state::reserved);
  auto* const asked = s.awaited(request, ticket_kind::write);
  if (asked == nullptr)
    return reserved;
  HICACHE_CHECK(slots.list.size() == asked->pages);
  if (reserved.list.empty()) {
    s.take(request);
    return {};
  }
  auto bytes = uint64_t{0};
  for (const auto& slot : reserved.list)
    bytes += slot_bytes_for(slot.length);
  s.answer(*asked);
  s.charge(*asked, bytes, reserved.list.size());
  asked->slots = std::move(reserved);
  ++s.reservations;
  return {};
}

result<committed_pages> client_table::commit(client_id client, uint64_t reservation,
                                             std::span<const page_key> complete) {
  auto& s = *state_;
  const auto* const kept = s.granted(client, reservation, ticket_kind::write);
  if (kept == nullptr)
    return fail(ec::unknown_id,
                "no reservation " + std::to_string(reservation) + " of this client");
  auto left = absl::flat_hash_map<page_key, const segment_slot*, std::hash<page_key>>{};
  for (const auto& slot : kept->slots.list)
    left.emplace(slot.key, &slot);
  auto pages = committed_pages{};
  for (const auto& key : complete) {
    const auto at = left.find(key);
    if (at == left.end())
      return fail(ec::invalid_argument, "page " + to_string(key) + " is not in reservation "
                                          + std::to_string(reservation) + ", or is named twice");
    pages.complete.list.push_back(*at->second);
    left.erase(at);
  }
  for (const auto& slot : kept->slots.list)
    if (left.contains(slot.key))
      pages.unused.list.push_back(slot);
  s.each_traffic(client, [&](client_traffic& of) {
    of.pages_written += pages.complete.list.size();
    of.bytes_written += object_bytes(pages.complete);
  });
  s.take(reservation);
  return pages;
}

// -- reading ------------------------------------------------------------------

result<uint64_t> client_table::ask_to_read(client_id client, size_t keys) {
  auto& s = *state_;
  const auto at = s.clients.find(client);
  if (at == s.clients.end())
    return fail(ec::unknown_id, "the client has not said who it is");
  HICACHE_TRY(check_count(keys));
  HICACHE_TRY(s.check_room(at->second, keys, 0));
  return s.open(client, ticket_kind::read, 0, keys);
}

granted_lease client_table::grant_read(uint64_t request, const segment_slots& slots,
                                       lease_extent extent, time_point until) {
  auto& s = *state_;
  auto answer = granted_lease{};
  auto* const asked = s.awaited(request, ticket_kind::read);
  HICACHE_CHECK(asked == nullptr || slots.list.size() == asked->pages);
  auto room = uint64_t{0};
  if (asked != nullptr) {
    const auto left = [&](const tally& kept, double share) {
      const auto most = share_of(s.shares.pool_bytes, share);
      return most - std::min(most, kept.leased_bytes);
    };
    const auto& client = s.clients.at(asked->client);
    room = std::min(left(client.kept, s.shares.of_client),
                    left(s.tenants.at(client.identity.tenant).kept, s.shares.of_tenant));
  }
  auto leased = segment_slots{};
  auto bytes = uint64_t{0};
  auto is_over = asked == nullptr;
  for (const auto& slot : slots.list) {
    const auto is_found = slot.what == segment_slot::state::present;
    const auto is_leased = is_found && !is_over && bytes + slot_bytes_for(slot.length) <= room;
    auto& place = answer.places.list.emplace_back(slot);
    if (is_leased) {
      bytes += slot_bytes_for(slot.length);
      leased.list.push_back(slot);
      continue;
    }
    place = segment_slot{slot.key};
    if (is_found)
      answer.surplus.list.push_back(slot);
    is_over |= extent == lease_extent::prefix;
  }
  if (asked == nullptr)
    return answer;
  s.each_traffic(asked->client, [&](client_traffic& of) {
    of.pages_wanted += slots.list.size();
    of.pages_found += leased.list.size();
    of.bytes_found += object_bytes(leased);
  });
  if (leased.list.empty()) {
    s.take(request);
    return answer;
  }
  s.answer(*asked);
  s.charge(*asked, bytes, leased.list.size());
  asked->slots = std::move(leased);
  asked->until = until;
  s.ends.insert({until, request});
  answer.lease = request;
  return answer;
}

result<segment_slots> client_table::release(client_id client, uint64_t lease) {
  if (state_->granted(client, lease, ticket_kind::read) == nullptr)
    return fail(ec::unknown_id, "no lease " + std::to_string(lease) + " of this client");
  return state_->take(lease);
}

segment_slots client_table::expire(time_point now) {
  auto& s = *state_;
  auto holds = segment_slots{};
  while (!s.ends.empty() && s.ends.begin()->first <= now) {
    append(holds, s.take(s.ends.begin()->second));
    ++s.expired;
  }
  return holds;
}

// -- both ---------------------------------------------------------------------

void client_table::refuse(uint64_t request) {
  const auto at = state_->tickets.find(request);
  if (at == state_->tickets.end())
    return;
  HICACHE_CHECK(at->second.is_open);
  state_->take(request);
}

client_counters client_table::counters() const noexcept {
  const auto& s = *state_;
  return {s.clients.size(), s.all.reserved_bytes, s.all.leased_bytes, s.all.pages, s.requests,
          s.reservations,   s.ends.size(),        s.expired,          s.refused,   s.traffic};
}

std::vector<node_client_state> client_table::clients() const {
  auto list = std::vector<node_client_state>{};
  for (const auto& [client, entry] : state_->clients)
    list.push_back({client, entry.identity, entry.kept.reserved_bytes, entry.kept.leased_bytes,
                    entry.kept.pages, entry.requests, entry.traffic});
  return list;
}

} // namespace hicache
