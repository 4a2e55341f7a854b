#pragma once

#include "hicache/ids.hpp"
#include "messages/index_protocol.hpp"
#include "messages/segment_pages.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

namespace hicache {

/// Pages of L2 that other members may read in place, and their headers. A header exists only while
/// the bytes are those of its page: a page of L2 must be reclaimed before it is written. Each
/// export has its own generation, so one revoked before finish() never becomes visible. Any thread.
class exported_pages {
public:
  /// Called with visible pages that were revoked, on the revoking thread. Must not call back.
  using notice = std::function<void(segment_slots)>;

  /// @param memory The member's memory, zeroed where the headers are. Not owned; must outlive this.
  /// @param objects Positions of headers and objects in it.
  /// @param objects_per_page Objects of a page of L2 have consecutive numbers, from page 0 on.
  /// @pre the memory holds headers and objects
  exported_pages(std::span<std::byte> memory, const exported_objects& objects,
                 uint64_t objects_per_page);

  const exported_objects& objects() const noexcept { return objects_; }

  /// Allows exports from now on.
  /// @pre closed, as initially
  void open(notice reclaimed);

  /// Revokes all pages, without a notice, and allows no further exports.
  void close();

  /// Exports the object of these parts: begin(), a checksum pass over the object, and finish().
  /// @pre until this returns, any writer of the object calls reclaim() first
  /// @returns the slot (state exported); empty if the parts are not one whole object, if exports
  /// are closed, or if it was revoked meanwhile
  std::optional<segment_slot> export_page(std::span<const std::span<const std::byte>> parts,
                                          const page_key& key, uint64_t fingerprint);

  /// Starts an export: assigns a slot, still without a header. Revokes a previous export.
  /// @pre the object exists
  /// @returns empty if exports are closed
  std::optional<segment_slot> begin(uint64_t object, const page_key& key);

  /// Finishes an export by writing the header.
  /// @param checksum Of the object's bytes, unchanged since begin().
  /// @returns false, without effect, if the object was revoked meanwhile
  bool finish(const segment_slot& slot, uint64_t fingerprint, uint64_t checksum);

  /// Whether the slot is still exported and visible.
  bool is_exported(const segment_slot& slot) const;

  /// Whether this object is exported as this page and visible.
  bool is_exported(uint64_t object, const page_key& key) const;

  /// Whether an exported page differs from what was written. Blocks concurrent revocations.
  bool is_damaged(const segment_slot& slot, uint64_t fingerprint) const;

  /// The number of the object that these parts are; empty if they are not one whole object.
  std::optional<uint64_t>
  find_object(std::span<const std::span<const std::byte>> parts) const noexcept;

  /// Offset of an object's header in the memory.
  uint64_t header_of(uint64_t object) const noexcept;

  /// Revokes a page, without a notice; no effect if the slot is no longer exported.
  void revoke(const segment_slot& slot);

  /// Revokes the exports of pages of L2 before they are written: when this returns, readers find no
  /// header there, and unfinished exports fail.
  void reclaim(std::span<const page_index> pages);

private:
  struct entry {
    page_key key;
    /// 0: not exported.
    uint32_t generation = 0;
    bool has_header = false;
  };

  /// The object of a slot, if the slot is still valid.
  std::optional<uint64_t> standing(const segment_slot& slot) const;

  /// Ends the export of an object, if any.
  /// @returns the slot if it was visible to readers
  std::optional<segment_slot> drop(uint64_t object);

  segment_slot describe(uint64_t object) const;

  const std::span<std::byte> memory_;
  const exported_objects objects_;
  const uint64_t objects_per_page_;
  mutable std::mutex mutex_; // Guards the following members and the headers.
  notice reclaimed_;
  /// By object number.
  std::vector<entry> entries_;
  uint32_t last_generation_ = 0;
};

} // namespace hicache
