#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>

/// Signature Version 4 of AWS, by "Signature Calculations for the Authorization Header" of the API
/// reference of Amazon S3. Functions of values.
namespace hicache {

struct s3_credentials {
  std::string access_key;
  std::string secret_key;
  /// Of temporary credentials, else empty.
  std::string session_token;

  friend bool operator==(const s3_credentials&, const s3_credentials&) = default;
};

/// Headers of a request by their names in lower case.
using s3_headers = std::map<std::string, std::string>;

/// The parts of an HTTP request that a signature covers.
struct s3_signed_parts {
  std::string_view method;
  /// Value of the header Host.
  std::string_view host;
  /// Percent-encoded.
  std::string_view path;
  /// Percent-encoded, sorted by name, each name followed by '=': "partNumber=1&uploadId=x".
  std::string_view query;
  /// Further headers.
  s3_headers headers;
};

/// Takes the place of the hash of a body that is not part of the signature.
inline constexpr auto s3_unsigned_payload = std::string_view{"UNSIGNED-PAYLOAD"};

/// SHA-256 of the parts' bytes, in hexadecimal digits.
std::string sha256_of(std::span<const std::span<const std::byte>> parts);

/// @param payload_hash `sha256_of` the body, or s3_unsigned_payload.
/// @returns the headers to send: those of `request`, and those of the signature
s3_headers sign_s3(s3_signed_parts request, const s3_credentials& credentials,
                   std::string_view region, std::string_view payload_hash,
                   std::chrono::sys_seconds now);

} // namespace hicache
