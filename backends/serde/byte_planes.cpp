#include "backends/serde/byte_planes.hpp"

#include "base/check.hpp"

namespace hicache::serde {

namespace {

/// With the distance known, the compiler moves many bytes at once.
template <size_t Planes>
void take(const std::byte* source, std::span<std::byte> target) noexcept {
  for (auto i = size_t{0}; i < target.size(); ++i)
    target[i] = source[i * Planes];
}

template <size_t Planes>
void put(std::span<const std::byte> source, std::byte* target) noexcept {
  for (auto i = size_t{0}; i < source.size(); ++i)
    target[i * Planes] = source[i];
}

} // namespace

void take_plane(std::span<const std::byte> source, size_t planes, size_t plane,
                std::span<std::byte> target) noexcept {
  HICACHE_CHECK((planes == 2 || planes == 4) && plane < planes);
  HICACHE_CHECK(source.size() == planes * target.size());
  planes == 2 ? take<2>(source.data() + plane, target) : take<4>(source.data() + plane, target);
}

void put_plane(std::span<const std::byte> source, size_t planes, size_t plane,
               std::span<std::byte> target) noexcept {
  HICACHE_CHECK((planes == 2 || planes == 4) && plane < planes);
  HICACHE_CHECK(target.size() == planes * source.size());
  planes == 2 ? put<2>(source, target.data() + plane) : put<4>(source, target.data() + plane);
}

} // namespace hicache::serde
