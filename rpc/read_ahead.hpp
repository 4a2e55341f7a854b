#pragma once

#include <kj/async-io.h>

#include <array>

namespace hicache {

/// Reads all available input at once: the protocol reads each message in two parts, and one system
/// call reads several small messages.
class read_ahead final : public kj::AsyncInputStream {
public:
  explicit read_ahead(kj::AsyncInputStream& inner) : inner_(inner) {}

  /// Reads like the inner stream. Bytes beyond `most` are kept for the next call.
  kj::Promise<size_t> tryRead(void* to, size_t least, size_t most) override;

private:
  /// Takes buffered bytes.
  size_t take(kj::byte* to, size_t most);

  kj::AsyncInputStream& inner_;
  std::array<kj::byte, size_t{16} << 10> bytes_;
  size_t begin_ = 0;
  size_t end_ = 0;
};

} // namespace hicache
