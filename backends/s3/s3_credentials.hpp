#pragma once

#include "backends/s3/s3_signature.hpp"
#include "hicache/error.hpp"

#include <string>
#include <string_view>

namespace hicache {

/// Where credentials come from.
struct s3_credential_source {
  /// A file as AWS's tools keep in ~/.aws/credentials. Empty: the environment variables
  /// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN.
  std::string file;
  /// The section of the file.
  std::string profile = "default";
};

/// Reads the credentials from the text of a file.
/// @returns invalid_argument if the profile or a key of it is missing
result<s3_credentials> parse_s3_credentials(std::string_view text, std::string_view profile);

/// @returns invalid_argument or io_failure, with a sentence
result<s3_credentials> load_s3_credentials(const s3_credential_source& source);

} // namespace hicache
