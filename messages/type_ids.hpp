#pragma once

#include "hicache/interfaces.hpp"
#include "messages/commands.hpp"
#include "messages/message_lists.hpp"
#include "messages/segment_pages.hpp"
#include "messages/storage_batch.hpp"

#include <caf/type_id.hpp>

#include <memory>

namespace hicache {

// Defined by the layers that create them; messages only carry the pointers.

/// See include/hicache/storage_backend.hpp.
struct backend_health;
using storage_health_ptr = std::shared_ptr<const backend_health>;

/// See cache/oplog/op_log.hpp.
struct op_log_batch;
using op_log_batch_ptr = std::shared_ptr<const op_log_batch>;

} // namespace hicache

// -- verbs between actors of hicache: at most 10 characters. Those of the engine are in
// hicache/interfaces.hpp.
CAF_ADD_ATOM(hicache, hicache::atom, abort, "abort")
CAF_ADD_ATOM(hicache, hicache::atom, adopt, "adopt")
CAF_ADD_ATOM(hicache, hicache::atom, attach, "attach")
CAF_ADD_ATOM(hicache, hicache::atom, await, "await")
CAF_ADD_ATOM(hicache, hicache::atom, backup, "backup")
CAF_ADD_ATOM(hicache, hicache::atom, clear, "clear")
CAF_ADD_ATOM(hicache, hicache::atom, commit, "commit")
CAF_ADD_ATOM(hicache, hicache::atom, connect, "connect")
CAF_ADD_ATOM(hicache, hicache::atom, copy, "copy")
CAF_ADD_ATOM(hicache, hicache::atom, corrupt, "corrupt")
CAF_ADD_ATOM(hicache, hicache::atom, done, "done")
CAF_ADD_ATOM(hicache, hicache::atom, drain, "drain")
CAF_ADD_ATOM(hicache, hicache::atom, drop, "drop")
CAF_ADD_ATOM(hicache, hicache::atom, exists, "exists")
CAF_ADD_ATOM(hicache, hicache::atom, fetch, "fetch")
CAF_ADD_ATOM(hicache, hicache::atom, fetched, "fetched")
CAF_ADD_ATOM(hicache, hicache::atom, freeze, "freeze")
CAF_ADD_ATOM(hicache, hicache::atom, get, "get")
CAF_ADD_ATOM(hicache, hicache::atom, health, "health")
CAF_ADD_ATOM(hicache, hicache::atom, hold, "hold")
CAF_ADD_ATOM(hicache, hicache::atom, locate, "locate")
CAF_ADD_ATOM(hicache, hicache::atom, members, "members")
CAF_ADD_ATOM(hicache, hicache::atom, mount, "mount")
CAF_ADD_ATOM(hicache, hicache::atom, ok, "ok")
CAF_ADD_ATOM(hicache, hicache::atom, pin, "pin")
CAF_ADD_ATOM(hicache, hicache::atom, poll, "poll")
CAF_ADD_ATOM(hicache, hicache::atom, publish, "publish")
CAF_ADD_ATOM(hicache, hicache::atom, recall, "recall")
CAF_ADD_ATOM(hicache, hicache::atom, record, "record")
CAF_ADD_ATOM(hicache, hicache::atom, stage, "stage")
CAF_ADD_ATOM(hicache, hicache::atom, release, "release")
CAF_ADD_ATOM(hicache, hicache::atom, remove, "remove")
CAF_ADD_ATOM(hicache, hicache::atom, reserve, "reserve")
CAF_ADD_ATOM(hicache, hicache::atom, resume, "resume")
CAF_ADD_ATOM(hicache, hicache::atom, set, "set")
CAF_ADD_ATOM(hicache, hicache::atom, shards, "shards")
CAF_ADD_ATOM(hicache, hicache::atom, start, "start")
CAF_ADD_ATOM(hicache, hicache::atom, status, "status")
CAF_ADD_ATOM(hicache, hicache::atom, terminate, "terminate")
CAF_ADD_ATOM(hicache, hicache::atom, tick, "tick")
CAF_ADD_ATOM(hicache, hicache::atom, touch, "touch")
CAF_ADD_ATOM(hicache, hicache::atom, withdraw, "withdraw")

// -- CAF carries these within the process alone; rpc/ brings those of index_protocol.hpp and
// node_protocol.hpp to others
#define HICACHE_ALLOW_MESSAGE(T, Schema) CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hicache::T)
HICACHE_INDEX_MESSAGES(HICACHE_ALLOW_MESSAGE)
HICACHE_NODE_MESSAGES(HICACHE_ALLOW_MESSAGE)
#undef HICACHE_ALLOW_MESSAGE
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hicache::backup_command)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hicache::copy_batch)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hicache::disk_completion)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hicache::disk_listing)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hicache::drop_command)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hicache::fetch_command)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hicache::fetched_pages)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hicache::found_pages)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hicache::key_list)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hicache::op_log_batch_ptr)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hicache::operation_done)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hicache::page_fetch)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hicache::reclaim_command)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hicache::staging_command)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hicache::segment_holds)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hicache::segment_pages)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hicache::segment_slots)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hicache::storage_attachment)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hicache::storage_batch)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hicache::storage_change)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hicache::storage_completion)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hicache::storage_health_ptr)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hicache::storage_hit)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hicache::storage_outcome)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hicache::storage_status)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hicache::terminate_command)
