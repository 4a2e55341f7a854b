#pragma once

#include "backends/serde/object_header.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

using EVP_CIPHER = struct evp_cipher_st;

namespace hicache::serde {

/// A key of AES-256. Zeroed when destroyed or moved from; cannot be copied.
class secret_key {
public:
  static constexpr size_t size = 32;

  secret_key() = default;
  secret_key(secret_key&& other) noexcept;
  secret_key& operator=(secret_key&& other) noexcept;
  ~secret_key();

  std::span<std::byte, size> bytes() noexcept { return bytes_; }
  std::span<const std::byte, size> bytes() const noexcept { return bytes_; }

private:
  std::array<std::byte, size> bytes_{};
};

/// Overwrites memory that held a secret, in a way that the compiler does not remove.
void wipe(std::span<std::byte> memory) noexcept;

using gcm_nonce = std::span<const std::byte, 12>;

/// AES-256-GCM by OpenSSL. Immutable; any thread.
class aes_gcm {
public:
  aes_gcm();

  /// Encrypts in place.
  /// @param associated Authenticated, not encrypted; concatenated.
  /// @returns io_failure if OpenSSL fails
  result<object_seal> seal(const secret_key& key, gcm_nonce nonce,
                           std::span<const std::span<const std::byte>> associated,
                           std::span<std::byte> text) const;

  /// Decrypts in place.
  /// @returns false if anything but what was sealed is given; the text is unspecified then
  bool open(const secret_key& key, gcm_nonce nonce,
            std::span<const std::span<const std::byte>> associated, const object_seal& seal,
            std::span<std::byte> text) const;

  /// The key for one object, from a key and the first half of the object's nonce: the key
  /// derivation of XAES-256-GCM (C2SP), a KDF of NIST SP 800-108r1 by CMAC. With a nonce of 24
  /// bytes, objects may be sealed under random nonces without counting them.
  result<secret_key> derive(const secret_key& key, gcm_nonce nonce) const;

private:
  struct free_cipher {
    void operator()(EVP_CIPHER* cipher) const noexcept;
  };

  std::unique_ptr<EVP_CIPHER, free_cipher> gcm_;
  std::unique_ptr<EVP_CIPHER, free_cipher> block_;
};

/// Makes nonces that never repeat: 16 bytes of OpenSSL's random generator, fresh for each object,
/// and a count of the objects of this process. Within a process the count differs, even if the
/// generator failed to be random; two processes, or copies of one after a fork or a snapshot, would
/// need equal counts and the same 128 random bits. Any thread.
class nonce_source {
public:
  /// @returns io_failure if there is no randomness
  result<object_nonce> next();

private:
  std::atomic<uint64_t> count_ = 0;
};

} // namespace hicache::serde
