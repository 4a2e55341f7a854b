#include "backends/s3/s3_signature.hpp"

#include <absl/strings/escaping.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <ctime>
#include <initializer_list>
#include <memory>
#include <utility>

namespace hicache {

namespace {

constexpr auto algorithm = std::string_view{"AWS4-HMAC-SHA256"};

std::string joined(std::initializer_list<std::string_view> texts, std::string_view separator) {
  auto all = std::string{};
  for (const auto text : texts)
    all.append(text).append(separator);
  all.resize(all.size() - separator.size());
  return all;
}

std::string hmac(std::string_view key, std::string_view text) {
  auto digest = std::string(EVP_MAX_MD_SIZE, '\0');
  auto size = unsigned{0};
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(),
       reinterpret_cast<unsigned char*>(digest.data()), &size);
  digest.resize(size);
  return digest;
}

std::string sha256_of_text(std::string_view text) {
  const auto part = std::as_bytes(std::span{text});
  return sha256_of({&part, 1});
}

/// The time as 20130524T000000Z.
std::string stamp_of(std::chrono::sys_seconds now) {
  const auto seconds = std::chrono::system_clock::to_time_t(now);
  auto fields = std::tm{};
  ::gmtime_r(&seconds, &fields);
  auto text = std::string(17, '\0');
  text.resize(std::strftime(text.data(), text.size(), "%Y%m%dT%H%M%SZ", &fields));
  return text;
}

} // namespace

std::string sha256_of(std::span<const std::span<const std::byte>> parts) {
  const auto context
    = std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)>{EVP_MD_CTX_new(), &EVP_MD_CTX_free};
  EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr);
  for (const auto& part : parts)
    EVP_DigestUpdate(context.get(), part.data(), part.size());
  auto digest = std::string(EVP_MAX_MD_SIZE, '\0');
  auto size = unsigned{0};
  EVP_DigestFinal_ex(context.get(), reinterpret_cast<unsigned char*>(digest.data()), &size);
  digest.resize(size);
  return absl::BytesToHexString(digest);
}

s3_headers sign_s3(s3_signed_parts request, const s3_credentials& credentials,
                   std::string_view region, std::string_view payload_hash,
                   std::chrono::sys_seconds now) {
  const auto stamp = stamp_of(now);
  const auto day = stamp.substr(0, 8);
  auto headers = std::move(request.headers);
  headers["host"] = request.host;
  headers["x-amz-content-sha256"] = payload_hash;
  headers["x-amz-date"] = stamp;
  if (!credentials.session_token.empty())
    headers["x-amz-security-token"] = credentials.session_token;
  auto lines = std::string{};
  auto names = std::string{};
  for (const auto& [name, value] : headers) {
    lines += name + ":" + value + "\n";
    names += (names.empty() ? "" : ";") + name;
  }
  const auto canonical
    = joined({request.method, request.path, request.query, lines, names, payload_hash}, "\n");
  const auto scope = joined({day, region, "s3", "aws4_request"}, "/");
  const auto text = joined({algorithm, stamp, scope, sha256_of_text(canonical)}, "\n");
  const auto key
    = hmac(hmac(hmac(hmac("AWS4" + credentials.secret_key, day), region), "s3"), "aws4_request");
  headers["authorization"]
    = joined({algorithm, " Credential=", credentials.access_key, "/", scope,
              ",SignedHeaders=", names, ",Signature=", absl::BytesToHexString(hmac(key, text))},
             "");
  return headers;
}

} // namespace hicache
