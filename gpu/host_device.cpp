#include "gpu/host_device.hpp"

#include "base/check.hpp"
#include "base/copy_workers.hpp"
#include "cache/copy_strips.hpp"
#include "gpu/copy_piece.hpp"
#include "gpu/host_memory.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <utility>
#include <vector>

// GCC's sanitizers do not see streaming stores.
#if defined(__SSE2__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define HICACHE_STREAMING_STORES
#include <emmintrin.h>
#endif

namespace hicache {

namespace {

/// Smaller copies use one thread: waking another takes as long as the copy.
constexpr uint64_t split_bytes = uint64_t{256} << 10;

/// Prefetch distance: what a core copies during a memory access.
constexpr uint64_t ahead_bytes = uint64_t{2} << 10;

/// Enough for rows of 256 bytes; shorter ones are slow for other reasons.
constexpr uint64_t most_pieces_ahead = 8;

/// Shares are multiples of this, so that threads do not write to the same cache line.
constexpr uint64_t line_bytes = 64;

#ifdef HICACHE_STREAMING_STORES

/// Shorter pieces contain too few whole cache lines.
constexpr uint64_t streaming_bytes = 128;

/// Copies past the caches: pages are not read again soon, and a store that need not fetch its cache
/// line saves a third of the memory traffic. memcpy does so only from many MiB on.
/// @param ahead What will be read next; prefetched, because the hardware does not predict strides.
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

/// Orders streaming stores before the notification of other threads.
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

/// Copies `piece` and prefetches `next`.
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

/// The piece from byte `begin` to the end of its row; `begin` counts over the rows of the copy.
copy_piece piece_at(const row_copy& copy, uint64_t begin) {
  const auto row = begin / copy.row_bytes;
  const auto in_row = begin - row * copy.row_bytes;
  return {copy.device_address + row * copy.device_stride + in_row,
          copy.host_address + row * copy.host_stride + in_row,
          std::min(copy.row_bytes - in_row, piece_bytes)};
}

/// One direction of the host mover. A submission is copied in steps: a load per layer, a store at
/// once. The caller and its helpers each copy a share of a step. Helpers run through the steps
/// without waiting for each other, since waking a thread per layer would take as long as the copy.
class host_lane {
public:
  /// @param strips Must outlive the lane; the same number per step.
  host_lane(copy_direction direction, io_backend io, bool page_by_page,
            std::span<const copy_strip> strips, uint32_t steps, uint32_t threads)
    : direction_(direction), io_(io), page_by_page_(page_by_page), strips_(strips),
      copies_(threads), arrived_(steps), workers_(threads) {}

  void begin(uint32_t set, std::span<const page_index> l1_pages,
             std::span<const page_index> l2_pages) {
    submissions_[set] = {l1_pages, l2_pages};
  }

  /// Copies step `step` of the submission; the first step also starts the helpers.
  void finish(uint32_t set, uint32_t step) {
    const auto helpers = count_workers(set) - 1;
    if (step == 0 && helpers > 0) {
      for (auto& each : arrived_)
        each = 0;
      workers_.start([this, set](uint32_t worker) {
        for (auto next = uint32_t{0}; next < arrived_.size(); ++next) {
          copy_share(set, next, worker, workers_.size());
          arrived_[next].fetch_add(1, std::memory_order_release);
          arrived_[next].notify_one();
        }
      });
    }
    copy_share(set, step, 0, helpers + 1);
    if (helpers == 0)
      return;
    for (auto done = arrived_[step].load(std::memory_order_acquire); done < helpers;
         done = arrived_[step].load(std::memory_order_acquire))
      arrived_[step].wait(done, std::memory_order_acquire);
    if (step + 1 == arrived_.size())
      workers_.join();
  }

private:
  struct submission {
    std::span<const page_index> l1_pages;
    std::span<const page_index> l2_pages;
  };

  std::span<const copy_strip> strips_of(uint32_t step) const {
    const auto count = strips_.size() / arrived_.size();
    return strips_.subspan(step * count, count);
  }

  /// Small steps run on one thread.
  uint32_t count_workers(uint32_t set) const {
    auto bytes = uint64_t{0};
    for (const auto& strip : strips_of(0))
      bytes += strip.row_bytes * strip.rows * submissions_[set].l2_pages.size();
    return bytes < split_bytes ? 1 : workers_.size();
  }

  void copy_share(uint32_t set, uint32_t step, uint32_t worker, uint32_t workers) {
    if (io_ == io_backend::direct)
      copy_runs(set, strips_of(step), worker, workers);
    else
      copy_pieces(set, strips_of(step), worker, workers);
    settle_bytes();
  }

  /// Emulates the copy engines: contiguous runs, split evenly among the threads.
  void copy_runs(uint32_t set, std::span<const copy_strip> strips, uint32_t worker,
                 uint32_t workers) {
    const auto [l1_pages, l2_pages] = submissions_[set];
    auto& copies = copies_[worker];
    copies.clear();
    if (page_by_page_)
      for (auto i = size_t{0}; i < l2_pages.size(); ++i)
        append_copies(strips, l1_pages.subspan(i, 1), l2_pages.subspan(i, 1), copies);
    else
      append_copies(strips, l1_pages, l2_pages, copies);
    auto bytes = uint64_t{0};
    for (const auto& copy : copies)
      bytes += bytes_of(copy);
    const auto lines = bytes / line_bytes;
    const auto end = worker + 1 == workers ? bytes : lines * (worker + 1) / workers * line_bytes;
    copy_range(copies, lines * worker / workers * line_bytes, end);
  }

  /// Emulates the kernel: pieces by number. Each thread takes a contiguous range rather than every
  /// n-th piece, because a core, unlike a warp, gains from locality.
  void copy_pieces(uint32_t set, std::span<const copy_strip> strips, uint32_t worker,
                   uint32_t workers) const {
    const auto pages = submissions_[set].l2_pages.size();
    const auto* device = submissions_[set].l1_pages.data();
    const auto* host = submissions_[set].l2_pages.data();
    auto pieces = uint64_t{0};
    for (const auto& strip : strips)
      pieces += piece_count(strip, pages);
    auto begin = pieces * worker / workers;
    auto end = pieces * (worker + 1) / workers;
    for (const auto& strip : strips) {
      const auto count = piece_count(strip, pages);
      copy_pieces(strip, device, host, begin, std::min(count, end), count);
      begin -= std::min(begin, count);
      end -= std::min(end, count);
    }
  }

  /// Copies pieces begin to end. Computes each piece once, when prefetching it.
  void copy_pieces(const copy_strip& strip, const page_index* device, const page_index* host,
                   uint64_t begin, uint64_t end, uint64_t count) const {
    const auto ahead
      = std::bit_floor(std::clamp(ahead_bytes / strip.row_bytes, uint64_t{1}, most_pieces_ahead));
    auto fetched = std::array<copy_piece, most_pieces_ahead>{};
    const auto find
      = [&](uint64_t index) { return find_piece(strip, device, host, std::min(index, count - 1)); };
    for (auto index = begin; index < std::min(begin + ahead, end); ++index)
      fetched[index % ahead] = find(index);
    for (auto index = begin; index < end; ++index) {
      const auto next = find(index + ahead);
      copy_piece_to(direction_, std::exchange(fetched[index % ahead], next), next);
    }
  }

  /// Copies bytes begin to end, counted over all copies.
  void copy_range(std::span<const row_copy> copies, uint64_t begin, uint64_t end) const {
    for (const auto& copy : copies) {
      const auto size = bytes_of(copy);
      const auto last = std::min(size, end);
      while (begin < last) {
        auto piece = piece_at(copy, begin);
        piece.bytes = std::min(piece.bytes, last - begin);
        begin += piece.bytes;
        const auto ahead = begin + ahead_bytes - std::min(ahead_bytes, copy.row_bytes);
        copy_piece_to(direction_, piece, piece_at(copy, std::min(ahead, size - 1)));
      }
      if (end <= size)
        break;
      begin -= size;
      end -= size;
    }
  }

  copy_direction direction_;
  io_backend io_;
  bool page_by_page_;
  std::span<const copy_strip> strips_;
  std::array<submission, copy_sets> submissions_;
  /// One per worker; kept between calls to reuse their memory.
  std::vector<std::vector<row_copy>> copies_;
  /// Helpers that have finished their share of each step.
  std::vector<std::atomic<uint32_t>> arrived_;
  // Last, so that the helpers end before the members that they use.
  copy_workers workers_;
};

class host_mover final : public page_mover {
public:
  host_mover(const device_layers& l1, const pool_geometry& l2, std::byte* l2_data,
             const copy_options& options)
    : strips_(make_copy_strips(l1, l2, reinterpret_cast<uintptr_t>(l2_data))),
      // A page's rows are adjacent, except in layer_first, where those of neighbouring pages are.
      stores_(copy_direction::store, options.io, l2.layout() != host_layout::layer_first, strips_,
              1, threads_of(options)),
      loads_(copy_direction::load, options.io, false, strips_, l2.shape().layers,
             threads_of(options)) {}

  result<void> begin(copy_direction direction, uint32_t set, std::span<const page_index> l1_pages,
                     std::span<const page_index> l2_pages) override {
    lane(direction).begin(set, l1_pages, l2_pages);
    return {};
  }

  result<void> finish_layer(copy_direction direction, uint32_t set, uint32_t layer) override {
    lane(direction).finish(set, direction == copy_direction::load ? layer : 0);
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

  result<std::unique_ptr<device_memory>> adopt_host(std::span<std::byte> memory,
                                                    const host_memory_options& options) override {
    return adopt_host_memory(memory, options);
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
