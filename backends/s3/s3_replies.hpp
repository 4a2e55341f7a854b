#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// What an S3 server answers, and the one document that it is sent. Servers are untrusted.
namespace hicache {

/// The body of a refusal.
struct s3_fault {
  /// "NoSuchKey"; empty if the body has none.
  std::string code;
  std::string message;
};

s3_fault parse_s3_fault(std::string_view body);

/// The answer to the start of a multipart upload.
/// @returns nothing if there is no upload in it
std::optional<std::string> parse_upload_id(std::string_view body);

/// A part of the list of a bucket's objects.
struct s3_listing {
  struct object {
    std::string name;
    uint64_t bytes = 0;
  };

  std::vector<object> objects;
  /// Where the next part begins; empty after the last one.
  std::string next;
};

/// The answer to ListObjectsV2.
/// @returns nothing if there is no list in it
std::optional<s3_listing> parse_s3_listing(std::string_view body);

/// Whether the answer to the end of a multipart upload says that the object is there. The status of
/// such a reply is 200 even if it is not.
bool is_completed_upload(std::string_view body);

/// The request that ends a multipart upload.
/// @param etags Of its parts, in order.
std::string completion_of(std::span<const std::string> etags);

/// Value of the header Content-Range: "bytes 0-99/1234".
struct s3_content_range {
  uint64_t first = 0;
  uint64_t last = 0;
  uint64_t total = 0;
};

/// @returns nothing if it is no range of bytes in a known total
std::optional<s3_content_range> parse_content_range(std::string_view value);

} // namespace hicache
