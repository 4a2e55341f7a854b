#pragma once

#include "base/setting.hpp"
#include "launch/router/router_server.hpp"

#include <span>

namespace hicache {

/// The settings of hicache-router, except --instance, which may be given several times.
std::span<const setting<router_options>> router_settings();

} // namespace hicache
