// How a process finds the shards of the index, against a directory that is in this process.

#include "backends/cluster/index_addresses.hpp"
#include "backends/cluster/index_link.hpp"
#include "hicache/caf_error.hpp"
#include "hicache/system_config.hpp"
#include "tests/rpc/served_actors.hpp"

#include <caf/actor_cast.hpp>
#include <caf/actor_system.hpp>
#include <caf/scoped_actor.hpp>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

namespace hicache {
namespace {

using namespace std::chrono_literals;
using namespace hicache::test;

/// What a directory was told, and how often it was asked without being told anything.
struct told {
  std::atomic<int> maps = 0;
  std::atomic<int> questions = 0;
  std::promise<void> third_question;
};

/// Answers as an index answers a reader: it takes no news.
directory_actor::behavior_type run_strict_directory(directory_actor::pointer, index_actor shard,
                                                    std::shared_ptr<told> seen) {
  return {
    [seen](atom::shards, const shard_map& news) -> caf::result<shard_map> {
      if (!news.shards.empty()) {
        ++seen->maps;
        return to_caf({ec::not_permitted, "it may not tell where shards are"});
      }
      if (++seen->questions == 3)
        seen->third_question.set_value();
      return shard_map{{{0, "127.0.0.1:2", 1}}};
    },
    [shard](atom::locate, uint32_t) -> caf::result<caf::strong_actor_ptr> {
      return caf::actor_cast<caf::strong_actor_ptr>(shard);
    },
    [](atom::start, const std::string&) {},
    [](atom::poll) {},
  };
}

connector_actor::behavior_type run_connector(connector_actor::pointer, directory_actor everywhere) {
  return {
    [everywhere](atom::connect, const std::string&) {
      return caf::actor_cast<caf::strong_actor_ptr>(everywhere);
    },
  };
}

TEST(IndexLinkTest, WhoMayTellNothingAsksOnlyAndKeepsItsShards) {
  auto config = system_config{};
  auto system = caf::actor_system{config};
  auto self = caf::scoped_actor{system};
  const auto seen = std::make_shared<told>();
  const auto shard = system.spawn(run_shard, std::make_shared<sightings>());
  const auto directory = system.spawn(run_strict_directory, shard, seen);
  const auto connector = system.spawn(run_connector, directory);
  {
    auto link
      = index_link{system, connector,
                   std::make_shared<index_addresses>(std::vector<std::string>{"127.0.0.1:1"})};
    ASSERT_TRUE(link.connect(20s));
    // First of the address that the user named, then of the one in the map; and when the map is
    // another one than the last.
    link.heard(12345);
    ASSERT_EQ(seen->third_question.get_future().wait_for(20s), std::future_status::ready);
    EXPECT_EQ(seen->maps, 1);
    EXPECT_EQ(link.view()->shards, std::vector<index_actor>{shard});
  }
  for (const auto& each :
       {caf::actor_cast<caf::actor>(shard), caf::actor_cast<caf::actor>(directory),
        caf::actor_cast<caf::actor>(connector)})
    self->send_exit(each, caf::exit_reason::user_shutdown);
}

} // namespace
} // namespace hicache
