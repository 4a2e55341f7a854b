#pragma once

#include "hicache/error.hpp"
#include "transport/shared_memory.hpp"

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>

namespace hicache {

/// Offers memory to the processes of the same user on this host, under a random name that vanishes
/// with this object or its process. One thread of its own answers; it reads nothing from peers and
/// never waits for one, so no peer can hold it up. It keeps the connections, up to
/// limits::memory_readers, so that peers notice its end at once. Processes of other users, or
/// groups, are refused and logged.
class memory_offer {
public:
  /// Starts to offer `memory`, which the offer keeps alive by a descriptor of its own.
  /// @param access What those may do who map it by this offer. Processes of the same user could get
  /// around it; it keeps them from writing by mistake.
  /// @param group Whose processes may do so as well, whatever their user.
  /// @returns io_failure if the system lacks descriptors or sockets
  /// @pre the memory was created with that access, or more
  static result<std::unique_ptr<memory_offer>> start(const shared_memory& memory,
                                                     peer_access access = peer_access::read,
                                                     std::optional<gid_t> group = {});

  virtual ~memory_offer();

  /// What a peer passes to open_peer_memory.
  virtual const std::string& name() const noexcept = 0;
};

/// Maps what a memory_offer of this host offers under `name`. Waits for the owner up to
/// limits::peer_memory_time. `access` is no more than the offer allows. What it returns has a
/// connection to the owner, unless that is of a version that keeps none. Any thread.
/// @param owner A user whose processes are trusted to offer it, besides this one's.
/// @returns peer_unreachable if nobody offers the name here (another host, a dead or hanging owner,
/// another user);
///          malformed_message if the owner sends something else; io_failure if it cannot be mapped
result<mapped_peer_memory> open_peer_memory(const std::string& name,
                                            peer_access access = peer_access::read,
                                            std::optional<uid_t> owner = {});

} // namespace hicache
