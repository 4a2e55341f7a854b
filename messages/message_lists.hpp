#pragma once

// The messages that cross processes, each with its struct of the schemas. X is a macro of both.

#include "messages/index_protocol.hpp"
#include "messages/node_protocol.hpp"
#include "messages/store_protocol.hpp"

/// Those of index_protocol.hpp.
#define HICACHE_INDEX_MESSAGES(X)                                                                  \
  X(member_info, MemberInfo)                                                                       \
  X(shard_map, ShardMap)                                                                           \
  X(membership, Membership)                                                                        \
  X(heartbeat, Heartbeat)                                                                          \
  X(published_pages, PublishedPages)                                                               \
  X(withdrawn_pages, WithdrawnPages)                                                               \
  X(key_batch, KeyBatch)                                                                           \
  X(awaited_pages, AwaitedPages)                                                                   \
  X(placements, Placements)                                                                        \
  X(member_query, MemberQuery)                                                                     \
  X(member_list, MemberList)                                                                       \
  X(status_query, StatusQuery)                                                                     \
  X(index_status, IndexStatus)                                                                     \
  X(page_totals, PageTotals)                                                                       \
  X(page_pins, PagePins)                                                                           \
  X(namespace_pages, NamespacePages)                                                               \
  X(page_copies, PageCopies)                                                                       \
  X(page_recall, PageRecall)                                                                       \
  X(drain_request, DrainRequest)                                                                   \
  X(drain_report, DrainReport)                                                                     \
  X(drain_progress, DrainProgress)

/// Those of node_protocol.hpp.
#define HICACHE_NODE_MESSAGES(X)                                                                   \
  X(client_info, ClientInfo)                                                                       \
  X(node_info, NodeInfo)                                                                           \
  X(wanted_pages, WantedPages)                                                                     \
  X(reserved_pages, ReservedPages)                                                                 \
  X(complete_pages, CompletePages)                                                                 \
  X(client_ticket, ClientTicket)                                                                   \
  X(page_lookup, PageLookup)                                                                       \
  X(leased_pages, LeasedPages)                                                                     \
  X(page_prefetch, PagePrefetch)                                                                   \
  X(node_status, NodeStatus)

/// Those of store_protocol.hpp.
#define HICACHE_STORE_MESSAGES(X)                                                                  \
  X(store_hello, StoreHello)                                                                       \
  X(store_welcome, StoreWelcome)                                                                   \
  X(store_request, StoreRequest)                                                                   \
  X(store_answer, StoreAnswer)
