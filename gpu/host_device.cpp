#include "gpu/host_device.hpp"

#include "base/check.hpp"
#include "gpu/copy_plan.hpp"
#include "gpu/host_memory.hpp"

#include <cstring>
#include <utility>
#include <vector>

namespace hicache {

namespace {

void copy_rows(std::byte* to, uint64_t to_stride, const std::byte* from, uint64_t from_stride,
               const row_copy& copy) {
  for (auto row = uint64_t{0}; row < copy.rows; ++row)
    std::memcpy(to + row * to_stride, from + row * from_stride, copy.row_bytes);
}

class host_mover final : public page_mover {
public:
  host_mover(const pool_geometry& l1, std::byte* l1_data, const pool_geometry& l2,
             std::byte* l2_data)
    : l1_(l1), l2_(l2), l1_data_(l1_data), l2_data_(l2_data) {}

  result<void> store(std::span<const page_index> device_pages,
                     std::span<const page_index> host_pages) override {
    auto copies = std::vector<row_copy>{};
    for (auto layer = uint32_t{0}; layer < l1_.shape().layers; ++layer) {
      plan_layer_copy(l1_, l2_, layer, device_pages, host_pages, copies);
      for (const auto& copy : copies)
        copy_rows(l2_data_ + copy.host_offset, copy.host_stride, l1_data_ + copy.device_offset,
                  copy.device_stride, copy);
    }
    return {};
  }

  result<void> load(std::span<const page_index> host_pages,
                    std::span<const page_index> device_pages,
                    const layer_callback& arrived) override {
    auto copies = std::vector<row_copy>{};
    for (auto layer = uint32_t{0}; layer < l1_.shape().layers; ++layer) {
      plan_layer_copy(l1_, l2_, layer, device_pages, host_pages, copies);
      for (const auto& copy : copies)
        copy_rows(l1_data_ + copy.device_offset, copy.device_stride, l2_data_ + copy.host_offset,
                  copy.host_stride, copy);
      arrived(layer + 1);
    }
    return {};
  }

private:
  pool_geometry l1_;
  pool_geometry l2_;
  std::byte* l1_data_;
  std::byte* l2_data_;
};

class host_device final : public device {
public:
  explicit host_device(copy_threads threads) : threads_(threads) {}

  std::string name() const override { return "host memory"; }

  bool host_addressable() const noexcept override { return true; }

  result<std::unique_ptr<device_memory>> allocate(uint64_t bytes) override {
    return allocate_host_memory(bytes);
  }

  result<std::unique_ptr<device_memory>> allocate_host(uint64_t bytes) override {
    return allocate_host_memory(bytes);
  }

  result<std::unique_ptr<copy_engine>> make_copy_engine(const pool_geometry& l1,
                                                        device_memory& l1_memory,
                                                        const pool_geometry& l2,
                                                        device_memory& l2_memory) override {
    HICACHE_CHECK(l1.total_bytes() <= l1_memory.size() && l2.total_bytes() <= l2_memory.size());
    return make_queued_copy_engine(
      l1, l2, make_host_mover(l1, l1_memory.data(), l2, l2_memory.data()), threads_);
  }

private:
  copy_threads threads_;
};

} // namespace

std::unique_ptr<device> make_host_device(copy_threads threads) {
  return std::make_unique<host_device>(threads);
}

std::unique_ptr<page_mover> make_host_mover(const pool_geometry& l1, std::byte* l1_data,
                                            const pool_geometry& l2, std::byte* l2_data) {
  return std::make_unique<host_mover>(l1, l1_data, l2, l2_data);
}

} // namespace hicache
