#include "backends/serde/aes_gcm.hpp"

#include "base/check.hpp"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>

#include <algorithm>
#include <cstring>

namespace hicache::serde {

namespace {

constexpr size_t block_bytes = 16;

using block = std::array<uint8_t, block_bytes>;

struct free_context {
  void operator()(EVP_CIPHER_CTX* context) const noexcept { EVP_CIPHER_CTX_free(context); }
};

/// Freeing it wipes the expanded key.
using cipher_context = std::unique_ptr<EVP_CIPHER_CTX, free_context>;

/// OpenSSL counts in int; a multiple of the block size.
constexpr size_t piece_bytes = size_t{1} << 30;

const uint8_t* unsigned_bytes(const std::byte* bytes) {
  return reinterpret_cast<const uint8_t*>(bytes);
}

uint8_t* unsigned_bytes(std::byte* bytes) {
  return reinterpret_cast<uint8_t*>(bytes);
}

tl::unexpected<error> openssl_failure(const char* what) {
  return fail(ec::io_failure, std::string{"OpenSSL could not "} + what);
}

bool add_associated(EVP_CIPHER_CTX* context,
                    std::span<const std::span<const std::byte>> associated) {
  auto length = 0;
  return std::ranges::all_of(associated, [&](auto part) {
    return part.empty()
           || EVP_CipherUpdate(context, nullptr, &length, unsigned_bytes(part.data()),
                               static_cast<int>(part.size()))
                == 1;
  });
}

bool transform(EVP_CIPHER_CTX* context, std::span<std::byte> text) {
  while (!text.empty()) {
    const auto piece = text.first(std::min(text.size(), piece_bytes));
    auto* const bytes = unsigned_bytes(piece.data());
    auto length = 0;
    if (EVP_CipherUpdate(context, bytes, &length, bytes, static_cast<int>(piece.size())) != 1)
      return false;
    text = text.subspan(piece.size());
  }
  return true;
}

/// Doubles in GF(2^128), as CMAC makes its subkey (NIST SP 800-38B).
void double_block(block& x) {
  const auto carry = x[0] >> 7;
  for (auto i = size_t{0}; i + 1 < x.size(); ++i)
    x[i] = static_cast<uint8_t>(x[i] << 1 | x[i + 1] >> 7);
  x.back() = static_cast<uint8_t>(x.back() << 1 ^ carry * 0x87);
}

} // namespace

void wipe(std::span<std::byte> memory) noexcept {
  OPENSSL_cleanse(memory.data(), memory.size());
}

secret_key::secret_key(secret_key&& other) noexcept : bytes_(other.bytes_) {
  wipe(other.bytes_);
}

secret_key& secret_key::operator=(secret_key&& other) noexcept {
  if (this != &other) {
    bytes_ = other.bytes_;
    wipe(other.bytes_);
  }
  return *this;
}

secret_key::~secret_key() {
  wipe(bytes_);
}

void aes_gcm::free_cipher::operator()(EVP_CIPHER* cipher) const noexcept {
  EVP_CIPHER_free(cipher);
}

aes_gcm::aes_gcm()
  : gcm_(EVP_CIPHER_fetch(nullptr, "AES-256-GCM", nullptr)),
    block_(EVP_CIPHER_fetch(nullptr, "AES-256-ECB", nullptr)) {
  HICACHE_CHECK(gcm_ != nullptr && block_ != nullptr);
}

result<object_seal> aes_gcm::seal(const secret_key& key, gcm_nonce nonce,
                                  std::span<const std::span<const std::byte>> associated,
                                  std::span<std::byte> text) const {
  const auto context = cipher_context{EVP_CIPHER_CTX_new()};
  auto tag = object_seal{};
  auto length = 0;
  if (context == nullptr
      || EVP_EncryptInit_ex2(context.get(), gcm_.get(), unsigned_bytes(key.bytes().data()),
                             unsigned_bytes(nonce.data()), nullptr)
           != 1
      || !add_associated(context.get(), associated) || !transform(context.get(), text)
      || EVP_EncryptFinal_ex(context.get(), unsigned_bytes(tag.data()), &length) != 1
      || EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_AEAD_GET_TAG, static_cast<int>(tag.size()),
                             tag.data())
           != 1)
    return openssl_failure("encrypt an object");
  return tag;
}

bool aes_gcm::open(const secret_key& key, gcm_nonce nonce,
                   std::span<const std::span<const std::byte>> associated, const object_seal& seal,
                   std::span<std::byte> text) const {
  const auto context = cipher_context{EVP_CIPHER_CTX_new()};
  auto tag = seal;
  auto last = block{};
  auto length = 0;
  return context != nullptr
         && EVP_DecryptInit_ex2(context.get(), gcm_.get(), unsigned_bytes(key.bytes().data()),
                                unsigned_bytes(nonce.data()), nullptr)
              == 1
         && EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_AEAD_SET_TAG, static_cast<int>(tag.size()),
                                tag.data())
              == 1
         && add_associated(context.get(), associated) && transform(context.get(), text)
         && EVP_DecryptFinal_ex(context.get(), last.data(), &length) == 1;
}

result<secret_key> aes_gcm::derive(const secret_key& key, gcm_nonce nonce) const {
  const auto context = cipher_context{EVP_CIPHER_CTX_new()};
  auto length = 0;
  if (context == nullptr
      || EVP_EncryptInit_ex2(context.get(), block_.get(), unsigned_bytes(key.bytes().data()),
                             nullptr, nullptr)
           != 1)
    return openssl_failure("derive a key");
  const auto encrypt = [&](const block& input, uint8_t* output) {
    return EVP_EncryptUpdate(context.get(), output, &length, input.data(), block_bytes) == 1;
  };
  auto subkey = block{};
  if (!encrypt(block{}, subkey.data()))
    return openssl_failure("derive a key");
  double_block(subkey);
  auto derived = secret_key{};
  auto done = true;
  for (const auto half : {uint8_t{1}, uint8_t{2}}) {
    // Counter, label "X" and its end, context: one block for each half.
    auto message = block{0, half, 'X', 0};
    std::memcpy(message.data() + 4, nonce.data(), nonce.size());
    for (auto i = size_t{0}; i < message.size(); ++i)
      message[i] ^= subkey[i];
    done
      = done && encrypt(message, unsigned_bytes(derived.bytes().data()) + (half - 1) * block_bytes);
  }
  wipe(std::as_writable_bytes(std::span{subkey}));
  if (!done)
    return openssl_failure("derive a key");
  return derived;
}

result<object_nonce> nonce_source::next() {
  auto nonce = object_nonce{};
  constexpr auto random_bytes = nonce_bytes - sizeof(uint64_t);
  if (RAND_bytes(unsigned_bytes(nonce.data()), static_cast<int>(random_bytes)) != 1)
    return openssl_failure("make random bytes for a nonce");
  const auto count = count_.fetch_add(1);
  std::memcpy(nonce.data() + random_bytes, &count, sizeof count);
  return nonce;
}

} // namespace hicache::serde
