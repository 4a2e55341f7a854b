#include "gpu/mover_proof.hpp"

#include "base/check.hpp"
#include "base/try.hpp"
#include "cache/copy_strips.hpp"
#include "gpu/copy_piece.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace hicache {

namespace {

/// Reference copy on the CPU, piece by piece. The strips hold CPU addresses on both sides.
void copy_on_cpu(std::span<const copy_strip> strips, copy_direction direction,
                 std::span<const page_index> l1_pages, std::span<const page_index> l2_pages) {
  for (const auto& strip : strips)
    for (auto i = uint64_t{0}; i < piece_count(strip, l1_pages.size()); ++i) {
      const auto piece = find_piece(strip, l1_pages.data(), l2_pages.data(), i);
      auto* const device = reinterpret_cast<void*>(piece.device_address);
      auto* const host = reinterpret_cast<void*>(piece.host_address);
      std::memcpy(direction == copy_direction::store ? host : device,
                  direction == copy_direction::store ? device : host, piece.bytes);
    }
}

/// Runs one submission to completion.
result<void> run(page_mover& mover, copy_direction direction, uint32_t layers,
                 std::span<const page_index> l1_pages, std::span<const page_index> l2_pages) {
  auto done = mover.begin(direction, 0, l1_pages, l2_pages);
  for (auto layer = direction == copy_direction::store ? layers - 1 : 0; done && layer < layers;
       ++layer)
    done = mover.finish_layer(direction, 0, layer);
  return done;
}

std::vector<std::byte> random_image(uint64_t bytes, std::mt19937_64& random) {
  auto image = std::vector<std::byte>(bytes);
  std::ranges::generate(image, [&] { return static_cast<std::byte>(random()); });
  return image;
}

} // namespace

result<void> prove_mover(page_mover& mover, const pool_geometry& l1_pool, device_memory& l1_memory,
                         const pool_geometry& l2_pool, device_memory& l2_memory) {
  HICACHE_CHECK(l1_pool.pages() > 3 && l2_pool.pages() > 3);
  auto random = std::mt19937_64{1};
  auto l1_image = random_image(l1_pool.total_bytes(), random);
  auto l2_image = random_image(l2_pool.total_bytes(), random);
  const auto strips
    = make_copy_strips(device_layers::of(l1_pool, reinterpret_cast<uint64_t>(l1_image.data())),
                       l2_pool, reinterpret_cast<uint64_t>(l2_image.data()));
  HICACHE_TRY(l1_memory.write(0, l1_image));
  HICACHE_TRY(l2_memory.write(0, l2_image));
  // The load writes to other pages than the store read.
  constexpr auto l2_pages = std::array<page_index, 3>{3, 1, 2};
  for (const auto& [direction, l1_pages] :
       {std::pair{copy_direction::store, std::array<page_index, 3>{1, 2, 3}},
        std::pair{copy_direction::load, std::array<page_index, 3>{2, 3, 1}}}) {
    HICACHE_TRY(run(mover, direction, l1_pool.shape().layers, l1_pages, l2_pages));
    copy_on_cpu(strips, direction, l1_pages, l2_pages);
    auto l1_bytes = std::vector<std::byte>(l1_image.size());
    auto l2_bytes = std::vector<std::byte>(l2_image.size());
    HICACHE_TRY(l1_memory.read(0, l1_bytes));
    HICACHE_TRY(l2_memory.read(0, l2_bytes));
    if (l1_bytes != l1_image || l2_bytes != l2_image)
      return fail(ec::copy_failed, std::string{"a "}
                                     + (direction == copy_direction::store ? "store" : "load")
                                     + " of three pages left other bytes than it should");
  }
  return {};
}

} // namespace hicache
