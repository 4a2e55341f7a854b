#pragma once

#include "hicache/ids.hpp"
#include "messages/type_ids.hpp"

#include <caf/allowed_unsafe_message_type.hpp>
#include <caf/replies_to.hpp>
#include <caf/typed_actor.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

/// Bytes of pages on their way between a node and its clients on other machines. Actors pass on
/// pointers to them alone.
namespace hicache {

/// Bytes of a page that is reserved.
struct page_piece {
  page_key key;
  uint32_t offset = 0;
  uint32_t length = 0;

  friend bool operator==(const page_piece&, const page_piece&) = default;
};

/// What a client writes: each page from its first byte to its last. At most limits::transfer_ranges
/// pieces and limits::transfer_bytes.
struct page_upload {
  uint64_t reservation = 0;
  std::vector<page_piece> pieces;
  /// Of the pieces, one after the other.
  std::vector<std::byte> bytes;
};

/// Bytes of a page, at the place where it is leased.
struct page_range {
  page_key key;
  /// As in page_place.
  uint64_t place = 0;
  uint32_t generation = 0;
  uint32_t offset = 0;
  uint32_t length = 0;

  friend bool operator==(const page_range&, const page_range&) = default;
};

/// Bounded as page_upload is.
using page_ranges = std::vector<page_range>;

/// What a reader finds at a place. The numbers travel.
enum class range_status : uint8_t {
  /// The page was removed.
  gone = 0,
  there = 1,
  /// Something else is there: the header is damaged.
  damaged = 2,
};

/// What stands in front of the page of a range.
struct range_origin {
  range_status status = range_status::gone;
  uint64_t fingerprint = 0;
  /// page_checksum of the whole object.
  uint64_t checksum = 0;

  friend bool operator==(const range_origin&, const range_origin&) = default;
};

/// Answer to page_ranges.
struct page_download {
  std::vector<range_origin> origins;
  /// Of the ranges, one after the other; of those that are not `there` anything.
  std::vector<std::byte> bytes;
};

using page_upload_ptr = std::shared_ptr<const page_upload>;
using page_ranges_ptr = std::shared_ptr<const page_ranges>;
using page_download_ptr = std::shared_ptr<const page_download>;

/// What the stand-in of a node on another machine takes beside the messages of a node_actor. See
/// page_exchange for what the node makes of it.
using page_carrier_actor = caf::typed_actor<
  // Writes to pages that are reserved.
  caf::replies_to<atom::set, page_upload_ptr>::with<atom::ok>,
  // Reads pages that are leased.
  caf::replies_to<atom::get, page_ranges_ptr>::with<page_download_ptr>>;

} // namespace hicache

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hicache::page_upload_ptr)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hicache::page_ranges_ptr)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hicache::page_download_ptr)
