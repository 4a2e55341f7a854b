// A client of a node that does not behave as one.

#include "backends/node_client.hpp"
#include "messages/caf_error.hpp"
#include "messages/system_config.hpp"
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
#include <vector>

namespace hicache::test {
namespace {

using namespace std::chrono_literals;

/// What a node has heard, and does not answer.
struct silence {
  std::atomic<int> connections = 0;
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
    [=](atom::locate, const page_lookup&) -> caf::result<leased_pages> { return refuse(); },
    [=](atom::release, const client_ticket&) -> caf::result<page_totals> { return refuse(); },
    [=](atom::fetch, const page_prefetch&) -> caf::result<page_totals> { return refuse(); },
    [=](atom::corrupt, const key_batch&) -> caf::result<page_totals> { return refuse(); },
    [=](atom::remove, const key_batch&) -> caf::result<page_totals> { return refuse(); },
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

TEST(NodeClientTest, APutEndsAtItsDeadlineAndItsReservationWithTheConnection) {
  const auto memory = shared_memory::create(1 << 20, "hicache-test", peer_access::write);
  ASSERT_TRUE(memory) << to_string(memory.error());
  const auto offer = memory_offer::start(*memory, peer_access::write);
  ASSERT_TRUE(offer) << to_string(offer.error());
  const auto clock = monotonic_clock{};
  auto config = system_config{};
  auto system = caf::actor_system{config};
  const auto heard = std::make_shared<silence>();
  const auto node = system.spawn(run_silent_node, node_info{(*offer)->name(), 1 << 20, 0}, heard);
  const auto connector = system.spawn(run_connector, node, heard);
  {
    auto client = node_client{{&system, connector, "unix:/nowhere", {}, {}, &clock}};
    ASSERT_TRUE(client.connect(clock.now() + 20s));
    ASSERT_TRUE(client.connect(clock.now() + 20s));
    EXPECT_EQ(heard->connections, 1);
    const auto bytes = bytes_of(1, 64);
    const auto pages = std::array{page_write{key_of(1), {}, {bytes}}};
    const auto outcome = client.put(pages, clock.now() + 20ms).at(0);
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().code, ec::deadline_exceeded);
    ASSERT_TRUE(client.connect(clock.now() + 20s));
    EXPECT_EQ(heard->connections, 2);
  }
  auto self = caf::scoped_actor{system};
  for (const auto& each :
       {caf::actor_cast<caf::actor>(connector), caf::actor_cast<caf::actor>(node)}) {
    self->send_exit(each, caf::exit_reason::user_shutdown);
    self->wait_for(each);
  }
}

} // namespace
} // namespace hicache::test
