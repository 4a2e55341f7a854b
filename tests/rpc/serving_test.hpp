#pragma once

#include "rpc/network.hpp"
#include "tests/rpc/process.hpp"
#include "tests/rpc/served_actors.hpp"

#include <caf/actor_cast.hpp>
#include <caf/send.hpp>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>

namespace hicache::test {

/// A process that serves a shard, a directory and a member, and one that asks them.
class ServingTest : public ::testing::Test {
protected:
  void TearDown() override {
    if (!member_)
      return;
    server_->network.stop_serving();
    for (const auto& each :
         {caf::actor_cast<caf::actor>(shard_), caf::actor_cast<caf::actor>(directory_),
          caf::actor_cast<caf::actor>(member_)})
      caf::anon_send_exit(each, caf::exit_reason::user_shutdown);
  }

  void serve(const index_serving& how = {true, std::chrono::seconds{2}},
             const tls_files& tls = {}) {
    server_ = std::make_unique<process>(tls);
    shard_ = server_->system.spawn(run_shard, seen_);
    directory_ = server_->system.spawn(run_directory, shard_);
    member_ = server_->system.spawn(run_member, seen_);
    auto at = rpc_network::listen({"127.0.0.1", 0}).value();
    address_ = to_string(at.where());
    server_->network.serve(std::move(at), directory_, how);
    auto member_at = rpc_network::listen({"127.0.0.1", 0}).value();
    member_address_ = to_string(member_at.where());
    server_->network.serve(std::move(member_at), member_);
  }

  template <class Answer, class Handle, class... Args>
  result<Answer> ask(const Handle& to, Args... args) {
    return ask_of<Answer>(*client_, to, std::move(args)...);
  }

  result<directory_actor> connect() {
    auto found
      = ask<caf::strong_actor_ptr>(client_->network.connector(), atom::connect_v, address_);
    if (!found)
      return tl::unexpected{found.error()};
    return caf::actor_cast<directory_actor>(*found);
  }

  index_actor shard() {
    const auto directory = connect();
    EXPECT_TRUE(directory) << to_string(directory.error());
    auto found = ask<caf::strong_actor_ptr>(*directory, atom::locate_v, uint32_t{0});
    EXPECT_TRUE(found) << to_string(found.error());
    return caf::actor_cast<index_actor>(*found);
  }

  std::shared_ptr<sightings> seen_ = std::make_shared<sightings>();
  std::unique_ptr<process> server_;
  std::unique_ptr<process> client_ = std::make_unique<process>();
  index_actor shard_;
  directory_actor directory_;
  member_actor member_;
  std::string address_;
  std::string member_address_;
};

} // namespace hicache::test
