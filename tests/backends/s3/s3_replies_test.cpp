#include "backends/s3/s3_credentials.hpp"
#include "backends/s3/s3_replies.hpp"

#include <gtest/gtest.h>

#include <array>
#include <string>

namespace hicache::test {
namespace {

TEST(S3RepliesTest, AFaultHasACodeAndAMessage) {
  const auto fault = parse_s3_fault("<?xml version=\"1.0\"?><Error><Code>NoSuchKey</Code>"
                                    "<Message>No &amp; never</Message><Key>x</Key></Error>");
  EXPECT_EQ(fault.code, "NoSuchKey");
  EXPECT_EQ(fault.message, "No & never");
  for (const auto* const other : {"", "no XML", "<Error", "<Other><Code>x</Code></Other>"})
    EXPECT_EQ(parse_s3_fault(other).code, "") << other;
}

TEST(S3RepliesTest, AnUploadHasAnId) {
  EXPECT_EQ(parse_upload_id("<InitiateMultipartUploadResult xmlns=\"x\"><UploadId>a/b+c</UploadId>"
                            "</InitiateMultipartUploadResult>"),
            "a/b+c");
  EXPECT_EQ(
    parse_upload_id("<InitiateMultipartUploadResult><UploadId/></InitiateMultipartUploadResult>"),
    std::nullopt);
  EXPECT_EQ(parse_upload_id("<Error><UploadId>1</UploadId></Error>"), std::nullopt);
}

TEST(S3RepliesTest, AListSaysWhereTheNextPartBegins) {
  const auto text = [](const char* more) {
    return std::string{"<ListBucketResult xmlns=\"x\"><Contents><Key>a/1</Key><Size>70</Size>"
                       "</Contents><Contents><Key>a/2</Key><Size>x</Size></Contents>"}
           + more + "</ListBucketResult>";
  };
  const auto part = parse_s3_listing(
    text("<IsTruncated>true</IsTruncated><NextContinuationToken>b+c/</NextContinuationToken>"));
  ASSERT_TRUE(part);
  ASSERT_EQ(part->objects.size(), 2u);
  EXPECT_EQ(part->objects[0].name, "a/1");
  EXPECT_EQ(part->objects[0].bytes, 70u);
  EXPECT_EQ(part->objects[1].bytes, 0u) << "no number";
  EXPECT_EQ(part->next, "b+c/");
  EXPECT_EQ(parse_s3_listing(text("<IsTruncated>false</IsTruncated>"))->next, "");
  for (const auto* const other : {"", "no XML", "<Error/>", "<ListBucketResult>"})
    EXPECT_FALSE(parse_s3_listing(other)) << other;
}

TEST(S3RepliesTest, AnUploadMayFailWithAGoodStatus) {
  EXPECT_TRUE(is_completed_upload(
    "<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>"));
  EXPECT_TRUE(is_completed_upload("  <?xml version=\"1.0\"?>\n<CompleteMultipartUploadResponse/>"));
  EXPECT_FALSE(is_completed_upload("<Error><Code>InternalError</Code></Error>"));
  EXPECT_FALSE(is_completed_upload(""));
}

TEST(S3RepliesTest, TheEndOfAnUploadListsItsParts) {
  const auto etags = std::array<std::string, 2>{"\"one\"", "<two>"};
  EXPECT_EQ(completion_of(etags), "<CompleteMultipartUpload>"
                                  "<Part><PartNumber>1</PartNumber><ETag>\"one\"</ETag></Part>"
                                  "<Part><PartNumber>2</PartNumber><ETag>&lt;two&gt;</ETag></Part>"
                                  "</CompleteMultipartUpload>");
}

TEST(S3RepliesTest, ARangeLiesInItsTotal) {
  const auto range = parse_content_range("bytes 10-19/1234");
  ASSERT_TRUE(range);
  EXPECT_EQ(range->first, 10u);
  EXPECT_EQ(range->last, 19u);
  EXPECT_EQ(range->total, 1234u);
  for (const auto* const wrong :
       {"", "bytes", "bytes 0-9/*", "bytes */10", "bytes 0-10/10", "bytes 5-4/10", "bytes 0-9/10 ",
        "bytes -1-9/10", "items 0-9/10", "bytes 0-9/99999999999999999999"})
    EXPECT_FALSE(parse_content_range(wrong)) << wrong;
}

TEST(S3CredentialsTest, AreTheKeysOfAProfile) {
  constexpr auto text = "# comment\n[default]\naws_access_key_id=A\naws_secret_access_key=S==\n\n"
                        "[ other ]\r\naws_access_key_id = B\r\naws_secret_access_key = T\r\n"
                        "aws_session_token = U\r\nregion = x\r\n[half]\naws_access_key_id = C\n";
  EXPECT_EQ(parse_s3_credentials(text, "default"), (s3_credentials{"A", "S==", ""}));
  EXPECT_EQ(parse_s3_credentials(text, "other"), (s3_credentials{"B", "T", "U"}));
  EXPECT_EQ(parse_s3_credentials(text, "half").error().detail,
            "profile [half] is incomplete; expected aws_access_key_id and aws_secret_access_key");
  EXPECT_EQ(parse_s3_credentials(text, "none").error().detail, "there is no profile [none]");
  EXPECT_FALSE(parse_s3_credentials("[", "default"));
}

} // namespace
} // namespace hicache::test
