// A client of a node that does not behave as one.

#include "backends/node_client.hpp"
#include "hicache/caf_error.hpp"
#include "hicache/system_config.hpp"
#include "tests/backends/backend_support.hpp"
#include "transport/memory_sharing.hpp"
#include "transport/shared_memory.hpp"

#include <caf/actor_cast.hpp>
#include <caf/scoped_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <vector>

namespace hicache::test {
namespace {

using namespace std::chrono_literals;

/// What a node has heard, and does not answer, and what it answers.
struct silence {
  std::atomic<int> connections = 0;
  /// To each look-up.
  leased_pages leased;
  std::vector<caf::typed_response_promise<reserved_pages>> reservations;
};

/// Lets clients in, and never finds room for their pages, nor says so.
node_actor::behavior_type run_silent_node(node_actor::pointer self, const node_info& info,
                                          const std::shared_ptr<silence>& heard) {
  const auto refuse = [] { return to_caf({ec::unsupported, "not here"}); };
  return {
    [info](atom::attach, const client_info&) { return info; },
    [self, heard](atom::reserve, const wanted_pages&) -> caf::result<reserved_pages> {
      return heard->reservations.emplace_back(self->make_response_promise<reserved_pages>());
    },
    [=](atom::commit, const complete_pages&) -> caf::result<page_totals> { return refuse(); },
    [=](atom::abort, const client_ticket&) -> caf::result<page_totals> { return refuse(); },
    [heard](atom::locate, const page_lookup&) { return heard->leased; },
    [=](atom::release, const client_ticket&) -> caf::result<page_totals> { return refuse(); },
    [=](atom::fetch, const page_prefetch&) -> caf::result<page_totals> { return refuse(); },
    [=](atom::corrupt, const key_batch&) -> caf::result<page_totals> { return refuse(); },
    [=](atom::remove, const key_batch&) -> caf::result<page_totals> { return refuse(); },
    [=](atom::clear, const namespace_pages&) -> caf::result<page_totals> { return refuse(); },
    [=](atom::status, const status_query&) -> caf::result<node_status> { return refuse(); },
    [](atom::tick) {},
  };
}

connector_actor::behavior_type run_connector(connector_actor::pointer, const node_actor& node,
                                             const std::shared_ptr<silence>& heard) {
  return {[node, heard](atom::connect, const std::string&) {
    ++heard->connections;
    return caf::actor_cast<caf::strong_actor_ptr>(node);
  }};
}

class NodeClientTest : public ::testing::Test {
protected:
  void SetUp() override {
    ASSERT_TRUE(memory_) << to_string(memory_.error());
    auto offer = memory_offer::start(*memory_, peer_access::write);
    ASSERT_TRUE(offer) << to_string(offer.error());
    offer_ = std::move(*offer);
    node_ = system_.spawn(run_silent_node, node_info{offer_->name(), memory_bytes, 0}, heard_);
    connector_ = system_.spawn(run_connector, node_, heard_);
    client_.emplace(node_client_options{&system_, connector_, "unix:/nowhere", {}, {}, &clock_});
  }

  void TearDown() override {
    client_.reset();
    auto self = caf::scoped_actor{system_};
    for (const auto& each :
         {caf::actor_cast<caf::actor>(connector_), caf::actor_cast<caf::actor>(node_)}) {
      self->send_exit(each, caf::exit_reason::user_shutdown);
      self->wait_for(each);
    }
  }

  time_point in(duration time) const { return clock_.now() + time; }

  static constexpr auto memory_bytes = uint64_t{1} << 20;

  const result<shared_memory> memory_
    = shared_memory::create(memory_bytes, "hicache-test", peer_access::write);
  std::unique_ptr<memory_offer> offer_;
  const monotonic_clock clock_;
  system_config config_;
  caf::actor_system system_{config_};
  const std::shared_ptr<silence> heard_ = std::make_shared<silence>();
  node_actor node_;
  connector_actor connector_;
  std::optional<node_client> client_;
};

TEST_F(NodeClientTest, APutEndsAtItsDeadlineAndItsReservationWithTheConnection) {
  ASSERT_TRUE(client_->connect(in(20s)));
  ASSERT_TRUE(client_->connect(in(20s)));
  EXPECT_EQ(heard_->connections, 1);
  const auto bytes = bytes_of(1, 64);
  const auto pages = std::array{page_write{key_of(1), {}, {bytes}}};
  const auto outcome = client_->put(pages, in(20ms)).at(0);
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, ec::deadline_exceeded);
  ASSERT_TRUE(client_->connect(in(20s)));
  EXPECT_EQ(heard_->connections, 2);
}

TEST_F(NodeClientTest, APageThatIsRemovedWhileItIsReadIsAMissAndNoDamage) {
  heard_->leased = {1, 60'000, {{place_status::present, 0, 1, 64}}};
  auto buffer = page_bytes(64);
  const auto pages = std::array{page_read{key_of(1), {buffer}}};
  const auto removed = client_->get(pages, in(20s)).at(0);
  ASSERT_FALSE(removed);
  EXPECT_EQ(removed.error().code, ec::not_found) << "its header is cleared";
  memory_->bytes()[3] = std::byte{1};
  const auto damaged = client_->get(pages, in(20s)).at(0);
  ASSERT_FALSE(damaged);
  EXPECT_EQ(damaged.error().code, ec::corrupt_page);
}

} // namespace
} // namespace hicache::test
