#include "identity/piece_digests.hpp"

#include "base/check.hpp"

#if __has_include(<xxh_x86dispatch.h>) && defined(__x86_64__)
// Dispatches to the widest SIMD registers of the processor.
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>

namespace hicache {

namespace {

/// Unit of work of a thread, and part of the format of digests.
constexpr auto piece_bytes = uint64_t{8} << 20;

/// Bytes read at once: what was copied from the page cache is hashed while it is in L2.
constexpr auto read_bytes = uint64_t{256} << 10;

/// More threads than this read no faster.
constexpr auto most_threads = size_t{16};

std::string canonical(XXH128_hash_t hash) {
  auto bytes = XXH128_canonical_t{};
  XXH128_canonicalFromHash(&bytes, hash);
  return {reinterpret_cast<const char*>(bytes.digest), sizeof bytes.digest};
}

std::string digest_of_bytes(std::string_view bytes) {
  return canonical(XXH3_128bits(bytes.data(), bytes.size()));
}

struct piece {
  size_t range = 0;
  file_range bytes;
  std::string digest;
};

std::vector<piece> pieces_of(std::span<const file_range> ranges) {
  auto pieces = std::vector<piece>{};
  for (auto i = size_t{0}; i < ranges.size(); ++i)
    for (auto at = uint64_t{0}; at == 0 || at < ranges[i].bytes; at += piece_bytes)
      pieces.push_back(
        {i,
         {ranges[i].file, ranges[i].offset + at, std::min(piece_bytes, ranges[i].bytes - at)},
         {}});
  return pieces;
}

/// Digests pieces one after the other, as every thread does.
class piece_reader {
public:
  piece_reader() : state_(XXH3_createState(), XXH3_freeState) { HICACHE_CHECK(state_ != nullptr); }

  result<std::string> digest(const file_range& bytes) {
    HICACHE_CHECK(XXH3_128bits_reset(state_.get()) == XXH_OK);
    for (auto at = uint64_t{0}; at < bytes.bytes; at += read_bytes) {
      const auto count = std::min(read_bytes, bytes.bytes - at);
      if (const auto read = bytes.file->read(bytes.offset + at, buffer_.data(), count); !read)
        return tl::unexpected{read.error()};
      HICACHE_CHECK(XXH3_128bits_update(state_.get(), buffer_.data(), count) == XXH_OK);
    }
    return canonical(XXH3_128bits_digest(state_.get()));
  }

private:
  std::vector<char> buffer_ = std::vector<char>(read_bytes);
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
};

} // namespace

result<std::vector<std::string>>
digests_of(std::span<const file_range> ranges,
           const std::function<void(uint64_t, uint64_t)>& progress) {
  auto pieces = pieces_of(ranges);
  auto total = uint64_t{0};
  for (const auto& range : ranges)
    total += range.bytes;
  auto next = std::atomic<size_t>{0};
  auto mutex = std::mutex{}; // Guards what follows.
  auto done = uint64_t{0};
  auto trouble = std::optional<error>{};
  const auto work = [&] {
    auto reader = piece_reader{};
    for (auto i = next++; i < pieces.size(); i = next++) {
      auto digest = reader.digest(pieces[i].bytes);
      const auto lock = std::lock_guard{mutex};
      if (!digest) {
        trouble = trouble.value_or(digest.error());
        next = pieces.size();
        return;
      }
      pieces[i].digest = std::move(*digest);
      done += pieces[i].bytes.bytes;
      if (progress && pieces[i].bytes.bytes > 0)
        progress(done, total);
    }
  };
  {
    auto others = std::vector<std::jthread>{};
    const auto threads = std::min(
      {size_t{std::max(std::thread::hardware_concurrency(), 1u)}, most_threads, pieces.size()});
    for (auto i = size_t{1}; i < threads; ++i)
      others.emplace_back(work);
    work();
  }
  if (trouble)
    return tl::unexpected{*trouble};
  auto digests = std::vector<std::string>(ranges.size());
  for (const auto& each : pieces)
    digests[each.range] += each.digest;
  for (auto& digest : digests)
    if (digest.size() > sizeof(XXH128_canonical_t))
      digest = digest_of_bytes(digest);
  return digests;
}

std::string digest_of_text(std::string_view text) {
  constexpr auto* digits = "0123456789abcdef";
  auto written = std::string{};
  for (const auto byte : digest_of_bytes(text)) {
    written += digits[static_cast<unsigned char>(byte) >> 4];
    written += digits[static_cast<unsigned char>(byte) & 15];
  }
  return written;
}

} // namespace hicache
