#include "rpc/endpoint.hpp"

#include <gtest/gtest.h>

#include <string>

namespace hicache::rpc {
namespace {

TEST(EndpointTest, HostsPortsAndPathsAreUnderstood) {
  for (const auto* text :
       {"127.0.0.1:7000", "[::1]:80", "host.name:1", "unix:/run/hicache/index"}) {
    const auto where = parse_endpoint(text);
    ASSERT_TRUE(where) << text;
    EXPECT_EQ(to_string(*where), text);
  }
  EXPECT_EQ(parse_endpoint("[::1]:80")->host, "::1");
  EXPECT_TRUE(parse_endpoint("unix:/run/index")->is_path());
  EXPECT_EQ(parse_endpoints("a:1,unix:/b,c:3")->size(), 3u);
}

TEST(EndpointTest, OtherTextsAreRefusedWithASentence) {
  const auto too_long = "unix:/" + std::string(200, 'x');
  for (const auto& text : {std::string{}, std::string{"host"}, std::string{":80"},
                           std::string{"host:70000"}, std::string{"unix:"}, too_long}) {
    const auto where = parse_endpoint(text);
    ASSERT_FALSE(where) << text;
    EXPECT_NE(where.error().detail.find("'" + text + "'"), std::string::npos);
  }
  EXPECT_FALSE(parse_endpoints("a:1,,c:3"));
}

} // namespace
} // namespace hicache::rpc
