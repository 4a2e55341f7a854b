#pragma once

#include "actors/directory.hpp"
#include "actors/index.hpp"
#include "launch/cluster_member.hpp"
#include "messages/system_config.hpp"
#include "rpc/network.hpp"

#include <caf/actor_system.hpp>
#include <caf/scoped_actor.hpp>
#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace hicache::test {

/// An index of one shard, on a free port of this machine.
class local_index {
public:
  local_index() {
    shard_ = system_.spawn(index, index_options{std::chrono::seconds{10}, &clock_});
    auto options = directory_options{};
    options.shards.emplace(0, shard_);
    options.connector = network_.connector();
    directory_ = system_.spawn(directory, std::move(options));
    auto socket = rpc_network::listen({"127.0.0.1", 0});
    EXPECT_TRUE(socket) << "no free port";
    address_ = to_string(socket->where());
    network_.serve(std::move(*socket), directory_, {true, std::chrono::seconds{8}});
    caf::anon_send(directory_, atom::start_v, address_);
  }

  ~local_index() {
    network_.stop_serving();
    auto self = caf::scoped_actor{system_};
    for (const auto& each :
         {caf::actor_cast<caf::actor>(directory_), caf::actor_cast<caf::actor>(shard_)}) {
      self->send_exit(each, caf::exit_reason::user_shutdown);
      self->wait_for(each);
    }
  }

  const std::string& address() const noexcept { return address_; }

  caf::actor_system& system() noexcept { return system_; }

  const index_actor& shard() const noexcept { return shard_; }

private:
  const monotonic_clock clock_;
  system_config config_;
  caf::actor_system system_{config_};
  rpc_network network_{system_, {}};
  index_actor shard_;
  directory_actor directory_;
  std::string address_;
};

/// A process of the cluster store, as far as one process can be several.
class local_member {
public:
  local_member(const local_index& index, cluster_member_options options) {
    options.index = index.address();
    options.listen_host = "127.0.0.1";
    if (options.clock == nullptr)
      options.clock = &clock_;
    auto joined = cluster_member::join(system_, std::move(options));
    EXPECT_TRUE(joined) << to_string(joined.error());
    if (joined)
      member_ = std::move(*joined);
  }

  cluster_member& operator*() noexcept { return *member_; }

private:
  const monotonic_clock clock_;
  system_config config_;
  caf::actor_system system_{config_};
  std::unique_ptr<cluster_member> member_;
};

} // namespace hicache::test
