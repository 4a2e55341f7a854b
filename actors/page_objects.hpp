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

/// Which of several ranks with identical pages writes a page (`writer_of`).
struct page_writers {
  /// This rank's index among those.
  uint32_t rank = 0;
  /// Number of ranks that share the writes; 1: this rank writes all of its pages.
  uint32_t ranks = 1;
};

/// Maps a rank's pages to store objects: their names and their pieces of L2. A page has one object
/// per head group. Immutable and shared by batches, which build their lists on the store's thread,
/// so no actor does work proportional to the number of objects.
class page_objects : public std::enable_shared_from_this<page_objects> {
public:
  /// @param fingerprint Model and geometry; pages with different fingerprints are different pages.
  /// @param groups Together all heads of this rank.
  /// @param memory L2, laid out by `geometry`. Must outlive all batches.
  /// @param exported Revokes pages of L2 before they are read into; null if none are exported.
  page_objects(const std::string& fingerprint, std::vector<head_group> groups,
               const pool_geometry& geometry, std::byte* memory, page_writers writers,
               std::shared_ptr<exported_pages> exported);

  /// Objects per page.
  size_t per_page() const noexcept { return masks_.size(); }

  /// Whether this rank writes each page of a batch.
  std::vector<bool> writes(const storage_batch& batch) const;

  /// The object names of a batch, ordered by page, as are all lists here.
  store_batch<page_key> names(const storage_batch& batch) const;

  store_batch<page_read> reads(const storage_batch& batch) const;

  /// Sets the batch's marks as pages arrive; empty if the batch has none.
  storage_backend::read_progress progress(const storage_batch& batch) const;

  /// The pages of a batch that this rank writes.
  /// @param count Number of those pages.
  store_batch<page_write> own_writes(const storage_batch& batch, size_t count) const;

private:
  template <class Byte>
  std::vector<std::span<Byte>> parts_of(page_index page, size_t group) const;

  const std::vector<head_group> groups_;
  /// By group.
  std::vector<page_key> masks_;
  const pool_geometry geometry_;
  std::byte* const memory_;
  const page_writers writers_;
  const std::shared_ptr<exported_pages> exported_;
};

} // namespace hicache
