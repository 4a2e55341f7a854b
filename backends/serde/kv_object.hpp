#pragma once

#include "backends/serde/fp8.hpp"
#include "hicache/error.hpp"
#include "hicache/geometry.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace hicache::serde {

/// What the bytes of a store's objects are: some heads of a page, in object order
/// (pool_geometry::object_runs).
struct kv_object_shape {
  /// Heads of the rank, of which an object has `heads`.
  pool_shape shape;
  host_layout layout = host_layout::page_head;
  /// Heads per object; 1 where attention has no heads.
  uint32_t heads = 1;
  element_type element = element_type::bf16;

  friend bool operator==(const kv_object_shape&, const kv_object_shape&) = default;
};

/// Converts objects of one shape between their elements and E4M3. Each head has a scale of its own
/// in each layer of K and of V (or of the latent). The index keys of NSA, which are fp8 already,
/// are kept. Output: the scales, one byte each, ordered by part, layer and head; then one byte per
/// element, or per byte of an index key, in object order. Immutable; any thread.
class fp8_object {
public:
  /// @returns invalid_argument if the elements of `shape` are not of the given type, or its heads
  /// cannot be divided into objects.
  static result<fp8_object> make(const kv_object_shape& shape);

  /// Bytes of an object before and after.
  uint64_t original_bytes() const noexcept { return original_bytes_; }
  uint64_t fp8_bytes() const noexcept { return fp8_bytes_; }

  element_type element() const noexcept { return shape_.element; }

  /// @pre the spans have original_bytes() and fp8_bytes()
  void quantise(std::span<const std::byte> object, std::span<std::byte> target) const;

  /// @pre the spans have fp8_bytes() and original_bytes(); `values` is for element()
  /// @returns corrupt_page if a scale is none
  result<void> dequantise(std::span<const std::byte> source, std::span<std::byte> object,
                          dequantiser& values) const;

private:
  explicit fp8_object(const kv_object_shape& shape);

  /// Elements of one head, part and layer that lie one behind the other, or bytes to be kept.
  struct strip {
    size_t scale = 0;
    size_t elements = 0;
    size_t kept_bytes = 0;
  };

  /// Calls with each strip, in object order.
  template <class Visit>
  void visit(Visit call) const;

  template <class Visit>
  void visit_rows(Visit call, size_t part, uint32_t layer, uint32_t head, size_t tokens) const;

  kv_object_shape shape_;
  /// By part: elements of one head of a token; 0 for index keys.
  std::vector<size_t> head_elements_;
  size_t scales_ = 0;
  uint64_t original_bytes_ = 0;
  uint64_t fp8_bytes_ = 0;
};

} // namespace hicache::serde
