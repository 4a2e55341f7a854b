// What a certificate's subject says of its owner's rights.

#include "rpc/peer_identity.hpp"
#include "rpc/tls.hpp"
#include "tests/backends/temporary_folder.hpp"
#include "tests/rpc/authority.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace hicache {
namespace {

using namespace hicache::test;

class PeerIdentityTest : public ::testing::Test {
protected:
  tls_files files_of(const std::vector<std::string>& units) const {
    return ours_.sign_into(folder_.path(), units);
  }

  peer_identity identity_of(const std::vector<std::string>& units) const {
    const auto context = load_tls(files_of(units));
    EXPECT_TRUE(context) << to_string(context.error());
    return identify(*SSL_CTX_get0_certificate(context->get())).value();
  }

  authority ours_{"ours"};
  temporary_folder folder_;
};

TEST_F(PeerIdentityTest, RolesAreUnitsOfTheSubjectAndAddUp) {
  const auto rights_of = [&](const auto& units) { return identity_of(units).rights; };
  using units = std::vector<std::string>;
  EXPECT_EQ(rights_of(units{"hicache:reader"}), (peer_rights{false, false}));
  EXPECT_EQ(rights_of(units{"hicache:member"}), (peer_rights{true, false}));
  EXPECT_EQ(rights_of(units{"hicache:operator"}), (peer_rights{false, true}));
  EXPECT_EQ(rights_of(units{"hicache:reader", "hicache:operator"}), (peer_rights{false, true}));
  EXPECT_EQ(rights_of(units{"hicache:member", "hicache:operator"}), (peer_rights{true, true}));
  EXPECT_EQ(rights_of(units{"rack 7", "hicache:reader"}), (peer_rights{false, false}));
}

TEST_F(PeerIdentityTest, ACertificateWithoutARoleHasAllRights) {
  EXPECT_EQ(identity_of({}).rights, peer_rights{});
  EXPECT_EQ(identity_of({"rack 7", "Hicache:reader"}).rights, peer_rights{});
}

TEST_F(PeerIdentityTest, AnUnknownRoleIsNoCertificateForThisCluster) {
  for (const auto* role : {"hicache:", "hicache:admin", "hicache:Reader", "hicache:member "}) {
    const auto loaded = load_tls(files_of({"hicache:member", role}));
    ASSERT_FALSE(loaded) << role;
    EXPECT_EQ(loaded.error().code, ec::invalid_argument);
    EXPECT_NE(loaded.error().detail.find("--tls-cert"), std::string::npos);
    EXPECT_NE(loaded.error().detail.find("hicache:reader"), std::string::npos);
  }
  const auto cut_off = std::string{"hicache:member\0x", 16};
  EXPECT_FALSE(load_tls(files_of({cut_off})));
}

TEST_F(PeerIdentityTest, SubjectsAreForPeopleWhateverTheyHold) {
  EXPECT_EQ(identity_of({"hicache:reader"}).subject, "CN=process, OU=hicache:reader");
  const auto odd
    = identity_of({"a\nb", std::string(60, 'x'), std::string(60, 'y'), std::string(60, 'z')})
        .subject;
  EXPECT_EQ(odd.find('\n'), std::string::npos);
  EXPECT_LE(odd.size(), 200u);
}

TEST_F(PeerIdentityTest, WhoKeepsPagesForOthersNeedsTheRoleOfAMember) {
  EXPECT_TRUE(check_own_role({}, "exporting memory"));
  for (const auto& units : {std::vector<std::string>{}, {"hicache:member"}})
    EXPECT_TRUE(check_own_role(files_of(units), "exporting memory"));
  const auto refused = check_own_role(files_of({"hicache:reader"}), "exporting memory");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ec::invalid_argument);
  EXPECT_EQ(refused.error().detail,
            "--tls-cert: the role of '" + folder_.path()
              + "/process.crt' is reader, and exporting memory takes that of "
                "a member");
}

} // namespace
} // namespace hicache
