#pragma once

#include <kj/async-io.h>

#include <array>

namespace hicache {

/// Reads as much as there is: the protocol reads each message in two parts, and small messages are
/// read by one call of the system together.
class read_ahead final : public kj::AsyncInputStream {
public:
  explicit read_ahead(kj::AsyncInputStream& inner) : inner_(inner) {}

  /// Reads as the inner stream does. What it reads beyond `most` is kept for the next time.
  kj::Promise<size_t> tryRead(void* to, size_t least, size_t most) override;

private:
  /// Takes what was read before.
  size_t take(kj::byte* to, size_t most);

  kj::AsyncInputStream& inner_;
  std::array<kj::byte, size_t{16} << 10> bytes_;
  size_t begin_ = 0;
  size_t end_ = 0;
};

} // namespace hicache
