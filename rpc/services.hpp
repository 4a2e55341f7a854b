#pragma once

#include "messages/interfaces.hpp"
#include "rpc/services.capnp.h"
#include "rpc/session.hpp"

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

namespace hicache {

/// The actors of this process that peers may call; null if not served.
struct served_actors {
  directory_actor directory;
  member_actor member;
  node_actor node;
  /// Run the directory's shards on the loop's thread, which saves a lookup two thread switches;
  /// otherwise on CAF's pool, so that several shards use several cores.
  bool has_one_shard = false;
  /// The node's memory, if its clients are on other machines. Must outlive the serving.
  std::span<std::byte> node_memory;
};

/// The bootstrap object of a peer's connection.
/// @param greeted Called after a valid hello.
schema::Process::Client serve_process(std::shared_ptr<session> peer, const served_actors& served,
                                      inline_unit& here, std::function<void()> greeted);

/// Checks that a peer with this hello is compatible.
/// @returns unsupported with a sentence
result<void> check_hello(schema::Hello::Reader hello);

void write_hello(schema::Hello::Builder hello);

} // namespace hicache
