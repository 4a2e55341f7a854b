#pragma once

// Registers hicache::ec with CAF. Include it before any use of `ec` as a caf::error.

#include "hicache/error.hpp"

#include <caf/error.hpp>
#include <caf/make_message.hpp> // CAF_ERROR_CODE_ENUM expands to make_message

CAF_ERROR_CODE_ENUM(hicache::ec, "hicache")

namespace hicache {

/// Converts an error for messages between actors.
caf::error to_caf(const error& err);

/// Converts an error from CAF. CAF's own errors become the closest code: a dead or silent receiver
/// is peer_unreachable, a timeout deadline_exceeded.
error from_caf(const caf::error& err);

} // namespace hicache
