#pragma once

// For sources that use Cap'n Proto. hicache's own headers do not include it.

#include "messages/index_protocol.capnp.h"
#include "messages/index_protocol.hpp"
#include "messages/node_protocol.capnp.h"
#include "messages/node_protocol.hpp"
#include "messages/store_protocol.capnp.h"
#include "messages/store_protocol.hpp"

namespace hicache::wire {

/// `write` encodes a value into a message. `read` decodes an untrusted one and throws kj::Exception
/// unless it is valid and within the bounds of base/limits.hpp.
#define HICACHE_DECLARE_VALUE(T, Schema)                                                           \
  void write(const T& x, schema::Schema::Builder to);                                              \
  void read(schema::Schema::Reader from, T& x);

HICACHE_DECLARE_VALUE(member_info, MemberInfo)
HICACHE_DECLARE_VALUE(shard_map, ShardMap)
HICACHE_DECLARE_VALUE(membership, Membership)
HICACHE_DECLARE_VALUE(heartbeat, Heartbeat)
HICACHE_DECLARE_VALUE(published_pages, PublishedPages)
HICACHE_DECLARE_VALUE(withdrawn_pages, WithdrawnPages)
HICACHE_DECLARE_VALUE(key_batch, KeyBatch)
HICACHE_DECLARE_VALUE(awaited_pages, AwaitedPages)
HICACHE_DECLARE_VALUE(placements, Placements)
HICACHE_DECLARE_VALUE(member_query, MemberQuery)
HICACHE_DECLARE_VALUE(member_list, MemberList)
HICACHE_DECLARE_VALUE(status_query, StatusQuery)
HICACHE_DECLARE_VALUE(index_status, IndexStatus)
HICACHE_DECLARE_VALUE(page_totals, PageTotals)
HICACHE_DECLARE_VALUE(page_pins, PagePins)
HICACHE_DECLARE_VALUE(namespace_pages, NamespacePages)
HICACHE_DECLARE_VALUE(page_copies, PageCopies)
HICACHE_DECLARE_VALUE(page_recall, PageRecall)
HICACHE_DECLARE_VALUE(drain_request, DrainRequest)
HICACHE_DECLARE_VALUE(drain_report, DrainReport)
HICACHE_DECLARE_VALUE(drain_progress, DrainProgress)
HICACHE_DECLARE_VALUE(client_info, ClientInfo)
HICACHE_DECLARE_VALUE(node_info, NodeInfo)
HICACHE_DECLARE_VALUE(wanted_pages, WantedPages)
HICACHE_DECLARE_VALUE(reserved_pages, ReservedPages)
HICACHE_DECLARE_VALUE(complete_pages, CompletePages)
HICACHE_DECLARE_VALUE(client_ticket, ClientTicket)
HICACHE_DECLARE_VALUE(page_lookup, PageLookup)
HICACHE_DECLARE_VALUE(leased_pages, LeasedPages)
HICACHE_DECLARE_VALUE(page_prefetch, PagePrefetch)
HICACHE_DECLARE_VALUE(node_status, NodeStatus)
HICACHE_DECLARE_VALUE(store_hello, StoreHello)
HICACHE_DECLARE_VALUE(store_welcome, StoreWelcome)
HICACHE_DECLARE_VALUE(store_request, StoreRequest)
HICACHE_DECLARE_VALUE(store_answer, StoreAnswer)

#undef HICACHE_DECLARE_VALUE

} // namespace hicache::wire
