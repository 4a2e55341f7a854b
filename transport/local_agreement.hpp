#pragma once

#include "transport/agreement.hpp"

#include <cstdint>
#include <memory>
#include <vector>

namespace hicache {

/// Joins `ranks` ranks inside this process; element r is rank r. With one rank it is the agreement
/// of a program that was not started by mpirun.
///
/// A reduction ends inside the reduce_min call of the last rank to enter, which calls the callback
/// of that rank; the others get news, and their callbacks run inside their next call of `progress`.
/// Which ranks are missing is known exactly. Different elements may be called from different
/// threads. Vectors of unequal length give every rank `configuration_mismatch`. Once an element is
/// destroyed no reduction can end: the outstanding ones of the others, and all that they begin
/// later, fail with `rank_unresponsive`.
/// @pre ranks > 0
std::vector<std::unique_ptr<agreement>> make_local_agreements(uint32_t ranks);

} // namespace hicache
