#pragma once

#include "messages/interfaces.hpp"
#include "rpc/services.capnp.h"
#include "rpc/session.hpp"

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

namespace hicache {

/// The actors of this process that others may send requests to. Null what is not served.
struct served_actors {
  directory_actor directory;
  member_actor member;
  node_actor node;
  /// The shards that the directory hands out run on the loop's thread, which saves a look-up two
  /// changes of thread; else on CAF's pool, so that several shards use several cores.
  bool has_one_shard = false;
  /// The node's memory, if its clients are on other machines. Must outlive what is served.
  std::span<std::byte> node_memory;
};

/// What a peer finds at the other end of its connection.
/// @param greeted Called when the peer has said that it speaks this protocol.
schema::Process::Client serve_process(std::shared_ptr<session> peer, const served_actors& served,
                                      inline_unit& here, std::function<void()> greeted);

/// Whether a process that says this, and this one, work together.
/// @returns unsupported with a sentence
result<void> check_hello(schema::Hello::Reader hello);

/// What this process says.
void write_hello(schema::Hello::Builder hello);

} // namespace hicache
