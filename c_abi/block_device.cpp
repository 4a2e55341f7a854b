#include "c_abi/block_device.hpp"

namespace hicache {

// In builds with CUDA that of cuda_blocks.cpp is used.
result<std::unique_ptr<block_device>> open_block_device(int32_t /*number*/) {
  return fail(ec::unsupported, "expected HC_HOST, since this library was built without CUDA");
}

} // namespace hicache
