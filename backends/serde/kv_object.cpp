#include "backends/serde/kv_object.hpp"

#include "base/check.hpp"

#include <algorithm>
#include <string>

namespace hicache::serde {

template <class Visit>
void fp8_object::visit_rows(Visit call, size_t part, uint32_t layer, uint32_t head,
                            size_t tokens) const {
  if (head_elements_[part] == 0)
    call(strip{0, 0, tokens * shape_.shape.index_key_bytes});
  else
    call(strip{(part * shape_.shape.layers + layer) * shape_.heads + head,
               tokens * head_elements_[part], 0});
}

template <class Visit>
void fp8_object::visit(Visit call) const {
  const auto parts = head_elements_.size();
  const auto layers = shape_.shape.layers;
  const auto tokens = shape_.shape.page_size;
  if (shape_.layout == host_layout::page_head) {
    for (auto head = uint32_t{0}; head < shape_.heads; ++head)
      for (auto part = size_t{0}; part < parts; ++part)
        for (auto layer = uint32_t{0}; layer < layers; ++layer)
          visit_rows(call, part, layer, head, tokens);
    return;
  }
  if (shape_.layout == host_layout::page_first) {
    for (auto part = size_t{0}; part < parts; ++part)
      for (auto token = uint32_t{0}; token < tokens; ++token)
        for (auto layer = uint32_t{0}; layer < layers; ++layer)
          for (auto head = uint32_t{0}; head < shape_.heads; ++head)
            visit_rows(call, part, layer, head, 1);
    return;
  }
  // The rows of a single head lie one behind the other.
  const auto rows = shape_.heads == 1 ? tokens : 1;
  for (auto part = size_t{0}; part < parts; ++part)
    for (auto layer = uint32_t{0}; layer < layers; ++layer)
      for (auto token = uint32_t{0}; token < tokens; token += rows)
        for (auto head = uint32_t{0}; head < shape_.heads; ++head)
          visit_rows(call, part, layer, head, rows);
}

result<fp8_object> fp8_object::make(const kv_object_shape& shape) {
  if (shape.shape.element_bytes != width_of(shape.element))
    return fail(ec::invalid_argument,
                "fp8 needs elements of " + std::to_string(width_of(shape.element))
                  + " bytes; those of the pool have " + std::to_string(shape.shape.element_bytes));
  if (shape.heads == 0 || shape.shape.kv_heads % shape.heads != 0)
    return fail(ec::invalid_argument, "objects of " + std::to_string(shape.heads)
                                        + " heads cannot hold the rank's "
                                        + std::to_string(shape.shape.kv_heads));
  return fp8_object{shape};
}

fp8_object::fp8_object(const kv_object_shape& shape) : shape_(shape) {
  const auto geometry = pool_geometry{shape.shape, shape.layout, 1};
  for (const auto part : geometry.parts()) {
    const auto row = geometry.row_bytes(part);
    const auto is_kept = part == kv_part::index_key;
    head_elements_.push_back(is_kept ? 0 : row / shape.shape.kv_heads / width_of(shape.element));
    scales_ += is_kept ? 0 : size_t{shape.shape.layers} * shape.heads;
  }
  original_bytes_ = geometry.object_bytes(shape.heads);
  fp8_bytes_ = scales_;
  visit([&](const strip& each) { fp8_bytes_ += each.elements + each.kept_bytes; });
}

void fp8_object::quantise(std::span<const std::byte> object, std::span<std::byte> target) const {
  HICACHE_CHECK(object.size() == original_bytes_ && target.size() == fp8_bytes_);
  const auto width = width_of(shape_.element);
  auto largest = std::vector<float>(scales_, 0.0F);
  auto at = size_t{0};
  visit([&](const strip& each) {
    if (each.elements != 0) {
      const auto found = largest_of(shape_.element, object.subspan(at, each.elements * width));
      largest[each.scale] = std::max(largest[each.scale], found);
    }
    at += each.elements * width + each.kept_bytes;
  });
  std::ranges::transform(largest, target.begin(),
                         [](float x) { return static_cast<std::byte>(scale_for(x)); });
  const auto* source = object.data();
  auto* end = target.data() + scales_;
  visit([&](const strip& each) {
    if (each.elements != 0)
      serde::quantise(shape_.element, std::to_integer<uint8_t>(target[each.scale]),
                      {source, each.elements * width}, end);
    else
      std::copy_n(source, each.kept_bytes, end);
    source += each.elements * width + each.kept_bytes;
    end += each.elements + each.kept_bytes;
  });
}

result<void> fp8_object::dequantise(std::span<const std::byte> source, std::span<std::byte> object,
                                    dequantiser& values) const {
  HICACHE_CHECK(source.size() == fp8_bytes_ && object.size() == original_bytes_);
  const auto scales = source.first(scales_);
  if (std::ranges::find(scales, std::byte{not_a_scale}) != scales.end())
    return fail(ec::corrupt_page, "an fp8 object has a scale that is not a number");
  const auto width = width_of(shape_.element);
  const auto* codes = source.data() + scales_;
  auto* end = object.data();
  visit([&](const strip& each) {
    if (each.elements != 0)
      values.dequantise(std::to_integer<uint8_t>(scales[each.scale]), {codes, each.elements}, end);
    else
      std::copy_n(codes, each.kept_bytes, end);
    codes += each.elements + each.kept_bytes;
    end += each.elements * width + each.kept_bytes;
  });
  return {};
}

} // namespace hicache::serde
