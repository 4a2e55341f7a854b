#pragma once

#include "backends/cluster/exported_pages.hpp"
#include "hicache/geometry.hpp"
#include "hicache/storage_backend.hpp"
#include "messages/storage_batch.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace hicache {

/// Who writes a page that several ranks hold alike (`writer_of`).
struct page_writers {
  /// This rank, counted among those.
  uint32_t rank = 0;
  /// Ranks that share the writing; 1: this rank writes all of its pages.
  uint32_t ranks = 1;
};

/// The objects of a rank's pages: their names, and the pieces of L2 that hold them. A page has one
/// object for each head group. Immutable: batches share it and make their lists on the thread of
/// the store, so that no actor does work that grows with objects.
class page_objects : public std::enable_shared_from_this<page_objects> {
public:
  /// @param fingerprint Model and geometry; pages with another fingerprint are other pages.
  /// @param groups Together all heads of this rank.
  /// @param memory L2, laid out by `geometry`. Must outlive all batches.
  /// @param exported Takes pages of L2 back before they are read into; null if none are exported.
  page_objects(const std::string& fingerprint, std::vector<head_group> groups,
               const pool_geometry& geometry, std::byte* memory, page_writers writers,
               std::shared_ptr<exported_pages> exported);

  /// Objects of a page.
  size_t per_page() const noexcept { return masks_.size(); }

  /// Whether this rank writes a page.
  bool writes(const page_key& page) const;

  /// The names of a batch, page by page, as are all lists here.
  store_batch<page_key> names(const storage_batch& batch) const;

  store_batch<page_read> reads(const storage_batch& batch) const;

  /// Marks what a read reports early; empty if the batch has no marks.
  storage_backend::read_progress progress(const storage_batch& batch) const;

  /// Those pages of a batch that this rank writes.
  /// @param count How many they are.
  store_batch<page_write> own_writes(const storage_batch& batch, size_t count) const;

private:
  template <class Byte>
  std::vector<std::span<Byte>> parts_of(page_index page, size_t group) const;

  const std::vector<head_group> groups_;
  /// Of each group.
  std::vector<page_key> masks_;
  const pool_geometry geometry_;
  std::byte* const memory_;
  const page_writers writers_;
  const std::shared_ptr<exported_pages> exported_;
};

} // namespace hicache
