#pragma once

#include "hicache/error.hpp"
#include "transport/shared_memory.hpp"

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>

namespace hicache {

/// Offers memory to the same user's processes on this host, under a random name that vanishes with
/// this object or its process. A thread of its own answers; it never reads from peers and never
/// waits for one, so no peer can block it. It keeps up to limits::memory_readers connections open
/// so that peers detect its end at once. Refuses and logs processes of other users or groups.
class memory_offer {
public:
  /// Starts to offer `memory`; the offer keeps it alive with its own descriptor.
  /// @param access What peers may do with the mapping. Guards against accidental writes only:
  /// processes of the same user could get around it.
  /// @param group Group whose processes may map it too, whatever their user.
  /// @returns io_failure if the system lacks descriptors or sockets
  /// @pre the memory was created with that access, or more
  static result<std::unique_ptr<memory_offer>> start(const shared_memory& memory,
                                                     peer_access access = peer_access::read,
                                                     std::optional<gid_t> group = {});

  virtual ~memory_offer();

  /// The name to pass to open_peer_memory.
  virtual const std::string& name() const noexcept = 0;
};

/// Maps the memory that a memory_offer of this host offers under `name`. Waits up to
/// limits::peer_memory_time for the owner. The result holds a connection to the owner, unless the
/// owner's version keeps none. Any thread.
/// @param access At most what the offer allows.
/// @param owner A user trusted as the owner, besides this process's user.
/// @returns peer_unreachable if the name is not offered here (other host or user, dead or hanging
/// owner); malformed_message if the owner sends something else; io_failure if mapping fails
result<mapped_peer_memory> open_peer_memory(const std::string& name,
                                            peer_access access = peer_access::read,
                                            std::optional<uid_t> owner = {});

} // namespace hicache
