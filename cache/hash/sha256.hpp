#pragma once

#include "hicache/ids.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

using EVP_MD_CTX = struct evp_md_ctx_st;

namespace hicache {

/// Reusable SHA-256: setting one up costs more than hashing a page. Single-threaded.
class sha256 {
public:
  sha256();

  sha256& add(const void* data, size_t bytes);

  sha256& add(std::string_view text) { return add(text.data(), text.size()); }

  /// As 8 bytes, little endian.
  sha256& add_number(uint64_t number);

  /// Length-prefixed text.
  sha256& add_framed(std::string_view text) { return add_number(text.size()).add(text); }

  /// Returns the digest of what was added and starts over.
  page_key finish();

private:
  std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context_;
};

} // namespace hicache
