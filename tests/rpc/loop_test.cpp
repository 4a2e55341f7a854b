#include "rpc/loop.hpp"

#include <gtest/gtest.h>
#include <kj/async.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>

namespace hicache {
namespace {

using namespace std::chrono_literals;

/// A peer on whose connection there is always something to read keeps the loop as busy.
TEST(RpcLoopTest, WhatOthersPostHasItsTurnHoweverBusyTheLoopIs) {
  const auto loop = rpc_loop::start();
  auto is_enough = std::atomic<bool>{false};
  auto is_busy = std::promise<void>{};
  auto go_on = std::function<void()>{};
  go_on = [&] {
    if (!is_enough)
      loop->keep(kj::evalLater([&] { go_on(); }));
  };
  loop->post([&] {
    go_on();
    is_busy.set_value();
  });
  is_busy.get_future().wait();
  auto had_turn = std::promise<void>{};
  loop->post([&] { had_turn.set_value(); });
  EXPECT_EQ(had_turn.get_future().wait_for(20s), std::future_status::ready);
  is_enough = true;
  loop->close();
}

} // namespace
} // namespace hicache
