#include "c_abi/block_device.hpp"

#ifdef HICACHE_HAVE_CUDA
#include "c_abi/cuda_blocks.hpp"
#endif

namespace hicache {

result<std::unique_ptr<block_device>> open_block_device([[maybe_unused]] int32_t number) {
#ifdef HICACHE_HAVE_CUDA
  return open_cuda_blocks(number);
#else
  return fail(ec::unsupported, "expected HC_HOST, since this library was built without CUDA");
#endif
}

} // namespace hicache
