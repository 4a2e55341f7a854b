#include "gpu/copy_plan.hpp"

#include "base/check.hpp"

namespace hicache {

namespace {

row_copy make_copy(const strided_run& device, const strided_run& host) {
  auto copy
    = row_copy{device.offset, device.stride, host.offset, host.stride, host.row_bytes, host.rows};
  if (device.stride == device.row_bytes && host.stride == host.row_bytes) {
    const auto bytes = host.row_bytes * host.rows;
    copy = {device.offset, bytes, host.offset, bytes, bytes, 1};
  }
  return copy;
}

/// Whether `next` starts where `last` ends, on both sides, so that they are one piece.
bool continues(const row_copy& last, const row_copy& next) {
  return last.rows == 1 && next.rows == 1
         && next.device_offset == last.device_offset + last.row_bytes
         && next.host_offset == last.host_offset + last.row_bytes;
}

} // namespace

void plan_layer_copy(const pool_geometry& l1, const pool_geometry& l2, uint32_t layer,
                     std::span<const page_index> device_pages,
                     std::span<const page_index> host_pages, std::vector<row_copy>& copies) {
  HICACHE_CHECK(device_pages.size() == host_pages.size());
  copies.clear();
  for (const auto half : {kv_half::key, kv_half::value})
    for (auto i = size_t{0}; i < device_pages.size(); ++i) {
      const auto next
        = make_copy(l1.rows(layer, half, device_pages[i]), l2.rows(layer, half, host_pages[i]));
      if (copies.empty() || !continues(copies.back(), next)) {
        copies.push_back(next);
        continue;
      }
      auto& last = copies.back();
      last.row_bytes += next.row_bytes;
      last.device_stride = last.host_stride = last.row_bytes;
    }
}

} // namespace hicache
