#pragma once

#include "messages/index_protocol.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace hicache {

/// Chooses the members for copies of a page: among those that accept pages, on hosts distinct from
/// each other and from `own_host`, those that rank highest for the key (rendezvous hashing). So all
/// writers agree, and a leaving member affects only its own pages.
/// @returns ids, at most `count`; fewer if there are too few hosts
std::vector<uint64_t> place_replicas(const page_key& key, std::span<const member_info> members,
                                     const std::string& own_host, size_t count);

} // namespace hicache
