#pragma once

#include "hicache/error.hpp"

#include <caf/message.hpp>
#include <kj/exception.h>

namespace hicache {

/// An error as it travels: the text of an exception, which begins with the number of its code.
kj::Exception to_exception(const error& why);

/// What an exception of kj or Cap'n Proto means. One that this process or a peer made by
/// to_exception is that error again; a connection that is gone is peer_unreachable, a time that has
/// passed deadline_exceeded, a request that the peer's version does not know unsupported.
error from_exception(const kj::Exception& ex);

/// An error as an actor answers it.
caf::message to_answer(const error& why);

} // namespace hicache
