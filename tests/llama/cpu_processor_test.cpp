// The transformer by OpenBLAS against the kernels on one thread, which are those of the GPU.

#include "tests/llama/tiny_model.hpp"

namespace llama::test {
namespace {

TEST(CpuProcessorTest, ComputesWhatThePlainProcessorComputes) {
  expect_what_the_plain_one_computes([](element_type format, uint32_t page_size) {
    return complete_on_cpu(format, page_size, make_cpu_processor());
  });
}

} // namespace
} // namespace llama::test
