#pragma once

#include "hicache/rank_reducer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

/// What every implementation of `agreement` keeps. Each function is one rank's part and is called
/// on all ranks at once.
namespace hicache::test {

/// Reduces and moves things forward until the callback was called.
inline result<std::vector<int64_t>> reduce(rank_reducer& rank, reduction_channel channel,
                                           std::vector<int64_t> values,
                                           const std::function<void()>& idle) {
  auto answer = std::optional<result<std::vector<int64_t>>>{};
  rank.reduce_min(channel, std::move(values), [&](auto minima) { answer = std::move(minima); });
  while (rank.progress())
    idle();
  EXPECT_TRUE(answer.has_value());
  return answer ? *answer : result<std::vector<int64_t>>{fail(ec::stopping)};
}

/// Many reductions in a row give the element-wise minimum each, on one channel.
inline void expect_minima(rank_reducer& rank, const std::function<void()>& idle) {
  const auto me = static_cast<int64_t>(rank.rank());
  const auto last = static_cast<int64_t>(rank.size()) - 1;
  for (int64_t turn = 0; turn < 50; ++turn) {
    const auto minima = reduce(rank, reduction_channel::step,
                               {turn + me, -me, turn % rank.size() == rank.rank() ? -7 : 7}, idle);
    ASSERT_TRUE(minima.has_value()) << to_string(minima.error());
    EXPECT_EQ(*minima, (std::vector<int64_t>{turn, -last, -7}));
  }
}

/// A reduction of no values is a barrier.
inline void expect_empty_vectors_work(rank_reducer& rank, const std::function<void()>& idle) {
  const auto minima = reduce(rank, reduction_channel::engine, {}, idle);
  ASSERT_TRUE(minima.has_value());
  EXPECT_TRUE(minima->empty());
}

/// Ranks may enter channels in different orders.
inline void expect_independent_channels(rank_reducer& rank, const std::function<void()>& idle) {
  auto order = std::vector{reduction_channel::step, reduction_channel::prefetch,
                           reduction_channel::engine, reduction_channel::admin};
  if (rank.rank() % 2 == 1)
    std::ranges::reverse(order);
  auto answers = 0;
  for (auto channel : order)
    rank.reduce_min(channel, {static_cast<int64_t>(channel) * 100 + rank.rank()},
                    [&answers, channel](auto minima) {
                      ASSERT_TRUE(minima.has_value());
                      EXPECT_EQ(minima->at(0), static_cast<int64_t>(channel) * 100);
                      ++answers;
                    });
  while (rank.progress())
    idle();
  EXPECT_EQ(answers, 4);
}

/// A callback may begin the next reduction of its channel.
inline void expect_chained_reductions(rank_reducer& rank, const std::function<void()>& idle) {
  auto turns = int64_t{0};
  auto next = std::function<void()>{};
  next = [&] {
    rank.reduce_min(reduction_channel::prefetch, {turns}, [&](auto minima) {
      ASSERT_TRUE(minima.has_value());
      EXPECT_EQ(minima->at(0), turns);
      if (++turns < 5)
        next();
    });
  };
  next();
  while (rank.progress())
    idle();
  EXPECT_EQ(turns, 5);
}

inline void expect_reducer_contract(rank_reducer& rank, const std::function<void()>& idle) {
  expect_minima(rank, idle);
  expect_empty_vectors_work(rank, idle);
  expect_independent_channels(rank, idle);
  expect_chained_reductions(rank, idle);
}

} // namespace hicache::test
