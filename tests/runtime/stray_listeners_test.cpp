#include "runtime/stray_listeners.hpp"

#include <gtest/gtest.h>

namespace hicache {
namespace {

using addresses = std::vector<std::string>;

const auto all
  = addresses{"0.0.0.0:2", "127.0.0.1:1", "192.0.2.7:3", "[2001:db8::1]:5", "[::1]:4", "[::]:6"};

TEST(StrayListeners, AreThoseThatOtherMachinesReachAndNobodyAskedFor) {
  EXPECT_EQ(stray_listeners(all, {"127.0.0.1"}),
            (addresses{"0.0.0.0:2", "192.0.2.7:3", "[2001:db8::1]:5", "[::]:6"}));
  EXPECT_EQ(stray_listeners(all, {"192.0.2.7", "2001:db8::1"}), (addresses{"0.0.0.0:2", "[::]:6"}));
  EXPECT_EQ(stray_listeners(all, {"localhost", "no-such-host.invalid"}).size(), 4u);
}

TEST(StrayListeners, ThereAreNoneWhereEveryInterfaceWasAskedFor) {
  EXPECT_EQ(stray_listeners(all, {"127.0.0.1", "0.0.0.0"}), addresses{});
  EXPECT_EQ(stray_listeners(all, {"::"}), addresses{});
}

} // namespace
} // namespace hicache
