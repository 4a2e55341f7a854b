#pragma once

#include "cache/prefix/prefix_cache.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace hicache::test {

/// Makes a rank's cache differ from those of the others, as a memory error would: it has an open
/// request of which they know nothing.
inline void damage(prefix_cache& cache) {
  const auto prompt = std::make_shared<const std::vector<token_id>>(8, token_id{1'000'000});
  EXPECT_TRUE(cache.match({request_id{1'000'000}, {}, prompt, 8}));
}

} // namespace hicache::test
