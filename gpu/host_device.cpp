#include "gpu/host_device.hpp"

#include "base/check.hpp"
#include "gpu/copy_piece.hpp"
#include "gpu/copy_workers.hpp"
#include "gpu/host_memory.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

// The sanitizers of GCC do not see streaming stores.
#if defined(__SSE2__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define HICACHE_STREAMING_STORES
#include <emmintrin.h>
#endif

namespace hicache {

namespace {

/// Less than this is copied by one thread: waking another takes as long as copying it.
constexpr uint64_t split_bytes = uint64_t{256} << 10;

/// What one thread's share is a multiple of: threads do not write to the same cache line.
constexpr uint64_t line_bytes = 64;

#ifdef HICACHE_STREAMING_STORES

/// Shorter pieces consist of too few whole cache lines.
constexpr uint64_t streaming_bytes = 128;

/// Copies past the caches: pages are not read again soon, and a store that need not fetch the line
/// that it overwrites saves a third of the memory traffic. memcpy does so only for pieces of many
/// MiB.
/// @param ahead What will be read next, fetched meanwhile: the hardware does not foresee strides.
void stream_bytes(std::byte* to, const std::byte* from, uint64_t bytes, const std::byte* ahead) {
  const auto lead = (line_bytes - reinterpret_cast<uintptr_t>(to) % line_bytes) % line_bytes;
  std::memcpy(to, from, lead);
  auto at = lead;
  for (; at + line_bytes <= bytes; at += line_bytes) {
    _mm_prefetch(reinterpret_cast<const char*>(ahead) + at, _MM_HINT_T0);
    const auto* source = reinterpret_cast<const __m128i*>(from + at);
    auto* target = reinterpret_cast<__m128i*>(to + at);
    const auto first = _mm_loadu_si128(source);
    const auto second = _mm_loadu_si128(source + 1);
    const auto third = _mm_loadu_si128(source + 2);
    const auto fourth = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, first);
    _mm_stream_si128(target + 1, second);
    _mm_stream_si128(target + 2, third);
    _mm_stream_si128(target + 3, fourth);
  }
  std::memcpy(to + at, from + at, bytes - at);
}

/// Streaming stores are ordered with nothing else: before others are told of the bytes.
void settle_bytes() {
  _mm_sfence();
}

void copy_bytes(std::byte* to, const std::byte* from, uint64_t bytes, const std::byte* ahead) {
  if (bytes >= streaming_bytes)
    stream_bytes(to, from, bytes, ahead);
  else
    std::memcpy(to, from, bytes);
}

#else

void settle_bytes() {}

void copy_bytes(std::byte* to, const std::byte* from, uint64_t bytes, const std::byte*) {
  std::memcpy(to, from, bytes);
}

#endif

std::byte* pointer(uint64_t address) {
  return reinterpret_cast<std::byte*>(static_cast<uintptr_t>(address));
}

/// Copies `piece` while `next` is fetched.
void copy_piece_to(copy_direction direction, const copy_piece& piece, const copy_piece& next) {
  if (direction == copy_direction::store)
    copy_bytes(pointer(piece.host_address), pointer(piece.device_address), piece.bytes,
               pointer(next.device_address));
  else
    copy_bytes(pointer(piece.device_address), pointer(piece.host_address), piece.bytes,
               pointer(next.host_address));
}

uint64_t bytes_of(const row_copy& copy) {
  return copy.rows * copy.row_bytes;
}

/// The piece from byte `begin` to the end of its row, counted over the rows of the copy.
copy_piece piece_at(const row_copy& copy, uint64_t begin) {
  const auto row = begin / copy.row_bytes;
  const auto in_row = begin - row * copy.row_bytes;
  return {copy.device_address + row * copy.device_stride + in_row,
          copy.host_address + row * copy.host_stride + in_row,
          std::min(copy.row_bytes - in_row, piece_bytes)};
}

/// One direction of the host mover.
class host_lane {
public:
  host_lane(copy_direction direction, bool page_by_page, uint32_t threads)
    : direction_(direction), page_by_page_(page_by_page), workers_(threads) {}

  void begin(uint32_t set, std::span<const page_index> device_pages,
             std::span<const page_index> host_pages) {
    submissions_[set] = {device_pages, host_pages};
  }

  /// What memory engines do: runs of bytes, as many for each thread.
  void copy_runs(uint32_t set, std::span<const copy_strip> strips) {
    const auto [device_pages, host_pages] = submissions_[set];
    copies_.clear();
    if (page_by_page_)
      for (auto i = size_t{0}; i < host_pages.size(); ++i)
        append_copies(strips, device_pages.subspan(i, 1), host_pages.subspan(i, 1), copies_);
    else
      append_copies(strips, device_pages, host_pages, copies_);
    auto bytes = uint64_t{0};
    for (const auto& copy : copies_)
      bytes += bytes_of(copy);
    share(bytes, [this, bytes](uint32_t worker, uint32_t workers) {
      const auto lines = bytes / line_bytes;
      const auto end = worker + 1 == workers ? bytes : lines * (worker + 1) / workers * line_bytes;
      copy_range(lines * worker / workers * line_bytes, end);
    });
  }

  /// What a kernel does: pieces by number. Each thread takes a range of them rather than every
  /// n-th, since a core, unlike a warp, gains from going on where it was.
  void copy_pieces(uint32_t set, std::span<const copy_strip> strips) {
    const auto [device_pages, host_pages] = submissions_[set];
    auto bytes = uint64_t{0};
    auto pieces = uint64_t{0};
    for (const auto& strip : strips) {
      bytes += strip.row_bytes * strip.rows * host_pages.size();
      pieces += piece_count(strip, host_pages.size());
    }
    share(bytes, [&, device = device_pages.data(), host = host_pages.data(),
                  pages = host_pages.size()](uint32_t worker, uint32_t workers) {
      auto begin = pieces * worker / workers;
      auto end = pieces * (worker + 1) / workers;
      for (const auto& strip : strips) {
        const auto count = piece_count(strip, pages);
        for (auto index = begin; index < std::min(count, end); ++index)
          copy_piece_to(direction_, find_piece(strip, device, host, index),
                        find_piece(strip, device, host, std::min(index + 1, count - 1)));
        begin -= std::min(begin, count);
        end -= std::min(end, count);
      }
    });
  }

private:
  struct submission {
    std::span<const page_index> device_pages;
    std::span<const page_index> host_pages;
  };

  template <class Work>
  void share(uint64_t bytes, const Work& work) {
    const auto workers = bytes < split_bytes ? 1 : workers_.size();
    const auto part = [&](uint32_t worker) {
      work(worker, workers);
      settle_bytes();
    };
    if (workers == 1)
      part(0);
    else
      workers_.run(part);
  }

  /// Copies bytes begin to end, counted over all copies.
  void copy_range(uint64_t begin, uint64_t end) const {
    for (const auto& copy : copies_) {
      const auto size = bytes_of(copy);
      const auto last = std::min(size, end);
      while (begin < last) {
        auto piece = piece_at(copy, begin);
        piece.bytes = std::min(piece.bytes, last - begin);
        begin += piece.bytes;
        copy_piece_to(direction_, piece, piece_at(copy, std::min(begin, size - 1)));
      }
      if (end <= size)
        break;
      begin -= size;
      end -= size;
    }
  }

  copy_direction direction_;
  bool page_by_page_;
  std::array<submission, copy_sets> submissions_;
  /// Kept between calls for its memory.
  std::vector<row_copy> copies_;
  copy_workers workers_;
};

class host_mover final : public page_mover {
public:
  host_mover(const device_layers& l1, const pool_geometry& l2, std::byte* l2_data,
             const copy_options& options)
    : strips_(make_copy_strips(l1, l2, reinterpret_cast<uintptr_t>(l2_data))),
      layers_(l2.shape().layers), io_(options.io),
      // The rows of a page lie together but for layer_first, in which those of neighbours do.
      stores_(copy_direction::store, l2.layout() != host_layout::layer_first, threads_of(options)),
      loads_(copy_direction::load, false, threads_of(options)) {}

  result<void> begin(copy_direction direction, uint32_t set,
                     std::span<const page_index> device_pages,
                     std::span<const page_index> host_pages) override {
    lane(direction).begin(set, device_pages, host_pages);
    return {};
  }

  result<void> finish_layer(copy_direction direction, uint32_t set, uint32_t layer) override {
    auto strips = std::span<const copy_strip>{strips_};
    if (direction == copy_direction::load)
      strips = strips.subspan(layer * (strips.size() / layers_), strips.size() / layers_);
    if (io_ == io_backend::direct)
      lane(direction).copy_runs(set, strips);
    else
      lane(direction).copy_pieces(set, strips);
    return {};
  }

private:
  static uint32_t threads_of(const copy_options& options) {
    return options.inline_copies ? 1 : options.host_threads;
  }

  host_lane& lane(copy_direction direction) {
    return direction == copy_direction::store ? stores_ : loads_;
  }

  std::vector<copy_strip> strips_;
  uint32_t layers_;
  io_backend io_;
  host_lane stores_;
  host_lane loads_;
};

class host_device final : public device {
public:
  std::string name() const override { return "host memory"; }

  bool host_addressable() const noexcept override { return true; }

  result<std::unique_ptr<device_memory>> allocate(uint64_t bytes) override {
    return allocate_shared_memory(bytes);
  }

  result<std::unique_ptr<device_memory>> open(std::string_view shared) override {
    return open_shared_memory(shared);
  }

  result<std::unique_ptr<device_memory>>
  allocate_host(uint64_t bytes, const host_memory_options& options) override {
    return allocate_host_memory(bytes, options);
  }

  result<std::unique_ptr<copy_engine>> make_copy_engine(const device_layers& l1,
                                                        const pool_geometry& l2,
                                                        device_memory& l2_memory,
                                                        const copy_options& options) override {
    HICACHE_CHECK(l2.total_bytes() <= l2_memory.size());
    return make_queued_copy_engine(l1.pages, l2.pages(), l2.shape().layers,
                                   make_host_mover(l1, l2, l2_memory.data(), options),
                                   options.inline_copies);
  }
};

} // namespace

std::unique_ptr<device> make_host_device() {
  return std::make_unique<host_device>();
}

std::unique_ptr<page_mover> make_host_mover(const device_layers& l1, const pool_geometry& l2,
                                            std::byte* l2_data, const copy_options& options) {
  return std::make_unique<host_mover>(l1, l2, l2_data, options);
}

} // namespace hicache
