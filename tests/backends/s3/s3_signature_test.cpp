// The examples of "Signature Calculations for the Authorization Header" in the API reference of S3.

#include "backends/s3/s3_signature.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

namespace hicache::test {
namespace {

const auto credentials
  = s3_credentials{"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", ""};

constexpr auto may_24
  = std::chrono::sys_seconds{std::chrono::sys_days{std::chrono::year{2013} / 5 / 24}};

constexpr auto no_body = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

s3_signed_parts request(std::string_view method, std::string_view path,
                        std::string_view query = "") {
  return {method, "examplebucket.s3.amazonaws.com", path, query, {}};
}

std::string signature_of(s3_signed_parts parts, std::string_view hash = no_body) {
  const auto headers = sign_s3(std::move(parts), credentials, "us-east-1", hash, may_24);
  const auto& text = headers.at("authorization");
  return text.substr(text.find("Signature=") + 10);
}

TEST(S3SignatureTest, HashesTheBytesOfAllParts) {
  EXPECT_EQ(sha256_of({}), no_body);
  const auto text = std::string{"Welcome to Amazon S3."};
  const auto bytes = std::as_bytes(std::span{text});
  const auto parts = std::array{bytes.first(3), bytes.subspan(3)};
  EXPECT_EQ(sha256_of(parts), "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072");
}

TEST(S3SignatureTest, AGetOfARange) {
  auto get = request("GET", "/test.txt");
  get.headers["range"] = "bytes=0-9";
  const auto headers = sign_s3(get, credentials, "us-east-1", no_body, may_24);
  EXPECT_EQ(headers.at("authorization"),
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,"
            "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,"
            "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
  EXPECT_EQ(headers.at("x-amz-date"), "20130524T000000Z");
  EXPECT_EQ(headers.at("range"), "bytes=0-9");
  EXPECT_FALSE(headers.contains("x-amz-security-token"));
}

TEST(S3SignatureTest, APut) {
  auto put = request("PUT", "/test%24file.text");
  put.headers["date"] = "Fri, 24 May 2013 00:00:00 GMT";
  put.headers["x-amz-storage-class"] = "REDUCED_REDUNDANCY";
  EXPECT_EQ(signature_of(put, "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"),
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
}

TEST(S3SignatureTest, QueriesWithAndWithoutValues) {
  EXPECT_EQ(signature_of(request("GET", "/", "lifecycle=")),
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
  EXPECT_EQ(signature_of(request("GET", "/", "max-keys=2&prefix=J")),
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

TEST(S3SignatureTest, TemporaryCredentialsSendTheirToken) {
  auto temporary = credentials;
  temporary.session_token = "token";
  const auto headers = sign_s3(request("GET", "/"), temporary, "us-east-1", no_body, may_24);
  EXPECT_EQ(headers.at("x-amz-security-token"), "token");
  EXPECT_NE(headers.at("authorization").find("x-amz-date;x-amz-security-token,"),
            std::string::npos);
}

} // namespace
} // namespace hicache::test
