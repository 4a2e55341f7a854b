#pragma once

#include "actors/storage.hpp"
#include "backends/storage_queue.hpp"
#include "tests/actors/fakes.hpp"

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

/// Storage actors with an L2 of their own, in front of any store.
namespace hicache::test {

inline constexpr auto shape = pool_shape{attention_kind::mha, 2, 2, 4, 4, 2, 4};
inline constexpr auto latent = pool_shape{attention_kind::mla, 2, 1, 12, 0, 2, 4};
inline constexpr auto plenty = caf::timespan{std::chrono::seconds{5}};
inline constexpr auto pool_size = uint32_t{16};

inline constexpr auto all_layouts = {host_layout::layer_first, host_layout::page_first,
                                     host_layout::page_first_direct, host_layout::page_head};

/// What a storage actor is started with.
struct rank_options {
  host_layout layout = host_layout::page_first;
  /// Which heads the rank holds: the `number`th part of as many as the shape has.
  uint32_t number = 0;
  uint32_t heads_per_object = 2;
  std::string fingerprint = "model=m";
  pool_shape shape = test::shape;
  page_writers writers = {};
  uint32_t pages = pool_size;
};

/// A storage actor with an L2 of its own.
struct storage_rank {
  explicit storage_rank(const rank_options& options)
    : number(options.number), geometry(options.shape, options.layout, options.pages) {
    memory.resize(geometry.total_bytes());
  }

  void fill(page_index page, uint8_t value) {
    for (const auto& run : geometry.object_runs(page, geometry.all_heads()))
      std::fill_n(memory.begin() + static_cast<ptrdiff_t>(run.offset), run.length,
                  std::byte{value});
  }

  bool holds(page_index page, uint8_t value) const {
    for (const auto& run : geometry.object_runs(page, geometry.all_heads()))
      for (auto i = uint64_t{0}; i < run.length; ++i)
        if (memory[run.offset + i] != std::byte{value})
          return false;
    return true;
  }

  /// Gives every byte of a page a value that follows from what it is, heads counted over the model.
  void fill_by_head(page_index page, uint64_t seed) {
    visit_by_head(page, seed, [](std::byte& byte, std::byte value) { byte = value; });
  }

  bool holds_by_head(page_index page, uint64_t seed) {
    auto equal = true;
    visit_by_head(page, seed,
                  [&](std::byte& byte, std::byte value) { equal = equal && byte == value; });
    return equal;
  }

  uint32_t number;
  pool_geometry geometry;
  std::vector<std::byte> memory;
  storage_actor actor;

private:
  template <class Visit>
  void visit_by_head(page_index page, uint64_t seed, Visit visit) {
    const auto heads = geometry.shape().kv_heads;
    for (const auto part : geometry.parts())
      for (auto layer = uint32_t{0}; layer < geometry.shape().layers; ++layer)
        for (auto head = uint32_t{0}; head < heads; ++head) {
          const auto in_columns = geometry.columns(part) > 1;
          const auto rows = geometry.rows(layer, part, page, in_columns ? head : 0);
          const auto bytes = geometry.row_bytes(part) / heads;
          for (auto token = uint64_t{0}; token < rows.rows; ++token)
            for (auto i = uint64_t{0}; i < bytes; ++i) {
              auto word = seed;
              for (const auto x : {static_cast<uint64_t>(part), uint64_t{layer},
                                   uint64_t{number} * heads + head, token, i})
                word = (word ^ x) * 6364136223846793005u + 1442695040888963407u;
              visit(memory[rows.offset + token * rows.stride + (in_columns ? 0 : head * bytes) + i],
                    static_cast<std::byte>(word >> 56));
            }
        }
  }
};

/// What a rank has of its pages.
inline std::shared_ptr<const page_objects>
objects_of(storage_rank& rank, const rank_options& options,
           std::shared_ptr<exported_pages> exported = {}) {
  return std::make_shared<const page_objects>(
    options.fingerprint, rank.geometry.head_groups(options.number, options.heads_per_object),
    rank.geometry, rank.memory.data(), options.writers, std::move(exported));
}

/// Any number of ranks, in front of one store unless the test gives them others.
class StorageTest : public actor_test {
protected:
  ~StorageTest() override { stop_all(); }

  storage_rank& start(const rank_options& options = {}) { return start(options, store_.open()); }

  storage_rank& start(const rank_options& options, std::unique_ptr<blocking_store> store) {
    auto& rank = ranks_.emplace_back(options);
    rank.actor = spawn(storage, storage_options{objects_of(rank, options), &clock, {}, breaker_},
                       std::make_unique<storage_queue>(std::move(store), 0));
    return rank;
  }

  /// Pages `first`... of ten keys, from or to L2 pages 1, 2, ...
  static storage_batch batch(uint64_t first, uint64_t count) {
    return {names_of(1, 10), first, count, page_run(1, 10), first};
  }

  std::vector<ec> set(storage_rank& rank, storage_batch x, caf::timespan timeout = plenty) {
    return ask_value<storage_outcome>(rank.actor, atom::set_v, x, timeout).pages;
  }

  std::vector<ec> get(storage_rank& rank, storage_batch x, caf::timespan timeout = plenty) {
    return ask_value<storage_outcome>(rank.actor, atom::get_v, x, timeout).pages;
  }

  uint64_t exists(storage_rank& rank, storage_batch x, caf::timespan timeout = plenty) {
    return ask_value<storage_hit>(rank.actor, atom::exists_v, x, timeout).pages;
  }

  shared_store store_{clock};
  std::deque<storage_rank> ranks_;
  /// Set before start().
  breaker_policy breaker_;
};

inline bool all_well(const std::vector<ec>& codes) {
  return std::all_of(codes.begin(), codes.end(), [](ec code) { return code == ec::none; });
}

} // namespace hicache::test
