#pragma once

#include "actors/directory.hpp"
#include "actors/index.hpp"
#include "hicache/system_config.hpp"
#include "rpc/network.hpp"
#include "runtime/cluster_member.hpp"

#include <caf/actor_system.hpp>
#include <caf/scoped_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

namespace hicache::test {

/// A process of the index with one shard, on a free port of this machine.
class local_index {
public:
  /// @param number Of the shard.
  /// @param others Addresses of processes that it joins.
  explicit local_index(uint32_t number = 0, std::vector<std::string> others = {}) {
    shard_ = system_.spawn(index, index_options{std::chrono::seconds{10}, &clock_});
    front_ = system_.spawn(run_front, shard_, is_silent_, ignores_announcements_);
    auto options = directory_options{};
    options.shards.emplace(number, front_);
    options.others = [others = std::move(others)] { return others; };
    options.pause = std::chrono::milliseconds{50};
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
         {caf::actor_cast<caf::actor>(directory_), caf::actor_cast<caf::actor>(front_),
          caf::actor_cast<caf::actor>(shard_)}) {
      self->send_exit(each, caf::exit_reason::user_shutdown);
      self->wait_for(each);
    }
  }

  const std::string& address() const noexcept { return address_; }

  caf::actor_system& system() noexcept { return system_; }

  const index_actor& shard() const noexcept { return shard_; }

  const directory_actor& entrance() const noexcept { return directory_; }

  /// From now on look-ups get no answer.
  void fall_silent() { *is_silent_ = true; }

  /// From now on announcements get no answer, and have no effect.
  void ignore_announcements() { *ignores_announcements_ = true; }

private:
  /// The shard as others see it.
  static index_actor::behavior_type
  run_front(index_actor::pointer self, const index_actor& shard,
            std::shared_ptr<std::atomic<bool>> is_silent,
            std::shared_ptr<std::atomic<bool>> ignores_announcements) {
    return {
      [=](atom::mount, const member_info& x) { return self->delegate(shard, atom::mount_v, x); },
      [=](atom::tick, const heartbeat& x) { return self->delegate(shard, atom::tick_v, x); },
      [=](atom::publish, const published_pages& x) -> caf::result<membership> {
        if (*ignores_announcements)
          return self->make_response_promise<membership>();
        return self->delegate(shard, atom::publish_v, x);
      },
      [=](atom::withdraw, const withdrawn_pages& x) {
        return self->delegate(shard, atom::withdraw_v, x);
      },
      [=](atom::locate, const key_batch& x) -> caf::result<placements> {
        if (*is_silent)
          return self->make_response_promise<placements>();
        return self->delegate(shard, atom::locate_v, x);
      },
      [=](atom::await, const awaited_pages& x) { return self->delegate(shard, atom::await_v, x); },
      [=](atom::members, const member_query& x) {
        return self->delegate(shard, atom::members_v, x);
      },
      [=](atom::status, const status_query& x) { return self->delegate(shard, atom::status_v, x); },
      [=](atom::shards, uint64_t digest) { self->send(shard, atom::shards_v, digest); },
      [](atom::poll) {},
      [](atom::drop) {},
      [](atom::await, uint64_t) {},
    };
  }

  const monotonic_clock clock_;
  system_config config_;
  caf::actor_system system_{config_};
  rpc_network network_{system_, {}};
  index_actor shard_;
  std::shared_ptr<std::atomic<bool>> is_silent_ = std::make_shared<std::atomic<bool>>(false);
  std::shared_ptr<std::atomic<bool>> ignores_announcements_
    = std::make_shared<std::atomic<bool>>(false);
  index_actor front_;
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
