#include "hicache/caf_error.hpp"
#include "hicache/system_config.hpp"

#include <caf/actor_system.hpp>
#include <caf/exit_reason.hpp>
#include <caf/sec.hpp>
#include <gtest/gtest.h>

namespace hicache {
namespace {

TEST(CafErrorTest, EveryCodeSurvivesBothWays) {
  for (auto code = uint8_t{1}; code < ec_count; ++code) {
    const auto sent = error{static_cast<ec>(code), "what was expected"};
    const auto carried = to_caf(sent);
    EXPECT_TRUE(carried) << to_string(sent.code);
    EXPECT_EQ(from_caf(carried), sent);
  }
}

TEST(CafErrorTest, SuccessIsNoErrorOnEitherSide) {
  EXPECT_FALSE(to_caf(error{}));
  EXPECT_EQ(from_caf(caf::error{}), error{});
}

TEST(CafErrorTest, CodesWithoutDetailStayWithout) {
  EXPECT_EQ(from_caf(to_caf({ec::store_full, ""})), (error{ec::store_full, ""}));
}

TEST(CafErrorTest, TimeoutsAreDeadlines) {
  EXPECT_EQ(from_caf(make_error(caf::sec::request_timeout)).code, ec::deadline_exceeded);
}

TEST(CafErrorTest, DeadAndUnreachableReceiversArePeers) {
  EXPECT_EQ(from_caf(make_error(caf::sec::request_receiver_down)).code, ec::peer_unreachable);
  EXPECT_EQ(from_caf(make_error(caf::sec::cannot_connect_to_node, "h:1")).code,
            ec::peer_unreachable);
  const auto exited = from_caf(make_error(caf::exit_reason::remote_link_unreachable));
  EXPECT_EQ(exited.code, ec::peer_unreachable);
  EXPECT_NE(exited.detail.find("remote_link_unreachable"), std::string::npos) << exited.detail;
}

TEST(CafErrorTest, TheSystemRendersOurCodesInWords) {
  auto config = system_config{};
  config.set("scheduler.policy", caf::atom("testing"));
  auto system = caf::actor_system{config};
  EXPECT_EQ(system.render(to_caf({ec::ranks_diverged, "at step 4"})), "ranks_diverged: at step 4");
}

} // namespace
} // namespace hicache
