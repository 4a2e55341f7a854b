#include "base/try.hpp"
#include "gpu/copy_kernels.hpp"
#include "gpu/copy_piece.hpp"
#include "gpu/cuda_memory.hpp"

#include <cuda/ptx>

#include <cuda_runtime.h>

#include <string>

namespace hicache {

namespace {

constexpr auto warp_threads = uint32_t{32};
constexpr auto all_lanes = ~uint32_t{0};

/// The maximum of a block: more bytes in flight per SM make the copy faster.
constexpr auto block_warps = uint32_t{32};
constexpr auto block_threads = block_warps * warp_threads;

/// Loads of a thread before its first store: what fits into the 64 registers per thread of such a
/// block. With 16-byte words an SM has 64 KiB in flight, several times a PCIe link's
/// bandwidth-delay product.
constexpr auto words_in_flight = uint32_t{4};

/// Shared memory of a block for the bulk method: room for one bundle per warp.
constexpr auto stage_bytes = static_cast<uint32_t>(piece_bytes);
constexpr auto stages_bytes = block_warps * stage_bytes;

/// Pieces of a bundle: at most one per lane, together at most piece_bytes.
HICACHE_HOST_DEVICE constexpr uint32_t pieces_per_bundle(const copy_strip& strip) {
  if (strip.row_bytes > piece_bytes / 2)
    return 1;
  const auto fitting = static_cast<uint32_t>(piece_bytes) / static_cast<uint32_t>(strip.row_bytes);
  return fitting < warp_threads ? fitting : warp_threads;
}

/// Consecutive pieces of equal length. Lane i holds the addresses of piece i.
struct piece_bundle {
  uint64_t from = 0;
  uint64_t to = 0;
  uint32_t pieces = 0;
  uint32_t bytes_each = 0;
};

/// The bundle that starts with piece `first`. Called by all lanes of a warp together.
/// @pre first < piece_count(strip, copy.pages)
__device__ piece_bundle find_bundle(const kernel_copy& copy, const copy_strip& strip,
                                    uint64_t first, uint32_t lane) {
  auto bundle = piece_bundle{};
  const auto left = piece_count(strip, copy.pages) - first;
  const auto most = pieces_per_bundle(strip);
  bundle.pieces = left < most ? static_cast<uint32_t>(left) : most;
  if (lane < bundle.pieces) {
    const auto piece = find_piece(strip, copy.l1_pages, copy.l2_pages, first + lane);
    const auto store = copy.direction == copy_direction::store;
    bundle.from = store ? piece.device_address : piece.host_address;
    bundle.to = store ? piece.host_address : piece.device_address;
    bundle.bytes_each = static_cast<uint32_t>(piece.bytes);
  }
  // Several pieces are whole rows. A single piece of a long row may be the row's short end.
  bundle.bytes_each = __shfl_sync(all_lanes, bundle.bytes_each, 0);
  return bundle;
}

/// Copies the bundle's words, spread over the lanes. Cache hints spare the data of other kernels.
template <class Word>
__device__ void copy_by_words(const piece_bundle& bundle, uint32_t lane) {
  const auto words_each = bundle.bytes_each / static_cast<uint32_t>(sizeof(Word));
  const auto words = words_each * bundle.pieces;
  // Address of word `word` of the piece; `start` holds the lanes' addresses of one side.
  const auto address = [&](uint64_t start, uint32_t word, uint32_t piece) {
    return __shfl_sync(all_lanes, start, piece % warp_threads)
           + (word - piece * words_each) * sizeof(Word);
  };
#pragma unroll 1
  for (auto first = lane; first - lane < words; first += warp_threads * words_in_flight) {
    Word held[words_in_flight];
    uint32_t pieces[words_in_flight];
#pragma unroll
    for (auto i = uint32_t{0}; i < words_in_flight; ++i) {
      const auto word = first + i * warp_threads;
      pieces[i] = word / words_each;
      const auto from = address(bundle.from, word, pieces[i]);
      if (word < words)
        held[i] = __ldcs(reinterpret_cast<const Word*>(from));
    }
#pragma unroll
    for (auto i = uint32_t{0}; i < words_in_flight; ++i) {
      const auto word = first + i * warp_threads;
      const auto to = address(bundle.to, word, pieces[i]);
      if (word < words)
        __stcs(reinterpret_cast<Word*>(to), held[i]);
    }
  }
}

/// Not inlined, so that the common 16-byte path gets the registers.
__device__ __noinline__ void copy_by_narrow_words(piece_bundle bundle, uint32_t word_bytes,
                                                  uint32_t lane) {
  switch (word_bytes) {
    case 8:
      return copy_by_words<uint2>(bundle, lane);
    case 4:
      return copy_by_words<uint32_t>(bundle, lane);
    case 2:
      return copy_by_words<uint16_t>(bundle, lane);
    default:
      return copy_by_words<uint8_t>(bundle, lane);
  }
}

__device__ void copy_by_words(const piece_bundle& bundle, uint32_t word_bytes, uint32_t lane) {
  if (word_bytes == 16)
    copy_by_words<uint4>(bundle, lane);
  else
    copy_by_narrow_words(bundle, word_bytes, lane);
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

namespace ptx = cuda::ptx;

/// The bulk copies of one warp, through its own stage. While a warp waits for its bytes, the other
/// warps of the block have theirs in flight, so no warp needs a second stage.
class bulk_stage {
public:
  /// Called by all lanes together.
  __device__ bulk_stage(unsigned char* stage, uint64_t* arrived, uint32_t lane)
    : stage_(stage), arrived_(arrived), lane_(lane) {
    if (lane_ == 0) {
      ptx::mbarrier_init(arrived_, 1);
      // Makes the initialised barrier visible to the copy unit.
      ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    }
    __syncwarp();
  }

  /// Called by all lanes together; lane i moves piece i.
  __device__ void copy(const piece_bundle& bundle) {
    // No lane may fill the stage before the last stores of all lanes have read it.
    ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>{});
    if (lane_ == 0)
      ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, arrived_,
                                     bundle.pieces * bundle.bytes_each);
    __syncwarp();
    auto* const mine = stage_ + lane_ * bundle.bytes_each;
    if (lane_ < bundle.pieces)
      ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, mine,
                         reinterpret_cast<const void*>(bundle.from), bundle.bytes_each, arrived_);
    while (!ptx::mbarrier_try_wait_parity(arrived_, parity_)) {
    }
    parity_ ^= 1;
    // The barrier made the bytes visible to this thread; the fence does so for the copy unit.
    ptx::fence_proxy_async(ptx::space_shared);
    if (lane_ < bundle.pieces) {
      ptx::cp_async_bulk(ptx::space_global, ptx::space_shared, reinterpret_cast<void*>(bundle.to),
                         mine, bundle.bytes_each);
      ptx::cp_async_bulk_commit_group();
    }
  }

  /// Returns when this thread's stores are in memory, not merely out of the stage: the end of the
  /// kernel means that all layers are there.
  __device__ void finish() { ptx::cp_async_bulk_wait_group(ptx::n32_t<0>{}); }

private:
  unsigned char* stage_;
  uint64_t* arrived_;
  uint32_t lane_;
  uint32_t parity_ = 0;
};

#else

/// Fallback for GPUs without bulk copies; prepare_copy_kernel() prevents its use.
class bulk_stage {
public:
  __device__ bulk_stage(unsigned char*, uint64_t*, uint32_t lane) : lane_(lane) {}

  __device__ void copy(const piece_bundle& bundle) { copy_by_words<uint4>(bundle, lane_); }

  __device__ void finish() {}

private:
  uint32_t lane_;
};

#endif

/// Calls copy_bundle(strip, bundle) for every bundle of this warp.
template <class Copy>
__device__ void for_each_bundle(const kernel_copy& copy, uint32_t lane, Copy copy_bundle) {
  // Consecutive bundles go to different SMs, so that a short list occupies all of them.
  const auto warps = uint64_t{gridDim.x} * block_warps;
  const auto total = copy.strip_count * copy.bundles;
  for (auto number = uint64_t{threadIdx.x / warp_threads} * gridDim.x + blockIdx.x; number < total;
       number += warps) {
    const auto strip_number = number / copy.bundles;
    const auto& strip = copy.strips[strip_number];
    const auto first = (number - strip_number * copy.bundles) * pieces_per_bundle(strip);
    // A strip may have fewer bundles than the largest strip.
    if (first < piece_count(strip, copy.pages))
      copy_bundle(strip, find_bundle(copy, strip, first, lane));
  }
}

__global__ void __launch_bounds__(block_threads, 1) copy_pages_by_words(kernel_copy copy) {
  const auto lane = threadIdx.x % warp_threads;
  for_each_bundle(copy, lane, [&](const copy_strip& strip, const piece_bundle& bundle) {
    copy_by_words(bundle, strip.word_bytes, lane);
  });
}

__global__ void __launch_bounds__(block_threads, 1) copy_pages_by_bulk(kernel_copy copy) {
  // Bulk copies need 16-byte alignment; a stage's size is a multiple of that.
  extern __shared__ __align__(128) unsigned char stages[];
  __shared__ uint64_t arrived[block_warps];
  const auto lane = threadIdx.x % warp_threads;
  const auto warp = threadIdx.x / warp_threads;
  auto stage = bulk_stage{stages + warp * stage_bytes, arrived + warp, lane};
  for_each_bundle(copy, lane, [&](const copy_strip& strip, const piece_bundle& bundle) {
    if (strip.word_bytes == 16)
      stage.copy(bundle);
    else
      copy_by_words(bundle, strip.word_bytes, lane);
  });
  stage.finish();
}

using copy_kernel = void (*)(kernel_copy);

copy_kernel kernel_of(kernel_method method) {
  return method == kernel_method::bulk ? copy_pages_by_bulk : copy_pages_by_words;
}

} // namespace

uint64_t bundle_count(const copy_strip& strip, uint64_t pages) {
  const auto each = pieces_per_bundle(strip);
  return (piece_count(strip, pages) + each - 1) / each;
}

result<void> prepare_copy_kernel(kernel_method method) {
  auto attributes = cudaFuncAttributes{};
  HICACHE_TRY(check_cuda(ec::unsupported, "this build has no copy kernel for the GPU",
                         cudaFuncGetAttributes(&attributes, kernel_of(method))));
  if (method == kernel_method::words)
    return {};
  // The architecture of the compiled code, at most that of the GPU.
  if (attributes.ptxVersion < 90)
    return fail(ec::unsupported, "bulk copies need compute capability 9.0; got "
                                   + std::to_string(attributes.ptxVersion / 10) + "."
                                   + std::to_string(attributes.ptxVersion % 10));
  return check_cuda(ec::unsupported, "the GPU has too little shared memory for bulk copies",
                    cudaFuncSetAttribute(copy_pages_by_bulk,
                                         cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         stages_bytes));
}

result<void> launch_copy_kernel(kernel_method method, const kernel_copy& copy, uint32_t sms,
                                cudaStream_t stream) {
  auto config = cudaLaunchConfig_t{};
  config.gridDim = dim3{sms};
  config.blockDim = dim3{block_threads};
  config.dynamicSmemBytes = method == kernel_method::bulk ? stages_bytes : 0;
  config.stream = stream;
  return check_cuda(ec::copy_failed, "cudaLaunchKernelEx",
                    cudaLaunchKernelEx(&config, kernel_of(method), copy));
}

} // namespace hicache
