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

/// Pages of L2 that others may read where they lie, and the headers by which they do. A header
/// stands only while the bytes are those of its page: whoever is going to write to a page of L2
/// takes it back first. Each exporting has a generation of its own, so one that is taken back
/// before it is finished never becomes visible. Any thread.
class exported_pages {
public:
  /// Hears of pages that were taken back after they were visible, on the thread of whoever did.
  /// Must not call back.
  using notice = std::function<void(segment_slots)>;

  /// @param memory The member's memory, zeroed where the headers are. Not owned; must outlive this.
  /// @param objects Where headers and objects lie in it.
  /// @param objects_per_page Objects of a page of L2 have consecutive numbers, from page 0 on.
  /// @pre the memory holds headers and objects
  exported_pages(std::span<std::byte> memory, const exported_objects& objects,
                 uint64_t objects_per_page);

  const exported_objects& objects() const noexcept { return objects_; }

  /// From now on pages can be exported.
  /// @pre closed, as at first
  void open(notice reclaimed);

  /// Takes all pages back, without a notice; none can be exported any more.
  void close();

  /// Lends the object that consists of these parts: begin, a pass over the object for its checksum,
  /// and finish.
  /// @pre until this returns, nobody writes to the object without taking it back first
  /// @returns the slot (state exported); nothing if the parts are not one whole object, if pages
  /// cannot be exported now, or if it was taken back meanwhile
  std::optional<segment_slot> export_page(std::span<const std::span<const std::byte>> parts,
                                          const page_key& key, uint64_t fingerprint);

  /// The first step of exporting an object: it has a slot, and no header yet. What was exported
  /// there is taken back.
  /// @pre the object exists
  /// @returns nothing if pages cannot be exported now
  std::optional<segment_slot> begin(uint64_t object, const page_key& key);

  /// The last step: writes the header.
  /// @param checksum Of the object's bytes, as they are since begin().
  /// @returns false, and does nothing, if the object was taken back meanwhile
  bool finish(const segment_slot& slot, uint64_t fingerprint, uint64_t checksum);

  /// Whether a slot is still what was exported.
  bool is_exported(const segment_slot& slot) const;

  /// Whether a page is exported and not what was written. Holds up whoever takes pages back
  /// meanwhile.
  bool is_damaged(const segment_slot& slot, uint64_t fingerprint) const;

  /// The number of the object that these parts are; nothing if they are not one whole object.
  std::optional<uint64_t>
  find_object(std::span<const std::span<const std::byte>> parts) const noexcept;

  /// Where an object's header is, in bytes from the start of the memory.
  uint64_t header_of(uint64_t object) const noexcept;

  /// Takes a page back, without a notice; nothing if the slot is not exported any more.
  void revoke(const segment_slot& slot);

  /// Takes pages of L2 back because they are going to be written to: when this returns, readers
  /// find no header there any more, and a exporting that is under way fails.
  void reclaim(std::span<const page_index> pages);

private:
  struct entry {
    page_key key;
    /// 0: not exported.
    uint32_t generation = 0;
    bool has_header = false;
  };

  /// The object of a slot, if the slot stands.
  std::optional<uint64_t> standing(const segment_slot& slot) const;

  /// Ends the exporting of an object, if there is any. @returns what readers saw
  std::optional<segment_slot> drop(uint64_t object);

  segment_slot describe(uint64_t object) const;

  const std::span<std::byte> memory_;
  const exported_objects objects_;
  const uint64_t objects_per_page_;
  mutable std::mutex mutex_; // Guards what follows, and the headers.
  notice reclaimed_;
  /// By number.
  std::vector<entry> entries_;
  uint32_t last_generation_ = 0;
};

} // namespace hicache
