#include "examples/llama/paged_kv.hpp"

#include <string>
#include <utility>

namespace llama {

paged_kv::paged_kv(hicache::device_layers pool, number_format format)
  : pool_(std::move(pool)), format_(format),
    scratch_(size_t{pool_.shape.page_size} * pool_.shape.head_dim) {}

std::byte* paged_kv::row_of(uint32_t layer, hicache::kv_part part, hicache::page_index page,
                            uint32_t row) const {
  const auto which = part == hicache::kv_part::key ? 0U : 1U; // The order of parts_of(mha).
  const auto& buffer = pool_.buffers[which * pool_.shape.layers + layer];
  return reinterpret_cast<std::byte*>(buffer.address + page * buffer.page_stride
                                      + row * buffer.token_stride);
}

void paged_kv::write(uint32_t layer, hicache::kv_part part, hicache::page_index page, uint32_t row,
                     const float* heads) {
  from_floats(format_, heads, size_t{pool_.shape.kv_heads} * pool_.shape.head_dim,
              row_of(layer, part, page, row));
}

page_matrix paged_kv::read(uint32_t layer, hicache::kv_part part, hicache::page_index page,
                           uint32_t head, uint32_t rows) {
  const auto width = pool_.shape.head_dim;
  const auto* first = row_of(layer, part, page, 0) + size_t{head} * width * size_of(format_);
  const auto stride
    = static_cast<uint32_t>(row_of(layer, part, page, 1) - row_of(layer, part, page, 0));
  if (format_ == number_format::f32)
    return {reinterpret_cast<const float*>(first), stride / size_of(format_)};
  for (auto row = uint32_t{0}; row < rows; ++row)
    to_floats(format_, first + size_t{row} * stride, width, scratch_.data() + size_t{row} * width);
  return {scratch_.data(), width};
}

result<number_format> parse_kv_format(std::string_view dtype) {
  if (dtype == "fp32")
    return number_format::f32;
  if (dtype == "fp16")
    return number_format::f16;
  if (dtype == "bf16")
    return number_format::bf16;
  return fail(ec::invalid_argument, "--dtype: \"" + std::string{dtype}
                                      + "\" is no format that this engine computes with; expected "
                                        "fp32, fp16 or bf16");
}

} // namespace llama
