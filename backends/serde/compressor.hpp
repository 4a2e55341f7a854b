#pragma once

#include "backends/serde/object_header.hpp"
#include "base/immovable.hpp"

#include <cstddef>
#include <memory>
#include <optional>
#include <span>

namespace hicache::serde {

/// A compression library with its working memory. One thread at a time.
class compressor : immovable {
public:
  virtual ~compressor() = default;

  /// @returns the compressed length; nothing if it would exceed the target
  virtual std::optional<size_t> compress(std::span<const std::byte> source,
                                         std::span<std::byte> target)
    = 0;

  /// Decompresses untrusted bytes.
  /// @returns whether they are valid and fill the target exactly; if not, the target's content is
  /// unspecified
  virtual bool decompress(std::span<const std::byte> source, std::span<std::byte> target) = 0;
};

/// @param level Of libzstd: 1 (fast) to 19.
std::unique_ptr<compressor> make_zstd(int level);

std::unique_ptr<compressor> make_lz4();

} // namespace hicache::serde
