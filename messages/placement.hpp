#pragma once

#include "messages/index_protocol.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace hicache {

/// Which members shall have copies of a page: such as take pages, on hosts that differ from each
/// other and from `own_host`, those that rank highest for that key (rendezvous hashing), so that
/// writers agree and a member that leaves changes the places of its own pages only.
/// @returns ids, at most `count`; fewer if there are not so many hosts
std::vector<uint64_t> place_replicas(const page_key& key, std::span<const member_info> members,
                                     const std::string& own_host, size_t count);

} // namespace hicache
