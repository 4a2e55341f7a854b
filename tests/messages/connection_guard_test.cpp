// What CAF's broker, as it is guarded, does when its actor system ends. Hostile peers:
// tests/system.

#include "messages/system_config.hpp"

#include <caf/all.hpp>
#include <caf/io/all.hpp>
#include <caf/io/basp_broker.hpp>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>

namespace hicache {
namespace {

/// An actor system whose broker ends with a message in its mailbox that comes from an actor with a
/// thread of its own.
void end_with_a_message_that_nobody_reads() {
  auto settings = system_config{};
  settings.with_network();
  // As the broker's thread may end before it lets go of the broker, so does this.
  auto broker = caf::actor{};
  auto system = caf::actor_system{settings};
  auto& network = system.middleman();
  const auto sender = system.spawn<caf::detached>(
    [](caf::event_based_actor*) { return caf::behavior{[](caf::ok_atom) {}}; });
  auto ended = std::promise<void>{};
  // On the thread that runs the broker, so that it cannot read before it ends.
  network.backend().post([&] {
    broker = network.named_broker<caf::io::basp_broker>(caf::atom("BASP"));
    broker->enqueue(caf::actor_cast<caf::strong_actor_ptr>(sender), caf::make_message_id(),
                    caf::make_message(caf::ok_atom::value), nullptr);
    auto* ending = static_cast<caf::io::broker*>(caf::actor_cast<caf::abstract_actor*>(broker));
    ending->context(&network.backend());
    ending->quit();
    ending->finalize();
    ended.set_value();
  });
  ended.get_future().wait();
  caf::anon_send_exit(sender, caf::exit_reason::user_shutdown);
}

TEST(ConnectionGuardTest, AMessageThatNobodyReadsDoesNotKeepTheSystemFromEnding) {
  auto over = std::promise<void>{};
  auto end = over.get_future();
  // Not joined: a system that does not end would keep the test from failing.
  std::thread{[over = std::move(over)]() mutable {
    end_with_a_message_that_nobody_reads();
    over.set_value();
  }}.detach();
  EXPECT_EQ(end.wait_for(std::chrono::seconds{20}), std::future_status::ready);
}

} // namespace
} // namespace hicache
