#pragma once

#include "messages/interfaces.hpp"

#include <caf/atom.hpp>
#include <caf/type_id.hpp>

#include <cstdint>
#include <string>

// A verb of this layer, beside those of messages/type_ids.hpp.
CAF_ADD_ATOM(hicache, hicache::atom, connect, "connect")

namespace hicache {

/// The oldest version of the protocol that this process works with; index_protocol_version is the
/// newest one. What a newer peer says beyond it is ignored.
inline constexpr uint32_t index_protocol_minimum = 4;

/// The CONNECTOR reaches other processes.
using connector_actor = caf::typed_actor<
  // Connects to the index process at this address. Answers its directory (a directory_actor), which
  // ends with the connection.
  caf::replies_to<atom::connect, std::string>::with<caf::strong_actor_ptr>>;

static_assert(index_protocol_minimum <= index_protocol_version);

} // namespace hicache
