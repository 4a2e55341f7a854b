#include "cache/hash/sha256.hpp"

#include "base/check.hpp"

#include <openssl/evp.h>

#include <endian.h>

namespace hicache {

sha256::sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
  HICACHE_CHECK(context_ != nullptr);
  static const auto* const algorithm = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  HICACHE_CHECK(algorithm != nullptr);
  HICACHE_CHECK(EVP_DigestInit_ex2(context_.get(), algorithm, nullptr) == 1);
}

sha256& sha256::add(const void* data, size_t bytes) {
  HICACHE_CHECK(EVP_DigestUpdate(context_.get(), data, bytes) == 1);
  return *this;
}

sha256& sha256::add_number(uint64_t number) {
  const auto bytes = htole64(number);
  return add(&bytes, sizeof(bytes));
}

page_key sha256::finish() {
  auto key = page_key{};
  HICACHE_CHECK(EVP_DigestFinal_ex(context_.get(), key.bytes.data(), nullptr) == 1);
  HICACHE_CHECK(EVP_DigestInit_ex2(context_.get(), nullptr, nullptr) == 1);
  return key;
}

} // namespace hicache
