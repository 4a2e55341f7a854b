#include "backends/serde/compressor.hpp"

#include "base/check.hpp"

#include <lz4.h>
#include <zstd.h>

#include <climits>

namespace hicache::serde {

namespace {

class zstd_compressor final : public compressor {
public:
  explicit zstd_compressor(int level)
    : compression_(ZSTD_createCCtx()), decompression_(ZSTD_createDCtx()) {
    HICACHE_CHECK(compression_ != nullptr && decompression_ != nullptr);
    const auto set = ZSTD_CCtx_setParameter(compression_.get(), ZSTD_c_compressionLevel, level);
    HICACHE_CHECK(ZSTD_isError(set) == 0);
  }

  std::optional<size_t> compress(std::span<const std::byte> source,
                                 std::span<std::byte> target) override {
    const auto length = ZSTD_compress2(compression_.get(), target.data(), target.size(),
                                       source.data(), source.size());
    return ZSTD_isError(length) != 0 ? std::nullopt : std::optional{length};
  }

  bool decompress(std::span<const std::byte> source, std::span<std::byte> target) override {
    // ZSTD_isError is also true if the content does not fit the target.
    const auto length = ZSTD_decompressDCtx(decompression_.get(), target.data(), target.size(),
                                            source.data(), source.size());
    return ZSTD_isError(length) == 0 && length == target.size();
  }

private:
  struct free_context {
    void operator()(ZSTD_CCtx* context) const noexcept { ZSTD_freeCCtx(context); }
    void operator()(ZSTD_DCtx* context) const noexcept { ZSTD_freeDCtx(context); }
  };

  const std::unique_ptr<ZSTD_CCtx, free_context> compression_;
  const std::unique_ptr<ZSTD_DCtx, free_context> decompression_;
};

class lz4_compressor final : public compressor {
public:
  std::optional<size_t> compress(std::span<const std::byte> source,
                                 std::span<std::byte> target) override {
    HICACHE_CHECK(source.size() <= LZ4_MAX_INPUT_SIZE && target.size() <= INT_MAX);
    const auto length
      = LZ4_compress_default(chars(source.data()), chars(target.data()),
                             static_cast<int>(source.size()), static_cast<int>(target.size()));
    return length <= 0 ? std::nullopt : std::optional{static_cast<size_t>(length)};
  }

  bool decompress(std::span<const std::byte> source, std::span<std::byte> target) override {
    if (source.size() > INT_MAX || target.size() > INT_MAX)
      return false;
    const auto length
      = LZ4_decompress_safe(chars(source.data()), chars(target.data()),
                            static_cast<int>(source.size()), static_cast<int>(target.size()));
    return length >= 0 && static_cast<size_t>(length) == target.size();
  }

private:
  static const char* chars(const std::byte* bytes) { return reinterpret_cast<const char*>(bytes); }
  static char* chars(std::byte* bytes) { return reinterpret_cast<char*>(bytes); }
};

} // namespace

std::unique_ptr<compressor> make_zstd(int level) {
  return std::make_unique<zstd_compressor>(level);
}

std::unique_ptr<compressor> make_lz4() {
  return std::make_unique<lz4_compressor>();
}

} // namespace hicache::serde
