#pragma once

#include "hicache/config.hpp"
#include "transport/page_channel.hpp"

#include <cstdint>

namespace hicache {

/// How the ranks of handoffs reach each other: as members of a cluster do.
page_channel_options handoff_network(const rank_config& config);

/// KV heads of the whole model; one where attention has no heads.
uint32_t handoff_heads(const rank_config& config);

} // namespace hicache
