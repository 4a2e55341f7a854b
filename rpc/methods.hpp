#pragma once

// The methods of services.capnp that bring a message to an actor and its answer back:
// X(method, Method, verb, request, answer, right, what). `verb` is that of the actor's message;
// only peers with the `right` may do `what` (session::demand).

#define HICACHE_INDEX_METHODS(X)                                                                   \
  X(mount, Mount, mount, member_info, membership, as_member, "mount memory")                       \
  X(heartbeat, Heartbeat, tick, heartbeat, membership, as_member, "tell that a member lives")      \
  X(publish, Publish, publish, published_pages, membership, as_member, "offer pages")              \
  X(withdraw, Withdraw, withdraw, withdrawn_pages, membership, as_member, "withdraw pages")        \
  X(locate, Locate, locate, key_batch, placements, anyone, "")                                     \
  X(members, Members, members, member_query, member_list, anyone, "")                              \
  X(status, Status, status, status_query, index_status, anyone, "")

#define HICACHE_MEMBER_METHODS(X)                                                                  \
  X(copy, Copy, copy, page_copies, page_totals, as_member, "have pages copied")                    \
  X(pin, Pin, pin, page_pins, page_totals, as_operator, "pin pages")                               \
  X(clear, Clear, clear, namespace_pages, page_totals, as_operator, "clear a namespace")           \
  X(drain, Drain, drain, drain_request, drain_report, as_operator, "drain a member")               \
  X(progress, Progress, status, status_query, drain_progress, anyone, "")                          \
  X(resume, Resume, resume, drain_request, drain_progress, as_operator, "undo draining")           \
  X(recall, Recall, recall, page_recall, placements, anyone, "")

#define HICACHE_NODE_METHODS(X)                                                                    \
  X(attach, Attach, attach, client_info, node_info, anyone, "")                                    \
  X(reserve, Reserve, reserve, wanted_pages, reserved_pages, anyone, "")                           \
  X(commit, Commit, commit, complete_pages, page_totals, anyone, "")                               \
  X(abort, Abort, abort, client_ticket, page_totals, anyone, "")                                   \
  X(lookup, Lookup, locate, page_lookup, leased_pages, anyone, "")                                 \
  X(release, Release, release, client_ticket, page_totals, anyone, "")                             \
  X(prefetch, Prefetch, fetch, page_prefetch, page_totals, anyone, "")                             \
  X(corrupt, Corrupt, corrupt, key_batch, page_totals, anyone, "")                                 \
  X(remove, Remove, remove, key_batch, page_totals, anyone, "")                                    \
  X(clear, Clear, clear, namespace_pages, page_totals, anyone, "")                                 \
  X(status, Status, status, status_query, node_status, anyone, "")
