#pragma once

#include "hicache/error.hpp"

#include <caf/message.hpp>
#include <kj/exception.h>

namespace hicache {

/// An error in transit: an exception whose text begins with the code's number.
kj::Exception to_exception(const error& why);

/// Maps an exception of kj or Cap'n Proto to an error. One made by to_exception, here or by a peer,
/// yields the original error; a lost connection is peer_unreachable, a timeout deadline_exceeded, a
/// request unknown to the peer's version unsupported.
error from_exception(const kj::Exception& ex);

/// An error as an actor's answer.
caf::message to_answer(const error& why);

} // namespace hicache
