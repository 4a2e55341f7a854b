// What peers may ask, by the role in their certificate.

#include "rpc/network.hpp"
#include "tests/backends/temporary_folder.hpp"
#include "tests/rpc/authority.hpp"
#include "tests/rpc/serving_test.hpp"

#include <caf/actor_cast.hpp>
#include <caf/send.hpp>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace hicache {
namespace {

using namespace std::chrono_literals;
using namespace hicache::test;

class RoleTest : public ServingTest {
protected:
  tls_files files_of(const std::string& name, const std::vector<std::string>& units) const {
    const auto path = folder_.path() + "/" + name;
    std::filesystem::create_directories(path);
    return ours_.sign_into(path, units);
  }

  void serve(const std::vector<std::string>& units) {
    ServingTest::serve({true, 8s}, files_of("server", units));
  }

  /// A process with certificates of that kind connects.
  void connect_as(const std::vector<std::string>& units) {
    client_ = std::make_unique<process>(files_of("client", units));
    const auto directory = connect();
    ASSERT_TRUE(directory) << to_string(directory.error());
    to_directory_ = *directory;
    to_shard_ = shard();
    to_member_ = client_->network.member_at(member_address_);
  }

  /// Asks for everything that a peer can ask for.
  /// @returns what was refused for the peer's role
  std::set<std::string> refused() {
    auto all = std::set<std::string>{};
    const auto note = [&](const char* name, const auto& answer) {
      if (answer || answer.error().code != ec::not_permitted)
        return;
      all.insert(name);
      EXPECT_NE(answer.error().detail.find("CN=process"), std::string::npos) << name;
      EXPECT_NE(answer.error().detail.find(" may not "), std::string::npos) << name;
    };
    const auto key = page_key{};
    auto joining = shard_map{{{4, "here:1", 10}}};
    auto giving_up = shard_map{{{4, {}, 10}}};
    auto member = member_info{};
    member.member = 1;
    note("ask for the map", ask<shard_map>(to_directory_, atom::shards_v, shard_map{}));
    note("join", ask<shard_map>(to_directory_, atom::shards_v, joining));
    note("give up a shard", ask<shard_map>(to_directory_, atom::shards_v, giving_up));
    note("locate", ask<placements>(to_shard_, atom::locate_v, key_batch{{key}}));
    note("await", ask<atom::ok>(to_shard_, atom::await_v, awaited_pages{{key}, {0}, 1}));
    note("members", ask<member_list>(to_shard_, atom::members_v, member_query{}));
    note("status", ask<index_status>(to_shard_, atom::status_v, status_query{}));
    note("mount", ask<membership>(to_shard_, atom::mount_v, member));
    note("heartbeat", ask<membership>(to_shard_, atom::tick_v, heartbeat{}));
    note("publish", ask<membership>(to_shard_, atom::publish_v, published_pages{}));
    note("withdraw", ask<membership>(to_shard_, atom::withdraw_v, withdrawn_pages{}));
    note("copy", ask<page_totals>(to_member_, atom::copy_v, page_copies{}));
    note("progress", ask<drain_progress>(to_member_, atom::status_v, status_query{}));
    note("recall", ask<placements>(to_member_, atom::recall_v, page_recall{}));
    note("pin", ask<page_totals>(to_member_, atom::pin_v, page_pins{}));
    note("clear", ask<page_totals>(to_member_, atom::clear_v, namespace_pages{}));
    note("drain", ask<drain_report>(to_member_, atom::drain_v, drain_request{}));
    note("resume", ask<drain_progress>(to_member_, atom::resume_v, drain_request{}));
    return all;
  }

  authority ours_{"ours"};
  temporary_folder folder_;
  directory_actor to_directory_;
  index_actor to_shard_;
  member_actor to_member_;
};

using names = std::set<std::string>;

const auto of_members = names{"join", "mount", "heartbeat", "publish", "withdraw", "copy"};
const auto of_operators = names{"pin", "clear", "drain", "resume"};

names both() {
  auto all = of_members;
  all.insert(of_operators.begin(), of_operators.end());
  return all;
}

TEST_F(RoleTest, AReaderMayLookUpAndAskForTheStateOfThingsOnly) {
  serve({"hicache:member"});
  connect_as({"hicache:reader"});
  auto expected = both();
  expected.insert("give up a shard");
  EXPECT_EQ(refused(), expected);
}

TEST_F(RoleTest, AMemberMayNotDoWhatOperatorsDo) {
  serve({"hicache:member"});
  connect_as({"hicache:member"});
  EXPECT_EQ(refused(), of_operators);
}

TEST_F(RoleTest, AnOperatorMayNotDoWhatMembersDo) {
  serve({"hicache:member"});
  connect_as({"hicache:operator"});
  EXPECT_EQ(refused(), of_members);
}

TEST_F(RoleTest, WhoHasNoRoleMayDoEverything) {
  serve({});
  connect_as({});
  EXPECT_EQ(refused(), names{});
}

TEST_F(RoleTest, RolesAddUp) {
  serve({"hicache:member", "hicache:operator"});
  connect_as({"hicache:member", "hicache:operator"});
  EXPECT_EQ(refused(), names{});
}

TEST_F(RoleTest, AReadersNewsOfReadPagesArrives) {
  serve({"hicache:member"});
  connect_as({"hicache:reader"});
  caf::anon_send(to_member_, atom::touch_v, key_batch{std::vector<page_key>(3)});
  // What is asked later is answered later.
  ASSERT_TRUE(ask<drain_progress>(to_member_, atom::status_v, status_query{}));
  EXPECT_EQ(seen_->touched, 3u);
}

TEST_F(RoleTest, ARefusalSaysWhoMayNotDoWhatAndWhy) {
  serve({"hicache:member"});
  connect_as({"hicache:reader"});
  const auto answer = ask<drain_report>(to_member_, atom::drain_v, drain_request{});
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error(), (error{ec::not_permitted,
                                   "CN=process, OU=hicache:reader may not drain a member: the role "
                                   "in its certificate is reader, and that takes the role "
                                   "operator"}));
}

class OtherRoleTest : public RoleTest, public ::testing::WithParamInterface<const char*> {};

INSTANTIATE_TEST_SUITE_P(Roles, OtherRoleTest, ::testing::Values("reader", "operator"),
                         [](const auto& x) { return std::string{x.param}; });

TEST_P(OtherRoleTest, IsNotAskedAsAnIndexOrMember) {
  serve({std::string{"hicache:"} + GetParam()});
  client_ = std::make_unique<process>(files_of("client", {}));
  const auto found = connect();
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error(), (error{ec::not_permitted, address_
                                                       + ": the role in its certificate is not "
                                                         "that of a member"}));
  to_member_ = client_->network.member_at(member_address_);
  const auto totals = ask<page_totals>(to_member_, atom::pin_v, page_pins{});
  ASSERT_FALSE(totals);
  EXPECT_EQ(totals.error().code, ec::not_permitted);
}

} // namespace
} // namespace hicache
