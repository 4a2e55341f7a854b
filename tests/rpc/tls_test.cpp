// Connections of TLS: who gets one, and which files they use.

#include "base/limits.hpp"
#include "rpc/network.hpp"
#include "tests/rpc/authority.hpp"
#include "tests/rpc/process.hpp"
#include "tests/rpc/served_actors.hpp"

#include <caf/actor_cast.hpp>
#include <caf/send.hpp>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

namespace hicache {
namespace {

using namespace std::chrono_literals;
using namespace hicache::test;

class TlsTest : public ::testing::Test {
protected:
  void SetUp() override {
    auto pattern = testing::TempDir() + "hicache-tls-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }

  void TearDown() override {
    if (server_) {
      server_->network.stop_serving();
      caf::anon_send_exit(shard_, caf::exit_reason::user_shutdown);
      caf::anon_send_exit(directory_, caf::exit_reason::user_shutdown);
    }
    server_.reset();
    std::filesystem::remove_all(folder_);
  }

  std::string folder(const std::string& name) const {
    const auto path = folder_ + "/" + name;
    std::filesystem::create_directories(path);
    return path;
  }

  void serve(const tls_files& files) {
    ASSERT_TRUE(files.check());
    server_ = std::make_unique<process>(files);
    shard_ = server_->system.spawn(run_shard, std::make_shared<sightings>());
    directory_ = server_->system.spawn(run_directory, shard_);
    auto at = rpc_network::listen({"127.0.0.1", 0}).value();
    address_ = to_string(at.where());
    server_->network.serve(std::move(at), directory_, {true, 8s});
  }

  /// A longest look-up by a process with these files.
  /// @returns how many keys were answered
  result<size_t> look_up(const tls_files& files) const {
    auto client = process{files};
    auto directory = ask_of<caf::strong_actor_ptr>(client, client.network.connector(),
                                                   atom::connect_v, address_);
    if (!directory)
      return tl::unexpected{directory.error()};
    auto shard = ask_of<caf::strong_actor_ptr>(client, caf::actor_cast<directory_actor>(*directory),
                                               atom::locate_v, uint32_t{0});
    if (!shard)
      return tl::unexpected{shard.error()};
    auto found = ask_of<placements>(client, caf::actor_cast<index_actor>(*shard), atom::locate_v,
                                    key_batch{std::vector<page_key>(limits::index_batch_keys)});
    if (!found)
      return tl::unexpected{found.error()};
    return found->replicas.size();
  }

  std::string folder_;
  std::unique_ptr<process> server_;
  index_actor shard_;
  directory_actor directory_;
  std::string address_;
};

TEST_F(TlsTest, ProcessesOfOneAuthorityReachEachOther) {
  const auto ours = authority{"ours"};
  serve(ours.sign_into(folder("server")));
  EXPECT_EQ(look_up(ours.sign_into(folder("client"))), limits::index_batch_keys);
}

TEST_F(TlsTest, PeersWithoutACertificateOfTheAuthorityAreRefused) {
  const auto ours = authority{"ours"};
  serve(ours.sign_into(folder("server")));
  const auto foreign = authority{"foreign"}.sign_into(folder("foreign"));
  // Trusts the server, but shows a certificate that the server does not trust.
  auto half = foreign;
  half.ca = folder_ + "/server/ca.crt";
  for (const auto& files : {tls_files{}, foreign, half}) {
    const auto found = look_up(files);
    ASSERT_FALSE(found) << files.certificate;
    EXPECT_EQ(found.error().code, ec::peer_unreachable);
    EXPECT_NE(found.error().detail.find("--tls-ca"), std::string::npos) << found.error().detail;
  }
  EXPECT_TRUE(look_up(ours.sign_into(folder("client")))) << "refusing ends nothing";
}

TEST_F(TlsTest, FilesThatChangeAreReadAgainAndBrokenOnesChangeNothing) {
  const auto old = authority{"old"};
  const auto next = authority{"next"};
  const auto files = old.sign_into(folder("server"));
  serve(files);
  const auto client_of_old = old.sign_into(folder("old"));
  const auto client_of_next = next.sign_into(folder("next"));
  EXPECT_TRUE(look_up(client_of_old));
  EXPECT_FALSE(look_up(client_of_next));
  next.sign_into(folder("server"));
  EXPECT_TRUE(look_up(client_of_next));
  EXPECT_FALSE(look_up(client_of_old));
  authority::replace(files.certificate, [](std::FILE* to) { std::fputs("no certificate", to); });
  EXPECT_TRUE(look_up(client_of_next)) << "what was read before stays";
  EXPECT_FALSE(files.check());
}

} // namespace
} // namespace hicache
